"""Ten thousand random worlds with faults: rules are checked after every event, all work drains.

    python -m experiments.benchmark --suite faults --workdir runs/benchmark_faults

`configs/swarm.py:SEED` is one of these worlds. Ten minutes on one core; two are used.
"""

import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import track

from configs import swarm as document
from experiments import cli
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json
from tiderl_jax.scheduler.presets import DECISIONS
from tiderl_jax.simulator.simulate import simulate
from tiderl_jax.simulator.swarm import CHOICES, flaws

N_WORLDS = 10_000
N_PROCESSES = 2
MIN_COMBINATIONS = 500  # of the five decisions, of 1,152
KINDS = (
    "probe",
    "crash",
    "hang",
    "late",
    "slow",
    "lease",
    "engine",
    "duplicate",
    "rank_loss",
    "rank_loss_for_good",
    "slow_weights",
    "lost_acknowledgement",
)
"""As `simulator.tally.Tally.faults` counts them; a slow environment needs no injection."""


@dataclass(frozen=True, slots=True)
class World:
    """What became of one of them."""

    seed: int
    preset: str
    decisions: tuple[str, ...]
    faults: dict[str, int]  # injected, by kind
    broken: str  # what went wrong; empty: nothing did


def run(workdir: Path) -> list[dict[str, Any]]:
    """Runs all worlds and counts."""
    with ProcessPoolExecutor(N_PROCESSES, mp_context=get_context("spawn")) as pool:
        running = pool.map(world, range(N_WORLDS), chunksize=20)
        worlds = list(track(running, description="worlds", total=N_WORLDS))
    write_json(workdir / "faults.json", summary(worlds))
    for one in worlds:
        if one.broken:
            print(f"seed {one.seed}: {one.broken}")
    return claims(worlds)


def config_of(seed: int) -> ExperimentConfig:
    """The world of a seed."""
    return cli.resolved(document.get_config(str(seed)).to_dict())


def world(seed: int) -> World:
    """Runs a world to its end."""
    config = config_of(seed)
    faults: Counter[str] = Counter()
    try:
        done = simulate(config, events_per_check=1, timeline=False)
        faults, broken = done.tally.faults, " ".join(flaws(config, done))
    except ConfigError:
        raise
    except Exception:
        # Whatever a world breaks is what is looked for.
        broken = traceback.format_exc(limit=-3)
    names = tuple(getattr(config.scheduler, decision) for decision in DECISIONS)
    return World(seed, config.scheduler.preset, names, dict(faults), broken)


def summary(worlds: Sequence[World]) -> dict[str, Any]:
    """Counts over all worlds, and those that broke."""
    return {
        "worlds": len(worlds),
        "faults": dict(_sums(world.faults for world in worlds)),
        "worlds_with": dict(_sums(dict.fromkeys(world.faults, 1) for world in worlds)),
        "presets": dict(Counter(world.preset for world in worlds)),
        "combinations": len({world.decisions for world in worlds}),
        "broken": [asdict(world) for world in worlds if world.broken],
    }


def _sums(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def claims(worlds: Sequence[World]) -> list[dict[str, Any]]:
    """Nothing broke, and it was tried: every kind of fault, every choice, many combinations."""
    counted = summary(worlds)
    chosen = {choice for world in worlds for choice in enumerate(world.decisions)}
    n_choices = sum(map(len, CHOICES.values()))
    issue, ours = "issue 3", "the claim above means little without"
    n_broken = len(counted["broken"])
    return [
        result(
            Claim(f"broken worlds of {len(worlds):,}", None, at_most=0, source=issue), [n_broken]
        ),
        *(
            result(
                Claim(f"faults of kind {kind}", None, at_least=1, source=ours),
                [counted["faults"].get(kind, 0)],
            )
            for kind in KINDS
        ),
        result(
            Claim("choices of the five decisions", None, at_least=n_choices, source=ours),
            [len(chosen)],
        ),
        result(
            Claim("combinations of them", None, at_least=MIN_COMBINATIONS, source=ours),
            [counted["combinations"]],
        ),
    ]
