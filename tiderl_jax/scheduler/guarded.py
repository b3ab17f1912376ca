"""ERS under guard: a move is kept only if goodput rose; else it is undone (ours, not the paper's).

The generation-deficit rule of the paper misfires when rollout is bound by its environments and not
by its ranks: it drifts, waiting falls, and so does goodput. One more rollout rank makes rollouts
end sooner wherever decoding takes time at all, so the best split is the one whose trainer is hardly
ever idle. Here the ranks that an idle trainer could spare go to rollout, and one comes back where
the trainer is never idle but rollout ranks are; each such move is on trial. The run never strays
further than `max_drift` ranks from the split that it started with; a direction that failed rests
twice as long each time.
"""

from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.elastic import Trial, Windows
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.scaling import Moves, StaticScaling, toward_rollout, toward_trainer
from tiderl_jax.scheduler.state import State

_SPARE = 0.03
"""Share of its time in which a trainer that is just large enough waits."""
_CLEAR = 0.1
"""A waiting share so far above that, or a change of goodput so large, needs no long look."""


class GuardedErsScaling(StaticScaling):
    """Hill climbing on measured goodput, pointed by how long the trainer waits.

    Goodput swings from window to window, since a step that waits long lets the next find much
    ready: windows are looked at in pairs.
    """

    def plan(self, state: State, window: Window | None) -> Moves:
        """The next part of the move that is tried, or undone, now."""
        elastic, limits = state.elastic, state.limits
        if window is None or limits.min_rollout_ranks == limits.max_rollout_ranks:
            return []
        if state.evaluation_due or state.evaluation:  # such windows do not compare
            elastic.windows, elastic.settled = Windows(), False
            return []
        for role in elastic.rest:
            elastic.rest[role] = max(0, elastic.rest[role] - 1)
        if not elastic.settled:
            elastic.settled = True
            return _approach(state)
        elastic.windows.add(window)
        if not self._decides(state, elastic.windows):
            return []
        windows, elastic.windows = elastic.windows, Windows()
        if elastic.trial is None or self._is_kept(state, elastic.trial, windows):
            self._propose(state, windows)
        return _approach(state)

    def _decides(self, state: State, windows: Windows) -> bool:
        """Whether enough has been seen: `trial_steps` windows, or fewer where all is clear."""
        if windows.n >= state.limits.elastic.trial_steps:
            return True
        if windows.n % 2:
            return False
        trial = state.elastic.trial
        if trial is None:
            return windows.trainer_wait / windows.n > _SPARE + _CLEAR
        return abs(windows.goodput - trial.goodput_before) > _CLEAR * trial.goodput_before

    def _propose(self, state: State, windows: Windows) -> None:
        """Aims at another split, unless the present one is right or the last trial is too near."""
        elastic = state.elastic
        spare = windows.trainer_wait / windows.n - _SPARE
        toward = Role.ROLLOUT if spare > 0 else Role.TRAINER
        if toward is Role.TRAINER and windows.rollout_wait / windows.n < _SPARE:
            return
        n_spare = int(spare * state.n_trainers) if toward is Role.ROLLOUT else 1
        n_ranks = min(n_spare, self._n_allowed(state, toward))
        if n_ranks == 0 or elastic.rest.get(toward, 0):
            return
        elastic.trial = Trial(toward, elastic.n_aim, windows.goodput)
        elastic.n_aim += n_ranks if toward is Role.ROLLOUT else -n_ranks

    def _n_allowed(self, state: State, toward: Role) -> int:
        """Ranks that may move before a limit or the drift is reached."""
        elastic, limits = state.elastic, state.limits
        if toward is Role.ROLLOUT:
            most = min(limits.max_rollout_ranks, elastic.n_home + limits.elastic.max_drift)
            return max(0, min(most - elastic.n_aim, state.n_trainers - 1))
        least = max(1, limits.min_rollout_ranks, elastic.n_home - limits.elastic.max_drift)
        return max(0, elastic.n_aim - least)

    def _is_kept(self, state: State, trial: Trial, windows: Windows) -> bool:
        """Ends a trial; one that failed is undone, and its direction rests."""
        elastic, config = state.elastic, state.limits.elastic
        elastic.trial = None
        if windows.goodput >= config.min_gain * trial.goodput_before:
            elastic.patience[trial.toward] = config.trial_steps
            return True
        elastic.n_aim = trial.n_before
        patience = elastic.patience.get(trial.toward, config.trial_steps)
        elastic.rest[trial.toward], elastic.patience[trial.toward] = patience, 2 * patience
        return False


def _approach(state: State) -> Moves:
    """Moves ranks to the split that is aimed at: toward the trainer one per step, no more."""
    n_missing = state.elastic.n_aim - state.n_rollout_ranks
    if n_missing == 0 or state.n_changing:
        return []
    moves = toward_rollout(state, n_missing) if n_missing > 0 else toward_trainer(state)
    state.elastic.settled = not moves
    return moves
