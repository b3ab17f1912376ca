"""Question: what does readiness-aware scheduling gain on the quickstart task, on one laptop?

    python -m experiments.sweep --config configs/first_light.py --workdir runs/first_light

Runs the presets `sync` (verl-like: a batch of independent episodes, then a step) and `tiderl` (CTB,
one version of staleness) at equal seeds: same maps, same delays, same warm start. Rollout and actor
share two CPU cores here, so what overlaps is waiting for environments, not computing.
Hardware: two CPU cores; about 15 minutes.
"""

from ml_collections import ConfigDict

from configs import quickstart
from tiderl_jax.report.claims import Claim, ratio

points = {"sync": {"scheduler.preset": "sync"}, "tiderl": {"scheduler.preset": "tiderl"}}

seeds = (0, 1, 2)

claims = [
    Claim(
        "goodput over sync",
        ratio("goodput_tokens_per_s", "tiderl", "sync"),
        at_least=1.0,
        source="TideRL reports 5.6 on 32 GPUs; two shared cores leave less to overlap",
    ),
    Claim(
        "trainer waiting over sync",
        ratio("trainer_wait_s", "tiderl", "sync"),
        at_most=1.0,
        source="TideRL reports up to -77.6 % of total waiting",
    ),
    Claim(
        "held-out success over sync",
        ratio("eval.success_last", "tiderl", "sync"),
        at_least=0.97,
        source="TideRL reports equal task performance",
    ),
]


def get_config(arg: str | None = None) -> ConfigDict:
    """The quickstart, shorter, evaluated before and after."""
    config = quickstart.get_config()
    config.name = "first_light"
    config.steps = 15
    return config
