"""Groups that do not wait for all of their members: deadline, top-up, redundancy."""

from hand import Hand, member, train_group

from tiderl_jax.core.commands import (
    Admit,
    DropGroup,
    DropReason,
    DropRollout,
    Feed,
    RequestTasks,
    SetTimer,
)
from tiderl_jax.core.events import RolloutEnded, TimerFired
from tiderl_jax.core.ids import Purpose
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.limits import GroupLimits

S = 1_000_000_000


def fed_rollouts(hand: Hand) -> set[object]:
    return {r for feed in hand.said(Feed) for mb in feed.microbatches for r in mb.rollouts}


def test_a_member_that_never_ends_does_not_hold_its_group_beyond_the_deadline() -> None:
    """H1 of the users' cases: three of four train."""
    hand = Hand(members=4, group=GroupLimits(4, 0, 50 * S, 3, False))
    hand.load_weights()
    hand.bring(0)
    assert hand.said(SetTimer) == [SetTimer(50 * S)]
    for position in (0, 1, 2):
        hand.play(member(0, position))
    hand.ready(member(0, 3))
    hand.tell(TimerFired(50 * S), at_s=50)
    assert hand.said(DropRollout) == [DropRollout(member(0, 3), DropReason.LATE)]
    assert fed_rollouts(hand) == {member(0, position) for position in (0, 1, 2)}


def test_below_the_minimum_a_late_group_is_dropped_and_replaced() -> None:
    hand = Hand(members=4, group=GroupLimits(4, 0, 50 * S, 3, False))
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0, 0))
    hand.tell(TimerFired(50 * S), at_s=50)
    assert hand.said(DropGroup) == [DropGroup(train_group(0), DropReason.LATE)]
    assert hand.said(RequestTasks) == []  # one request is outstanding already
    assert hand.state.requested == {Purpose.TRAIN: 1}
    hand.bring(1)
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 1)]


def test_late_members_are_replaced_once_where_groups_are_topped_up() -> None:
    hand = Hand(members=2, group=GroupLimits(2, 0, 50 * S, 2, True))
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0, 0))
    hand.ready(member(0, 1))
    hand.tell(TimerFired(50 * S), at_s=50)
    assert hand.said(DropRollout) == [DropRollout(member(0, 1), DropReason.LATE)]
    assert [command.rollout for command in hand.said(Admit)] == [member(0, 1, attempt=1)]
    assert hand.said(SetTimer) == [SetTimer(100 * S)]
    hand.tell(TimerFired(100 * S), at_s=100)
    assert hand.said(DropGroup) == [DropGroup(train_group(0), DropReason.LATE)]


def test_of_redundant_members_the_first_to_end_make_the_group() -> None:
    hand = Hand(members=2, group=GroupLimits(2, 1, 0, 2, False))
    hand.load_weights()
    hand.bring(0)
    hand.ready(member(0, 0))
    hand.play(member(0, 2))
    hand.play(member(0, 1))
    assert hand.said(DropRollout) == [DropRollout(member(0, 0), DropReason.REDUNDANT)]
    assert fed_rollouts(hand) == {member(0, 1), member(0, 2)}


def test_an_end_that_comes_after_its_group_went_on_without_it_is_ignored() -> None:
    hand = Hand(members=2, group=GroupLimits(2, 1, 0, 2, False))
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0, 2))
    hand.play(member(0, 1))
    ignored = hand.state.counters.ignored_events
    hand.tell(RolloutEnded(member(0, 0), Outcome.FINISHED))
    assert hand.state.counters.ignored_events == ignored + 1


def test_an_evaluation_is_held_to_no_group_deadline() -> None:
    hand = Hand(n_evaluation_tasks=1, group=GroupLimits(1, 0, 5 * S, 1, False), deadline_s=100)
    hand.load_weights()
    rollouts = hand.bring_evaluation()
    hand.tell(TimerFired(5 * S), at_s=5)
    assert hand.said(DropRollout) == hand.said(DropGroup) == []
    assert all(hand.state.rollout(rollout) for rollout in rollouts)
