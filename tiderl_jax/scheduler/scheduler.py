"""The scheduler: a pure function of its state, one event and the time."""

from collections.abc import Callable, Mapping
from typing import Any

from tiderl_jax.core.commands import Command
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    ProbeFailed,
    ProbeMeasured,
    RankLost,
    RankReady,
    RolloutEnded,
    RolloutFailed,
    StopRequested,
    TasksArrived,
    TimerFired,
    Trained,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler import groups, rollouts, training
from tiderl_jax.scheduler.admission import admit
from tiderl_jax.scheduler.ahead import begin_held
from tiderl_jax.scheduler.limits import Limits
from tiderl_jax.scheduler.phases import note_idleness
from tiderl_jax.scheduler.policies import Move, Policies
from tiderl_jax.scheduler.presets import policies
from tiderl_jax.scheduler.snapshot import beginning, restore, snapshot
from tiderl_jax.scheduler.state import RankSpec, State
from tiderl_jax.scheduler.step_costs import StepCosts

_ROLLOUT = Role.ROLLOUT


class Scheduler:
    """Decides; never acts. `state` may be read by anyone and is changed only here."""

    def __init__(
        self,
        limits: Limits,
        chosen: Policies,
        ranks: tuple[RankSpec, ...],
        costs: StepCosts,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """`saved` is an earlier `snapshot()`; without one the run begins at version 0.

        Raises:
          ConfigError: the limits could never be met.
        """
        self.policies = chosen
        self.state = restore(limits, ranks, costs, beginning() if saved is None else saved)
        _check_limits(self.state)

    @classmethod
    def of(
        cls,
        config: ExperimentConfig,
        ranks: tuple[RankSpec, ...],
        costs: StepCosts,
        saved: Mapping[str, Any] | None = None,
    ) -> "Scheduler":
        """The scheduler of a resolved experiment.

        Raises:
          ConfigError: a name is unknown, or the limits could never be met.
        """
        chosen = policies(config.scheduler)
        limits = Limits.of(config, on_policy=chosen.admission.on_policy)
        return cls(limits, chosen, ranks, costs, saved)

    def snapshot(self) -> dict[str, Any]:
        """What must survive a commit, as JSON types."""
        return snapshot(self.state)

    def start(self, now_ns: int) -> list[Command]:
        """The first commands: the ranks get the version that the run begins with."""
        state = self.state
        state.now_ns = state.readiness.window_began_ns = now_ns
        move = Move(state, self.policies, now_ns)
        for rank in state.ranks.values():
            note_idleness(move, rank)
        training.begin(move)
        _decide(move)
        return move.commands

    def handle(self, event: Event, now_ns: int) -> list[Command]:
        """What to do about an event. Commands are to be carried out in order.

        Raises:
          InvariantError: the event contradicts what a driver promises.
        """
        self.state.now_ns = now_ns
        move = Move(self.state, self.policies, now_ns)
        if self.state.over:
            move.ignore()
            return []
        _HANDLERS[type(event)](move, event)
        if not self.state.over:
            _decide(move)
        return move.commands


def _stop(move: Move, event: StopRequested) -> None:
    move.state.stopping = True


_HANDLERS: Mapping[type[Any], Callable[[Move, Any], None]] = {
    TurnEnded: rollouts.turn_ended,
    EnvironmentReady: rollouts.environment_ready,
    RolloutEnded: rollouts.rollout_ended,
    TasksArrived: groups.tasks_arrived,
    ProbeMeasured: groups.probe_measured,
    ProbeFailed: groups.probe_failed,
    EnvironmentFailed: rollouts.environment_failed,
    RolloutFailed: rollouts.rollout_failed,
    Trained: training.trained,
    Updated: training.updated,
    WeightsLoaded: training.weights_loaded,
    RankReady: training.rank_ready,
    RankLost: training.rank_lost,
    TimerFired: rollouts.timer_fired,
    StopRequested: _stop,
}


def _decide(move: Move) -> None:
    """Training first, since it makes room; then turns, then new work."""
    state = move.state
    if not state.stopping:
        if move.reconsider:
            training.go_on(move)
        for rank_id in list(move.touched):
            rank = state.ranks[rank_id]
            if rank.role is _ROLLOUT and rank.version is not None:
                if rank.held:
                    begin_held(move, rank)
                move.policies.batching.run(move, rank)
        admit(move)
        if move.reconsider:
            training.request_training_tasks(move)
        rollouts.set_timer(move)
    if move.reconsider:
        training.finish(move)


def _check_limits(state: State) -> None:
    limits = state.limits
    for name in ("max_open_groups", "max_open_environments"):
        if getattr(limits, name) < 1:
            raise ConfigError(f"scheduler.{name} must be at least 1.")
    if not state.with_role(Role.ROLLOUT):
        raise ConfigError("partition.n_rollout_ranks must be at least 1.")
    if state.n_trainers < 1:
        raise ConfigError("partition.actor_devices must be at least 1.")
    for rank in state.ranks.values():
        if rank.spec.n_slots < 1:
            raise ConfigError("decoder.n_slots must be at least 1.")
        if rank.rounded(limits.max_context_tokens) > rank.budget_tokens:
            raise ConfigError(
                f"One rollout of rollout.max_context_tokens = {limits.max_context_tokens} does "
                f"not fit the {rank.budget_tokens} tokens of KV pages of rank {rank.spec.rank}."
            )
