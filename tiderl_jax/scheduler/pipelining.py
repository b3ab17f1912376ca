"""How scorer and actor share a training step."""

from tiderl_jax.core.commands import StepMode
from tiderl_jax.scheduler.state import State


class ColocatedPipelining:
    """Scorer and actor take turns on the same devices, over the whole step's groups."""

    def mode(self, state: State) -> StepMode:
        """Always co-located."""
        return StepMode.COLOCATED
