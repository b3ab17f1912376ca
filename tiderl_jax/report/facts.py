"""What the ledger is told besides events: the shape of the run, and finished rollouts."""

from __future__ import annotations

from dataclasses import dataclass

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.ids import PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome

SUCCESS_REWARD = 1.0
"""A rollout is a success when its reward is at least this."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The shape of a run: all that its figures depend on besides what happened."""

    policy: str
    ranks: tuple[RankId, ...]  # that roll out
    n_devices: int  # of every role; a device that serves two roles in turn counts once
    groups_per_step: int
    staleness_bound: int  # in versions

    @classmethod
    def of(cls, config: ExperimentConfig) -> RunFacts:
        """The facts of a resolved experiment."""
        partition = config.partition
        both = (partition.n_rollout_ranks, partition.actor_devices)
        return cls(
            policy=config.scheduler.preset,
            ranks=tuple(RankId(i) for i in range(partition.n_rollout_ranks)),
            n_devices=max(both) if partition.share_devices else sum(both),
            groups_per_step=config.rollout.prompts_per_step,
            staleness_bound=config.scheduler.staleness_bound,
        )


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """The plain facts of a finished rollout."""

    rollout: RolloutId
    reward: float
    outcome: Outcome
    n_turns: int
    model_tokens: int
    context_tokens: int  # every token of the trajectory, whoever owns it
    start_version: PolicyVersion  # the policy version of its first sampled token

    @property
    def purpose(self) -> Purpose:
        """Why it was rolled out."""
        return self.rollout.group.purpose

    @property
    def is_success(self) -> bool:
        """Whether the task was solved (see `SUCCESS_REWARD`)."""
        return self.reward >= SUCCESS_REWARD
