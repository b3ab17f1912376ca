"""ERS and its guarded form, as decisions on a state: no driver, no engine."""

from collections.abc import Iterable

from hand import ELASTIC, Hand, train_group

from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.guarded import GuardedErsScaling
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.scaling import ErsScaling
from tiderl_jax.scheduler.state import Group, State

S = 1_000_000_000
N_HOME = 4


def state_of(n_ranks: int = N_HOME, n_trainers: int = 4) -> State:
    hand = Hand(
        prompts=4,
        min_prompts=2,
        n_ranks=n_ranks,
        n_trainers=n_trainers,
        min_rollout=1,
        max_rollout=7,
        steps=999,
        elastic=ELASTIC,
    )
    hand.load_weights()
    state = hand.state
    state.learner.steps_done = 1
    return state


def n_rollout(state: State) -> int:
    return len(state.with_role(Role.ROLLOUT))


def apply(state: State, moves: Iterable[tuple[int, Role]]) -> list[Role]:
    """Carries moves out at once; returns the roles that ranks took."""
    roles: list[Role] = []
    for rank, role in moves:
        state.ranks[rank].role = role
        roles.append(role)
    return roles


def window(
    trained_tokens: int = 100, trainer_wait: float = 0.0, rollout_wait: float = 0.0
) -> Window:
    return Window(S, trained_tokens, trainer_wait, rollout_wait)


def fill_buffer(state: State, n_groups: int, age_s: float = 0.0) -> None:
    state.now_ns += S
    state.buffer = {train_group(i): 100 for i in range(n_groups)}
    since_ns = state.now_ns - round(age_s * S)
    state.groups = {
        group: Group(group, 0, 1, [], pending=None, since_ns=since_ns) for group in state.buffer
    }
    state.buffer_tokens = 100 * n_groups
    state.readiness.step_ns = S


def test_a_generation_deficit_that_lasts_moves_one_rank_to_rollout() -> None:
    state, ers = state_of(), ErsScaling()
    fill_buffer(state, 1)
    assert ers.plan(state, window()) == []  # one sample is no trend
    assert apply(state, ers.plan(state, window())) == [Role.ROLLOUT]
    assert n_rollout(state) == N_HOME + 1


def test_a_consumption_deficit_moves_one_rank_to_the_trainer_and_lowers_the_next_fetch() -> None:
    state, ers = state_of(), ErsScaling()
    fill_buffer(state, 4, age_s=5.0)  # older than a step
    assert ers.plan(state, window()) == []
    assert apply(state, ers.plan(state, window())) == [Role.TRAINER]
    state.buffer.popitem()
    assert ers.n_groups(state) == 3
    for _ in range(9):
        fill_buffer(state, 3, age_s=9.0)
        apply(state, ers.plan(state, window()))
    assert ers.n_groups(state) == state.limits.min_prompts_per_step
    fill_buffer(state, 4)
    assert ers.n_groups(state) == state.limits.prompts_per_step


def test_a_deficit_that_does_not_last_moves_nothing() -> None:
    state, ers = state_of(), ErsScaling()
    for _ in range(6):
        fill_buffer(state, 1)
        assert ers.plan(state, window()) == []
        fill_buffer(state, 4)
        assert ers.plan(state, window()) == []


def test_the_trainer_keeps_a_rank_and_rollout_keeps_its_smallest_number() -> None:
    state, ers = state_of(), ErsScaling()
    for _ in range(20):
        fill_buffer(state, 0)
        apply(state, ers.plan(state, window()))
    assert n_rollout(state) == state.limits.max_rollout_ranks
    for _ in range(40):
        fill_buffer(state, 4, age_s=9.0)
        apply(state, ers.plan(state, window()))
    assert n_rollout(state) == state.limits.min_rollout_ranks


def test_at_cold_start_rollout_has_all_that_it_may_have() -> None:
    state = state_of()
    apply(state, ErsScaling().plan(state, None))
    assert n_rollout(state) == state.limits.max_rollout_ranks


def run_guarded(state: State, goodput: dict[int, int], n_steps: int, **waits: float) -> list[int]:
    """Steps of a system whose trained tokens depend on its rollout ranks only."""
    guarded, history = GuardedErsScaling(), list[int]()
    for _ in range(n_steps):
        apply(state, guarded.plan(state, window(goodput[n_rollout(state)], **waits)))
        history.append(n_rollout(state))
    return history


def test_a_move_is_kept_while_goodput_rises() -> None:
    rising = {n: 100 * n for n in range(1, 8)}
    history = run_guarded(state_of(), rising, 40, trainer_wait=0.5)
    assert history[-1] == N_HOME + ELASTIC.max_drift


def test_a_move_that_brings_nothing_is_undone_and_tried_ever_more_seldom() -> None:
    flat = dict.fromkeys(range(1, 8), 100)
    history = run_guarded(state_of(), flat, 400, trainer_wait=0.5)
    away = sum(n != N_HOME for n in history)
    assert 0 < away < 0.15 * len(history)
    assert set(history) == {N_HOME, N_HOME + 1}
    assert sum(n != N_HOME for n in history[200:]) < sum(n != N_HOME for n in history[:200])


def test_a_move_toward_the_trainer_is_undone_likewise() -> None:
    history = run_guarded(state_of(), {n: 100 * n for n in range(1, 8)}, 60, rollout_wait=0.5)
    assert set(history) == {N_HOME, N_HOME - 1}


def test_an_even_split_is_left_alone() -> None:
    rising = {n: 100 * n for n in range(1, 8)}
    history = run_guarded(state_of(), rising, 40, trainer_wait=0.3, rollout_wait=0.25)
    assert set(history) == {N_HOME}
