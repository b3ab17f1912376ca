"""Evaluations: a round of held-out tasks counts once it is complete, under its pinned version."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tiderl_jax.core.commands import Command, DropGroup, DropReason
from tiderl_jax.core.events import Event, TasksArrived
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

    def finished(self, facts: RolloutFacts) -> None:
        """Takes an evaluation rollout that may be scored."""
        group = facts.rollout.group
        for one in self._rounds:
            if one.missing.get(group):
                one.missing[group] -= 1
                one.version = facts.start_version
                add_rollout(one.sums, facts)

    def on_event(self, event: Event) -> None:
        """Opens a round when its tasks arrive."""
        match event:
            case TasksArrived(groups, n_members) if groups and groups[0].purpose.is_evaluation:
                self._rounds.append(Round(dict.fromkeys(groups, n_members)))
            case _:
                pass

    def on_command(self, command: Command) -> None:
        """A task that failed for good leaves its round; the end of the run takes the round."""
        match command:
            case DropGroup(group, DropReason.UNFINISHED):
                self._rounds = [one for one in self._rounds if group not in one.missing]
            case DropGroup(group, _):
                for one in self._rounds:
                    if group in one.missing:
                        one.missing[group] = 0
            case _:
                pass

    def take_complete(self) -> Iterator[Round]:
        """Hands out the rounds that have become complete and have a score."""
        complete = [one for one in self._rounds if not any(one.missing.values())]
        self._rounds = [one for one in self._rounds if any(one.missing.values())]
        return (one for one in complete if one.version is not None)
