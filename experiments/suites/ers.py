"""What elastic ranks save when environments are slow and fast by turns, against every static split.

    python -m experiments.benchmark --suite ers --workdir runs/benchmark_ers

Profile `alternating`: WebShop whose answers take ten times as long for ten steps, then not for ten,
and so on; 40 steps of 32 x 4 rollouts without evaluations, the 7B shape on 8 H100, three seeds. All
policies are preset `tiderl_paper` but for `scaling`:
    static@n     n of the 8 ranks roll out: every split there is; the best is found in hindsight
    ers          from 2 ranks, between 1 and 7
    ers_1_to_4   between 1 and 4, the fractions that the paper tried
    ers_guarded  from 2 ranks, between 1 and 7

Waiting is RWT + TWT: device-seconds in which rollout ranks decode nothing or trainer ranks train
nothing, up to the last update. Goodput stands beside it: waiting is not the goal. policies.md has
all figures. About four minutes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs import paper
from experiments.suites.side_by_side import Measured, finished, side_by_side, table
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.report.claims import Claim, evaluate, ratio_to_best
from tiderl_jax.report.run_files import write_text

SEEDS = (0, 1, 2)
N_DEVICES = 8
BASE: Mapping[str, object] = {
    "steps": 40,
    "evaluation.n_tasks": 0,
    "simulation.profile": "alternating",
    "rollout.samples_per_prompt": 4,
}


def _elastic(scaling: str, n_most: int) -> Mapping[str, object]:
    limits = {"partition.min_rollout_ranks": 1, "partition.max_rollout_ranks": n_most}
    home = {**paper.split(N_DEVICES // 4, n_devices=N_DEVICES), **limits}
    return paper.policy("tiderl_paper", home, scaling=scaling)


STATIC: Mapping[str, Mapping[str, object]] = {
    f"static@{n}": paper.policy(
        "tiderl_paper", paper.split(n, n_devices=N_DEVICES), scaling="static"
    )
    for n in range(1, N_DEVICES)
}
ELASTIC: Mapping[str, Mapping[str, object]] = {
    "ers": _elastic("ers", N_DEVICES - 1),
    "ers_1_to_4": _elastic("ers", N_DEVICES // 2),
    "ers_guarded": _elastic("ers_guarded", N_DEVICES - 1),
}
FIGURES = {
    "goodput (tokens/s)": "goodput_tokens_per_s",
    "RWT (device-s)": "waiting_device_s.rollout",
    "TWT (device-s)": "waiting_device_s.trainer",
    "RWT + TWT (device-s)": "waiting_device_s.total",
    "share of devices": "waiting_share",
    "step time (s)": "step_time_s.mean",
    "repartitions": "repartitions",
    "dropped as stale (tokens)": "waterfall.stale",
}
_WAITING, _GOODPUT = "waiting_device_s.total", "goodput_tokens_per_s"

CLAIMS = [
    claim
    for name in ELASTIC
    for claim in (
        Claim(
            f"RWT + TWT of {name} over the static split that waits least",
            ratio_to_best(_WAITING, name, [*STATIC], smaller_is_better=True),
            at_most=0.5,
            source="issue 3",
        ),
        Claim(
            f"goodput of {name} over the static split with the most",
            ratio_to_best(_GOODPUT, name, [*STATIC]),
            at_least=1.0,
            source="ours",
        ),
    )
]


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures every static split and every elastic policy."""
    policies = {name: {**BASE, **changes} for name, changes in {**STATIC, **ELASTIC}.items()}
    measured = side_by_side(policies, SEEDS, measure)
    text = table(measured, FIGURES)
    write_text(workdir / "policies.md", text)
    print(text)
    return evaluate(CLAIMS, measured)


def measure(config: ExperimentConfig) -> Measured:
    """The summary of a run."""
    return finished(config).summary
