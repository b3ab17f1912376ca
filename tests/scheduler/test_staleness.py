"""May a rollout start, may its tokens train: the four choices, and lag as it is defined."""

import pytest
from hand import Hand, member, train_group

from tiderl_jax.core.commands import DropGroup, Feed, Publish, RequestTasks
from tiderl_jax.core.events import EnvironmentFailed
from tiderl_jax.core.ids import PolicyVersion, lag


def test_time_in_the_queue_counts_as_lag() -> None:
    """S2 of the users' cases: what ended at once and waits for three updates has lag 3."""
    hand = Hand("async", prompts=1, bound=3, max_rollouts=0, steps=9)
    hand.load_weights()
    hand.bring(0, 1, 2, 3)
    for index in range(4):
        hand.play(member(index))
    lags = []
    for _ in range(4):
        step = hand.state.learner.step
        assert step is not None
        lags += [lag(hand.state.learner.version, oldest) for oldest in step.groups.values()]
        hand.update_and_load()
    assert lags == [0, 1, 2, 3]


def straggler(staleness: str) -> Hand:
    """Group 0 sampled under version 0 and still runs when the learner holds version 2."""
    hand = Hand("async", staleness=staleness, prompts=1, bound=1, max_rollouts=0, steps=9)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(0))
    hand.turn(member(0))
    hand.play(member(1))
    hand.update_and_load()
    hand.bring(2)
    hand.play(member(2))
    hand.update_and_load()
    assert hand.state.learner.version == 2
    return hand


def test_bounded_drops_what_has_become_too_old_and_its_place_is_taken() -> None:
    hand = straggler("bounded")
    assert train_group(0) not in hand.state.groups
    assert hand.state.counters.dropped_groups == {"stale": 1}


@pytest.mark.parametrize("staleness", ["paced", "trimmed"])
def test_paced_and_trimmed_wait_for_the_straggler_and_train_it(staleness: str) -> None:
    hand = straggler(staleness)
    assert hand.said(DropGroup) == []
    hand.ready(member(0))
    hand.turn(member(0))
    hand.end(member(0))
    assert [command.groups for command in hand.said(Feed)] == [(train_group(0),)]
    assert hand.state.counters.dropped_groups == {}


def test_only_trimmed_has_the_learner_leave_old_tokens_out() -> None:
    trims = {
        name: Hand("async", staleness=name).scheduler.policies.staleness.trims
        for name in ("bounded", "paced", "trimmed", "batchwise")
    }
    assert trims == {"bounded": False, "paced": False, "trimmed": True, "batchwise": False}


def test_one_step_off_starts_a_whole_batch_when_the_one_before_is_taken() -> None:
    hand = Hand("one_step_off", prompts=2, bound=1, max_rollouts=0)
    assert hand.said(RequestTasks)[0].n_groups == 2
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(0))
    assert hand.said(RequestTasks) == []  # not one by one
    hand.play(member(1))
    assert hand.said(Feed) != []
    assert [command.n_groups for command in hand.said(RequestTasks)] == [2]


def test_one_step_off_swaps_weights_only_between_batches() -> None:
    hand = Hand("one_step_off", prompts=1, bound=1, max_rollouts=0)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    hand.bring(1)
    hand.ready(member(1))
    hand.update()
    assert hand.said(Publish) == []  # a rollout would be interrupted
    hand.turn(member(1))
    hand.end(member(1))
    assert hand.said(Publish) == [Publish(PolicyVersion(1), (hand.state.ranks[0].spec.rank,))]


def test_nothing_starts_under_weights_that_are_too_old_when_it_could_train() -> None:
    """On policy: a group that the running step left behind would train one version later."""
    hand = Hand(scaling="ers", bound=0, prompts=2, min_prompts=1, members=2)
    hand.load_weights()
    hand.bring(0, 1)
    hand.state.elastic.n_groups = 1
    for position in (0, 1):
        hand.play(member(0, position))
    step = hand.state.learner.step
    assert step is not None
    assert step.n_missing == 0
    hand.tell(EnvironmentFailed(member(1, 0), "crash"))
    assert hand.admitted() == []
    hand.update_and_load()
    assert hand.admitted() == [member(1, 0, attempt=1)]
