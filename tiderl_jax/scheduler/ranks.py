"""The ranks that a config asks for, the same for real and virtual machines."""

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.ids import RankId, Role
from tiderl_jax.scheduler.state import RankSpec


def rank_specs(config: ExperimentConfig) -> tuple[RankSpec, ...]:
    """Rollout ranks first, then the trainer's; a shared machine has rollout ranks only."""
    partition, decoder = config.partition, config.decoder
    n_rollout = partition.n_rollout_ranks
    n_trainers = 0 if partition.share_devices else partition.actor_devices
    return tuple(
        RankSpec(
            RankId(rank),
            Role.ROLLOUT if rank < n_rollout else Role.TRAINER,
            decoder.n_slots,
            decoder.n_pages * decoder.page_tokens,
            decoder.page_tokens,
        )
        for rank in range(n_rollout + n_trainers)
    )
