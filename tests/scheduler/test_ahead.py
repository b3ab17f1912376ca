"""Environments that open ahead of what staleness lets in."""

from hand import Hand, S, member, train_group

from tiderl_jax.core.commands import (
    EndRollout,
    Migrate,
    Pause,
    PauseEnvironment,
    RequestTasks,
    ResumeEnvironment,
    SetTimer,
)
from tiderl_jax.core.events import EnvironmentFailed, TimerFired
from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.explain import explain
from tiderl_jax.scheduler.state import Phase


def hand_of(**changes: object) -> Hand:
    """One group of one member trains at a time, on tokens of its own version."""
    hand = Hand("tiderl", **{"bound": 0, **changes})
    hand.load_weights()
    return hand


def phase(hand: Hand, group: int) -> Phase:
    return hand.state.groups[train_group(group)].members[0].phase


def test_a_step_more_than_staleness_lets_in_is_requested_by_the_policy_that_opens_ahead_only() -> (
    None
):
    assert [command.n_groups for command in Hand("tiderl", bound=1).said(RequestTasks)] == [3]
    assert [command.n_groups for command in Hand(bound=1).said(RequestTasks)] == [2]


def test_what_is_ahead_opens_its_environment_and_is_held_until_new_weights_are_there() -> None:
    hand = hand_of()
    hand.bring(0, 1)
    assert hand.admitted() == [member(0), member(1)]
    hand.ready(member(1))
    assert hand.said(PauseEnvironment) == [PauseEnvironment(member(1))]
    assert hand.started_turns() == []
    assert "train/1/0.0 waits for weights" in explain(hand.state)

    hand.play(member(0))
    hand.update()
    hand.bring(2)
    assert hand.admitted() == [member(2)]  # whatever the rank has: nothing is sampled
    assert hand.started_turns() == []  # let in, but the rank still has the old weights
    assert phase(hand, 1) is Phase.HELD
    hand.load_weights()
    assert hand.said(ResumeEnvironment) == [ResumeEnvironment(member(1))]
    assert hand.started_turns() == [member(1)]


def test_an_environment_that_is_ready_while_its_rank_still_loads_is_held() -> None:
    hand = hand_of()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.update()
    hand.ready(member(1))
    assert hand.started_turns() == []
    hand.load_weights()
    assert hand.started_turns() == [member(1)]


def test_an_environment_that_is_ready_only_after_its_group_was_let_in_is_not_held() -> None:
    hand = hand_of()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.update_and_load()
    hand.ready(member(1))
    assert hand.said(PauseEnvironment) == []
    assert hand.started_turns() == [member(1)]


def test_what_is_ahead_leaves_half_of_the_environments_free() -> None:
    admitted = {}
    for max_environments in (3, 4):
        hand = hand_of(max_environments=max_environments)
        hand.bring(0, 1)
        admitted[max_environments] = hand.admitted()
    assert admitted == {3: [member(0)], 4: [member(0), member(1)]}


def test_when_let_in_a_group_goes_to_the_rank_that_is_the_emptiest_by_then() -> None:
    hand = hand_of(bound=1, prompts=2, n_ranks=2)
    hand.bring(0, 1, 2, 3, 4, 5)
    ranks = {index: hand.state.groups[train_group(index)].rank for index in range(6)}
    assert ranks == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0, 5: 1}
    hand.ready(member(4))
    assert hand.state.live(member(4)).expected_tokens == 0  # it grows only when it is let in
    for index in (1, 3):
        hand.play(member(index), rank=1)
    hand.update()
    assert hand.said(Migrate) == [Migrate(member(4), RankId(1))]


def test_time_does_not_run_while_a_rollout_is_held() -> None:
    hand = hand_of(deadline_s=100, n_slots=1, members=2)
    hand.bring(0, 1)
    for position in (0, 1):
        hand.ready(member(1, position))
    hand.now_ns = 90 * S
    for position in (0, 1):
        hand.play(member(0, position))
    hand.update_and_load()
    hand.turn(member(1, 0))
    hand.ready(member(1, 0))
    assert hand.state.live(member(1, 0)).phase is Phase.READY  # the slot is taken
    hand.tell(TimerFired(100 * S), at_s=100)
    assert hand.said(EndRollout) == []
    assert hand.said(SetTimer) == [SetTimer(190 * S)]
    hand.tell(TimerFired(190 * S), at_s=190)
    assert [command.rollout for command in hand.said(EndRollout)] == [member(1, 0)]


def test_one_step_off_publishes_although_a_group_is_ahead() -> None:
    hand = hand_of(staleness="batchwise")
    hand.bring(0, 1)
    hand.play(member(0))
    hand.update_and_load()
    assert hand.state.ranks[RankId(0)].version == 1


def test_a_group_that_fails_while_it_is_ahead_is_replaced_by_another_that_is_ahead() -> None:
    hand = hand_of(max_attempts=1)
    hand.bring(0, 1)
    hand.ready(member(1))
    hand.tell(EnvironmentFailed(member(1), "crashed"))
    assert not hand.state.ahead
    assert [command.n_groups for command in hand.said(RequestTasks)] == [1]
    hand.bring(2)
    assert list(hand.state.ahead) == [train_group(2)]


def test_the_oldest_is_let_in_when_a_group_within_the_bound_is_dropped() -> None:
    hand = hand_of(max_attempts=1)
    hand.bring(0, 1)
    hand.ready(member(1))
    hand.tell(EnvironmentFailed(member(0), "crashed"))
    assert not hand.state.ahead
    assert hand.started_turns() == [member(1)]


def test_what_is_ahead_opens_nothing_on_a_rank_where_a_rollout_is_paused() -> None:
    hand = hand_of(prompts=2, budget_tokens=100)
    hand.bring(0, 1)
    hand.state.growth_tokens = 0.0
    for index, tokens in ((0, 50), (1, 20)):
        hand.ready(member(index), tokens)
        hand.turn(member(index))
    hand.ready(member(0), 10)
    assert hand.said(Pause) == [Pause(member(1), RankId(0))]
    hand.state.growth_tokens = 0.0
    hand.bring(2, prompt_tokens=0)
    assert list(hand.state.ahead) == [train_group(2)]
    assert hand.admitted() == []
    hand.turn(member(0))
    hand.end(member(0))
    assert hand.admitted() == [member(2)]
