"""ERS and its guarded form, as decisions on a state: no driver, no engine."""

from collections.abc import Iterable
from itertools import pairwise

from hand import ELASTIC, Hand, train_group

from tiderl_jax.core.ids import PolicyVersion, RankId, Role
from tiderl_jax.scheduler.guarded import GuardedErsScaling
from tiderl_jax.scheduler.placement import take_role
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.scaling import ErsScaling
from tiderl_jax.scheduler.state import Evaluation, Group, State

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
        take_role(state, state.ranks[rank], role)
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


RISING = {n: 100 * n for n in range(1, 8)}
FLAT = dict.fromkeys(range(1, 8), 100)


def test_the_ranks_that_an_idle_trainer_can_spare_go_to_rollout_at_once_within_the_drift() -> None:
    history = run_guarded(state_of(), RISING, 12, trainer_wait=0.6)
    assert sorted(set(history)) == [N_HOME, N_HOME + ELASTIC.max_drift]


def test_one_rank_goes_where_the_trainer_could_spare_one() -> None:
    history = run_guarded(state_of(n_trainers=3), RISING, 5, trainer_wait=0.4)
    assert history[-1] == N_HOME + 1


def test_nothing_moves_before_the_first_windows_have_been_seen() -> None:
    history = run_guarded(state_of(), RISING, 2, trainer_wait=0.9)
    assert history == [N_HOME, N_HOME]


def test_a_move_that_brings_nothing_is_undone_and_tried_ever_more_seldom() -> None:
    history = run_guarded(state_of(), FLAT, 400, trainer_wait=0.3)
    away = sum(n != N_HOME for n in history)
    assert 0 < away < 0.15 * len(history)
    assert set(history) == {N_HOME, N_HOME + 1}
    assert sum(n != N_HOME for n in history[200:]) < sum(n != N_HOME for n in history[:200])


def test_ranks_come_back_to_the_trainer_one_per_step() -> None:
    history = run_guarded(state_of(), FLAT, 20, trainer_wait=0.6)
    undone = history[history.index(N_HOME + 2) :]
    falls = [later - earlier for earlier, later in pairwise(undone)]
    assert -1 in falls
    assert min(falls) == -1


def test_a_trainer_that_never_waits_gets_an_idle_rollout_rank_and_keeps_it_if_that_helps() -> None:
    falling = {n: 1000 - 100 * n for n in range(1, 8)}
    history = run_guarded(state_of(), falling, 60, rollout_wait=0.5)
    assert history[-1] == N_HOME - ELASTIC.max_drift
    assert set(run_guarded(state_of(), RISING, 60, rollout_wait=0.5)) == {N_HOME, N_HOME - 1}


def test_a_split_without_anyone_idle_is_left_alone() -> None:
    assert set(run_guarded(state_of(), RISING, 40, trainer_wait=0.03)) == {N_HOME}
    assert set(run_guarded(state_of(), RISING, 40, rollout_wait=0.02)) == {N_HOME}


def test_windows_with_an_evaluation_and_the_one_after_it_do_not_count() -> None:
    state, guarded = state_of(), GuardedErsScaling()
    run_guarded(state, FLAT, 1)
    state.evaluation = Evaluation(step=1, version=PolicyVersion(0), n_groups_left=1)
    for _ in range(10):
        assert guarded.plan(state, window(trainer_wait=0.9)) == []
    state.evaluation = None
    moves = [guarded.plan(state, window(trainer_wait=0.9)) for _ in range(3)]
    assert [bool(move) for move in moves] == [False, False, True]


def test_a_lost_rank_is_replaced_only_after_owed_ranks_have_come() -> None:
    state, guarded = state_of(), GuardedErsScaling()
    run_guarded(state, FLAT, 1)
    take_role(state, state.ranks[RankId(0)], None)
    state.n_changing = 1
    assert all(guarded.plan(state, window()) == [] for _ in range(6))
