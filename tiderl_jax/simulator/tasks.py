"""Which groups are brought: the numbers of each purpose in order."""

import heapq
from collections.abc import Mapping
from typing import Any

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.ids import GroupId, Purpose


class VirtualTasks:
    """Which group comes next; those that an earlier process began come again before any new one."""

    def __init__(self, config: ExperimentConfig, saved: Mapping[str, Any]) -> None:
        group = config.rollout
        self._n_members = group.samples_per_prompt + group.group.extra_members
        self._unfinished: list[int] = sorted(saved["unfinished_train_indices"])
        n_evaluated = saved["n_evaluations"] * config.evaluation.n_tasks
        self._next: dict[Purpose, int] = {purpose: n_evaluated for purpose in Purpose}
        self._next[Purpose.TRAIN] = saved["next_train_index"]

    def take(self, purpose: Purpose) -> GroupId:
        """The next group of a purpose."""
        if purpose is Purpose.TRAIN and self._unfinished:
            return GroupId(purpose, heapq.heappop(self._unfinished))
        self._next[purpose] += 1
        return GroupId(purpose, self._next[purpose] - 1)

    def n_members(self, purpose: Purpose) -> int:
        """Rollouts that a group starts with; an evaluation plays every task once."""
        return 1 if purpose.is_evaluation else self._n_members
