"""One simulated run: the real scheduler and event loop over a virtual driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiderl_jax.core.commands import Abort, Finish
from tiderl_jax.core.config import (
    EnvironmentConfig,
    EvaluationConfig,
    RolloutConfig,
    SchedulerConfig,
)
from tiderl_jax.core.events import Event
from tiderl_jax.scheduler.loop import Observer, run
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.driver import Tally, VirtualDriver, World
from tiderl_jax.simulator.profile import CostModel, Draws, FaultRates, WorkloadProfile


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a simulated run depends on."""

    scheduler: SchedulerConfig
    rollout: RolloutConfig
    evaluation: EvaluationConfig
    environment: EnvironmentConfig
    steps: int
    ranks: tuple[RankSpec, ...]
    profile: WorkloadProfile
    costs: CostModel
    faults: FaultRates
    seed: int

    def new_scheduler(self, saved: Mapping[str, Any] | None = None) -> Scheduler:
        """A scheduler at the beginning of the run, or where a snapshot was taken."""
        return Scheduler(
            self.scheduler,
            self.rollout,
            self.evaluation,
            self.environment,
            self.steps,
            self.ranks,
            saved,
        )


@dataclass(frozen=True, slots=True)
class Simulated:
    """How a simulated run went."""

    last: Finish | Abort
    scheduler: Scheduler
    tally: Tally
    journal: list[tuple[Event, int]]

    @property
    def wall_s(self) -> float:
        """Virtual seconds from start to end."""
        return self.journal[-1][1] / NS_PER_S

    @property
    def goodput_tokens_per_s(self) -> float:
        """Model-owned tokens that advanced an update, per virtual second."""
        return self.tally.trained_tokens / self.wall_s

    @property
    def kv_hit_rate(self) -> float:
        """Prompt tokens found in KV / (found + prefilled), over all turns."""
        tally = self.tally
        return tally.found_tokens / (tally.found_tokens + tally.prefilled_tokens)


def simulate(
    setup: Setup,
    *,
    saved: Mapping[str, Any] | None = None,
    stop_s: float | None = None,
    observers: Sequence[Observer] = (),
    events_per_check: int = 1,
) -> Simulated:
    """Runs from the beginning or a snapshot to the end, or to a stop requested at `stop_s`."""
    scheduler = setup.new_scheduler(saved)
    draws = Draws(setup.seed, setup.profile, setup.faults)
    world = World(setup.rollout, setup.environment, setup.ranks, setup.costs, draws)
    driver = VirtualDriver(world, scheduler.snapshot())
    if stop_s is not None:
        driver.stop_at(round(stop_s * NS_PER_S))
    journal: list[tuple[Event, int]] = []
    last = run(
        scheduler,
        driver,
        driver,
        start_ns=0,
        journal=lambda event, now_ns: journal.append((event, now_ns)),
        observers=observers,
        events_per_check=events_per_check,
    )
    return Simulated(last, scheduler, driver.tally, journal)
