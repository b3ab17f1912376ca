"""Which tasks are trained when some take much longer than others, per policy.

    python -m experiments.benchmark --suite selection --workdir runs/benchmark_selection

Half of the tasks are fast, half slow (profile `mixed`: 4 turns of 0.2 s, 12 turns of 6 s), 16 H100,
32 tasks of 8 rollouts per step, 12 steps. What is trained is held against what was asked for in
groups, over time (the groups of the first half of the steps), and in tokens: of those within the
lag bound against all that were sampled. The distance of two mixes is that of total variation.
About three minutes; selection.md in the workdir has the table.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs import paper
from experiments.suites.scheduler import text_setting
from tiderl_jax.core.commands import Command, Feed
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import GroupId
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json, write_text
from tiderl_jax.scheduler.presets import PRESETS
from tiderl_jax.simulator.draws import Draws
from tiderl_jax.simulator.simulate import simulate

SEEDS = (0, 1)
STEPS = 12
N_DEVICES = 16
MAX_DISTANCE = 0.05
ON_SHARED_DEVICES = ("sync", "sync_lockstep")


class FedGroups:
    """Which groups the trainer was fed, by step."""

    def __init__(self) -> None:
        self.by_step: list[tuple[int, GroupId]] = []

    def observe(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        """Takes one turn of the event loop."""
        for command in commands:
            if isinstance(command, Feed):
                self.by_step += [(command.step, group) for group in command.groups]


def setting(seed: int, preset: str) -> ExperimentConfig:
    """A preset on half of the devices, or on all of them where it shares them with the trainer."""
    shares = preset in ON_SHARED_DEVICES
    machine = (
        paper.shared(N_DEVICES) if shares else paper.split(N_DEVICES // 2, n_devices=N_DEVICES)
    )
    return text_setting(
        **{
            "seed": seed,
            "steps": STEPS,
            "scheduler.preset": preset,
            "simulation.profile": "mixed",
            "evaluation.n_tasks": 0,
            **machine,
        }
    )


def measured(config: ExperimentConfig) -> dict[str, float]:
    """Shares of slow tasks and lengths in one run."""
    fed = FedGroups()
    done = simulate(config, observers=[fed.observe], timeline=False)
    draws = Draws(config.seed, config.simulation, config.rollout, config.environment.max_turns)
    early = Counter(draws.workload(group) for step, group in fed.by_step if 2 * step < STEPS)
    asked = {name: part.asked_groups for name, part in done.tally.workloads.items()}
    trained = {name: part.trained_groups for name, part in done.tally.workloads.items()}
    sampled = {name: part.ended.sampled_tokens for name, part in done.tally.workloads.items()}
    bound, lengths = done.scheduler.state.limits.staleness_bound, done.summary["lengths"]
    good = {
        name: sum(n for lag, n in part.tokens_at_lag.items() if lag <= bound)
        for name, part in done.tally.workloads.items()
    }
    return {
        "slow_asked": slow(asked),
        "slow_trained": slow(trained),
        "slow_trained_early": slow(early),
        "slow_tokens_sampled": slow(sampled),
        "slow_tokens_good": slow(good),
        "distance": abs(slow(trained) - slow(asked)),
        "distance_early": abs(slow(early) - slow(asked)),
        "distance_tokens": abs(slow(good) - slow(sampled)),
        "dropped_groups": sum(part.dropped_groups for part in done.tally.workloads.values()),
        "tokens_lost": 1 - sum(good.values()) / sum(sampled.values()),
        "sampled_turns": lengths["sampled_turns"],
        "trained_turns": lengths["trained_turns"],
    }


def slow(mix: dict[str, int]) -> float:
    """The share of slow tasks; of two classes, the distance of two mixes is their difference."""
    return mix.get("slow", 0) / sum(mix.values())


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures every preset at every seed."""
    figures = {preset: [measured(setting(seed, preset)) for seed in SEEDS] for preset in PRESETS}
    write_json(workdir / "selection.json", figures)
    table = markdown(figures)
    write_text(workdir / "selection.md", table)
    print(table)
    return [
        result(
            Claim(f"{preset}: {name}", None, at_most=MAX_DISTANCE, source="ours"),
            [one[key] for one in of_preset],
            baseline="the mix that was asked for",
        )
        for preset, of_preset in figures.items()
        for name, key in (
            ("distance of what trained", "distance"),
            ("distance of what trained in the first half", "distance_early"),
            ("distance of the tokens that count", "distance_tokens"),
        )
    ]


def markdown(figures: dict[str, list[dict[str, float]]]) -> str:
    """A row per policy, means over seeds."""
    keys = list(next(iter(figures.values()))[0])
    rows = [["policy", *(key.replace("_", " ") for key in keys)], ["---"] * (len(keys) + 1)]
    for preset, of_preset in figures.items():
        rows.append([preset, *(f"{np.mean([one[key] for one in of_preset]):.3g}" for key in keys)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
