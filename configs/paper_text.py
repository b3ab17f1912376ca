"""Question: what does readiness-aware scheduling gain on the paper's text workloads?

    python -m experiments.sweep --config configs/paper_text.py --workdir runs/paper_text

WebShop and ALFWorld with Qwen2.5-7B and 14B shapes on 32 simulated H100, five seeds, every baseline
at each of the paper's rollout fractions; the first 20 of the paper's 100 steps. What is assumed is
listed in configs/paper.py, hardware.py and profiles.py of the simulator; nothing is tuned to the
reported figures, and configs/paper_sensitivity.py says which assumption decides.
Hardware: none (virtual time); about 30 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import paper
from configs.shapes import QWEN25_7B, QWEN25_14B

CONTEXT_TOKENS = 8192

WORKLOADS = paper.workloads(("webshop", "alfworld"), {"7b": QWEN25_7B, "14b": QWEN25_14B})

simulated = True

seeds = (0, 1, 2, 3, 4)

points = paper.compared(WORKLOADS, CONTEXT_TOKENS)

claims = [
    claim
    for workload in WORKLOADS
    for claim in paper.goodput_claims(workload, 5.6, {"async": 1.8, "stream": 7.0})
]


def get_config(arg: str | None = None) -> ConfigDict:
    """WebShop with the 7B shape; the points change the rest."""
    config = paper.cluster(QWEN25_7B, "webshop", max_turns=20, context_tokens=CONTEXT_TOKENS)
    config.name = "paper_text"
    config.steps = 20
    return config
