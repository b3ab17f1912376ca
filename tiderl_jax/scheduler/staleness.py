"""May a new rollout start; may a trajectory train. Pace first, drop last."""

from tiderl_jax.core.ids import PolicyVersion, lag
from tiderl_jax.scheduler.state import Rank, State


class BoundedStaleness:
    """At most k versions between a trajectory's oldest token and the trainer that uses it.

    Pacing is AReaL's capacity rule, counted in groups from need, so that a dropped group is
    replaced: `min(max_open - open, (k + version + 1) * B - (accepted + open))`. The version is
    the one that the ranks serve, in steps: what starts now must fit into the steps up to k later.
    """

    def demand(self, state: State) -> int:
        """Training groups to request now."""
        limits, n_open = state.limits, state.n_open_groups
        n_spoken_for = state.n_accepted_groups + n_open
        horizon = min(limits.staleness_bound + state.published_step + 1, limits.steps)
        return min(
            limits.max_open_groups - n_open, horizon * limits.prompts_per_step - n_spoken_for
        )

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

    def is_stale(self, state: State, oldest: PolicyVersion, used_at_version: int) -> bool:
        """Whether the lag would exceed the bound at that version of the trainer."""
        return lag(PolicyVersion(used_at_version), oldest) > state.limits.staleness_bound
