"""Advantages: what a rollout's reward says, relative to the rollouts of the same task."""

import numpy as np
from jaxtyping import Float, Int

EQUAL_SHARE = 1e-6
"""Rewards of a group that differ by less than this share of the largest (itself taken as at least
this) are equal."""


def group_relative(
    rewards: Float[np.ndarray, " N"], group_ids: Int[np.ndarray, " N"], normalise_by_std: bool
) -> Float[np.ndarray, " N"]:
    """GRPO's advantage (arXiv 2402.03300, section 4.1.2): reward minus the group's mean.

    Groups are told by `group_ids`, never by position. With `normalise_by_std` it is divided by the
    group's sample standard deviation (n - 1), so that |advantage| <= (n - 1) / sqrt(n). A group
    whose rewards are all equal, a group of one included, has advantage 0. float64 throughout.
    """
    _, group_N = np.unique(group_ids, return_inverse=True)
    n_groups = int(group_N.max(initial=-1)) + 1
    rewards_N = rewards.astype(np.float64)
    count_G = np.bincount(group_N, minlength=n_groups)
    mean_G = np.bincount(group_N, rewards_N, n_groups) / count_G
    centred_N = rewards_N - mean_G[group_N]
    advantage_N = np.where(_all_equal(rewards_N, group_N, n_groups)[group_N], 0.0, centred_N)
    if normalise_by_std:
        squares_G = np.bincount(group_N, np.square(advantage_N), n_groups)
        std_G = np.sqrt(squares_G / np.maximum(count_G - 1, 1))
        advantage_N = advantage_N / np.where(std_G > 0, std_G, 1.0)[group_N]
    return advantage_N


def _all_equal(rewards_N: np.ndarray, group_N: np.ndarray, n_groups: int) -> np.ndarray:
    """Decided on the rewards' range: a variance suffers from cancellation."""
    highest_G, lowest_G = np.full(n_groups, -np.inf), np.full(n_groups, np.inf)
    np.maximum.at(highest_G, group_N, rewards_N)
    np.minimum.at(lowest_G, group_N, rewards_N)
    largest_G = np.maximum(np.abs(highest_G), np.abs(lowest_G))
    return highest_G - lowest_G <= EQUAL_SHARE * np.maximum(largest_G, EQUAL_SHARE)
