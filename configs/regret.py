"""Question: how much does one preset, untouched, lose or gain against the best policy in hindsight?

    python -m experiments.sweep --config configs/regret.py --workdir runs/regret

A cell is a setting; in each, preset `tiderl` is held against the best of all static baselines at
all their fractions, found in hindsight. The cells are the paper's text setting (32 H100, WebShop,
the 7B shape), what changes one thing about it at a time, and a Latin hypercube of all of them
together. `tiderl` starts from an even split everywhere. Tokens beyond the lag bound do not count.
Hardware: none (virtual time); about 35 minutes on two CPU cores.
"""

import numpy as np
from ml_collections import ConfigDict

from configs import paper
from configs.paper import Point
from configs.shapes import QWEN3_VL_4B, QWEN25_7B, QWEN25_14B
from tiderl_jax.report.claims import Claim, median_over, min_over, ratio_to_best

CONTEXT_TOKENS = 8192
FRACTIONS = (0.25, 0.5, 0.75)
MODELS = {"4b": QWEN3_VL_4B, "7b": QWEN25_7B, "14b": QWEN25_14B}
_HOME = {
    **paper.split(paper.N_DEVICES // 2),
    "partition.min_rollout_ranks": 4,
    "partition.max_rollout_ranks": 28,
}

simulated = True

seeds = (0, 1, 2)


def _cell(
    *,
    delay: float = 1.0,
    tail: float = 1.0,
    turns: float = 1.0,
    pool: float = 1.0,
    bound: int = 1,
    batch: int = 32,
    model: str = "7b",
) -> Point:
    """A setting; the first four are factors of what the text setting has."""
    of_model = paper.of_shape(MODELS[model])
    n_pages = of_model["decoder.n_pages"]
    assert isinstance(n_pages, int)
    return {
        **of_model,
        "decoder.n_pages": round(pool * n_pages),
        "simulation.delay_scale": delay,
        "simulation.delay_tail": tail,
        "simulation.turns_scale": turns,
        "scheduler.staleness_bound": bound,
        "rollout.prompts_per_step": batch,
        "rollout.min_prompts_per_step": batch // 2,
    }


def _hypercube(n_cells: int) -> dict[str, Point]:
    """Cells in which everything differs: each quantity takes each of its `n_cells` values once."""
    draw = np.random.default_rng(0)

    def spread(low: float, high: float) -> list[float]:
        return [float(value) for value in draw.permutation(np.geomspace(low, high, n_cells))]

    delays, tails, turns = spread(0.2, 10), spread(0.5, 2), spread(0.5, 2)
    pools, batches, bounds = spread(0.1, 1), spread(16, 64), spread(1, 4)
    models = [str(name) for name in draw.permutation([*MODELS] * -(-n_cells // 3))]
    return {
        f"mixed_{i}": _cell(
            delay=delays[i],
            tail=tails[i],
            turns=turns[i],
            pool=pools[i],
            bound=round(bounds[i]),
            batch=round(batches[i]),
            model=models[i],
        )
        for i in range(n_cells)
    }


CELLS: dict[str, Point] = {
    "text": _cell(),
    **{f"delay_{delay}": _cell(delay=delay) for delay in (0.2, 3.0, 10.0)},
    **{f"tail_{tail}": _cell(tail=tail) for tail in (0.5, 2.0)},
    **{f"turns_{turns}": _cell(turns=turns) for turns in (0.5, 2.0)},
    **{f"pool_{pool}": _cell(pool=pool) for pool in (0.1, 0.25)},
    **{f"bound_{bound}": _cell(bound=bound) for bound in (2, 4)},
    **{f"model_{model}": _cell(model=model) for model in ("4b", "14b")},
    **{f"batch_{batch}": _cell(batch=batch) for batch in (8, 64, 128)},
    **_hypercube(6),
}

_STATIC = {
    "sync": paper.policy("sync", paper.shared()),
    **{
        f"{preset}@{f}": paper.static(preset, f)
        for preset in ("async", "stream")
        for f in FRACTIONS
    },
    "one_step_off@0.5": paper.static("one_step_off", 0.5),
    "async_capped@0.5": paper.static(
        "async", 0.5, max_open_rollouts_per_rank=paper.cap(QWEN25_7B, CONTEXT_TOKENS)
    ),
}

points = {
    f"{cell}/{name}": {**setting, **policy}
    for cell, setting in CELLS.items()
    for name, policy in {**_STATIC, "tiderl": paper.policy("tiderl", _HOME)}.items()
}

_GAINS = {
    cell: ratio_to_best(
        "goodput_tokens_per_s", f"{cell}/tiderl", tuple(f"{cell}/{name}" for name in _STATIC)
    )
    for cell in CELLS
}

claims = [
    Claim("smallest gain of any cell", min_over([*_GAINS.values()]), at_least=0.98, source="ours"),
    Claim("median gain over cells", median_over([*_GAINS.values()]), at_least=1.2, source="ours"),
    Claim("gain in the text setting", _GAINS["text"], at_least=1.33, source="TideRL reports 1.33"),
    *(Claim(f"gain, {cell}", gain, at_least=0.98, source="ours") for cell, gain in _GAINS.items()),
]


def get_config(arg: str | None = None) -> ConfigDict:
    """The text setting; the points change the rest."""
    config = paper.cluster(QWEN25_7B, "webshop", max_turns=20, context_tokens=CONTEXT_TOKENS)
    config.name = "regret"
    config.steps = 16
    config.evaluation.n_tasks = 0
    return config
