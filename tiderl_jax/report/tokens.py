"""Where every token sampled for training is: in an open group, in a step, trained, or lost."""

from tiderl_jax.core.commands import Command, DropGroup, RunTurn, StartStep
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    Event,
    RolloutEnded,
    RolloutFailed,
    TurnEnded,
    TurnStop,
    Updated,
)
from tiderl_jax.core.ids import GroupId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.sums import Loss, Sum, Sums, lost_tokens, trained_at_lag

_LOSS_OF_OUTCOME = {
    Outcome.ENV_ERROR: Loss.ENV_ERROR,
    Outcome.ENGINE_ERROR: Loss.ENGINE_ERROR,
    Outcome.CANCELLED: Loss.UNFINISHED,
}


class TokenAccount:
    """Adds tokens to `sums` when their fate is known; sampled = trained + lost + `n_open_tokens`.

    The law holds after every event, because each token is in exactly one place: a turn puts it into
    its rollout, a failure or a drop takes it out under a reason, a step takes whole groups, and the
    step's update must account for all that the step took.
    """

    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._open: dict[GroupId, dict[RolloutId, int]] = {}
        self._in_step: dict[int, int] = {}
        self._decoding: set[RolloutId] = set()
        self._dropped_in_turn: dict[RolloutId, str] = {}  # reason for the turn's late tokens

    @property
    def n_open_tokens(self) -> int:
        """Sampled tokens whose fate is not known yet."""
        in_groups = sum(sum(rollouts.values()) for rollouts in self._open.values())
        return in_groups + sum(self._in_step.values())

    def on_event(self, event: Event) -> None:
        """Accounts for what happened."""
        match event:
            case TurnEnded():
                self._turn_ended(event)
            case EnvironmentFailed(rollout, _):
                self._sums[Sum.ENVIRONMENT_FAILURES] += 1
                self._lose_rollout(rollout, Loss.ENV_ERROR)
            case RolloutFailed(rollout, _):
                self._sums[Sum.ENGINE_FAILURES] += 1
                self._lose_rollout(rollout, Loss.ENGINE_ERROR)
            case RolloutEnded(rollout, outcome):
                if not outcome.may_train:
                    self._lose_rollout(rollout, _LOSS_OF_OUTCOME[outcome])
                elif not rollout.group.purpose.is_evaluation:
                    self._sums[Sum.EPISODES] += 1
            case Updated():
                self._updated(event)
            case _:
                pass

    def on_command(self, command: Command) -> None:
        """Accounts for what was decided."""
        match command:
            case RunTurn(rollout, _):
                self._decoding.add(rollout)
            case DropGroup(group, reason):
                self._drop_group(group, reason.value)
            case StartStep(step, groups, _):
                taken = [self._open.pop(group, {}) for group in groups]
                self._in_step[step] = sum(sum(rollouts.values()) for rollouts in taken)
            case _:
                pass

    def _turn_ended(self, event: TurnEnded) -> None:
        rollout, sums = event.rollout, self._sums
        self._decoding.discard(rollout)
        sums[Sum.TURNS] += 1
        sums[Sum.CUT_TURNS] += event.stop is TurnStop.LENGTH
        sums[Sum.FOUND_TOKENS] += event.found_tokens
        sums[Sum.PREFILLED_TOKENS] += event.prefilled_tokens
        if rollout.group.purpose.is_evaluation:
            sums[Sum.EVALUATION_TOKENS] += event.generated_tokens
            return
        sums[Sum.SAMPLED_TOKENS] += event.generated_tokens
        reason = self._dropped_in_turn.pop(rollout, None)
        if reason is not None:
            sums[lost_tokens(reason)] += event.generated_tokens
            return
        rollouts = self._open.setdefault(rollout.group, {})
        rollouts[rollout] = rollouts.get(rollout, 0) + event.generated_tokens

    def _lose_rollout(self, rollout: RolloutId, reason: str) -> None:
        self._decoding.discard(rollout)
        self._dropped_in_turn.pop(rollout, None)
        n_tokens = self._open.get(rollout.group, {}).pop(rollout, 0)
        if n_tokens:
            self._sums[lost_tokens(reason)] += n_tokens

    def _drop_group(self, group: GroupId, reason: str) -> None:
        for rollout in [rollout for rollout in self._decoding if rollout.group == group]:
            self._decoding.discard(rollout)
            self._dropped_in_turn[rollout] = reason
        n_tokens = sum(self._open.pop(group, {}).values())
        if n_tokens:
            self._sums[lost_tokens(reason)] += n_tokens

    def _updated(self, event: Updated) -> None:
        taken = self._in_step.pop(event.step, 0)
        untrained = sum(n_tokens for _, n_tokens in event.untrained_tokens)
        if taken != event.trained_tokens + untrained:
            raise InvariantError(
                f"Step {event.step} took {taken} sampled tokens, but its update accounts for "
                f"{event.trained_tokens} trained and {untrained} untrained ones."
            )
        self._sums[Sum.TRAINED_TOKENS] += event.trained_tokens
        self._sums[Sum.TRAINED_CONTEXT_TOKENS] += event.context_tokens
        self._sums[Sum.MICROBATCHES] += event.n_microbatches
        for reason, n_tokens in event.untrained_tokens:
            self._sums[lost_tokens(reason)] += n_tokens
        self._sums[Sum.LAGGED] += len(event.lags)
        self._sums[Sum.LAG] += sum(event.lags)
        for lag in event.lags:
            self._sums[trained_at_lag(lag)] += 1
