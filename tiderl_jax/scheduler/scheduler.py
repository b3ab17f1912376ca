"""The scheduler: a pure function of its state, one event and the time."""

from collections.abc import Mapping
from typing import Any

from tiderl_jax.core.commands import Command
from tiderl_jax.core.config import (
    EnvironmentConfig,
    EvaluationConfig,
    RolloutConfig,
    SchedulerConfig,
)
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    ProbeFailed,
    ProbeMeasured,
    RolloutEnded,
    RolloutFailed,
    StopRequested,
    TasksArrived,
    TimerFired,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.scheduler import groups, rollouts, training
from tiderl_jax.scheduler.admission import admit
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.presets import policies
from tiderl_jax.scheduler.snapshot import beginning, restore, snapshot
from tiderl_jax.scheduler.state import Limits, RankSpec, State

_NS_PER_S = 1_000_000_000


class Scheduler:
    """Decides; never acts. `state` may be read by anyone and is changed only here."""

    def __init__(
        self,
        scheduler: SchedulerConfig,
        rollout: RolloutConfig,
        evaluation: EvaluationConfig,
        environment: EnvironmentConfig,
        steps: int,
        ranks: tuple[RankSpec, ...],
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`saved` is an earlier `snapshot()`; without one the run begins at version 0.

        Raises:
          ConfigError: a name is unknown, or the limits could never be met.
        """
        self.policies = policies(scheduler)
        on_policy = self.policies.admission.on_policy
        limits = Limits(
            steps=steps,
            prompts_per_step=rollout.prompts_per_step,
            max_tokens_per_turn=rollout.max_tokens_per_turn,
            max_context_tokens=rollout.max_context_tokens,
            deadline_ns=round(rollout.deadline_s * _NS_PER_S),
            staleness_bound=0 if on_policy else scheduler.staleness_bound,
            max_open_groups=scheduler.max_open_groups,
            max_open_environments=scheduler.max_open_environments,
            priority=scheduler.priority,
            n_evaluation_tasks=evaluation.n_tasks,
            evaluate_every_steps=evaluation.every_steps,
            max_attempts=environment.max_attempts,
            max_faults=environment.max_faults,
        )
        self.state = restore(limits, ranks, beginning() if saved is None else saved)
        _check_limits(self.state)

    def snapshot(self) -> dict[str, Any]:
        """What must survive a commit, as JSON types."""
        return snapshot(self.state)

    def start(self, now_ns: int) -> list[Command]:
        """The first commands: the ranks get the version that the run begins with."""
        move = Move(self.state, self.policies, now_ns)
        _decide(move)
        return move.commands

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """What to do about an event. Commands are to be carried out in order.

        Raises:
          InvariantError: the event contradicts what a driver promises.
        """
        move = Move(self.state, self.policies, now_ns)
        if self.state.over:
            move.ignore()
            return []
        _apply(move, event)
        if not self.state.over:
            _decide(move)
        return move.commands


def _apply(move: Move, event: Event) -> None:
    match event:
        case TurnEnded():
            rollouts.turn_ended(move, event)
        case EnvironmentReady():
            rollouts.environment_ready(move, event)
        case RolloutEnded():
            rollouts.rollout_ended(move, event)
        case TasksArrived():
            groups.tasks_arrived(move, event)
        case ProbeMeasured():
            groups.probe_measured(move, event)
        case ProbeFailed():
            groups.probe_failed(move, event)
        case EnvironmentFailed():
            rollouts.environment_failed(move, event)
        case RolloutFailed():
            rollouts.rollout_failed(move, event)
        case Updated():
            training.updated(move, event)
        case WeightsLoaded():
            training.weights_loaded(move, event)
        case TimerFired():
            rollouts.timer_fired(move)
        case StopRequested():
            move.state.stopping = True


def _decide(move: Move) -> None:
    """Training first, since it makes room; then turns, then new work."""
    state = move.state
    if not state.stopping:
        training.go_on(move)
        for rank in list(move.touched):
            move.policies.batching.run(move, state.ranks[rank])
        admit(move)
        training.request_training_tasks(move)
        rollouts.set_timer(move)
    training.finish(move)


def _check_limits(state: State) -> None:
    limits = state.limits
    for name in ("max_open_groups", "max_open_environments"):
        if getattr(limits, name) < 1:
            raise ConfigError(f"scheduler.{name} must be at least 1.")
    if not state.ranks:
        raise ConfigError("partition.n_rollout_ranks must be at least 1.")
    for rank in state.ranks.values():
        if rank.spec.n_slots < 1:
            raise ConfigError("decoder.n_slots must be at least 1.")
        if rank.rounded(limits.max_context_tokens) > rank.budget_tokens:
            raise ConfigError(
                f"One rollout of rollout.max_context_tokens = {limits.max_context_tokens} does "
                f"not fit the {rank.budget_tokens} tokens of KV pages of rank {rank.spec.rank}."
            )
