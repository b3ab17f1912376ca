"""ERS under guard: a move is kept only if goodput rose; else it is undone (ours, not the paper's).

The generation-deficit rule of the paper misfires when rollout is bound by its environments and not
by its ranks: it drifts, waiting falls, and so does goodput. Here the side that waits much less than
the other is the bottleneck and gets a rank on trial. The run never strays further than `max_drift`
ranks from the split that it started with; a direction that failed rests twice as long each time.
"""

from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.elastic import Trial, Windows
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.scaling import Moves, StaticScaling, toward_rollout, toward_trainer
from tiderl_jax.scheduler.state import State

_MARGIN = 0.1
"""Difference of the waiting shares below which the split counts as even."""


class GuardedErsScaling(StaticScaling):
    """Hill climbing on measured goodput, pointed by who waits."""

    def plan(self, state: State, window: Window | None) -> Moves:
        """The move that is tried, or undone, now."""
        elastic = state.elastic
        if window is None or state.limits.min_rollout_ranks == state.limits.max_rollout_ranks:
            return []
        if elastic.n_owed:
            return self._pay_back(state)
        if state.evaluation_due or state.evaluation:  # such windows do not compare
            elastic.windows = Windows()
            return []
        for role in elastic.rest:
            elastic.rest[role] = max(0, elastic.rest[role] - 1)
        if elastic.trial and not elastic.trial.settled:
            elastic.trial.settled = True
            return []
        elastic.windows.add(window)
        if elastic.windows.n < state.limits.elastic.trial_steps:
            return []
        return self._judge(state, elastic.trial) if elastic.trial else self._propose(state)

    def _propose(self, state: State) -> Moves:
        elastic = state.elastic
        windows, elastic.windows = elastic.windows, Windows()
        lean = (windows.trainer_wait - windows.rollout_wait) / windows.n
        toward = Role.ROLLOUT if lean > 0 else Role.TRAINER
        if abs(lean) < _MARGIN or elastic.rest.get(toward, 0) or not self._may_drift(state, toward):
            return []
        moves = toward_rollout(state, 1) if toward is Role.ROLLOUT else toward_trainer(state)
        if moves:
            elastic.trial = Trial(toward, len(moves), windows.goodput)
        return moves

    def _may_drift(self, state: State, toward: Role) -> bool:
        drift = len(state.with_role(Role.ROLLOUT)) - state.elastic.n_home
        drift += 1 if toward is Role.ROLLOUT else -1
        return abs(drift) <= state.limits.elastic.max_drift

    def _judge(self, state: State, trial: Trial) -> Moves:
        elastic, config = state.elastic, state.limits.elastic
        after, elastic.windows, elastic.trial = elastic.windows.goodput, Windows(), None
        if after >= config.min_gain * trial.goodput_before:
            elastic.patience[trial.toward] = config.trial_steps
            return []
        patience = elastic.patience.get(trial.toward, config.trial_steps)
        elastic.rest[trial.toward], elastic.patience[trial.toward] = patience, 2 * patience
        if trial.toward is Role.TRAINER:
            return toward_rollout(state, trial.n_ranks)
        elastic.n_owed = trial.n_ranks
        return self._pay_back(state)

    def _pay_back(self, state: State) -> Moves:
        state.elastic.n_owed -= 1
        return toward_trainer(state)
