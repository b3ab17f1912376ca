"""The sums that every figure is made of: counts and nanoseconds, added up as a run goes on.

A window is the time between two updates; the sums of windows add up to the sums of the run, so
every ratio can be taken as sum over sum over any stretch of it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tiderl_jax.core.ids import PolicyVersion

Sums = Counter[str]

NS_PER_S = 10**9


class Sum(StrEnum):
    """The plain sums. Those in families (by cause, reason, lag) are named by functions below."""

    WINDOW_NS = "window_ns"
    DEVICE_NS = "device_ns"  # window x devices
    TRAINER_WAITING_DEVICE_NS = "trainer_waiting_device_ns"  # x devices that only train
    REPARTITIONS = "repartitions"  # ranks that were given another role
    SAMPLED_TOKENS = "sampled_tokens"  # model-owned, of training rollouts, by turn
    EVALUATION_TOKENS = "evaluation_tokens"  # model-owned, of evaluation rollouts
    TRAINED_TOKENS = "trained_tokens"  # model-owned, advanced an update within the bound on lag
    TRAINED_CONTEXT_TOKENS = "trained_context_tokens"  # all tokens of the trajectories of these
    FOUND_TOKENS = "found_tokens"  # prompt tokens found in KV, all turns
    PREFILLED_TOKENS = "prefilled_tokens"  # prompt tokens computed, all turns
    TURNS = "turns"
    CUT_TURNS = "cut_turns"  # that reached the turn's token limit
    PAUSES = "pauses"  # of rollouts, by the scheduler
    EPISODES = "episodes"  # training rollouts that ended and may train
    ENDED = "ended"  # these episodes as facts; the two sums below are over them
    ENDED_TURNS = "ended_turns"
    ENDED_CONTEXT_TOKENS = "ended_context_tokens"
    ENVIRONMENT_FAILURES = "environment_failures"
    ENGINE_FAILURES = "engine_failures"
    MICROBATCHES = "microbatches"
    TRAJECTORIES = "trajectories"  # handed to the step; the sums below are over these
    REWARD = "reward"
    SUCCESSES = "successes"
    TRUNCATED = "truncated"
    TRAJECTORY_TURNS = "trajectory_turns"
    MODEL_TOKENS = "model_tokens"
    CONTEXT_TOKENS = "context_tokens"
    LAGGED = "lagged"  # trained trajectories
    LAG = "lag"  # versions, over trained trajectories


class Loss(StrEnum):
    """Why a token that was sampled for training is not counted as trained."""

    ZERO_ADVANTAGE = "zero_advantage"
    STALE = "stale"
    OVER_BOUND = "over_bound"  # it trained, but its own version was older than the bound allows
    TRIMMED = "trimmed"  # it was older than the bound and left out; its trajectory trained
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    LATE = "late"
    REDUNDANT = "redundant"
    UNFINISHED = "unfinished"


class Doing(StrEnum):
    """What a rank does: it decodes, or waits for one of the causes, or is not there to roll out."""

    DECODING = "decoding"
    WEIGHTS = "weights"  # a version is being brought to it
    SCHEDULER = "scheduler"  # a turn is ready here, and is not run
    ENVIRONMENTS = "environments"  # every rollout here waits for its environment
    STALENESS = "staleness"  # nothing that may run, and the bound on staleness lets nothing in
    NOT_ADMITTED = "not_admitted"  # nothing here, for another reason (tasks, probes, the end)
    TRAINER = "trainer"  # it belongs to the trainer, or a trainer that shares its device is at work
    MOVING = "moving"  # it takes another role
    LOST = "lost"


AWAY = (Doing.TRAINER, Doing.MOVING, Doing.LOST)
WAITING = tuple(doing for doing in Doing if doing is not Doing.DECODING and doing not in AWAY)


class Training(StrEnum):
    """What the trainer does."""

    TRAINING = "training"  # it has been fed, and is not done with that
    WAITING = "waiting"


def rank_ns(doing: str) -> str:
    """Time of the ranks in one state, summed over ranks."""
    return f"rank_ns/{doing}"


def trainer_ns(training: str) -> str:
    """Time of the trainer in one state."""
    return f"trainer_ns/{training}"


def lost_tokens(reason: str) -> str:
    """Tokens sampled for training that did not train, by reason."""
    return f"lost_tokens/{reason}"


def trained_at_lag(lag: int) -> str:
    """Trained trajectories of one lag."""
    return f"trained_at_lag/{lag}"


def is_time(name: str) -> bool:
    """Whether a sum is of nanoseconds."""
    return name.partition("/")[0].endswith("_ns")


def family(sums: Sums, name: str) -> dict[str, float]:
    """The members of a family of sums, by what follows `name/`."""
    prefix = name + "/"
    return {key.removeprefix(prefix): n for key, n in sums.items() if key.startswith(prefix)}


def total(parts: Iterable[Sums]) -> Sums:
    """The sums of several stretches as one. (`Counter`'s own `+` would forget negative rewards.)"""
    whole: Sums = Counter()
    for part in parts:
        whole.update(part)
    return whole


@dataclass(frozen=True, slots=True)
class Window:
    """The sums of one training step: from the update before it to its own."""

    step: int  # the number of updates at its end
    version: PolicyVersion  # minted at its end
    end_ns: int
    n_episodes: int  # since the start of the run
    sums: Sums
    learner: dict[str, float]  # the learner's own figures of this step
    group_ns: tuple[int, ...]  # of each group it trained on: first admission to last end


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One complete evaluation: the same held-out tasks, all under one policy version."""

    purpose: int  # a `Purpose`
    version: PolicyVersion
    step: int  # updates behind that version
    end_ns: int
    n_episodes: int  # training episodes of the run by then
    sums: Sums  # TRAJECTORIES, REWARD, SUCCESSES, TRUNCATED, TRAJECTORY_TURNS, ... of its episodes
