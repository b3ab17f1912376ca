"""Steps, versions, evaluations, and the two ways to end."""

import pytest
from hand import Hand, member, train_group, updated

from tiderl_jax.core.commands import (
    Abort,
    Admit,
    DropGroup,
    DropReason,
    Feed,
    Finish,
    Publish,
    RequestTasks,
    StartStep,
    StepMode,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentReady,
    ProbeFailed,
    RolloutEnded,
    StopRequested,
    TasksArrived,
    TurnEnded,
    TurnStop,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome


def evaluate(hand: Hand, index: int = 0) -> None:
    """A whole evaluation of one sampled and one greedy task."""
    for rollout in hand.bring_evaluation(index):
        hand.play(rollout)


def test_a_step_starts_with_the_groups_that_completed_first() -> None:
    hand = Hand(prompts=2, bound=1)
    hand.load_weights()
    hand.bring(0, 1, 2, 3)
    hand.play(member(3))
    hand.play(member(1))
    assert hand.said(StartStep) == [StartStep(0, StepMode.COLOCATED, 0)]
    (feed,) = hand.said(Feed)
    assert feed.groups == (train_group(3), train_group(1))
    assert feed.last


def test_a_group_at_its_last_chance_goes_before_fresher_ones_and_too_old_ones_are_dropped() -> None:
    hand = Hand(prompts=1, bound=1, steps=4)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(1))
    hand.turn(member(1))  # group 1 has tokens of version 0
    hand.play(member(0))  # trains in step 0
    hand.update_and_load()
    hand.bring(2)
    hand.play(member(2))  # version 1, trains in step 1: group 1 could then never train
    assert hand.said(Feed)[0].groups == (train_group(2),)
    assert hand.said(DropGroup) == [DropGroup(train_group(1), DropReason.STALE)]
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 1)]


def test_an_urgent_group_in_the_buffer_trains_first() -> None:
    hand = Hand(prompts=2, bound=1, steps=4)
    hand.load_weights()
    hand.bring(0, 1, 2, 3)
    for group in (0, 1):
        hand.play(member(group))
    hand.ready(member(2))
    hand.turn(member(2))  # under version 0
    hand.update_and_load()
    hand.ready(member(3))
    hand.turn(member(3))  # under version 1
    hand.bring(4, 5)
    hand.play(member(4))
    hand.end(member(2))  # completes last, goes first
    assert hand.said(Feed)[0].groups == (train_group(2), train_group(4))


def test_nothing_starts_under_old_weights_while_the_rank_loads_new_ones() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    hand.update()
    hand.bring(1)
    assert hand.admitted() == []
    hand.load_weights()
    assert hand.admitted() == [member(1)]


def test_rollouts_in_flight_go_on_across_a_publish() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(1))
    hand.play(member(0))
    hand.update()
    hand.turn(member(1), version=0)
    hand.ready(member(1))
    assert hand.started_turns() == [member(1)]


def test_every_version_is_published_once_and_must_prove_its_digest() -> None:
    hand = Hand(n_ranks=2)
    assert hand.said(Publish) == [Publish(PolicyVersion(0), (RankId(0), RankId(1)))]
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    hand.tell(updated(0, 1))
    assert hand.said(Publish)[0].version == 1
    hand.tell(WeightsLoaded(RankId(0), PolicyVersion(1), "weights-1"))
    hand.tell(WeightsLoaded(RankId(0), PolicyVersion(1), "weights-1"))
    assert hand.state.counters.ignored_events == 1
    hand.tell(WeightsLoaded(RankId(1), PolicyVersion(1), "something else"))
    assert "something else" in hand.said(Abort)[0].reason


def test_a_version_out_of_order_is_a_defect_and_a_repeated_update_is_ignored() -> None:
    hand = Hand()
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    with pytest.raises(InvariantError, match="minted version 3 after 0"):
        hand.scheduler.handle(updated(0, 3), 0)
    hand.tell(updated(0, 1))
    hand.tell(updated(0, 1))
    assert hand.state.counters.ignored_events == 1


def test_evaluation_comes_first_after_every_so_many_steps_and_last() -> None:
    hand = Hand(n_evaluation_tasks=1, every_steps=2, steps=3, bound=0)
    evaluated = []
    index = 0
    for step in range(4):
        hand.load_weights()
        if hand.state.evaluation:
            assert [command.n_groups for command in hand.said(RequestTasks)][:2] == [1, 1]
            evaluated.append(step)
            evaluate(hand, index)
            index += 1
        if step < 3:
            hand.bring(step)
            hand.play(member(step))
            hand.update()
    assert evaluated == [0, 2, 3]
    assert hand.commands[-1] == Finish(complete=True)


