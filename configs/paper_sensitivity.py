"""Question: which assumption about the paper's set-up decides what readiness gains there?

    python -m experiments.sweep --config configs/paper_sensitivity.py --workdir runs/sensitivity

The text setting of configs/paper_text.py (WebShop, the 7B shape, 32 H100), with one assumed input
at a time at the ends of its range. For each: goodput of the faithful preset and of ours over the
best static asynchronous policy, and over both synchronous loops. No claim has an aim of its own:
they are held against the figures that the paper reports.
Hardware: none (virtual time); about 10 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import paper, paper_text
from configs.paper import Point

simulated = True

seeds = (0,)

ASSUMED: dict[str, Point] = {
    "as_assumed": {},
    "delays_x0.1": {"simulation.delay_scale": 0.1},
    # In lock step a rollout may wait for the slowest environment for longer than the usual lease.
    "delays_x6": {"simulation.delay_scale": 6.0, "environment.idle_lease_s": 3600.0},
    "tail_x0.5": {"simulation.delay_tail": 0.5},
    "tail_x2": {"simulation.delay_tail": 2.0},
    "batch_16": {"rollout.prompts_per_step": 16, "rollout.min_prompts_per_step": 8},
    "batch_128": {"rollout.prompts_per_step": 128, "rollout.min_prompts_per_step": 64},
    "bound_2": {"scheduler.staleness_bound": 2},
    "no_scorer": {"learner.kl_coefficient": 0.0},
    "kv_kept": {"decoder.kv_after_update": "keep_labelled"},
}

_POLICIES = {
    name: point
    for name, point in paper.comparison(
        paper_text.WORKLOADS["webshop_7b"][1], paper_text.CONTEXT_TOKENS
    ).items()
    if "0.125" not in name
}

points = {
    f"{case}/{name}": {**changes, **point}
    for case, changes in ASSUMED.items()
    for name, point in _POLICIES.items()
}

claims = [claim for case in ASSUMED for claim in paper.goodput_claims(case, 5.6, {})]


def get_config(arg: str | None = None) -> ConfigDict:
    """The first ten steps of the text setting."""
    config = paper_text.get_config()
    config.name = "paper_sensitivity"
    config.steps = 10
    return config
