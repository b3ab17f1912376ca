"""Several runs side by side, each at several seeds: a table and a picture for a sweep."""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.report.metrics import STEP, WALL_S
from tiderl_jax.report.plots import DOTS_PER_INCH, series
from tiderl_jax.report.run_files import RunRecord, write_text
from tiderl_jax.report.spread import FEW_SEEDS, spread
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
    "goodput with context (tokens/s)": _in_summary("goodput_context_tokens_per_s"),
    "rollout waiting (s)": _in_summary("rollout_wait_s"),
    "trainer waiting (s)": _in_summary("trainer_wait_s"),
    "waiting (device-s)": _in_summary("waiting_device_s", "total"),
    "waiting (share of devices)": _in_summary("waiting_share"),
    "step time (s)": _in_summary("step_time_s", "mean"),
    "group completion (s)": _in_summary("group_completion_s", "p50"),
    "KV hit rate": _in_summary("kv_hit_rate"),
    "lag (versions)": _in_summary("lag", "mean"),
    "trained beyond the bound (tokens)": _in_summary("waterfall", "over_bound"),
    "repartitions": _in_summary("repartitions"),
    "reward per wall second": reward_per_wall_s,
    "reward, last step": _in_summary("reward", "last"),
    "success, sampled": _in_summary("eval", "success_last"),
    "success, greedy": _in_summary("eval_greedy", "success_last"),
    "wall time (s)": _in_summary("wall_s"),
}
REAL = (  # what is shown of runs that learn
    "goodput (tokens/s)",
    "rollout waiting (s)",
    "trainer waiting (s)",
    "step time (s)",
    "KV hit rate",
    "reward per wall second",
    "reward, last step",
    "success, sampled",
    "success, greedy",
    "wall time (s)",
)
SIMULATED = (  # what is shown of runs in virtual time, in which nothing is learned
    "goodput (tokens/s)",
    "goodput with context (tokens/s)",
    "waiting (share of devices)",
    "step time (s)",
    "group completion (s)",
    "KV hit rate",
    "lag (versions)",
    "trained beyond the bound (tokens)",
    "repartitions",
)


def compare(runs: RunsOf, folder: Path, figures: Sequence[str] = ()) -> None:
    """Writes `table.md` and `comparison.png` into a folder.

    Args:
      runs: what to compare.
      folder: where to write.
      figures: names among `FIGURES`; none: `SIMULATED` if all runs are, else `REAL`.

    Raises:
      ConfigError: a figure is unknown.
    """
    figures = figures or (SIMULATED if _are_simulated(runs) else REAL)
    for name in figures:
        if name not in FIGURES:
            raise unknown_name(name, FIGURES, "figure")
    write_text(folder / TABLE, markdown_table(runs, figures))
    partial = folder / (PICTURE + ".partial")
    partial.write_bytes(comparison_png(runs, figures))
    partial.replace(folder / PICTURE)


def _are_simulated(runs: RunsOf) -> bool:
    return all(record.config["simulated"] for record in chain(*runs.values()))


def markdown_table(runs: RunsOf, figures: Sequence[str]) -> str:
    """One row per run: each figure's mean over seeds, with its spread."""
    return spread_table(
        {
            name: {figure: measured(records, figure) for figure in figures}
            for name, records in runs.items()
        }
    )


def spread_table(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """One row per run, as Markdown; of each figure the values at all seeds that have it."""
    header = ["run", "seeds", *next(iter(rows.values()))]
    lines = [header, ["---"] * len(header)]
    for name, figures in rows.items():
        n_seeds = max(map(len, figures.values()))
        cells = map(_cell, figures.values())
        lines.append([name.replace("|", "\\|"), str(n_seeds), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measured(records: Sequence[RunRecord], figure: str) -> list[float]:
    """A figure at every seed that has it."""
    values = (FIGURES[figure](record) for record in records)
    return [value for value in values if value is not None]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, (low, high) = float(np.mean(values)), spread(values)
    if len(values) == 1:
        return f"{mean:.4g}"
    if len(values) < FEW_SEEDS:
        return f"{mean:.4g} ({low:.4g} to {high:.4g})"
    return f"{mean:.4g} ± {high - mean:.4g}"


_CURVES = (  # x, y, what x is, and the title
    (WALL_S, "rollout/reward_mean", "wall time (s)", "reward over time"),
    (STEP, "rollout/reward_mean", "training step", "reward over steps"),
    (WALL_S, "eval/sampled_success", "wall time (s)", "held-out success"),
)
_N_COLUMNS = 3


def comparison_png(runs: RunsOf, figures: Sequence[str]) -> bytes:
    """Bars of every figure; for runs that learn, curves of what they learned."""
    curves = () if _are_simulated(runs) else _CURVES
    n_bar_rows, n_curve_rows = (math.ceil(len(one) / _N_COLUMNS) for one in (figures, curves))
    heights = [0.9 + 0.26 * max(len(runs), 3)] * n_bar_rows + [3.4] * n_curve_rows
    with canvas(LIGHT, 15, sum(heights)) as figure:
        panels = figure.subplots(
            len(heights), _N_COLUMNS, squeeze=False, height_ratios=heights
        ).reshape(-1)
        for axes in panels:
            axes.set_visible(False)
        for i, name in enumerate(figures):
            _bars(panels[i], runs, name, named=i % _N_COLUMNS == 0)
        for axes, curve in zip(panels[n_bar_rows * _N_COLUMNS :], curves, strict=False):
            _curves(axes, runs, *curve)
        if curves:
            handles, labels = panels[n_bar_rows * _N_COLUMNS].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 6))
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _styles() -> Iterator[tuple[str, str]]:
    """(colour, line style) of one run after another; a colour comes back in another style."""
    return ((colour, style) for style in chain(("-", "--", ":"), repeat("-.")) for colour in CYCLE)


def _bars(axes: "Axes", runs: RunsOf, figure: str, *, named: bool) -> None:
    """A bar per run at the mean over seeds, a line over its spread, a dot per seed."""
    axes.set_visible(True)
    of_runs = (measured(records, figure) for records in runs.values())
    rows = {i: values for i, values in enumerate(of_runs) if values}
    if rows:
        colours = [colour for colour, _ in islice(_styles(), len(runs))]
        means = [float(np.mean(values)) for values in rows.values()]
        axes.barh([*rows], means, color=[colours[i] for i in rows], height=0.7)
        lows, highs = zip(*map(spread, rows.values()), strict=True)
        axes.hlines([*rows], lows, highs, color=LIGHT.text, linewidth=1.2)
        dots = [(value, i) for i, values in rows.items() for value in values]
        axes.plot(*zip(*dots, strict=True), "o", color=LIGHT.text, markersize=2.5, alpha=0.6)
    axes.set_yticks(range(len(runs)), list(runs) if named else [])
    axes.grid(visible=False, axis="y")
    axes.set(title=figure, xlim=(0, None), ylim=(len(runs) - 0.4, -0.6))


def _curves(axes: "Axes", runs: RunsOf, x: str, y: str, x_label: str, title: str) -> None:
    """A curve per seed, a colour and line style per run."""
    axes.set_visible(True)
    for (name, records), (colour, style) in zip(runs.items(), _styles(), strict=False):
        for seed, record in enumerate(records):
            axes.plot(
                *series(record.rows, x, y),
                color=colour,
                linestyle=style,
                label=name if seed == 0 else None,
                linewidth=1.4,
                marker="o" if y.startswith("eval/") else None,
                markersize=3,
            )
    axes.set(title=title, xlabel=x_label)