def test_an_evaluation_holds_back_newer_versions_and_the_learner_goes_on_within_the_bound() -> None:
    """H5 of the users' cases: the evaluation ends, then the ranks get the newest version."""
    hand = Hand(n_evaluation_tasks=1, bound=1, steps=5, prompts=1)
    hand.load_weights()
    rollouts = hand.bring_evaluation()
    hand.bring(0, 1)
    hand.play(member(0))
    assert hand.said(StartStep) != []  # the learner need not wait for the evaluation
    hand.tell(updated(0, 1))
    assert hand.said(Publish) == []
    assert hand.said(RequestTasks) == []  # it would start under a version that is behind already
    hand.play(member(1))
    assert hand.said(StartStep) == []  # one more version would leave the ranks behind the bound
    for rollout in rollouts:
        hand.play(rollout)
    assert hand.said(Publish) == [Publish(PolicyVersion(1), (RankId(0),))]
    assert hand.said(StartStep) != []
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 1)]


def test_a_version_to_be_evaluated_reaches_the_ranks_before_the_learner_leaves_it() -> None:
    hand = Hand(n_evaluation_tasks=1, every_steps=1, bound=3, steps=3, prompts=1)
    hand.load_weights()
    evaluate(hand)
    hand.bring(0, 1)
    hand.play(member(0))
    hand.play(member(1))  # enough for the next step
    hand.update()
    assert hand.said(StartStep) == []
    hand.load_weights()
    assert hand.said(StartStep) != []
    assert hand.state.evaluation is not None


def test_a_synchronous_evaluation_runs_alone() -> None:
    hand = Hand("sync", n_evaluation_tasks=1)
    hand.load_weights()
    hand.bring(0)
    assert hand.said(Admit) == []
    evaluate(hand)
    assert hand.admitted() == [member(0)]


def test_evaluation_under_another_version_is_a_defect() -> None:
    hand = Hand("sync", n_evaluation_tasks=1)
    hand.load_weights()
    group = GroupId(Purpose.EVALUATE, 0)
    hand.tell(TasksArrived((group,), 1))
    hand.tell(EnvironmentReady(RolloutId(group, 0), 10))
    hand.state.evaluation.version = PolicyVersion(-1)
    with pytest.raises(InvariantError, match="evaluates version"):
        hand.turn(RolloutId(group, 0), version=0)


def test_a_failed_probe_of_an_evaluation_task_is_repeated() -> None:
    hand = Hand(n_evaluation_tasks=1, max_attempts=2)
    hand.load_weights()
    group = GroupId(Purpose.EVALUATE, 0)
    hand.tell(TasksArrived((group,), 1))
    hand.tell(ProbeFailed(group, "late"))
    assert hand.said(DropGroup) == []
    hand.tell(ProbeFailed(group, "late"))
    assert hand.said(DropGroup) == [DropGroup(group, DropReason.ENV_ERROR)]


def test_a_stop_lets_the_running_step_end_and_drops_the_rest() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.tell(StopRequested())
    assert hand.commands == []
    hand.play(member(1))
    assert hand.admitted() == []
    hand.update()
    assert hand.commands == [
        DropGroup(train_group(1), DropReason.UNFINISHED),
        Finish(complete=False),
    ]


def test_while_a_run_stops_no_turn_starts() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.tell(StopRequested())
    assert hand.ready(member(1)) == []


def test_a_stop_with_an_idle_learner_ends_at_once() -> None:
    hand = Hand()
    hand.tell(StopRequested())
    assert hand.commands == [Finish(complete=False)]


def test_a_run_with_nothing_left_to_do_finishes_after_proving_its_weights() -> None:
    saved = Hand(steps=1).scheduler.snapshot() | {"version": 1, "steps_done": 1}
    hand = Hand(steps=1, saved=saved)
    assert hand.said(Publish) != []
    hand.load_weights()
    assert hand.commands == [Finish(complete=True)]


def test_a_turn_that_ends_with_tokens_too_old_to_train_drops_its_group() -> None:
    hand = Hand(prompts=1, bound=0, steps=3)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    hand.update_and_load()
    hand.bring(1)
    hand.ready(member(1))
    hand.tell(TurnEnded(member(1), RankId(0), TurnStop.END_OF_TURN, 5, 0, 0, PolicyVersion(0)))
    assert DropGroup(train_group(1), DropReason.STALE) in hand.commands
    before = hand.state.counters.ignored_events
    hand.tell(RolloutEnded(member(1), Outcome.FINISHED))
    assert hand.state.counters.ignored_events == before + 1


def test_a_version_that_was_held_back_is_not_published_while_the_learner_moves_on_from_it() -> None:
    hand = Hand(n_evaluation_tasks=1, bound=2, steps=5, prompts=1)
    hand.load_weights()
    rollouts = hand.bring_evaluation()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.tell(updated(0, 1))
    hand.play(member(1))
    assert hand.said(StartStep) != []
    for rollout in rollouts:
        hand.play(rollout)
        assert hand.said(Publish) == []
    hand.tell(updated(1, 2))
    assert hand.said(Publish) == [Publish(PolicyVersion(2), (RankId(0),))]


def test_an_evaluation_that_is_brought_fewer_tasks_than_it_asked_for_ends_with_those() -> None:
    hand = Hand(n_evaluation_tasks=2)
    hand.load_weights()
    for rollout in hand.bring_evaluation():
        hand.play(rollout)
    assert hand.state.evaluation is None
