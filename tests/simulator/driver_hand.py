"""The virtual driver in a world without chance: commands in by hand, events out."""

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from setups import small_config

from tiderl_jax.core.commands import (
    Admit,
    Command,
    Feed,
    Microbatch,
    Publish,
    Release,
    RunTurn,
    StartStep,
    StepEnvironment,
    StepMode,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentReady,
    Event,
    RolloutEnded,
    TurnEnded,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.snapshot import beginning
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.costs import cost_model
from tiderl_jax.simulator.draws import EpisodePlan
from tiderl_jax.simulator.driver import VirtualDriver

Kind = TypeVar("Kind", bound=Event)
G = GroupId(Purpose.TRAIN, 0)
A, B = RolloutId(G, 0), RolloutId(G, 1)
R0, R1, T0, T1 = (RankId(rank) for rank in range(4))
V0 = PolicyVersion(0)
DEADLINE_S, LEASE_S = 30.0, 100.0


class Fixed:
    """Draws of a world in which nothing is left to chance."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.plan = EpisodePlan(2, [10, 20, 30], [False] * 3, [5] * 3, [1.0, 2.0, 3.0, 4.0], 1.0)
        self.losses: dict[RankId, list[float]] = faults.get("losses", {})

    def workload(self, group: GroupId) -> str:
        return "fixed"

    def prompt_tokens(self, group: GroupId) -> int:
        return 40

    def episode(self, rollout: RolloutId) -> EpisodePlan:
        return self.plan

    def probe_fails(self, group: GroupId, n: int) -> bool:
        return n <= self.faults.get("probes", 0)

    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        return self.faults.get("environment", {}).get((rollout, turn), "")

    def engine_fails(self, rollout: RolloutId, turn: int) -> bool:
        return (rollout, turn) in self.faults.get("engine", ())

    def is_duplicated(self, n_events: int) -> bool:
        return True

    def weights_delay_factor(self, rank: RankId, version: PolicyVersion) -> float:
        return self.faults.get("slow", {}).get((rank, version), 1.0)

    def acknowledgement_lost(self, rank: RankId, version: PolicyVersion, n: int) -> bool:
        return n <= self.faults.get("acknowledgements", 0)

    def rank_loss_times(self, rank: RankId) -> Iterator[float]:
        return iter(self.losses.get(rank, []))


class Hand:
    """Gives commands to a driver and reads its events."""

    def __init__(self, *, changes: dict[str, Any] | None = None, **faults: Any) -> None:
        limits = {"environment.step_deadline_s": DEADLINE_S, "environment.idle_lease_s": LEASE_S}
        self.config = small_config("tiderl", **{**limits, **(changes or {})})
        self.costs = cost_model(self.config)
        self.draws = Fixed(**faults)
        self.facts: list[RolloutFacts] = []
        self.driver = VirtualDriver(
            self.config,
            rank_specs(self.config),
            self.costs,
            self.draws,
            beginning(),
            self.facts.append,
        )
        self.now_s = 0.0

    @property
    def tally(self) -> Any:
        return self.driver.tally

    def say(self, *commands: Command) -> None:
        for command in commands:
            self.driver.execute(command, round(self.now_s * NS_PER_S))

    def hear(self, kind: type[Kind]) -> Kind:
        """The next event, which must be of this kind."""
        event, now_ns = self.driver.next()
        assert isinstance(event, kind), event
        assert now_ns / NS_PER_S >= self.now_s
        self.now_s = now_ns / NS_PER_S
        return event

    def hear_all(self) -> list[Event]:
        """Everything that is still to come."""
        heard: list[Event] = []
        with pytest.raises(InvariantError, match="stalled"):
            heard.extend(iter(lambda: self.hear(Event), None))
        return heard

    def load(self, version: int = 0, ranks: tuple[RankId, ...] = (R0, R1)) -> None:
        self.say(Publish(PolicyVersion(version), ranks))
        for _ in ranks:
            self.hear(WeightsLoaded)

    def open(self, *rollouts: RolloutId, rank: RankId = R0) -> None:
        """Admits rollouts; their first turns may run."""
        for rollout in rollouts:
            self.say(Admit(rollout, rank))
            self.hear(EnvironmentReady)

    def turn(self, rollout: RolloutId, rank: RankId = R0) -> TurnEnded:
        self.say(RunTurn(rollout, rank))
        return self.hear(TurnEnded)

    def play(self, *rollouts: RolloutId) -> None:
        """Whole episodes, one after the other."""
        for rollout in rollouts:
            self.open(rollout)
            self.turn(rollout)
            self.say(StepEnvironment(rollout))
            self.hear(EnvironmentReady)
            self.turn(rollout)
            self.say(StepEnvironment(rollout))
            self.hear(RolloutEnded)
            self.say(Release(rollout, R0))

    def refuses(self, command: Command, why: str) -> None:
        with pytest.raises(InvariantError, match=why):
            self.say(command)


def playing(**options: Any) -> Hand:
    hand = Hand(**options)
    hand.load()
    return hand


def feed(*rollouts: RolloutId, groups: tuple[GroupId, ...] = (G,), feed: int = 0) -> Feed:
    """The last feed of step 0, on one worker."""
    return Feed(0, feed, groups, (Microbatch(0, rollouts, 150),), True)


def start() -> StartStep:
    return StartStep(0, StepMode.COLOCATED, 0)
