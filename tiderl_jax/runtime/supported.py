"""What a real run can carry out so far; the simulator carries out the rest."""

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError

_SUPPORTED = {
    "staleness": ("bounded", "paced", "batchwise"),
    "pipelining": ("full_batch",),
    "scaling": ("static",),
}


def check_supported(config: ExperimentConfig) -> None:
    """Whether the learner and the meshes can do what the scheduler may ask for.

    Raises:
      ConfigError: with the setting to change.
    """
    for decision, names in _SUPPORTED.items():
        chosen = getattr(config.scheduler, decision)
        if chosen not in names:
            raise ConfigError(
                f"A real run cannot carry out scheduler.{decision} = {chosen!r} yet: set it to "
                f"{' or '.join(map(repr, names))}, or use experiments.simulate."
            )
    if config.partition.max_rollout_ranks:
        raise ConfigError(
            "Ranks of a real run cannot move yet: set partition.min_rollout_ranks and "
            "partition.max_rollout_ranks to 0, or use experiments.simulate."
        )
