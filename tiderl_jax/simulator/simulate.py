"""One simulated run: the real scheduler, event loop and ledger over a virtual driver."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tiderl_jax.core.commands import Abort, Finish
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import Event
from tiderl_jax.report.facts import RunFacts
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.scheduler.loop import Observer, run
from tiderl_jax.scheduler.presets import policy_name
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.costs import cost_model
from tiderl_jax.simulator.draws import Draws
from tiderl_jax.simulator.driver import VirtualDriver
from tiderl_jax.simulator.tally import Tally


@dataclass(frozen=True)
class Simulated:
    """How a simulated run went."""

    last: Finish | Abort
    scheduler: Scheduler
    ledger: Ledger
    tally: Tally
    journal: list[tuple[Event, int]]  # empty unless it was asked for

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of `summary.json`."""
        return self.ledger.summary(None)


def simulate(
    config: ExperimentConfig,
    *,
    saved: Mapping[str, Any] | None = None,
    stop_s: float | None = None,
    observers: Sequence[Observer] = (),
    events_per_check: int = 1000,
    journal: bool = False,
    timeline: bool = True,
) -> Simulated:
    """Runs from the beginning or a snapshot to the end, or to a stop requested at `stop_s`.

    Without a timeline it is faster, and all else is the same.

    Raises:
      ConfigError: the experiment cannot be simulated.
      InvariantError: the scheduler broke a rule, or nothing will ever happen again.
    """
    costs, ranks = cost_model(config), rank_specs(config)
    scheduler = Scheduler.of(config, ranks, costs.step, saved)
    ledger = Ledger(RunFacts.of(config, policy_name(config.scheduler)), timeline=timeline)
    draws = Draws(config.seed, config.simulation, config.rollout, config.environment.max_turns)
    driver = VirtualDriver(config, ranks, costs, draws, scheduler.snapshot(), ledger.rollout)
    if stop_s is not None:
        driver.stop_at(round(stop_s * NS_PER_S))
    events: list[tuple[Event, int]] = []
    with uncollected():
        last = run(
            scheduler,
            driver,
            driver,
            start_ns=0,
            journal=(lambda event, now_ns: events.append((event, now_ns))) if journal else _forget,
            observers=(ledger.observe, *observers),
            events_per_check=events_per_check,
        )
    return Simulated(last, scheduler, ledger, driver.tally, events)


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is looked through for cycles: a run makes none, and has much to look through."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _forget(event: Event, now_ns: int) -> None:
    """No journal is kept."""
