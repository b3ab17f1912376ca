"""Question: what does each part of TideRL add to a streaming baseline?

    python -m experiments.sweep --config configs/paper_stackup.py --workdir runs/paper_stackup

The paper's ladder on OSWorld with the Qwen3-VL-4B shape, first 10 steps, the initial evaluation
included: StreamRL 20.2 k tok/s -> +RA2P 23.1 -> +ERS 31.8 -> +CTB 33.3. Ratios of neighbours are
compared, not rates. Staleness is `paced` on every rung.
Hardware: none (virtual time); about a minute on two CPU cores.
"""

from itertools import pairwise

from ml_collections import ConfigDict

from configs import paper, paper_multimodal
from tiderl_jax.report.claims import Claim, ratio

simulated = True

seeds = (0, 1, 2, 3, 4)

_HOME = paper.split(paper.N_DEVICES // 4, elastic=True)

points = {
    "stream": paper.policy("stream", _HOME),
    "+ra2p": paper.policy("stream", _HOME, pipelining="ra2p"),
    "+ers": paper.policy("stream", _HOME, pipelining="ra2p", scaling="ers"),
    "+ctb": paper.policy(
        "stream", _HOME, pipelining="ra2p", scaling="ers", admission="ctb", batching="ctb"
    ),
}

_REPORTED = {"stream": 20.2, "+ra2p": 23.1, "+ers": 31.8, "+ctb": 33.3}
_LADDER = list(_REPORTED)

claims = [
    Claim(
        f"goodput of {above} over {below}",
        ratio("goodput_tokens_per_s", above, below),
        at_least=round(_REPORTED[above] / _REPORTED[below], 3),
        source="TideRL, stack-up on OSWorld",
    )
    for below, above in pairwise(_LADDER)
]


def get_config(arg: str | None = None) -> ConfigDict:
    """The first ten steps."""
    config = paper_multimodal.get_config()
    config.name = "paper_stackup"
    config.steps = 10
    return config
