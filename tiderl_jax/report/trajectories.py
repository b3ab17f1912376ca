"""Facts of finished rollouts, counted with the step that took them: what trains is measured."""

from tiderl_jax.core.commands import Command, DropGroup, StartStep
from tiderl_jax.core.events import Event, Updated
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

    def finished(self, facts: RolloutFacts) -> None:
        """Takes a training rollout that may train."""
        self._open.setdefault(facts.rollout.group, {})[facts.rollout] = facts

    def on_event(self, event: Event) -> None:
        """Counts the trajectories of a step that is done."""
        if isinstance(event, Updated):
            for facts in self._in_step.pop(event.step, []):
                add_rollout(self._sums, facts)

    def on_command(self, command: Command) -> None:
        """Follows groups into steps, and out of the run."""
        match command:
            case StartStep(step, groups, _):
                taken = (self._open.pop(group, {}) for group in groups)
                self._in_step[step] = [facts for rollouts in taken for facts in rollouts.values()]
            case DropGroup(group, _):
                self._open.pop(group, None)
            case _:
                pass
