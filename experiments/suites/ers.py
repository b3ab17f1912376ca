"""What moving ranks gains when slow and fast environments alternate.

    python -m experiments.benchmark --suite ers --workdir runs/benchmark_ers

WebShop, the 7B shape, 32 H100; for ten steps' worth of tasks the environments answer ten times
slower, then as usual, and so on (profile `alternating`), 40 steps. The faithful preset with its
scaling (`ers`) and with ours (`ers_guarded`) is held against the same preset at every static split.
Waiting is rollout waiting plus trainer waiting, in device-seconds of the whole run.
About six minutes.
"""

from pathlib import Path
from typing import Any

import numpy as np

from configs import paper
from experiments.suites.scheduler import text_setting
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json
from tiderl_jax.simulator.simulate import simulate

SEEDS = (0, 1)
STEPS = 40
SPLITS = (4, 8, 12, 16, 20, 24)
HOME = paper.split(
    paper.N_DEVICES // 4, elastic=True
)  # a quarter of the ranks rolls out at the start
ELASTIC = ("ers", "ers_guarded")
STATIC = tuple(f"static@{n}" for n in SPLITS)


def setting(seed: int, scaling: str, machine: paper.Point) -> ExperimentConfig:
    """The faithful preset with another scaling and machine."""
    return text_setting(
        **{
            "seed": seed,
            "steps": STEPS,
            "scheduler.preset": "tiderl_paper",
            "scheduler.scaling": scaling,
            "simulation.profile": "alternating",
            **machine,
        }
    )


def measured(config: ExperimentConfig) -> dict[str, float]:
    """Figures of one run."""
    summary = simulate(config, timeline=False).summary
    return {
        "waiting_device_s": summary["waiting_device_s"]["total"],
        "waiting_share": summary["waiting_share"],
        "goodput": summary["goodput_tokens_per_s"],
        "repartitions": summary["repartitions"],
    }


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures every split and every scaling at every seed."""
    machines = {
        **{name: ("static", paper.split(n)) for name, n in zip(STATIC, SPLITS, strict=True)},
        **{scaling: (scaling, HOME) for scaling in ELASTIC},
    }
    figures: dict[str, list[dict[str, float]]] = {}
    for name, (scaling, machine) in machines.items():
        figures[name] = [measured(setting(seed, scaling, machine)) for seed in SEEDS]
        means = {key: np.mean([one[key] for one in figures[name]]) for key in figures[name][0]}
        print(name, ", ".join(f"{key} {value:.4g}" for key, value in means.items()), flush=True)
    write_json(workdir / "ers.json", figures)
    return claims(figures)


def claims(figures: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Waiting over the static split that waits the least, goodput over the one that makes most."""

    def mean(name: str, key: str) -> float:
        return float(np.mean([one[key] for one in figures[name]]))

    def over(scaling: str, key: str, baseline: str) -> list[float]:
        pairs = zip(figures[scaling], figures[baseline], strict=True)
        return [ours[key] / theirs[key] for ours, theirs in pairs]

    least = min(STATIC, key=lambda name: mean(name, "waiting_device_s"))
    most = max(STATIC, key=lambda name: mean(name, "goodput"))
    return [
        claim
        for scaling in ELASTIC
        for claim in (
            result(
                Claim(f"RWT + TWT, {scaling}", None, at_most=0.5, source="issue 3"),
                over(scaling, "waiting_device_s", least),
                least,
            ),
            result(
                Claim(f"goodput, {scaling}", None, at_least=1.0, source="ours"),
                over(scaling, "goodput", most),
                most,
            ),
        )
    ]
