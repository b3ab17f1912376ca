"""What deciding costs: microseconds per event by rollouts in flight, simulated hours per second.

    python -m experiments.benchmark --suite scheduler --workdir runs/benchmark_scheduler

A simulated run is journaled, then its events are handled once more by a fresh scheduler, and each
call of the second half, when all rollouts have been admitted, is timed: CPU time, without Python's
search for cycles, as in a simulation. The last event is the stop, which drops all that is in flight
at once: it is the `max`. What the driver and the ledger cost is in the last claim only; invariants,
which cost O(rollouts in flight), are checked once in a million events. About four minutes.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import paper, shapes
from experiments import cli
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import Event
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.simulator.costs import cost_model
from tiderl_jax.simulator.simulate import simulate, uncollected

STOP_S = {100: 200.0, 1_000: 60.0, 10_000: 20.0, 100_000: 5.0}
"""By rollouts in flight, the virtual time of the run: 10,000 events and more."""
ROLLOUTS_PER_RANK = 50
MIN_RANKS = 4  # fewer could not be scaled
ROLLOUTS_PER_GROUP = 5
EVENTS_PER_CHECK = 1_000_000
NS_PER_US = 1e3


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures every size, then a whole run of the paper's text setting."""
    costs = {n: cost_of_deciding(in_flight(n), stop_s) for n, stop_s in STOP_S.items()}
    write_json(workdir / "cost_of_deciding.json", {str(n): cost for n, cost in costs.items()})
    for n, cost in costs.items():
        figures = ", ".join(f"{name} {value:.1f}" for name, value in cost.items())
        print(f"{n:>7} rollouts in flight: {figures} (us per event)")
    few, many = 1_000, max(costs)
    return [
        *(
            result(
                Claim(f"us per event, {n:,} in flight", None, at_most=50.0, source="issue 3"),
                [cost["mean"]],
            )
            for n, cost in costs.items()
        ),
        result(
            Claim(
                f"us per event, {many:,} over {few:,} in flight",
                None,
                at_most=math.log(many) / math.log(few),
                source="logarithmic growth",
            ),
            [costs[many]["mean"] / costs[few]["mean"]],
            baseline=f"{few:,} in flight",
        ),
        *whole_run("32 ranks x 100 steps of webshop", text_setting(steps=100), at_most_s=20.0),
    ]


def text_setting(**changes: object) -> ExperimentConfig:
    """The paper's text setting on 32 devices, under preset `tiderl`."""
    config = paper.cluster(shapes.QWEN25_7B, "webshop", max_turns=20, context_tokens=8192)
    config.name = "benchmark"
    config.update_from_flattened_dict(changes)
    return cli.resolved(config.to_dict())


def in_flight(n_rollouts: int) -> ExperimentConfig:
    """As many rollouts in flight as the bound on staleness lets start, two batches."""
    n_ranks = max(n_rollouts // ROLLOUTS_PER_RANK, MIN_RANKS)
    n_groups = n_rollouts // ROLLOUTS_PER_GROUP
    return text_setting(
        **{
            "steps": 3,
            "rollout.prompts_per_step": n_groups // 2,
            "rollout.min_prompts_per_step": n_groups // 2,
            "rollout.samples_per_prompt": ROLLOUTS_PER_GROUP,
            "scheduler.max_open_groups": n_groups,
            "scheduler.max_open_environments": n_rollouts,
            "evaluation.n_tasks": 1,
            **paper.split(n_ranks, n_devices=2 * n_ranks, elastic=True),
        }
    )


def cost_of_deciding(config: ExperimentConfig, stop_s: float) -> dict[str, float]:
    """Mean, percentiles and maximum of the CPU time per event, in us."""
    journal = simulate(
        config, journal=True, stop_s=stop_s, timeline=False, events_per_check=EVENTS_PER_CHECK
    ).journal
    times_us = _handle_all(config, journal)[len(journal) // 2 :] / NS_PER_US
    p50, p99, p100 = (float(p) for p in np.percentile(times_us, (50, 99, 100)))
    return {"mean": float(times_us.mean()), "p50": p50, "p99": p99, "max": p100}


def _handle_all(config: ExperimentConfig, journal: Sequence[tuple[Event, int]]) -> np.ndarray:
    """int64 [events]: ns of each call."""
    scheduler = Scheduler.of(config, rank_specs(config), cost_model(config).step)
    scheduler.start(0)
    times_ns = np.zeros(len(journal), np.int64)
    with uncollected():
        for i, (event, now_ns) in enumerate(journal):
            begin_ns = time.thread_time_ns()
            scheduler.handle(event, now_ns)
            times_ns[i] = time.thread_time_ns() - begin_ns
    return times_ns


def whole_run(name: str, config: ExperimentConfig, *, at_most_s: float) -> list[dict[str, Any]]:
    """How long a simulated run takes, and how many simulated hours that is per second."""
    begin_s = time.perf_counter()
    done = simulate(config, timeline=False, events_per_check=EVENTS_PER_CHECK)
    took_s = time.perf_counter() - begin_s
    hours = done.summary["wall_s"] / 3600
    print(f"{name}: {took_s:.1f} s for {hours:.2f} simulated hours ({hours / took_s:.3f} h/s)")
    return [result(Claim(f"seconds, {name}", None, at_most=at_most_s, source="issue 3"), [took_s])]
