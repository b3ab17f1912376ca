"""Events: everything the scheduler is ever told. They carry ids and counts, never objects."""

from dataclasses import dataclass
from enum import Enum

from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome


class TurnStop(Enum):
    """Why the model's part of a turn ended."""

    END_OF_TURN = "end_of_turn"  # the model sampled its stop token
    LENGTH = "length"  # the turn's token limit was reached: the episode ends (a cut turn)


@dataclass(frozen=True, slots=True)
class TasksArrived:
    """New groups can be rolled out, in answer to `RequestTasks`."""

    groups: tuple[GroupId, ...]
    n_members: int


@dataclass(frozen=True, slots=True)
class ProbeMeasured:
    """The light probe of a group: one environment was opened and its first prompt counted."""

    group: GroupId
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The environment of a group could not be opened."""

    group: GroupId
    reason: str


@dataclass(frozen=True, slots=True)
class EnvironmentReady:
    """The environment answered; the rollout's next turn may run. Also its answer to `Admit`."""

    rollout: RolloutId
    appended_tokens: int


@dataclass(frozen=True, slots=True)
class EnvironmentFailed:
    """The environment crashed, hung or answered garbage. Never a reward of 0."""

    rollout: RolloutId
    reason: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """A decoder finished the model's part of a turn."""

    rollout: RolloutId
    rank: RankId
    stop: TurnStop
    generated_tokens: int
    found_tokens: int  # prompt tokens found in KV
    prefilled_tokens: int  # prompt tokens computed for this turn
    oldest_version: PolicyVersion  # among the tokens sampled in this turn


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """A rollout is over and its trajectory is kept by the driver (reward and tokens known)."""

    rollout: RolloutId
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RolloutFailed:
    """The engine lost a rollout's tokens, or captured none: failed, never a reward of 0."""

    rollout: RolloutId
    reason: str


@dataclass(frozen=True, slots=True)
class Trained:
    """The gradients of a feed have been added up; its step is still open."""

    step: int
    feed: int


@dataclass(frozen=True, slots=True)
class Updated:
    """The learner finished a step and minted a version."""

    step: int
    version: PolicyVersion
    digest: str
    trained_tokens: int  # model-owned tokens that advanced the update
    context_tokens: int  # all tokens of the trajectories that advanced it
    untrained_tokens: tuple[tuple[str, int], ...]  # (reason, model-owned tokens) left out
    n_microbatches: int
    lags: tuple[int, ...]  # of every trained trajectory, at the moment of use
    tokens_at_lag: tuple[tuple[int, int], ...]  # (lag of a token's own version, trained tokens)
    reward_mean: float  # over all trajectories handed to the step


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """A decoder proved the digest of a version and serves it from now on."""

    rank: RankId
    version: PolicyVersion
    digest: str


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank has taken its new role, or came back after it was lost."""

    rank: RankId
    role: Role


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank is gone with its KV and its running turns; ended turns are safe with the driver."""

    rank: RankId
    returns: bool  # `RankReady` will come


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time asked for by `SetTimer` has come."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A person or the platform asks the run to stop cleanly (Ctrl-C, SIGTERM)."""


Event = (
    TasksArrived
    | ProbeMeasured
    | ProbeFailed
    | EnvironmentReady
    | EnvironmentFailed
    | TurnEnded
    | RolloutEnded
    | RolloutFailed
    | Trained
    | Updated
    | WeightsLoaded
    | RankReady
    | RankLost
    | TimerFired
    | StopRequested
)
