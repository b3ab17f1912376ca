"""How rollouts and groups end, fail and are replaced."""

import pytest
from hand import MAX_CONTEXT_TOKENS, Hand, S, member, train_group

from tiderl_jax.core.commands import (
    Abort,
    DropGroup,
    DropReason,
    EndRollout,
    Feed,
    Release,
    RequestTasks,
    SetTimer,
    StartStep,
    StepEnvironment,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    ProbeFailed,
    ProbeMeasured,
    RolloutEnded,
    RolloutFailed,
    TasksArrived,
    TimerFired,
    TurnStop,
)
from tiderl_jax.core.ids import Purpose, RankId
from tiderl_jax.core.trajectories import Outcome


def begun(**options: object) -> Hand:
    hand = Hand(**options)
    hand.load_weights()
    hand.bring(0)
    return hand


def test_a_cut_turn_ends_its_rollout() -> None:
    hand = begun()
    hand.ready(member(0))
    hand.turn(member(0), stop=TurnStop.LENGTH)
    assert hand.said(EndRollout) == [EndRollout(member(0), Outcome.TRUNCATED_LENGTH)]
    assert hand.said(StepEnvironment) == []
    assert hand.said(Release) == [Release(member(0), RankId(0))]


def test_a_context_without_room_for_another_turn_ends_its_rollout() -> None:
    hand = begun()
    hand.ready(member(0))
    hand.turn(member(0))
    hand.ready(member(0), MAX_CONTEXT_TOKENS - 20 - 10)  # exactly one turn fits
    assert hand.started_turns() == [member(0)]
    hand.turn(member(0), tokens=1)
    hand.ready(member(0), 0)
    assert hand.said(EndRollout) == [EndRollout(member(0), Outcome.TRUNCATED_LENGTH)]


def test_an_impossible_task_is_dropped_and_replaced_not_retried() -> None:
    hand = Hand(bound=0)
    hand.load_weights()
    hand.tell(TasksArrived((train_group(0),), 1))
    hand.tell(ProbeMeasured(train_group(0), MAX_CONTEXT_TOKENS - 9))
    assert hand.said(DropGroup) == [DropGroup(train_group(0), DropReason.ENV_ERROR)]
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 1)]


def test_a_failed_environment_is_retried_and_then_its_group_is_dropped_and_replaced() -> None:
    hand = begun(max_attempts=2, members=2, bound=0)
    hand.ready(member(0, 1))
    hand.tell(EnvironmentFailed(member(0, 0), "crash"))
    assert hand.admitted() == [member(0, 0, attempt=1)]
    hand.tell(EnvironmentFailed(member(0, 0, attempt=1), "crash"))
    assert hand.commands == [
        DropGroup(train_group(0), DropReason.ENV_ERROR),
        RequestTasks(Purpose.TRAIN, 1),
    ]
    assert hand.state.ranks[RankId(0)].used_tokens == 0  # the running turn of member 1 is freed
    hand.bring(1)
    for position in range(2):
        hand.play(member(1, position))
    assert hand.said(Feed)[0].groups == (train_group(1),)


def test_tokens_of_a_failed_attempt_do_not_count_as_the_groups_oldest() -> None:
    hand = begun(steps=3, prompts=1, bound=2, members=2)
    hand.ready(member(0, 0))
    hand.turn(member(0, 0))
    assert hand.state.groups[train_group(0)].oldest_version == 0
    hand.tell(RolloutFailed(member(0, 0), "lost"))
    assert hand.state.groups[train_group(0)].oldest_version is None


def test_a_failed_probe_of_training_is_replaced() -> None:
    hand = Hand(bound=0)
    hand.load_weights()
    hand.tell(TasksArrived((train_group(0),), 1))
    hand.tell(ProbeFailed(train_group(0), "no answer"))
    assert hand.said(DropGroup) == [DropGroup(train_group(0), DropReason.ENV_ERROR)]
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 1)]


def test_the_fault_budget_of_the_run_ends_it_with_a_sentence() -> None:
    hand = begun(max_faults=1, max_attempts=9)
    hand.tell(EnvironmentFailed(member(0), "crash"))
    assert hand.said(Abort) == []
    hand.tell(EnvironmentFailed(member(0, attempt=1), "disk full"))
    assert "disk full" in hand.said(Abort)[0].reason
    assert hand.tell(EnvironmentReady(member(0), 1)) == []


