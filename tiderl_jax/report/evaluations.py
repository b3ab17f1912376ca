"""Evaluations: a round of held-out tasks counts once it is complete, under its pinned version."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core.commands import DropGroup, DropReason, DropRollout
from tiderl_jax.core.events import TasksArrived
from tiderl_jax.core.ids import GroupId, PolicyVersion
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.report.sums import Sums
from tiderl_jax.report.trajectories import add_rollout


@dataclass(slots=True)
class Round:
    """One evaluation under way: the tasks that arrived together."""

    missing: dict[GroupId, int]  # members without a score
    version: PolicyVersion | None = None
    sums: Sums = field(default_factory=Counter)


class Evaluations:
    """Collects the rounds under way.

    A round that the end of the run cuts short is forgotten: its short episodes would have ended
    first, and their mean says nothing about the rest.
    """

    def __init__(self) -> None:
        self._rounds: list[Round] = []
        self.changed = False
        """Whether a round may have become complete since the last `take_complete`."""

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            TasksArrived: self._arrived,
            DropRollout: self._drop_rollout,
            DropGroup: self._drop_group,
        }

    def finished(self, facts: RolloutFacts) -> None:
        """Takes an evaluation rollout that may be scored."""
        group = facts.rollout.group
        for one in self._rounds:
            if one.missing.get(group):
                one.missing[group] -= 1
                one.version = facts.start_version
                add_rollout(one.sums, facts)
                self.changed = True

    def take_complete(self) -> list[Round]:
        """Hands out the rounds that have become complete and have a score."""
        self.changed = False
        complete = [one for one in self._rounds if not any(one.missing.values())]
        self._rounds = [one for one in self._rounds if any(one.missing.values())]
        return [one for one in complete if one.version is not None]

    def _arrived(self, event: TasksArrived, now_ns: int) -> None:
        if event.groups and event.groups[0].purpose.is_evaluation and not self._knows(event):
            self._rounds.append(Round(dict.fromkeys(event.groups, event.n_members)))

    def _knows(self, event: TasksArrived) -> bool:
        return any(event.groups[0] in one.missing for one in self._rounds)

    def _drop_rollout(self, command: DropRollout, now_ns: int) -> None:
        self._miss(command.rollout.group, 1)

    def _drop_group(self, command: DropGroup, now_ns: int) -> None:
        """A task that failed for good leaves its round; the end of the run takes the round."""
        if command.reason is DropReason.UNFINISHED:
            self._rounds = [one for one in self._rounds if command.group not in one.missing]
        else:
            self._miss(command.group, None)

    def _miss(self, group: GroupId, n_members: int | None) -> None:
        """So many members of the group (None: all) will have no score."""
        for one in self._rounds:
            if one.missing.get(group):
                one.missing[group] -= one.missing[group] if n_members is None else n_members
                self.changed = True
