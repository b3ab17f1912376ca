"""Which task a group plays: a function of the group's identity, so a resumed run asks the same."""

from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.protocol import Split, World


class TaskSource:
    """Training groups walk the training split; evaluation groups repeat the same held-out tasks."""

    def __init__(self, world: World, n_evaluation_tasks: int, samples_per_prompt: int) -> None:
        self._world = world
        self._n_evaluation_tasks = n_evaluation_tasks
        self._samples_per_prompt = samples_per_prompt

    def task(self, group: GroupId) -> Task:
        """The task of a group."""
        if group.purpose is Purpose.TRAIN:
            return self._world.task(Split.TRAIN, group.index)
        return self._world.task(Split.HELD_OUT, group.index % self._n_evaluation_tasks)

    def n_members(self, purpose: Purpose) -> int:
        """Rollouts per group; an evaluation plays every task once."""
        return 1 if purpose.is_evaluation else self._samples_per_prompt
