"""Steps that take what is ready instead of waiting for the whole batch."""

import pytest
from hand import Hand, member, train_group, updated

from tiderl_jax.core.commands import DropGroup, Feed, StartStep, StepMode
from tiderl_jax.core.events import Trained
from tiderl_jax.core.ids import PolicyVersion


def streaming(pipelining: str, **changes: object) -> Hand:
    """Batches of four groups of one; an episode of `play_full` fills a microbatch of 100 tokens."""
    hand = Hand(pipelining=pipelining, prompts=4, n_trainers=4, **changes)
    hand.load_weights()
    hand.bring(0, 1, 2, 3, prompt_tokens=80)
    return hand


def play_full(hand: Hand, group: int) -> None:
    """One turn, to a context of 90 of the 100 tokens of a microbatch, twice one is above it."""
    hand.ready(member(group), 80)
    hand.turn(member(group), tokens=10)
    hand.end(member(group))


def test_a_full_batch_is_one_feed_and_the_last() -> None:
    hand = streaming("full_batch")
    for group in range(3):
        play_full(hand, group)
        assert hand.said(StartStep) == []
    play_full(hand, 3)
    (feed,) = hand.said(Feed)
    assert feed.last
    assert feed.groups == tuple(map(train_group, range(4)))


def test_a_colocated_step_begins_with_what_is_ready_and_waits_for_the_wave_before() -> None:
    hand = streaming("colocated", bound=1)
    play_full(hand, 0)
    assert hand.said(StartStep) == []  # 90 tokens do not fill a microbatch
    play_full(hand, 1)
    assert hand.said(StartStep) == [StartStep(0, StepMode.COLOCATED, 0)]
    assert hand.said(Feed) == []  # four ranks are not saturated by 180 tokens
    play_full(hand, 2)
    play_full(hand, 3)
    (feed,) = hand.said(Feed)
    assert feed.last
    assert len(feed.groups) == 4


def test_a_swapping_stream_feeds_a_microbatch_when_the_one_before_is_trained() -> None:
    hand = streaming("swap_per_microbatch")
    play_full(hand, 0)
    play_full(hand, 1)
    (first,) = hand.said(Feed)
    assert not first.last
    play_full(hand, 2)
    play_full(hand, 3)
    assert hand.said(Feed) == []
    hand.tell(Trained(0, 0))
    (second,) = hand.said(Feed)
    assert second.last
    assert (second.feed, len(second.groups)) == (1, 2)


def test_a_decoupled_stream_feeds_without_waiting_and_its_workers_take_turns() -> None:
    hand = streaming("decoupled")
    play_full(hand, 0)
    play_full(hand, 1)
    (step,) = hand.said(StartStep)
    assert (step.mode, step.n_scorers) == (StepMode.DECOUPLED, 1)
    workers = [mb.worker for mb in hand.said(Feed)[0].microbatches]
    play_full(hand, 2)
    assert hand.said(Feed) == [] or not hand.said(Feed)[0].last
    play_full(hand, 3)
    last = hand.said(Feed)[-1]
    assert last.last
    workers += [mb.worker for mb in last.microbatches]
    assert workers == [i % 3 for i in range(len(workers))]


def test_a_group_that_completes_while_a_step_is_open_trains_in_it_without_lag() -> None:
    hand = streaming("decoupled", bound=0)
    for group in range(4):
        play_full(hand, group)
    assert hand.state.learner.step is not None
    assert hand.state.learner.step.closed
    assert set(hand.state.learner.step.groups.values()) == {PolicyVersion(0)}
    hand.tell(updated(0, 1))
    assert hand.state.learner.groups_trained == 4


def test_a_late_acknowledgement_of_a_feed_is_ignored() -> None:
    hand = streaming("swap_per_microbatch")
    play_full(hand, 0)
    play_full(hand, 1)
    hand.tell(Trained(0, 0))
    ignored = hand.state.counters.ignored_events
    hand.tell(Trained(0, 0))
    hand.tell(Trained(7, 0))
    assert hand.state.counters.ignored_events == ignored + 2


@pytest.mark.parametrize("pipelining", ["colocated", "decoupled", "ra2p", "ra2p_planned"])
def test_one_rank_alone_never_divides_itself(pipelining: str) -> None:
    hand = Hand(pipelining=pipelining, prompts=1, n_trainers=1)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    assert hand.said(StartStep) == [StartStep(0, StepMode.COLOCATED, 0)]
    assert hand.said(DropGroup) == []


def test_without_a_scorer_a_stream_needs_no_rank_for_it() -> None:
    hand = Hand(pipelining="decoupled", prompts=1, n_trainers=2, has_scorer=False)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    assert hand.said(StartStep) == [StartStep(0, StepMode.DECOUPLED, 0)]
