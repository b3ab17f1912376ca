"""Random schedules: whatever the order of operations, the dense model would have said the same."""

import numpy as np
from decoder_world import CONFIG, MAX_CONTEXT, N_TOKENS, occupy, rollout_id, turn
from hypothesis import given, settings
from hypothesis import strategies as st

from tiderl_jax.core.errors import EngineFault
from tiderl_jax.core.ids import PolicyVersion

N_MEMBERS = 3
rollouts = st.tuples(st.integers(0, 1), st.integers(0, N_MEMBERS - 1))  # (group, member)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), rollouts, st.integers(1, 5), st.sampled_from([0.0, 0.8])),
        st.tuples(st.just("turn"), rollouts, st.integers(1, 5), st.sampled_from([0.0, 0.8])),
        st.tuples(st.just("step")),
        st.tuples(st.just("step")),
        st.tuples(st.just("release"), rollouts),
        st.tuples(st.just("cancel"), rollouts),
        st.tuples(st.just("publish")),
    ),
    min_size=8,
    max_size=40,
)


class Player:
    """Carries out operations, and remembers what each rollout has seen."""

    def __init__(self, world, policy: str):
        self.world, self.policy = world, policy
        self.engine = world.engine(kv_after_update=policy)
        occupy(self.engine, 8)
        self.version = 0
        self.context: dict = {}
        self.running: dict = {}

    def turn(self, who: tuple[int, int], n_tokens: int, temperature: float) -> None:
        rollout = rollout_id(who[1], who[0])
        prompt = np.random.default_rng(who[0]).integers(0, N_TOKENS, 10)
        context = self.context.get(rollout, prompt)
        if rollout in self.running or len(context) + n_tokens > MAX_CONTEXT:
            return
        request = turn(rollout, context, n_tokens, temperature, key=who, stop_token_id=3)
        try:
            self.engine.run_turn(request)
        except EngineFault:
            assert len(self.running) == CONFIG.n_slots or self.engine.capacity().owned > 0
        else:
            self.running[rollout] = request

    def step(self) -> None:
        for result in self.engine.step():
            request = self.running.pop(result.rollout)
            n_context = len(request.context_ids)
            assert result.found_tokens + result.prefilled_tokens == n_context
            if self.policy == "drop" or self.version == 0:
                self.world.check_against_dense(request, result)
            self.context[result.rollout] = np.concatenate(
                [request.context_ids, result.token_ids, [n_context % N_TOKENS]]
            )

    def release(self, who: tuple[int, int]) -> None:
        if (rollout := rollout_id(who[1], who[0])) not in self.running:
            self.engine.release(rollout)

    def cancel(self, who: tuple[int, int]) -> None:
        rollout = rollout_id(who[1], who[0])
        self.running.pop(rollout, None)
        self.engine.cancel(rollout)

    def publish(self) -> None:
        self.version += 1
        self.engine.load_weights(self.world.params[self.version % 3], PolicyVersion(self.version))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["drop", "keep_labelled"]), operations)
def test_any_schedule_equals_the_dense_model_and_conserves_pages(world, policy, steps):
    player = Player(world, policy)
    for operation, *arguments in steps:
        getattr(player, operation)(*arguments)
        player.engine.check()
    while player.running:
        player.step()
        player.engine.check()
