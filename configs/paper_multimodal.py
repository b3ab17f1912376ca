"""Question: what does readiness-aware scheduling gain on the paper's multimodal workloads?

    python -m experiments.sweep --config configs/paper_multimodal.py --workdir runs/paper_multimodal

OSWorld and ScienceBoard with shapes like Qwen3-VL-4B and Qwen3.5-9B on 32 simulated H100, episodes
of 50 turns, five seeds; the first 16 of the paper's 40 steps. Images stand in the prompt (the last
five screenshots); that a moving window of them breaks the KV behind it is left out, so KV hit rates
are upper bounds.
Hardware: none (virtual time); about 30 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import paper
from configs.shapes import QWEN3_VL_4B, QWEN35_9B

CONTEXT_TOKENS = 32_768  # assumed: five screenshots and 50 turns of text
WORKLOADS = paper.workloads(("osworld", "scienceboard"), {"4b": QWEN3_VL_4B, "9b": QWEN35_9B})

simulated = True

seeds = (0, 1, 2, 3, 4)

points = paper.compared(WORKLOADS, CONTEXT_TOKENS)

claims = [claim for workload in WORKLOADS for claim in paper.goodput_claims(workload, 6.02, {})]


def get_config(arg: str | None = None) -> ConfigDict:
    """OSWorld with the 4B shape; the points change the rest."""
    config = paper.cluster(QWEN3_VL_4B, "osworld", max_turns=50, context_tokens=CONTEXT_TOKENS)
    config.name = "paper_multimodal"
    config.steps = 16
    config.learner.tokens_per_row = CONTEXT_TOKENS
    return config
