"""Selection: which trajectories train and with what advantage; every other one has a reason."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tiderl_jax.core.trajectories import Trajectory
from tiderl_jax.learner.advantages import group_relative

ZERO_ADVANTAGE = "zero_advantage"
NO_MODEL_TOKENS = "no_model_tokens"
NON_FINITE_REWARD = "non_finite_reward"


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory and what its reward says relative to its group."""

    trajectory: Trajectory
    advantage: float


@dataclass(frozen=True, slots=True)
class Selection:
    """What a step trains on, and what it leaves out."""

    groups: tuple[tuple[Sample, ...], ...]  # each with rewards that differ
    untrained_tokens: Counter[str]  # reason -> model-owned tokens
    n_candidate_tokens: int  # model-owned, of all trajectories that may train
    reward_mean: float  # of all trajectories that may train; NaN without any

    def minibatches(self, n_updates: int) -> list[list[Sample]]:
        """The groups in at most `n_updates` disjoint parts of nearly equal count, none empty."""
        n_parts = min(n_updates, len(self.groups))
        parts = np.array_split(np.arange(len(self.groups)), n_parts) if n_parts else []
        return [[sample for index in part for sample in self.groups[index]] for part in parts]


def select(groups: Sequence[Sequence[Trajectory]], normalise_by_std: bool) -> Selection:
    """Drops what may not train, computes advantages, leaves out groups of equal rewards.

    A rollout that failed, whose tokens were not captured or whose reward is no number, is no
    evidence: it enters neither the loss nor its group's mean.
    """
    untrained: Counter[str] = Counter()
    candidates: list[tuple[int, Trajectory]] = []
    for group_id, group in enumerate(groups):
        for trajectory in group:
            reason = _reason_against(trajectory)
            if reason is None:
                candidates.append((group_id, trajectory))
            else:
                untrained[reason] += trajectory.n_model_tokens
    rewards = np.array([trajectory.reward for _, trajectory in candidates], np.float64)
    group_ids = np.array([group_id for group_id, _ in candidates], np.int64)
    advantages = group_relative(rewards, group_ids, normalise_by_std)

    kept: dict[int, list[Sample]] = {}
    for (group_id, trajectory), advantage in zip(candidates, advantages, strict=True):
        kept.setdefault(group_id, []).append(Sample(trajectory, float(advantage)))
    for group_id, samples in list(kept.items()):
        if all(sample.advantage == 0 for sample in samples):
            untrained[ZERO_ADVANTAGE] += _model_tokens(samples)
            del kept[group_id]
    return Selection(
        groups=tuple(tuple(samples) for samples in kept.values()),
        untrained_tokens=untrained,
        n_candidate_tokens=sum(trajectory.n_model_tokens for _, trajectory in candidates),
        reward_mean=float(rewards.mean()) if len(rewards) else float("nan"),
    )


def _reason_against(trajectory: Trajectory) -> str | None:
    if not trajectory.outcome.may_train:
        return trajectory.outcome.value
    if trajectory.n_model_tokens == 0:
        return NO_MODEL_TOKENS
    if not math.isfinite(trajectory.reward):
        return NON_FINITE_REWARD
    return None


def _model_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.trajectory.n_model_tokens for sample in samples)
