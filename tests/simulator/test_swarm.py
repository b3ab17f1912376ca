"""Random worlds: each drains without breaking a rule, and what is wrong with a run is found out."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from setups import random_config, small_config

from tiderl_jax.core.commands import Abort, DropReason
from tiderl_jax.simulator.simulate import Simulated, simulate
from tiderl_jax.simulator.swarm import CHOICES, flaws, random_changes


@pytest.mark.parametrize("start", range(0, 120, 30))
def test_random_limits_policies_and_faults_drain_without_breaking_an_invariant(start: int) -> None:
    for seed in range(start, start + 30):
        config = random_config(seed)
        try:
            broken = flaws(config, simulate(config, events_per_check=1, timeline=False))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert broken == [], f"seed {seed}"


def test_worlds_differ_in_every_decision_and_in_which_faults_they_have() -> None:
    worlds = [random_changes(seed) for seed in range(300)]
    for decision, names in CHOICES.items():
        assert {world.get(f"scheduler.{decision}") for world in worlds} >= set(names)
    kinds = [key for key in worlds[0] if key.startswith("simulation.faults.")]
    assert len({tuple(world[kind] > 0 for kind in kinds) for world in worlds}) > 100


def _train_twice(run: Simulated) -> None:
    run.tally.trained_groups.append(run.tally.trained_groups[0])


def _train_and_drop(run: Simulated) -> None:
    run.tally.dropped_groups[run.tally.trained_groups[0]] = DropReason.STALE


def _lose(run: Simulated) -> None:
    run.tally.trained_groups.pop()


def _ask_for_more(run: Simulated) -> None:
    next(iter(run.tally.workloads.values())).asked_groups += 1


def _leave_an_environment(run: Simulated) -> None:
    run.scheduler.state.n_environments += 1


def _forget_tokens(run: Simulated) -> None:
    run.summary["sampled_tokens"] += 1


def _train_old_tokens(run: Simulated) -> None:
    run.tally.tokens_at_lag[99] = 1


FLAWS: dict[str, Callable[[Simulated], None]] = {
    "trained twice": _train_twice,
    "trained and was dropped": _train_and_drop,
    "lost or invented": _lose,
    "were asked for": _ask_for_more,
    "environments were left": _leave_an_environment,
    "are accounted for": _forget_tokens,
    "at lag 99": _train_old_tokens,
}


@pytest.mark.parametrize("sentence", FLAWS)
def test_a_flaw_of_a_run_is_named(sentence: str) -> None:
    config = small_config("tiderl", steps=1)
    run = simulate(config, timeline=False)
    assert flaws(config, run) == []
    FLAWS[sentence](run)
    assert any(sentence in flaw for flaw in flaws(config, run))


def test_a_run_that_was_given_up_or_did_too_few_steps_is_flawed() -> None:
    config = small_config("tiderl", steps=1)
    run = simulate(config, timeline=False)
    assert "Too many faults" in flaws(config, replace(run, last=Abort("Too many faults.")))[0]
    assert flaws(small_config("tiderl", steps=2), run) == ["1 of 2 steps were done."]
