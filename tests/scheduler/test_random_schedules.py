"""H9 and S4 of the users' cases: whatever the order in which things happen, the run goes on."""

import pytest
from adversary import Adversary

from tiderl_jax.core.commands import Finish


def check_schedule(seed: int) -> Adversary:
    """A run in a random order of events, with the invariants checked after each."""
    adversary = Adversary(seed)
    adversary.play()
    hand, policies = adversary.hand, adversary.hand.scheduler.policies
    trained, dropped = set(adversary.trained), set(adversary.dropped)
    assert adversary.last == Finish(complete=True)
    assert len(trained) == len(adversary.trained)
    assert not trained & dropped
    assert len(trained) + len(dropped) == adversary.n_arrived == hand.state.next_train_index
    assert hand.state.learner.steps_done == hand.state.limits.steps
    assert not hand.state.groups
    assert min(adversary.lags) >= 0
    if policies.staleness.drops:
        assert max(adversary.lags) <= hand.state.limits.staleness_bound
    return adversary


def check_schedules(seeds: range) -> None:
    for seed in seeds:
        try:
            check_schedule(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("start", range(0, 300, 100))
def test_h9_until_it_is_over_something_can_happen_and_s4_no_lag_exceeds_the_bound(
    start: int,
) -> None:
    check_schedules(range(start, start + 100))


def test_a_schedule_in_which_a_group_ahead_and_an_evaluation_waited_for_each_other_ends() -> None:
    check_schedule(3394)


@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 10_000, 1000))
def test_h9_and_s4_in_ten_thousand_schedules(start: int) -> None:
    check_schedules(range(start, start + 1000))
