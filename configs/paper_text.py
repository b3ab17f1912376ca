"""Question: what does readiness-aware scheduling gain on the paper's text workloads?

    python -m experiments.sweep --config configs/paper_text.py --workdir runs/paper_text

WebShop and ALFWorld with Qwen2.5-7B and 14B shapes on 32 simulated H100, 100 steps, five seeds,
every baseline at each of the paper's rollout fractions. What is assumed is listed in
configs/paper.py, hardware.py and profiles.py of the simulator; nothing is tuned to the reported
figures.
Hardware: none (virtual time); about 40 minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import paper
from configs.shapes import QWEN25_7B, QWEN25_14B
from tiderl_jax.report.claims import Claim, ratio, ratio_to_best

CONTEXT_TOKENS = 8192

WORKLOADS = paper.workloads(("webshop", "alfworld"), {"7b": QWEN25_7B, "14b": QWEN25_14B})

simulated = True

seeds = (0, 1, 2, 3, 4)

points = paper.compared(WORKLOADS, CONTEXT_TOKENS)

claims = [
    claim
    for workload in WORKLOADS
    for claim in (
        *(
            Claim(
                f"{workload}: goodput of {ours} over {baseline}",
                ratio("goodput_tokens_per_s", f"{workload}/{ours}", f"{workload}/{baseline}"),
                at_least=5.6,
                source="TideRL reports 5.6 on text over verl",
            )
            for ours in ("tiderl_paper", "tiderl")
            for baseline in ("sync", "sync_lockstep")
        ),
        *(
            Claim(
                f"{workload}: goodput of {ours} over the best static asynchronous policy",
                ratio_to_best(
                    "goodput_tokens_per_s",
                    f"{workload}/{ours}",
                    tuple(f"{workload}/{name}" for name in paper.ASYNCHRONOUS),
                ),
                at_least=1.33,
                source="TideRL reports more than 1.33; 1.8 over AReaL on text",
            )
            for ours in ("tiderl_paper", "tiderl")
        ),
    )
]


def get_config(arg: str | None = None) -> ConfigDict:
    """WebShop with the 7B shape; the points change the rest."""
    config = paper.cluster(QWEN25_7B, "webshop", max_turns=20, context_tokens=CONTEXT_TOKENS)
    config.name = "paper_text"
    config.steps = 100
    return config
