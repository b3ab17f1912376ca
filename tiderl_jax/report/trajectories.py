"""Facts of finished rollouts, counted with the step that took them: what trains is measured."""

from collections.abc import Callable, Mapping
from typing import Any

from tiderl_jax.core.commands import DropGroup, DropRollout, Feed
from tiderl_jax.core.events import Updated
from tiderl_jax.core.ids import GroupId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.report.sums import Sum, Sums


def add_rollout(sums: Sums, facts: RolloutFacts) -> None:
    """Adds one finished rollout to the sums over trajectories."""
    sums[Sum.TRAJECTORIES] += 1
    sums[Sum.REWARD] += facts.reward
    sums[Sum.SUCCESSES] += facts.is_success
    sums[Sum.TRUNCATED] += facts.outcome is not Outcome.FINISHED
    sums[Sum.TRAJECTORY_TURNS] += facts.n_turns
    sums[Sum.MODEL_TOKENS] += facts.model_tokens
    sums[Sum.CONTEXT_TOKENS] += facts.context_tokens


class TrajectoryAccount:
    """Keeps the facts of open groups, and adds them to `sums` with the update that used them."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._open: dict[GroupId, dict[RolloutId, RolloutFacts]] = {}
        self._in_step: dict[int, list[RolloutFacts]] = {}

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            Feed: self._feed,
            DropRollout: self._drop_rollout,
            DropGroup: self._drop_group,
            Updated: self._updated,
        }

    def finished(self, facts: RolloutFacts) -> None:
        """Takes a training rollout that may train."""
        self._open.setdefault(facts.rollout.group, {})[facts.rollout] = facts
        self._sums[Sum.ENDED] += 1
        self._sums[Sum.ENDED_TURNS] += facts.n_turns
        self._sums[Sum.ENDED_CONTEXT_TOKENS] += facts.context_tokens

    def _feed(self, command: Feed, now_ns: int) -> None:
        taken = self._in_step.setdefault(command.step, [])
        for group in command.groups:
            taken += self._open.pop(group, {}).values()

    def _drop_rollout(self, command: DropRollout, now_ns: int) -> None:
        self._open.get(command.rollout.group, {}).pop(command.rollout, None)

    def _drop_group(self, command: DropGroup, now_ns: int) -> None:
        self._open.pop(command.group, None)

    def _updated(self, event: Updated, now_ns: int) -> None:
        for facts in self._in_step.pop(event.step, []):
            add_rollout(self._sums, facts)
