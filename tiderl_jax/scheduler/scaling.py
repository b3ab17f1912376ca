"""Which ranks roll out and which train."""

from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.state import State


class StaticScaling:
    """The partition that the run started with, for ever."""

    def rollout_ranks(self, state: State) -> tuple[RankId, ...]:
        """All ranks."""
        return tuple(state.ranks)
