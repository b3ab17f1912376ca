"""What the ledger is told besides events: the shape of the run, and finished rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.ids import PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome

SUCCESS_REWARD = 1.0
"""A rollout is a success when its reward is at least this."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The shape of a run: all that its figures depend on besides what happened."""

    policy: str
    roles: Mapping[RankId, Role]  # of every rank, at the start
    n_devices: int  # of every role; a device that serves two roles in turn counts once
    n_shared: int  # the first so many ranks share their devices with the trainer
    groups_per_step: int
    staleness_bound: int  # in versions

    @classmethod
    def of(cls, config: ExperimentConfig, policy: str | None = None) -> RunFacts:
        """The facts of a resolved experiment; `policy` is its name where the preset's is not."""
        n_rollout, n_actor = config.partition.n_rollout_ranks, config.partition.actor_devices
        shared = config.partition.share_devices
        n_trainers = 0 if shared else n_actor
        roles = [Role.ROLLOUT] * n_rollout + [Role.TRAINER] * n_trainers
        return cls(
            policy=policy or config.scheduler.preset,
            roles={RankId(i): role for i, role in enumerate(roles)},
            n_devices=max(n_rollout, n_actor) if shared else n_rollout + n_actor,
            n_shared=min(n_rollout, n_actor) if shared else 0,
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
