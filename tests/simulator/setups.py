"""Small simulated experiments, by hand and by seed."""

from configs import swarm as document
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.resolve import resolve
from tiderl_jax.simulator.swarm import n_pages


def small_config(preset: str, *, pool: float = 4.0, **changes: object) -> ExperimentConfig:
    """4 steps of 3 groups of 4 on 2 + 2 ranks; every rank's pool holds `pool` whole rollouts.

    `changes` are dotted keys, with `__` for the dot.
    """
    config = document.get_config()
    config.scheduler.preset = preset
    config.decoder.n_pages = n_pages(pool)
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return resolve(config.to_dict())


def random_config(seed: int) -> ExperimentConfig:
    """The random world of a seed."""
    return resolve(document.get_config(str(seed)).to_dict())
