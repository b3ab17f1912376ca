"""Rollouts under way: the token records, from the first prompt to the finished trajectory.

They belong to the driver's thread: workers deliver what they found to it (see `inbox.Report`).
Text is derived for the environment and never comes back into the token record: what the decoder
consumed is exactly what the learner trains.
"""

import numpy as np

from tiderl_jax.core.ids import GroupId, RolloutId
from tiderl_jax.core.segments import Owner, Segment
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory


class Episode:
    """One rollout under way."""

    def __init__(self, rollout: RolloutId, task: Task, max_context_tokens: int) -> None:
        self.rollout = rollout
        self.task = task
        self.segments: list[Segment] = []
        self.reward = 0.0
        self.n_turns = 0
        self._context_ids = np.empty(max_context_tokens, np.int32)
        self._n_context = 0

    @property
    def context_ids(self) -> np.ndarray:
        """int32 [T]: every token so far; a view that later appends do not change."""
        return self._context_ids[: self._n_context]

    def append(self, segments: list[Segment]) -> int:
        """Adds segments at the end; returns the number of tokens added.

        Tokens beyond the context limit are kept in the record but not in the context: the
        scheduler ends such a rollout before its next turn.
        """
        added = 0
        for segment in segments:
            self.segments.append(segment)
            room = len(self._context_ids) - self._n_context
            taken = segment.token_ids[:room]
            self._context_ids[self._n_context : self._n_context + len(taken)] = taken
            self._n_context += len(taken)
            added += len(segment)
        return added

    def finish(self, outcome: Outcome) -> Trajectory:
        """The finished record. Tokens after the model's last one are cut: nothing answers them."""
        last = max(
            (i for i, segment in enumerate(self.segments) if segment.owner is Owner.MODEL),
            default=-1,
        )
        return Trajectory(
            rollout=self.rollout,
            task=self.task,
            segments=tuple(self.segments[: last + 1]),
            reward=self.reward,
            outcome=outcome,
            n_turns=self.n_turns,
        )


class Episodes:
    """All rollouts under way, and the finished trajectories that wait for their training step."""

    def __init__(self) -> None:
        self._under_way: dict[RolloutId, Episode] = {}
        self._finished: dict[GroupId, list[Trajectory]] = {}

    def begin(self, episode: Episode) -> None:
        """Registers an episode whose environment has been opened."""
        self._under_way[episode.rollout] = episode

    def find(self, rollout: RolloutId) -> Episode | None:
        """The episode, or None if its rollout has ended or was dropped meanwhile."""
        return self._under_way.get(rollout)

    def pop(self, rollout: RolloutId) -> Episode | None:
        """Takes an episode out, for the one who ends it; None for everybody else."""
        return self._under_way.pop(rollout, None)

    def keep(self, trajectory: Trajectory) -> None:
        """Keeps a finished trajectory until its group is taken or dropped."""
        self._finished.setdefault(trajectory.rollout.group, []).append(trajectory)

    def take(self, group: GroupId) -> list[Trajectory]:
        """Hands a finished group on, members in order; it is not kept here any more."""
        return sorted(self._finished.pop(group), key=lambda trajectory: trajectory.rollout)

    def drop(self, group: GroupId) -> list[RolloutId]:
        """Forgets a group; returns its rollouts that were under way."""
        self._finished.pop(group, None)
        dropped = [rollout for rollout in self._under_way if rollout.group == group]
        for rollout in dropped:
            del self._under_way[rollout]
        return dropped

    def forget(self, rollout: RolloutId) -> None:
        """Forgets one member of a group, under way or finished."""
        self._under_way.pop(rollout, None)
        finished = self._finished.get(rollout.group, [])
        finished[:] = [kept for kept in finished if kept.rollout != rollout]

    @property
    def n_kept(self) -> int:
        """Finished groups, whole or in part, that nobody has taken yet."""
        return len(self._finished)
