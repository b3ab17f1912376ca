"""A cluster of 10,240 ranks for 20 steps in virtual time, with a batch of one rollout per rank.

    python -m experiments.benchmark --suite scale --workdir runs/benchmark_scale

About six minutes on one core.
"""

from pathlib import Path
from typing import Any

from configs import paper
from experiments.suites.scheduler import text_setting, whole_run

N_RANKS = 10_240
N_GROUPS = N_RANKS // 8


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures one run; a quarter of the ranks rolls out, as in the paper's text setting."""
    config = text_setting(
        **{
            "steps": 20,
            "rollout.prompts_per_step": N_GROUPS,
            "rollout.min_prompts_per_step": N_GROUPS // 2,
            "scheduler.max_open_groups": 4 * N_GROUPS,
            **paper.split(N_RANKS // 4, n_devices=N_RANKS, elastic=True),
        }
    )
    return whole_run("10,240 ranks x 20 steps of webshop", config, at_most_s=600.0)