def test_an_infrastructure_outcome_never_completes_a_member() -> None:
    hand = begun()
    hand.ready(member(0))
    hand.turn(member(0))
    hand.tell(RolloutEnded(member(0), Outcome.ENGINE_ERROR))
    assert hand.admitted() == [member(0, attempt=1)]
    assert hand.said(StartStep) == []


def test_late_duplicate_and_unknown_events_are_ignored_and_counted() -> None:
    hand = begun()
    hand.ready(member(0))
    for event in (
        EnvironmentReady(member(0), 10),
        EnvironmentReady(member(7), 10),
        EnvironmentReady(member(0, attempt=1), 10),
        RolloutEnded(member(0), Outcome.FINISHED),
        ProbeMeasured(train_group(0), 10),
        TasksArrived((train_group(0),), 1),
    ):
        hand.tell(event)
        assert hand.commands == []
    assert hand.state.counters.ignored_events == 6


def test_a_late_answer_of_a_dropped_group_is_ignored() -> None:
    hand = begun(max_attempts=1, members=2)
    hand.tell(EnvironmentFailed(member(0, 0), "crash"))
    before = hand.state.counters.ignored_events
    hand.ready(member(0, 1))
    assert hand.state.counters.ignored_events == before + 1


def test_one_timer_is_set_for_the_earliest_deadline() -> None:
    hand = Hand(prompts=2, deadline_s=10)
    hand.load_weights()
    hand.bring(0)
    assert hand.said(SetTimer) == [SetTimer(10_000_000_000)]
    hand.now_ns = 3_000_000_000
    hand.tell(ProbeMeasured(train_group(0), 1))
    assert hand.said(SetTimer) == []


def test_a_rollout_that_waits_past_its_deadline_is_ended_by_the_timer() -> None:
    hand = Hand(prompts=2, n_slots=1, deadline_s=10)
    hand.load_weights()
    hand.bring(0, 1)
    for group in (0, 1):
        hand.ready(member(group))
        hand.turn(member(group))
    hand.ready(member(0))  # decodes
    hand.ready(member(1))  # waits for the slot
    hand.tell(TimerFired(10 * S), at_s=10)
    assert hand.said(EndRollout) == [EndRollout(member(1), Outcome.TRUNCATED_TIME)]
    hand.turn(member(0))  # the other ends at its next event
    assert hand.said(EndRollout) == [EndRollout(member(0), Outcome.TRUNCATED_TIME)]


def test_a_rollout_that_has_sampled_nothing_is_not_truncated_by_time() -> None:
    hand = Hand(prompts=2, n_slots=1, deadline_s=10)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(0))  # decodes
    hand.ready(member(1))  # waits for the slot
    hand.tell(TimerFired(10 * S), at_s=10)
    assert hand.commands == []
    hand.turn(member(0))
    assert hand.said(EndRollout) == [EndRollout(member(0), Outcome.TRUNCATED_TIME)]
    assert hand.started_turns() == [member(1)]
    hand.turn(member(1))
    assert hand.said(EndRollout) == [EndRollout(member(1), Outcome.TRUNCATED_TIME)]


def test_an_environment_that_is_lost_during_a_turn_frees_the_slot_at_once() -> None:
    hand = begun(n_slots=1)
    hand.ready(member(0))
    hand.tell(EnvironmentFailed(member(0), "reaped"))
    assert hand.said(Release) == [Release(member(0), RankId(0))]
    assert hand.state.ranks[RankId(0)].n_free_slots == 1


def test_tokens_of_a_version_that_does_not_exist_are_a_defect() -> None:
    hand = begun()
    hand.ready(member(0))
    with pytest.raises(InvariantError, match="has not minted"):
        hand.turn(member(0), version=1)


def test_no_timer_is_set_for_a_rollout_that_has_ended() -> None:
    hand = Hand(prompts=3, deadline_s=10, bound=0)
    hand.load_weights()
    hand.tell(TasksArrived((train_group(0), train_group(1), train_group(2)), 1))
    for second in (0, 2, 5):
        hand.tell(ProbeMeasured(train_group(second // 2), 10), at_s=second)
    hand.play(member(1))
    hand.tell(TimerFired(10 * S), at_s=10)
    assert hand.said(SetTimer) == [SetTimer(15_000_000_000)]
