"""Question: does agentic reinforcement learn on a laptop what imitation did not teach?

    make train
    python -m experiments.train --config configs/quickstart.py --workdir runs/quickstart
    python -m experiments.sweep --config configs/quickstart.py --workdir runs/quickstart_seeds

A transformer of a million parameters plays generated 4 x 4 maps with holes, a third of them with a
locked door and its key. It sees the four cells around it, which way the goal and the key are, and
where it came from. Half of the scripted episodes of the warm start are blind to holes and keys.
Hardware: two CPU cores. Expected: held-out success sampled at temperature 1 rises by at least 30
points to at least 80 %, greedy success rises too; about 8 minutes.
"""

from ml_collections import ConfigDict

from configs import base
from configs.base import optimizer, section
from tiderl_jax.report.claims import Claim, figure, gain

points = {"quickstart": {}}

seeds = (0, 1, 2)

claims = [
    Claim(
        "success sampled on held-out maps, last",
        figure("eval.success_last", "quickstart"),
        at_least=0.8,
        every_seed=True,
        source="ours",
    ),
    Claim(
        "success sampled on held-out maps, gained",
        gain("eval.success_first", "eval.success_last", "quickstart"),
        at_least=0.3,
        every_seed=True,
        source="ours",
    ),
    Claim(
        "success of greedy play on held-out maps, gained",
        gain("eval_greedy.success_first", "eval_greedy.success_last", "quickstart"),
        at_least=0.0,
        every_seed=True,
        source="ours",
    ),
]


def get_config(arg: str | None = None) -> ConfigDict:
    """A 1 M parameter transformer on generated grid worlds."""
    config = base.get_config()
    config.name = "quickstart"
    config.steps = 60
    config.environment.name = "gridworld"
    config.environment.options = section(
        size=4,
        hole_share=0.22,
        wall_share=0.0,
        door_share=1 / 3,
        min_moves=3,
        max_moves=7,
        max_turns=10,
    )
    config.environment.max_turns = 10
    config.environment.latency = section(median_s=0.02, sigma=1.2, cap_s=2.0)
    config.model.architecture = section(
        n_layers=2,
        d_model=208,
        n_heads=8,
        n_kv_heads=8,
        d_head=26,
        d_ff=560,
        rope_base=1000.0,
        norm_epsilon=1e-5,
        tied_embedding=True,
    )
    config.rollout.prompts_per_step = 32
    config.rollout.samples_per_prompt = 8
    config.rollout.max_tokens_per_turn = 2  # a word and the end of the turn
    config.rollout.max_context_tokens = 128
    config.decoder.prefill_chunk_tokens = 12  # one turn's observation and template
    config.decoder.decode_steps_per_dispatch = 2
    config.learner.optimizer = optimizer(3e-4)
    config.learner.updates_per_step = 2
    config.learner.tokens_per_row = 256
    config.learner.rows_per_microbatch = 8
    config.learner.logp_chunk_tokens = 2048
    config.warm_start.updates = 100
    config.warm_start.episodes_per_update = 32
    config.warm_start.player = "novice"
    config.warm_start.random_action_share = 0.4
    config.warm_start.optimizer = optimizer(2e-3)
    config.scheduler.staleness = "bounded"  # whole groups: the learner masks no single token yet
    config.scheduler.pipelining = "full_batch"  # one device: nothing streams between ranks,
    config.scheduler.scaling = "static"  # and none can move
    config.scheduler.max_open_groups = 64
    config.evaluation.n_tasks = 256
    config.simulation.profile = "gridworld"
    return config
