"""From a declared partition to devices: which rank has which, and the actor's mesh."""

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from tiderl_jax.core.config import PartitionConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.ids import RankId


@dataclass(frozen=True, slots=True)
class Partition:
    """The devices of every role."""

    rollout: dict[RankId, jax.Device]
    actor: Mesh  # axes ("data", "tensor")
    n_devices: int  # distinct devices of all roles


def partition(config: PartitionConfig, devices: list[jax.Device]) -> Partition:
    """Gives the first devices to the actor and the next ones to the rollout ranks.

    With `share_devices` the rollout ranks use the actor's devices in turn instead.

    Raises:
      ConfigError: there are not enough devices.
    """
    start = 0 if config.share_devices else config.actor_devices
    needed = max(config.actor_devices, start + config.n_rollout_ranks)
    if needed > len(devices):
        raise ConfigError(
            f"The partition needs {needed} devices and {len(devices)} are there; "
            f"lower partition.actor_devices or partition.n_rollout_ranks, "
            f"or set partition.share_devices."
        )
    tensor = config.actor_tensor_parallel
    grid = np.array(devices[: config.actor_devices]).reshape(-1, tensor)
    return Partition(
        rollout={RankId(rank): devices[start + rank] for rank in range(config.n_rollout_ranks)},
        actor=Mesh(grid, ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto)),
        n_devices=needed,
    )
