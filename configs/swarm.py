"""Question: does every run end, and end right, whatever is asked of it and whatever fails?

A cluster small enough to be simulated ten thousand times; with a seed all about it is drawn at
random, faults included:

    python -m experiments.simulate --config configs/swarm.py:17 --workdir runs/swarm_17
"""

from ml_collections import ConfigDict

from configs import base
from tiderl_jax.simulator import swarm

simulated = True


def get_config(arg: str | None = None) -> ConfigDict:
    """4 steps of 3 groups of 4 on 2 + 2 ranks, or the random world of the seed `arg`."""
    config = base.get_config()
    config.name = "swarm"
    config.steps = 4
    config.environment.name = "simulated"
    config.environment.max_turns = 6
    config.environment.max_faults = 10_000
    config.environment.idle_lease_s = 1000.0
    config.model.dtype = "bfloat16"
    config.model.architecture.update(
        n_layers=4, d_model=1024, n_heads=8, n_kv_heads=8, d_head=128, d_ff=4096
    )
    config.rollout.prompts_per_step = 3
    config.rollout.samples_per_prompt = 4
    config.rollout.max_tokens_per_turn = 128
    config.rollout.max_context_tokens = swarm.MAX_CONTEXT_TOKENS
    config.rollout.deadline_s = 600.0
    config.decoder.n_slots = 6
    config.decoder.page_tokens = swarm.PAGE_TOKENS
    config.decoder.n_pages = swarm.n_pages(4.0)
    config.scheduler.max_open_groups = 8
    config.scheduler.max_open_environments = 40
    config.scheduler.max_open_rollouts_per_rank = 0
    config.learner.kl_coefficient = 0.001
    config.learner.tokens_per_row = swarm.MAX_CONTEXT_TOKENS
    config.learner.rows_per_microbatch = 1
    config.evaluation.n_tasks = 3
    config.evaluation.every_steps = 2
    config.partition.share_devices = False
    config.partition.n_rollout_ranks = 2
    config.partition.actor_devices = 2
    config.simulation.hardware = "h100"
    config.simulation.vocab_size = 32_000
    config.simulation.profile = "webshop"
    if arg:
        config.update_from_flattened_dict(swarm.random_changes(int(arg)))
    return config
