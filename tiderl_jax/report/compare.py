"""Several runs side by side, each at several seeds: a table and a picture for a sweep."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiderl_jax.report.metrics import STEP, WALL_S
from tiderl_jax.report.plots import DOTS_PER_INCH, series
from tiderl_jax.report.run_files import RunRecord, write_text
from tiderl_jax.report.theme import CYCLE, LIGHT, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RunsOf = Mapping[str, Sequence[RunRecord]]  # run name -> one record per seed

TABLE, PICTURE = "table.md", "comparison.png"


def _in_summary(*path: str) -> Callable[[RunRecord], float | None]:
    def value(record: RunRecord) -> float | None:
        found: Any = record.summary
        for name in path:
            found = found[name]
        return found

    return value


def reward_per_wall_s(record: RunRecord) -> float | None:
    """The rewards of all trained trajectories, over the time up to the last update."""
    steps = [row for row in record.rows if "rollout/trajectories" in row]
    if not steps:
        return None
    earned = sum(
        (row["rollout/reward_mean"] or 0.0) * (row["rollout/trajectories"] or 0.0) for row in steps
    )
    return earned / sum(row["timing_s/step"] or 0.0 for row in steps)


FIGURES: dict[str, Callable[[RunRecord], float | None]] = {
    "goodput (tokens/s)": _in_summary("goodput_tokens_per_s"),
    "rollout waiting (s)": _in_summary("rollout_wait_s"),
    "trainer waiting (s)": _in_summary("trainer_wait_s"),
    "step time (s)": _in_summary("step_time_s", "mean"),
    "KV hit rate": _in_summary("kv_hit_rate"),
    "reward per wall second": reward_per_wall_s,
    "reward, last step": _in_summary("reward", "last"),
    "success, sampled": _in_summary("eval", "success_last"),
    "success, greedy": _in_summary("eval_greedy", "success_last"),
    "wall time (s)": _in_summary("wall_s"),
}


def compare(runs: RunsOf, folder: Path) -> None:
    """Writes `table.md` and `comparison.png` into a folder."""
    write_text(folder / TABLE, markdown_table(runs))
    partial = folder / (PICTURE + ".partial")
    partial.write_bytes(comparison_png(runs))
    partial.replace(folder / PICTURE)


def markdown_table(runs: RunsOf) -> str:
    """One row per run: each figure's mean over seeds, with its smallest and largest."""
    header = ["run", "seeds", *FIGURES]
    lines = [header, ["---"] * len(header)]
    for name, records in runs.items():
        figures = (_cell(measured(records, figure)) for figure in FIGURES)
        lines.append([name.replace("|", "\\|"), str(len(records)), *figures])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measured(records: Sequence[RunRecord], figure: str) -> list[float]:
    """A figure at every seed that has it."""
    values = (FIGURES[figure](record) for record in records)
    return [value for value in values if value is not None]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{np.mean(values):.4g}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4g} to {max(values):.4g})"


_BARS = (
    "goodput (tokens/s)",
    "rollout waiting (s)",
    "trainer waiting (s)",
    "KV hit rate",
    "reward per wall second",
)
_CURVES = (  # x, y, what x is, and the title
    (WALL_S, "rollout/reward_mean", "wall time (s)", "reward over time"),
    (STEP, "rollout/reward_mean", "training step", "reward over steps"),
    (WALL_S, "eval/sampled_success", "wall time (s)", "held-out success"),
)


def comparison_png(runs: RunsOf) -> bytes:
    """Bars of what the runs cost, curves of what they learned."""
    with canvas(LIGHT, 13, 7) as figure:
        panels = list(figure.subplots(2, 4).flat)
        for axes, name in zip(panels, _BARS, strict=False):
            _bars(axes, runs, name)
        for axes, curve in zip(panels[len(_BARS) :], _CURVES, strict=True):
            _curves(axes, runs, *curve)
        handles, labels = panels[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 6))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _bars(axes: "Axes", runs: RunsOf, figure: str) -> None:
    """A bar per run at the mean over seeds, a dot per seed."""
    for i, records in enumerate(runs.values()):
        values = measured(records, figure)
        if values:
            axes.bar(i, float(np.mean(values)), color=CYCLE[i % len(CYCLE)], width=0.65)
            axes.plot([i] * len(values), values, "o", color=LIGHT.text, markersize=3, alpha=0.7)
    axes.set_xticks(range(len(runs)), list(runs), rotation=20 if len(runs) > 3 else 0)
    axes.grid(visible=False, axis="x")
    axes.set(title=figure, ylim=(0, None))


def _curves(axes: "Axes", runs: RunsOf, x: str, y: str, x_label: str, title: str) -> None:
    """A curve per seed, a colour per run."""
    for i, (name, records) in enumerate(runs.items()):
        for seed, record in enumerate(records):
            axes.plot(
                *series(record.rows, x, y),
                color=CYCLE[i % len(CYCLE)],
                label=name if seed == 0 else None,
                linewidth=1.4,
                marker="o" if y.startswith("eval/") else None,
                markersize=3,
            )
    axes.set(title=title, xlabel=x_label)
