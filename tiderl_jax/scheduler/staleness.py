"""May a new rollout start; may a trajectory train. Pace first, drop last."""

from tiderl_jax.core.ids import PolicyVersion, lag
from tiderl_jax.scheduler.state import Rank, State


class BoundedStaleness:
    """At most k versions between a trajectory's oldest token and the trainer that uses it.

    Pacing is AReaL's capacity rule, counted in groups from need, so that a dropped group is
    replaced: `min(max_open - open, (k + version + 1) * B - (accepted + open))`. The version is
    the one that the ranks serve, in groups trained by it: what starts now must fit into the steps
    up to k later.
    """

    drops = True
    trims = False

    def horizon(self, state: State) -> int:
        """Groups of the steps up to k after the version that the ranks serve."""
        limits = state.limits
        return state.published_groups + (limits.staleness_bound + 1) * limits.prompts_per_step

    def demand(self, state: State, n_ahead: int) -> int:
        """Training groups to request now: no more than open at once, no more than ever train."""
        limits, learner, n_open = state.limits, state.learner, state.n_open_groups
        n_ever = (
            learner.groups_trained + (limits.steps - learner.steps_done) * limits.prompts_per_step
        )
        n_allowed = min(self.horizon(state) + n_ahead, n_ever)
        return min(limits.max_open_groups - n_open, n_allowed - state.n_accepted_groups - n_open)

    def may_start(self, state: State, rank: Rank) -> bool:
        """Whether what starts on this rank now can still train when it is first needed.

        A rank that is about to swap weights starts nothing under the old ones.
        """
        if rank.version is None or rank.version != state.published:
            return False
        return not self.is_stale(state, rank.version, state.next_use_version)

    def may_run_ahead(self, state: State) -> bool:
        """Whether one more version would leave the work of the ranks within the bound."""
        if state.published is None:
            return False
        return not self.is_stale(state, state.published, state.learner.version + 1)

    def may_publish(self, state: State) -> bool:
        """Always: turns that run are interrupted and go on under the new weights."""
        return True

    def is_stale(self, state: State, oldest: PolicyVersion, used_at_version: int) -> bool:
        """Whether the lag would exceed the bound at that version of the trainer."""
        return lag(PolicyVersion(used_at_version), oldest) > state.limits.staleness_bound


class PacedStaleness(BoundedStaleness):
    """AReaL's rule as it stands: pacing alone. Nothing is dropped for its age.

    A long rollout may bring tokens older than the bound; they train, and are counted as not good.
    """

    drops = False


class TrimmedStaleness(PacedStaleness):
    """Pacing, and what has become too old is left out token by token instead of group by group.

    The trainer masks tokens older than the bound; the younger ones of the same trajectory train.
    Waits for no straggler, drops no group, so it does not lean against slow tasks.
    """

    trims = True


class BatchwiseStaleness(BoundedStaleness):
    """One step off: a batch starts when the trainer takes the one before; weights swap between."""

    def demand(self, state: State, n_ahead: int) -> int:
        """A whole batch when none is open, or what a batch lost to faults."""
        if state.n_open_groups > len(state.ahead):
            return 0
        n_missing = state.limits.prompts_per_step - len(state.buffer)
        return min(super().demand(state, n_ahead), n_missing)

    def may_publish(self, state: State) -> bool:
        """Only between batches: no rollout is interrupted."""
        return state.n_open_groups == len(state.ahead)
