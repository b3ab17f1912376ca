"""How long groups take: from the first turn of a member to the end of the last one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiderl_jax.core.commands import DropGroup, Feed, RunTurn
from tiderl_jax.core.events import RolloutEnded
from tiderl_jax.core.ids import GroupId, Purpose


@dataclass(slots=True)
class Stretch:
    """When a group began, and when a member of it ended last."""

    begin_ns: int
    end_ns: int


class GroupTimes:
    """Of the training groups that a step took; dropped ones have no such time."""

    def __init__(self) -> None:
        self._open: dict[GroupId, Stretch] = {}
        self._taken_ns: list[int] = []

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            RunTurn: self._run_turn,
            RolloutEnded: self._ended,
            DropGroup: self._drop,
            Feed: self._feed,
        }

    def take(self) -> tuple[int, ...]:
        """The times, in ns, of the groups that were fed since the last call."""
        taken, self._taken_ns = tuple(self._taken_ns), []
        return taken

    def _run_turn(self, command: RunTurn, now_ns: int) -> None:
        group = command.rollout.group
        if group not in self._open and group.purpose is Purpose.TRAIN:
            self._open[group] = Stretch(now_ns, now_ns)

    def _ended(self, event: RolloutEnded, now_ns: int) -> None:
        if event.rollout.group in self._open:
            self._open[event.rollout.group].end_ns = now_ns

    def _drop(self, command: DropGroup, now_ns: int) -> None:
        self._open.pop(command.group, None)

    def _feed(self, command: Feed, now_ns: int) -> None:
        stretches = (self._open.pop(group, None) for group in command.groups)
        self._taken_ns += [one.end_ns - one.begin_ns for one in stretches if one is not None]
