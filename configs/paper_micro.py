"""Question: what do CTB and ERS gain in the paper's micro-benchmarks?

    python -m experiments.sweep --config configs/paper_micro.py --workdir runs/paper_micro

CTB: one H100 that rolls out and trains in turn, 1312 WebShop rollouts (164 tasks of 8) at once, the
7B shape, 3 steps; only admission and batching differ, `ctb` against request-level batching with an
LRU cache, with all rollouts open at once and with a cap on them. The pool is what the memory holds
beside the weights (a million tokens, assumed). Turns of the uncapped baseline queue for minutes, so
no environment is reaped for that.
ERS: WebShop on 8 H100, 32 tasks of 8, 40 of the paper's 100 steps; the faithful preset with its
scaling, from a quarter of the ranks, against the same at each static fraction. The paper does not
say which split it holds ERS against: the one ERS starts from and the best one are shown.
RA2P: `python -m experiments.benchmark --suite ra2p`.
Hardware: none (virtual time); about ten minutes on two CPU cores.
"""

from ml_collections import ConfigDict

from configs import paper
from configs.paper import FRACTIONS, Point
from configs.shapes import QWEN25_7B
from tiderl_jax.report.claims import Claim, ratio, ratio_to_best

simulated = True

seeds = (0, 1, 2, 3, 4)

CONTEXT_TOKENS = 8192
N_ERS = 8
_HOME = 0.25
_ONE_DEVICE: Point = {
    **paper.shared(1),
    "steps": 3,
    "scheduler.preset": "async",
    "scheduler.staleness_bound": 0,
    "rollout.prompts_per_step": 164,
    "rollout.min_prompts_per_step": 164,
    "environment.idle_lease_s": 3600.0,
    "evaluation.n_tasks": 0,
}


def _eight(fraction: float, scaling: str) -> Point:
    """The faithful preset on eight devices with a scaling."""
    machine = paper.split(round(N_ERS * fraction), n_devices=N_ERS, elastic=scaling != "static")
    return {"steps": 40, **paper.policy("tiderl_paper", machine, scaling=scaling)}


points = {
    "ctb/lru": _ONE_DEVICE,
    "ctb/lru_capped": {
        **_ONE_DEVICE,
        "scheduler.max_open_rollouts_per_rank": paper.cap(QWEN25_7B, CONTEXT_TOKENS),
    },
    "ctb/ctb": {**_ONE_DEVICE, "scheduler.admission": "ctb", "scheduler.batching": "ctb"},
    **{f"ers/static@{fraction}": _eight(fraction, "static") for fraction in FRACTIONS},
    "ers/ers": _eight(_HOME, "ers"),
    "ers/ers_guarded": _eight(_HOME, "ers_guarded"),
}

_STATIC = tuple(name for name in points if "static" in name)
_WAITING = "waiting_device_s.total"

claims = [
    *(
        claim
        for baseline in ("lru", "lru_capped")
        for claim in (
            Claim(
                f"CTB: KV hit rate over {baseline}",
                ratio("kv_hit_rate", "ctb/ctb", f"ctb/{baseline}"),
                at_least=1.58,
                source="TideRL reports 1.58",
            ),
            Claim(  # the same tasks are generated while the trainer waits
                f"CTB: time of generating over {baseline}",
                ratio("trainer_wait_s", "ctb/ctb", f"ctb/{baseline}"),
                at_most=round(1 / 1.15, 3),
                source="TideRL reports 1.15 times the generation throughput",
            ),
            Claim(
                f"CTB: step time over {baseline}",
                ratio("step_time_s.mean", "ctb/ctb", f"ctb/{baseline}"),
                at_most=0.844,
                source="TideRL reports -15.6 %",
            ),
        )
    ),
    *(
        claim
        for scaling in ("ers", "ers_guarded")
        for claim in (
            Claim(
                f"{scaling}: RWT + TWT over the static split that it starts from",
                ratio(_WAITING, f"ers/{scaling}", f"ers/static@{_HOME}"),
                at_most=0.314,
                source="TideRL reports -68.6 to -77.6 %",
            ),
            Claim(
                f"{scaling}: RWT + TWT over the best static split",
                ratio_to_best(_WAITING, f"ers/{scaling}", _STATIC, smaller_is_better=True),
                at_most=0.5,
                source="issue 3",
            ),
            Claim(
                f"{scaling}: goodput over the best static split",
                ratio_to_best("goodput_tokens_per_s", f"ers/{scaling}", _STATIC),
                at_least=1.0,
                source="ours",
            ),
        )
    ),
]


def get_config(arg: str | None = None) -> ConfigDict:
    """WebShop with the 7B shape; the points change the rest."""
    config = paper.cluster(QWEN25_7B, "webshop", max_turns=20, context_tokens=CONTEXT_TOKENS)
    config.name = "paper_micro"
    return config
