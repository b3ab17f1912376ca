"""Commands: all that the scheduler ever asks for. A driver carries them out and reports events."""

from dataclasses import dataclass
from enum import Enum

from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome


class StepMode(Enum):
    """How the frozen scorer and the actor share the trainer's ranks in a step (RA2P)."""

    COLOCATED = "colocated"  # in turns on every rank: each feed costs two swaps of weights
    DECOUPLED = "decoupled"  # some ranks score, the others train: feeds stream through them


class DropReason(Enum):
    """Why work that was paid for does not train. Every drop is counted under one of these."""

    STALE = "stale"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    LATE = "late"  # the deadline of its group had passed
    REDUNDANT = "redundant"  # enough other members of its group had ended
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
class Migrate:
    """Run the rollout on another rank from now on; its KV stays behind and is given up.

    A turn that runs is interrupted: what it sampled is kept, and the `RunTurn` that follows goes on
    from there.
    """

    rollout: RolloutId
    rank: RankId  # the new one


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
class DropRollout:
    """Forget one member of a group and all it holds; its tokens are counted under `reason`."""

    rollout: RolloutId
    reason: DropReason


@dataclass(frozen=True, slots=True)
class DropGroup:
    """Forget a group and all it holds; its tokens are counted under `reason`."""

    group: GroupId
    reason: DropReason


@dataclass(frozen=True, slots=True)
class StartStep:
    """Make the trainer's ranks ready for a step; what it trains on comes by `Feed`."""

    step: int
    mode: StepMode
    n_scorers: int  # trainer ranks that only score in this step; 0 when co-located


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Trajectories that one trainer rank scores or trains at once."""

    worker: int  # index among the step's ranks that train
    rollouts: tuple[RolloutId, ...]
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Feed:
    """Train on these groups in the open step; answered by `Trained`, the last one by `Updated`."""

    step: int
    feed: int  # counts the feeds of a step from 0
    groups: tuple[GroupId, ...]  # that are used up by this feed
    microbatches: tuple[Microbatch, ...]
    last: bool  # the optimizer update follows


@dataclass(frozen=True, slots=True)
class Repartition:
    """Give a rank another role; it has none until it answers with `RankReady`."""

    rank: RankId
    role: Role


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
    | Migrate
    | Pause
    | Resume
    | Release
    | PauseEnvironment
    | ResumeEnvironment
    | EndRollout
    | DropRollout
    | DropGroup
    | StartStep
    | Feed
    | Repartition
    | Publish
    | SetTimer
    | Finish
    | Abort
)
