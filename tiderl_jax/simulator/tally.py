"""What the simulated world did, for tests and for comparisons that the ledger does not make."""

from collections import Counter
from dataclasses import dataclass, field

from tiderl_jax.core.commands import DropReason
from tiderl_jax.core.ids import GroupId, PolicyVersion, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.simulator.episodes import Episode


@dataclass(slots=True)
class Sizes:
    """Sums over rollouts."""

    n: int = 0
    turns: int = 0
    sampled_tokens: int = 0
    context_tokens: int = 0
    duration_s: float = 0.0  # from admission to the end

    def add(self, episode: Episode) -> None:
        """Adds one that has ended."""
        self.n += 1
        self.turns += episode.n_turns
        self.sampled_tokens += episode.n_sampled_tokens
        self.context_tokens += episode.trained_context_tokens
        self.duration_s += episode.duration_s


@dataclass(slots=True)
class WorkloadTally:
    """Training groups and rollouts of one workload class: selection bias is seen here."""

    asked_groups: int = 0
    trained_groups: int = 0
    dropped_groups: int = 0
    ended: Sizes = field(default_factory=Sizes)  # rollouts, whatever became of their group
    trained: Sizes = field(default_factory=Sizes)
    tokens_at_lag: Counter[int] = field(default_factory=Counter[int])  # trained


@dataclass(slots=True)
class Tally:
    """Counts and lists over a whole run."""

    trained_tokens: int = 0
    trained_groups: list[GroupId] = field(default_factory=list[GroupId])
    dropped_groups: dict[GroupId, DropReason] = field(default_factory=dict[GroupId, DropReason])
    dropped_rollouts: Counter[DropReason] = field(default_factory=Counter[DropReason])
    lags: list[int] = field(default_factory=list[int])  # of trained rollouts
    tokens_at_lag: Counter[int] = field(default_factory=Counter[int])
    evaluated: list[tuple[RolloutId, PolicyVersion]] = field(
        default_factory=list[tuple[RolloutId, PolicyVersion]]
    )  # rollouts of evaluations that ended, and the version they sampled under
    outcomes: Counter[Outcome] = field(default_factory=Counter[Outcome])
    faults: Counter[str] = field(default_factory=Counter[str])  # injected, by kind
    workloads: dict[str, WorkloadTally] = field(default_factory=dict[str, WorkloadTally])

    def workload(self, name: str) -> WorkloadTally:
        """The part of one workload class."""
        return self.workloads.setdefault(name, WorkloadTally())
