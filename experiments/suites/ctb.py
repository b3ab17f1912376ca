"""What Continuous Task Batching gains when the KV of all open tasks does not fit.

    python -m experiments.benchmark --suite ctb --workdir runs/benchmark_ctb

WebShop, the 7B shape, 2 rollout ranks and 6 trainer ranks, 32 tasks of 8 rollouts per step. The
pool is so small that what all open rollouts hold on average, were nothing ever evicted, is 1.5
times of it (measured first, with the whole memory of the device). Only admission and batching
differ: `ctb`, against request-level batching with an LRU cache, first come first served, uncapped,
and against the same with a cap on open rollouts, the best one in hindsight.
Starvation: the longest time between a rollout being ready for its next turn (its environment
answered) and the turn's start, and how many rollouts ran out of time (an hour).
About a minute.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import paper
from experiments.suites.scheduler import text_setting
from tiderl_jax.core.commands import Command, RunTurn
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import EnvironmentReady, Event, RolloutEnded, TasksArrived, TurnEnded
from tiderl_jax.core.ids import GroupId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json
from tiderl_jax.simulator.simulate import simulate

OVER_SUBSCRIPTION = 1.5
SEEDS = (0, 1, 2)
STEPS = 6
NS_PER_S = 1e9
N_ROLLOUT_RANKS = 2
PAGE_TOKENS = paper.PAGE_TOKENS
CAPS = (32, 48, 64, 96, 128)  # open rollouts per rank; without a cap there are 256
FIFO = {"scheduler.admission": "request", "scheduler.batching": "request"}
CTB = {"scheduler.admission": "ctb", "scheduler.batching": "ctb"}


class Waits:
    """Follows a run: who waits for a turn, how long groups take, how much KV all would hold."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.group_s: list[float] = []  # from the arrival of a task to the end of its last rollout
        self.n_out_of_time = 0
        self._ready_ns: dict[RolloutId, int] = {}
        self._arrived_ns: dict[GroupId, int] = {}
        self._n_left: dict[GroupId, int] = {}
        self._context: dict[RolloutId, int] = {}
        self._token_ns = 0.0
        self._tokens = self._now_ns = 0

    def observe(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        """Takes one turn of the event loop."""
        self._token_ns += self._tokens * (now_ns - self._now_ns)
        self._now_ns = now_ns
        if isinstance(event, TasksArrived):
            self._arrived_ns |= dict.fromkeys(event.groups, now_ns)
            self._n_left |= dict.fromkeys(event.groups, event.n_members)
        elif isinstance(event, EnvironmentReady):
            self._ready_ns[event.rollout] = now_ns
            self._grow(event.rollout, event.appended_tokens)
        elif isinstance(event, TurnEnded):
            self._grow(event.rollout, event.generated_tokens)
        elif isinstance(event, RolloutEnded):
            self._end(event, now_ns)
        for command in commands:
            if isinstance(command, RunTurn) and command.rollout in self._ready_ns:
                wait_ns = now_ns - self._ready_ns.pop(command.rollout)
                self.waits_s.append(wait_ns / NS_PER_S)

    def _grow(self, rollout: RolloutId, n_tokens: int) -> None:
        self._context[rollout] = self._context.get(rollout, 0) + n_tokens
        self._tokens += n_tokens

    def _end(self, event: RolloutEnded, now_ns: int) -> None:
        group = event.rollout.group
        self.n_out_of_time += event.outcome is Outcome.TRUNCATED_TIME
        self._tokens -= self._context.pop(event.rollout, 0)
        self._n_left[group] -= 1
        if self._n_left[group] == 0 and not group.purpose.is_evaluation:
            self.group_s.append((now_ns - self._arrived_ns[group]) / NS_PER_S)

    @property
    def mean_open_tokens(self) -> float:
        """Context of all open rollouts, averaged over time."""
        return self._token_ns / self._now_ns


def setting(seed: int, **changes: object) -> ExperimentConfig:
    """AReaL-like but for what is compared, on eight devices."""
    return text_setting(
        **{
            "seed": seed,
            "steps": STEPS,
            "scheduler.preset": "async",
            "evaluation.n_tasks": 0,
            **paper.split(N_ROLLOUT_RANKS, n_devices=8),
            **changes,
        }
    )


def measured(config: ExperimentConfig) -> dict[str, float]:
    """Figures of one run."""
    waits = Waits()
    summary = simulate(config, observers=[waits.observe], timeline=False).summary
    p99, longest = (float(np.percentile(waits.waits_s, q)) for q in (99, 100))
    return {
        "goodput": summary["goodput_tokens_per_s"],
        "kv_hit_rate": summary["kv_hit_rate"],
        "group_s": summary["group_completion_s"]["p50"],
        "group_since_arrival_s": float(np.median(waits.group_s)),
        "wait_p99_s": p99,
        "wait_longest_s": longest,
        "out_of_time": waits.n_out_of_time,
        "mean_open_tokens": waits.mean_open_tokens,
    }


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures the demand, then each policy at every seed."""
    demand_tokens = measured(setting(0, **FIFO))["mean_open_tokens"] / N_ROLLOUT_RANKS
    pages = {"decoder.n_pages": round(demand_tokens / OVER_SUBSCRIPTION / PAGE_TOKENS)}
    policies = {
        "ctb": CTB,
        "fifo_lru": FIFO,
        **{
            f"fifo_lru_capped@{cap}": {**FIFO, "scheduler.max_open_rollouts_per_rank": cap}
            for cap in CAPS
        },
    }
    figures = {
        name: [measured(setting(seed, **pages, **policy)) for seed in SEEDS]
        for name, policy in policies.items()
    }
    write_json(workdir / "ctb.json", {"demand_tokens": demand_tokens, **pages, **figures})
    for name, of_name in figures.items():
        means = {key: float(np.mean([one[key] for one in of_name])) for key in of_name[0]}
        print(name, ", ".join(f"{key} {value:.4g}" for key, value in means.items()))
    return claims(figures)


def claims(figures: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """CTB against the uncapped baseline, and against the cap with the most goodput."""
    capped = [name for name in figures if "capped" in name]
    best = max(capped, key=lambda name: np.mean([one["goodput"] for one in figures[name]]))

    def over(
        name: str, key: str, baseline: str, source: str = "issue 3", **aim: float
    ) -> dict[str, Any]:
        pairs = zip(figures["ctb"], figures[baseline], strict=True)
        values = [ours[key] / theirs[key] for ours, theirs in pairs]
        return result(Claim(name, None, source=source, **aim), values, baseline)

    uncapped = "fifo_lru"
    return [
        over("KV hit rate", "kv_hit_rate", uncapped, at_least=1.4),
        over("median group completion, from its first turn", "group_s", uncapped, at_most=1.0),
        over(
            "median group completion, from its task's arrival",
            "group_since_arrival_s",
            uncapped,
            at_most=1.0,
        ),
        over("goodput", "goodput", uncapped, "ours", at_least=1.0),
        over("longest wait for a turn", "wait_longest_s", uncapped, "ours", at_most=1.0),
        result(
            Claim(
                "rollouts that ran out of time", None, at_most=0, source="issue 3: no starvation"
            ),
            [one["out_of_time"] for one in figures["ctb"]],
        ),
        over("KV hit rate over the best cap", "kv_hit_rate", best, "ours", at_least=1.0),
        over("goodput over the best cap", "goodput", best, "ours", at_least=1.0),
    ]
