"""Policies side by side: each at every seed in virtual time, and a table of what was measured."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.progress import track

from experiments.suites.scheduler import EVENTS_PER_CHECK, text_setting
from tiderl_jax.core.commands import Abort
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.report.claims import SeedsOf, figure
from tiderl_jax.report.compare import spread_table
from tiderl_jax.scheduler.loop import Observer
from tiderl_jax.simulator.simulate import Simulated, simulate

Measured = Mapping[str, Any]
"""The summary of a run, and what a suite adds to it."""


def side_by_side(
    policies: Mapping[str, Mapping[str, object]],
    seeds: Sequence[int],
    measure: Callable[[ExperimentConfig], Measured],
) -> dict[str, list[Measured]]:
    """What `measure` finds of each policy, by name, at each seed.

    Args:
      policies: what each changes about the paper's text setting.
      seeds: of the simulated worlds; every policy meets the same ones.
      measure: simulates one experiment.
    """
    return {
        name: [
            measure(text_setting(**changes, seed=seed))
            for seed in track(seeds, description=f"simulating {name}")
        ]
        for name, changes in policies.items()
    }


def finished(config: ExperimentConfig, *observers: Observer) -> Simulated:
    """A simulated run that came to its end.

    Raises:
      TiderlError: it could not.
    """
    done = simulate(config, timeline=False, observers=observers, events_per_check=EVENTS_PER_CHECK)
    if isinstance(done.last, Abort):
        raise TiderlError(done.last.reason)
    return done


def table(measured: SeedsOf, figures: Mapping[str, str]) -> str:
    """A row per policy; `figures` are the names of the columns and what they show."""
    return spread_table(
        {
            run: {name: figure(key, run).per_seed(measured) for name, key in figures.items()}
            for run in measured
        }
    )
