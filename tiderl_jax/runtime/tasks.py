"""Which task a group plays: a function of the group's identity, so a resumed run asks the same."""

import heapq
from collections.abc import Iterable

from tiderl_jax.core.config import EvaluationConfig
from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.protocol import Split, World


class TaskSource:
    """Training groups walk the training split; evaluations repeat the same tasks of another."""

    def __init__(
        self,
        world: World,
        n_members: int,
        evaluation: EvaluationConfig,
        n_evaluations: int = 0,
        next_train_index: int = 0,
        unfinished_train_indices: Iterable[int] = (),
    ) -> None:
        """A training group starts with `n_members` rollouts.

        The last three arguments are where an earlier process of the same run left off: groups that
        it began and did not train are handed out again before any new one.
        """
        self._world = world
        self._n_members = n_members
        self._evaluation = evaluation
        self._unfinished = sorted(unfinished_train_indices)
        n_evaluated = n_evaluations * evaluation.n_tasks
        self._next = dict.fromkeys(Purpose, n_evaluated) | {Purpose.TRAIN: next_train_index}

    def take(self, purpose: Purpose, n_groups: int) -> tuple[GroupId, ...]:
        """The next groups of a purpose."""
        return tuple(GroupId(purpose, self._take_index(purpose)) for _ in range(n_groups))

    def _take_index(self, purpose: Purpose) -> int:
        if purpose is Purpose.TRAIN and self._unfinished:
            return heapq.heappop(self._unfinished)
        self._next[purpose] += 1
        return self._next[purpose] - 1

    def task(self, group: GroupId) -> Task:
        """The task of a group."""
        if group.purpose is Purpose.TRAIN:
            return self._world.task(Split.TRAIN, group.number)
        split, n_tasks = Split(self._evaluation.split), self._evaluation.n_tasks
        return self._world.task(split, group.number % n_tasks)

    def n_members(self, purpose: Purpose) -> int:
        """Rollouts per group; an evaluation plays every task once."""
        return 1 if purpose.is_evaluation else self._n_members
