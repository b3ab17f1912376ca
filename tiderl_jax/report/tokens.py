"""Where every token sampled for training is: in an open group, in a step, trained, or lost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiderl_jax.core.commands import Admit, DropGroup, DropRollout, Feed, RunTurn
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    RolloutEnded,
    RolloutFailed,
    TurnEnded,
    TurnStop,
    Updated,
)
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.sums import Loss, Sum, Sums, lost_tokens, trained_at_lag

_LOSS_OF_OUTCOME = {
    Outcome.ENV_ERROR: Loss.ENV_ERROR,
    Outcome.ENGINE_ERROR: Loss.ENGINE_ERROR,
    Outcome.CANCELLED: Loss.UNFINISHED,
}
# Looking a member up in its enum costs more than all else that is done with it.
_TRAIN, _LENGTH = Purpose.TRAIN, TurnStop.LENGTH
_TURNS, _CUT_TURNS = Sum.TURNS, Sum.CUT_TURNS
_FOUND, _PREFILLED, _SAMPLED = Sum.FOUND_TOKENS, Sum.PREFILLED_TOKENS, Sum.SAMPLED_TOKENS


@dataclass(slots=True)
class Sampled:
    """What one rollout has sampled; of an evaluation nothing is kept."""

    n_tokens: int = 0
    decoding: bool = False
    ended: bool = False


class TokenAccount:
    """Adds tokens to `sums` when their fate is known; sampled = trained + lost + `n_open_tokens`.

    The law holds after every event, because each token is in exactly one place: a turn puts it into
    its rollout, a failure or a drop takes it out under a reason, feeds take whole groups into a
    step, and the step's update must account for all that its feeds took. An event that arrives a
    second time changes nothing.
    """

    def __init__(self, sums: Sums, staleness_bound: int) -> None:
        self._sums = sums
        self._staleness_bound = staleness_bound
        self._rollouts: dict[RolloutId, Sampled] = {}
        self._groups: dict[GroupId, list[RolloutId]] = {}  # every attempt that was opened
        self._in_step: dict[int, int] = {}
        self._dropped_in_turn: dict[RolloutId, str] = {}  # reason for the turn's late tokens

    @property
    def n_open_tokens(self) -> int:
        """Sampled tokens whose fate is not known yet."""
        in_rollouts = sum(one.n_tokens for one in self._rollouts.values())
        return in_rollouts + sum(self._in_step.values())

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            TurnEnded: self._turn_ended,
            EnvironmentFailed: self._environment_failed,
            RolloutFailed: self._rollout_failed,
            RolloutEnded: self._rollout_ended,
            Updated: self._updated,
            Admit: self._admit,
            RunTurn: self._run_turn,
            DropRollout: self._drop_rollout,
            DropGroup: self._drop_group,
            Feed: self._feed,
        }

    def _admit(self, command: Admit | RunTurn, now_ns: int) -> None:
        self._groups.setdefault(command.rollout.group, []).append(command.rollout)
        self._rollouts[command.rollout] = Sampled()

    def _run_turn(self, command: RunTurn, now_ns: int) -> None:
        one = self._rollouts.get(command.rollout)
        if one is None:  # admitted before this ledger began
            self._admit(command, now_ns)
            one = self._rollouts[command.rollout]
        one.decoding = True

    def _turn_ended(self, event: TurnEnded, now_ns: int) -> None:
        rollout, sums, n_tokens = event.rollout, self._sums, event.generated_tokens
        one = self._rollouts.get(rollout)
        reason = None
        if one is not None and one.decoding:
            one.decoding = False
        elif one is None and rollout in self._dropped_in_turn:
            reason = self._dropped_in_turn.pop(rollout)
        else:
            return
        sums[_TURNS] += 1
        if event.stop is _LENGTH:
            sums[_CUT_TURNS] += 1
        sums[_FOUND] += event.found_tokens
        sums[_PREFILLED] += event.prefilled_tokens
        if rollout.group.purpose is not _TRAIN:
            sums[Sum.EVALUATION_TOKENS] += n_tokens
            return
        sums[_SAMPLED] += n_tokens
        if reason is not None:
            sums[lost_tokens(reason)] += n_tokens
        elif one is not None:
            one.n_tokens += n_tokens

    def _environment_failed(self, event: EnvironmentFailed, now_ns: int) -> None:
        if self._lose(event.rollout, Loss.ENV_ERROR):
            self._sums[Sum.ENVIRONMENT_FAILURES] += 1

    def _rollout_failed(self, event: RolloutFailed, now_ns: int) -> None:
        if self._lose(event.rollout, Loss.ENGINE_ERROR):
            self._sums[Sum.ENGINE_FAILURES] += 1

    def _rollout_ended(self, event: RolloutEnded, now_ns: int) -> None:
        one = self._rollouts.get(event.rollout)
        if one is None or one.ended:
            return
        if not event.outcome.may_train:
            self._lose(event.rollout, _LOSS_OF_OUTCOME[event.outcome])
        elif event.rollout.group.purpose is _TRAIN:
            one.ended = True
            self._sums[Sum.EPISODES] += 1
        else:
            self._forget(event.rollout)

    def _lose(self, rollout: RolloutId, reason: str) -> bool:
        """The tokens of a failed attempt; whether it was there to fail."""
        one = self._rollouts.get(rollout)
        if one is None or one.ended:
            return False
        self._forget(rollout)
        if one.n_tokens:
            self._sums[lost_tokens(reason)] += one.n_tokens
        return True

    def _forget(self, rollout: RolloutId) -> None:
        del self._rollouts[rollout]
        attempts = self._groups[rollout.group]
        attempts.remove(rollout)
        if not attempts:
            del self._groups[rollout.group]

    def _drop_rollout(self, command: DropRollout, now_ns: int) -> None:
        if command.rollout in self._rollouts:
            one = self._rollouts[command.rollout]
            self._forget(command.rollout)
            self._drop(command.rollout, one, command.reason.value)

    def _drop_group(self, command: DropGroup, now_ns: int) -> None:
        for rollout in self._groups.pop(command.group, ()):
            self._drop(rollout, self._rollouts.pop(rollout), command.reason.value)

    def _drop(self, rollout: RolloutId, one: Sampled, reason: str) -> None:
        if one.decoding:
            self._dropped_in_turn[rollout] = reason
        if one.n_tokens:
            self._sums[lost_tokens(reason)] += one.n_tokens

    def _feed(self, command: Feed, now_ns: int) -> None:
        taken = 0
        for group in command.groups:
            attempts = self._groups.pop(group, ())
            taken += sum(self._rollouts.pop(rollout).n_tokens for rollout in attempts)
        self._in_step[command.step] = self._in_step.get(command.step, 0) + taken

    def _updated(self, event: Updated, now_ns: int) -> None:
        taken = self._in_step.pop(event.step, 0)
        untrained = sum(n_tokens for _, n_tokens in event.untrained_tokens)
        at_lags = sum(n_tokens for _, n_tokens in event.tokens_at_lag)
        if taken != event.trained_tokens + untrained or at_lags != event.trained_tokens:
            raise InvariantError(
                f"Step {event.step} took {taken} sampled tokens, but its update accounts for "
                f"{event.trained_tokens} trained ({at_lags} of a known lag) and {untrained} "
                f"untrained ones."
            )
        bound = self._staleness_bound
        too_old = sum(n_tokens for lag, n_tokens in event.tokens_at_lag if lag > bound)
        self._sums[Sum.TRAINED_TOKENS] += event.trained_tokens - too_old
        self._sums[lost_tokens(Loss.OVER_BOUND)] += too_old
        self._sums[Sum.TRAINED_CONTEXT_TOKENS] += event.context_tokens
        self._sums[Sum.MICROBATCHES] += event.n_microbatches
        for reason, n_tokens in event.untrained_tokens:
            self._sums[lost_tokens(reason)] += n_tokens
        self._sums[Sum.LAGGED] += len(event.lags)
        self._sums[Sum.LAG] += sum(event.lags)
        for lag in event.lags:
            self._sums[trained_at_lag(lag)] += 1
