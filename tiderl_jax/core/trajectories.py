"""Tasks, outcomes and finished rollouts."""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from tiderl_jax.core.ids import PolicyVersion, RolloutId
from tiderl_jax.core.segments import Owner, Segment


class Outcome(Enum):
    """How a rollout ended. Only `FINISHED` and the truncations may train."""

    FINISHED = "finished"
    TRUNCATED_LENGTH = "truncated_length"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TIME = "truncated_time"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"

    @property
    def may_train(self) -> bool:
        """Whether the reward of this rollout says something about the policy."""
        return self is Outcome.FINISHED or self.value.startswith("truncated")


@dataclass(frozen=True, slots=True)
class Task:
    """A problem instance: an environment's name and the seed that generates the instance."""

    environment: str
    seed: int


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A finished rollout: its segments in order, its reward, its outcome."""

    rollout: RolloutId
    task: Task
    segments: tuple[Segment, ...]
    reward: float
    outcome: Outcome
    n_turns: int

    def _join(self, field: str) -> np.ndarray:
        return np.concatenate([getattr(segment, field) for segment in self.segments])

    @cached_property
    def token_ids(self) -> np.ndarray:
        """int32 [T]: exactly the ids that the decoder consumed and sampled."""
        return self._join("token_ids")

    @cached_property
    def logp(self) -> np.ndarray:
        """float32 [T], nats: as sampled; 0 where the model did not sample."""
        return self._join("logp")

    @cached_property
    def versions(self) -> np.ndarray:
        """int32 [T]: the policy version of each sampled token, -1 elsewhere."""
        return self._join("versions")

    @cached_property
    def loss_mask(self) -> np.ndarray:
        """bool [T]: True exactly at the tokens that the model owns."""
        owners = [np.full(len(segment), segment.owner) for segment in self.segments]
        return np.concatenate(owners) == Owner.MODEL

    @property
    def n_model_tokens(self) -> int:
        """Count of tokens that the model owns (a count over turns, not a span)."""
        return int(self.loss_mask.sum())

    @property
    def first_version(self) -> PolicyVersion:
        """The policy version of the first token that the model sampled."""
        return PolicyVersion(int(self.versions[self.loss_mask][0]))

    @property
    def oldest_version(self) -> PolicyVersion:
        """The oldest policy version among the tokens that may train."""
        return PolicyVersion(int(self.versions[self.loss_mask].min()))
