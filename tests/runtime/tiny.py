"""The smallest whole experiment: a one-layer model on the maps of the quickstart."""

from ml_collections import ConfigDict

from configs import base, quickstart
from configs.base import section


def get_config(arg: str | None = None) -> ConfigDict:
    """Two rollout ranks, two actor devices, three steps of two groups of two."""
    config = base.get_config()
    config.name = "tiny"
    config.steps = 3
    config.environment = quickstart.get_config().environment.copy_and_resolve_references()
    config.environment.latency = section(median_s=0.002, sigma=1.0, cap_s=0.05)
    config.model.architecture = section(
        n_layers=1,
        d_model=16,
        n_heads=2,
        n_kv_heads=1,
        d_head=8,
        d_ff=32,
        rope_base=1000.0,
        norm_epsilon=1e-5,
        tied_embedding=True,
    )
    config.rollout.prompts_per_step = 2
    config.rollout.samples_per_prompt = 2
    config.rollout.max_tokens_per_turn = 2
    config.rollout.max_context_tokens = 128
    config.decoder.n_slots = 4
    config.decoder.n_pages = 32
    config.learner.tokens_per_row = 128
    config.learner.rows_per_microbatch = 2
    config.learner.logp_chunk_tokens = 64
    config.warm_start.updates = 2
    config.warm_start.episodes_per_update = 4
    config.warm_start.player = quickstart.get_config().warm_start.player
    config.warm_start.random_action_share = 0.5
    config.evaluation.n_tasks = 3
    config.scheduler.staleness = "bounded"
    config.scheduler.pipelining = "full_batch"
    config.scheduler.scaling = "static"
    config.partition.n_rollout_ranks = 2
    config.partition.actor_devices = 2
    config.partition.share_devices = False
    config.checkpoint = section(every_steps=1, keep=2)
    return config
