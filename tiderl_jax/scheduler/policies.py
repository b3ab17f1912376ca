"""The five decisions as ports, and the one call of `handle` in which they are made."""

from dataclasses import dataclass
from typing import Protocol

from tiderl_jax.core.commands import Command, StepMode
from tiderl_jax.core.ids import PolicyVersion, RankId, Role, RolloutId
from tiderl_jax.scheduler.ranking import Key
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.state import Group, Rank, Rollout, State, Step


class Admission(Protocol):
    """Which task starts, on which rank, when."""

    on_policy: bool  # whether it never lets a version train on another's tokens (bound 0)
    opens_ahead: bool  # whether environments open before staleness lets their group in

    def needs_probe(self, state: State) -> bool:
        """Whether the first prompt of a group that arrives now is measured before it is placed."""
        ...

    def may_open(self, state: State, group: Group) -> bool:
        """Whether a group without a rank may be placed now."""
        ...

    def accepts(self, move: "Move", rank: Rank, group: Group) -> bool:
        """Whether this rank takes new rollouts of the group at all now."""
        ...

    def fits(self, state: State, rank: Rank, group: Group) -> bool:
        """Whether one more member of the group fits on this rank."""
        ...


class Batching(Protocol):
    """Which ready turn runs, who is paused, whose KV stays."""

    keeps_kv: bool  # whether a rollout's KV is kept while its environment works

    def key(self, state: State, rollout: Rollout) -> Key:
        """The order in which rollouts are served; smaller first, no two alike."""
        ...

    def take(self, move: "Move", rollout: Rollout) -> None:
        """The rollout's next turn may run: it queues for it, on its rank or on another."""
        ...

    def run(self, move: "Move", rank: Rank) -> None:
        """Starts the turns that may start on this rank."""
        ...


class Staleness(Protocol):
    """May a new rollout start; may a trajectory train."""

    drops: bool  # whether groups with tokens older than the bound are dropped
    trims: bool  # whether the learner leaves tokens older than the bound out of its loss

    def horizon(self, state: State) -> int:
        """Training groups that may have begun by now, those that trained included."""
        ...

    def demand(self, state: State, n_ahead: int) -> int:
        """Training groups to request now, of which so many may lie beyond the horizon."""
        ...

    def may_start(self, state: State, rank: Rank) -> bool:
        """Whether a training rollout may start under the version that this rank serves."""
        ...

    def may_run_ahead(self, state: State) -> bool:
        """Whether the learner may start a step while its newest version is not published."""
        ...

    def may_publish(self, state: State) -> bool:
        """Whether the ranks may swap weights now."""
        ...

    def is_stale(self, state: State, oldest: PolicyVersion, used_at_version: int) -> bool:
        """Whether tokens this old must not train when the trainer is at that version."""
        ...


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How a step is to be executed."""

    mode: StepMode
    n_scorers: int


class Pipelining(Protocol):
    """How scorer and actor share a step, and when the step takes what is ready."""

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """The plan of a step of so many groups that starts now; None: more must be ready first."""
        ...

    def feed(self, state: State, step: Step) -> list[RolloutId] | None:
        """Which of the trajectories that wait in the open step are fed now; None: none yet."""
        ...


class Scaling(Protocol):
    """Which ranks roll out, which train; asked between an update and its broadcast."""

    def plan(self, state: State, window: Window | None) -> list[tuple[RankId, Role]]:
        """The ranks that change their role now, with their new one; no window: the run begins."""
        ...

    def n_groups(self, state: State) -> int:
        """Groups that the next step takes: between B_min and B_ideal."""
        ...


@dataclass(frozen=True, slots=True)
class Policies:
    """One choice for each decision."""

    admission: Admission
    batching: Batching
    staleness: Staleness
    pipelining: Pipelining
    scaling: Scaling


class Move:
    """One call of `handle`: what it reads and changes, when, and the commands it came to."""

    __slots__ = ("commands", "now_ns", "policies", "reconsider", "state", "touched")

    def __init__(self, state: State, policies: Policies, now_ns: int) -> None:
        self.state = state
        self.policies = policies
        self.now_ns = now_ns
        self.commands: list[Command] = []
        self.touched: dict[RankId, None] = {}
        self.reconsider = True  # whether training may have something to do or to drop

    def say(self, *commands: Command) -> None:
        """Adds commands."""
        self.commands.extend(commands)

    def ignore(self) -> None:
        """Counts an event that is late, duplicate or unknown."""
        self.state.counters.ignored_events += 1
