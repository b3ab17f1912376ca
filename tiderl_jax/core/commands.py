"""Commands: all that the scheduler ever asks for. A driver carries them out and reports events."""

from dataclasses import dataclass
from enum import Enum

from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome


class StepMode(Enum):
    """How the frozen scorer and the actor share a training step (RA2P)."""

    COLOCATED = "colocated"


class DropReason(Enum):
    """Why work that was paid for does not train. Every drop is counted under one of these."""

    STALE = "stale"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    UNFINISHED = "unfinished"  # the run ended first


@dataclass(frozen=True, slots=True)
class RequestTasks:
    """Bring this many new groups; answered by one `TasksArrived`."""

    purpose: Purpose
    n_groups: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Open one environment of the group and count its first prompt."""

    group: GroupId


@dataclass(frozen=True, slots=True)
class Admit:
    """Open this rollout's environment; its turns will run on `rank`."""

    rollout: RolloutId
    rank: RankId


@dataclass(frozen=True, slots=True)
class RunTurn:
    """Decode the rollout's next turn on its rank."""

    rollout: RolloutId
    rank: RankId


@dataclass(frozen=True, slots=True)
class StepEnvironment:
    """Hand the turn's text to the rollout's environment."""

    rollout: RolloutId


@dataclass(frozen=True, slots=True)
class Pause:
    """Park a rollout that is not decoding: its KV may be reclaimed from now on."""

    rollout: RolloutId
    rank: RankId


@dataclass(frozen=True, slots=True)
class Resume:
    """Take a parked rollout back: its KV is kept again from its next turn on."""

    rollout: RolloutId
    rank: RankId


@dataclass(frozen=True, slots=True)
class Release:
    """The rollout holds KV on this rank no more; its pages stay cached until they are needed."""

    rollout: RolloutId
    rank: RankId


@dataclass(frozen=True, slots=True)
class PauseEnvironment:
    """Stop the clocks of the rollout's environment: no time-out fires while it is parked."""

    rollout: RolloutId


@dataclass(frozen=True, slots=True)
class ResumeEnvironment:
    """Let the clocks of the rollout's environment run again."""

    rollout: RolloutId


@dataclass(frozen=True, slots=True)
class EndRollout:
    """Truncate a rollout that is not decoding: close its environment, keep its trajectory.

    Answered by `RolloutEnded`.
    """

    rollout: RolloutId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class DropGroup:
    """Forget a group and all it holds; its tokens are counted under `reason`."""

    group: GroupId
    reason: DropReason


@dataclass(frozen=True, slots=True)
class StartStep:
    """Train one step on these groups; answered by `Updated`."""

    step: int
    groups: tuple[GroupId, ...]
    mode: StepMode


@dataclass(frozen=True, slots=True)
class Publish:
    """Bring this version to the ranks; each answers with `WeightsLoaded`."""

    version: PolicyVersion
    ranks: tuple[RankId, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send `TimerFired` at this time."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left to do. `complete` is False when a stop was requested before the last step."""

    complete: bool


@dataclass(frozen=True, slots=True)
class Abort:
    """The run cannot go on; `reason` is one sentence for the person who started it."""

    reason: str


Command = (
    RequestTasks
    | Probe
    | Admit
    | RunTurn
    | StepEnvironment
    | Pause
    | Resume
    | Release
    | PauseEnvironment
    | ResumeEnvironment
    | EndRollout
    | DropGroup
    | StartStep
    | Publish
    | SetTimer
    | Finish
    | Abort
)
