"""The pictures of a run, each a function of what its run directory holds."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tiderl_jax.report.metrics import STEP, WALL_S, Row
from tiderl_jax.report.run_files import RunRecord
from tiderl_jax.report.sums import WAITING, Doing, Training
from tiderl_jax.report.theme import (
    BLUE,
    COLOUR_OF_DOING,
    COLOUR_OF_LOSS,
    DOING_IN_WORDS,
    GREEN,
    GREY,
    ORANGE,
    Theme,
    canvas,
)
from tiderl_jax.report.timeline import RANKS, TRAINER

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 3.5  # inches
DOTS_PER_INCH = 144
_SHOWN_STEPS = 5
_SHOWN_TRACKS = 16
_LABEL_OUTSIDE = {"loc": "upper left", "bbox_to_anchor": (0, -0.2), "ncols": 2}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture with the sentence that says what it shows."""

    title: str
    caption: str
    draw: Callable[["Figure", RunRecord], None]
    height: float = HEIGHT

    def png(self, record: RunRecord, theme: Theme) -> bytes:
        """The picture as a PNG file."""
        with canvas(theme, WIDTH, self.height) as figure:
            self.draw(figure, record)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
        return buffer.getvalue()


def series(rows: Sequence[Row], x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """The rows that have both metrics, as two float64 arrays [N] in the order of x."""
    pairs = [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]
    array = np.array(sorted(pairs, key=lambda pair: pair[0] or 0.0), np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def _learning(figure: "Figure", record: RunRecord) -> None:
    axes = figure.subplots()
    axes.plot(
        *series(record.rows, STEP, "rollout/reward_mean"),
        color=GREY,
        linewidth=1.2,
        label="training reward (mean)",
    )
    for kind, colour, marker in (("sampled", BLUE, "o"), ("greedy", ORANGE, "s")):
        steps, success = series(record.rows, STEP, f"eval/{kind}_success")
        axes.plot(steps, success, color=colour, marker=marker, label=f"held-out success, {kind}")
    axes.set(xlabel="training step", ylabel="reward, success share")
    axes.margins(y=0.08)
    axes.legend(**_LABEL_OUTSIDE)


def _goodput(figure: "Figure", record: RunRecord) -> None:
    above, below = figure.subplots(2, 1, sharex=True)
    wall_s, goodput = series(record.rows, WALL_S, "perf/goodput_tokens_per_s")
    above.step(wall_s, goodput, where="pre", color=BLUE)
    mean = record.summary["goodput_tokens_per_s"]
    above.axhline(mean, color=GREY, linewidth=1, linestyle="--", label=f"whole run: {mean:,.0f}")
    above.set(ylabel="goodput\n(tokens/s)", ylim=(0, 1.3 * (max(goodput, default=0.0) or 1.0)))
    above.legend(loc="upper right")
    _rank_time(below, record.rows)
    wall_s, trainer = series(record.rows, WALL_S, "idle/trainer_share")
    colour = below.xaxis.label.get_color()
    below.step(wall_s, trainer, where="pre", color=colour, linewidth=1, label="trainer waiting")
    below.set(xlabel="wall time (s)", ylabel="share of\nrank time", ylim=(0, 1))
    below.legend(**_LABEL_OUTSIDE | {"bbox_to_anchor": (0, -0.38)})


def _rank_time(axes: "Axes", rows: Sequence[Row]) -> None:
    """Stacked shares of the rollout ranks' time: what they did, what they waited for."""
    names = {Doing.DECODING: "timing_s/decoding"} | {
        cause: f"idle/rollout_{cause}_s" for cause in WAITING
    }
    steps = [row for row in rows if "timing_s/step" in row]
    if not steps:
        return
    time_s = np.array([[row[name] or 0.0 for row in steps] for name in names.values()])
    share = time_s / np.maximum(time_s.sum(axis=0, keepdims=True), 1e-12)
    wall_s = [row[WALL_S] for row in steps]
    lower = np.zeros(len(steps))
    for doing, part in zip(names, share, strict=True):
        if part.max() >= 0.005:  # a cause that never shows only crowds the legend
            axes.fill_between(
                wall_s,
                lower,
                lower + part,
                step="pre",
                color=COLOUR_OF_DOING[doing],
                linewidth=0,
                label=DOING_IN_WORDS[doing],
            )
        lower = lower + part


def _waterfall(figure: "Figure", record: RunRecord) -> None:
    axes = figure.subplots()
    left = record.summary["sampled_tokens"]
    bars = [("sampled", 0, left, GREY)]
    for reason, n_tokens in record.summary["waterfall"].items():
        left -= n_tokens
        bars.append((reason.replace("_", " "), left, n_tokens, COLOUR_OF_LOSS.get(reason, GREY)))
    bars.append(("trained", 0, record.summary["trained_tokens"], GREEN))
    names, starts, widths, colours = zip(*bars, strict=True)
    drawn = axes.barh(names, widths, left=starts, color=colours, height=0.62)
    whole = max(record.summary["sampled_tokens"], 1)
    labels = [f" {n:,} ({n / whole:.1%})" for n in widths]
    axes.bar_label(drawn, labels, padding=2, fontsize=9)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel="model-owned tokens of training rollouts")
    axes.set_xlim(0, 1.28 * whole)
    axes.xaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")
    axes.locator_params(axis="x", nbins=5)


def _lag(figure: "Figure", record: RunRecord) -> None:
    axes = figure.subplots()
    histogram = record.summary["lag"]["histogram"]
    counts = {int(lag): n for lag, n in histogram.items()}
    lags = range(max(counts, default=0) + 1)
    drawn = axes.bar(lags, [counts.get(lag, 0) for lag in lags], color=BLUE, width=0.7)
    n_all = max(sum(counts.values()), 1)
    if len(lags) <= 12:
        axes.bar_label(drawn, [f"{counts.get(lag, 0) / n_all:.0%}" for lag in lags], padding=2)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False, axis="x")
    axes.set_xlim(-0.6, max(len(lags), 3) - 0.4)
    axes.set(xlabel="lag at the moment of use (versions)", ylabel="trained trajectories")


def _kv(figure: "Figure", record: RunRecord) -> None:
    axes = figure.subplots()
    wall_s, rate = series(record.rows, WALL_S, "kv/hit_rate")
    axes.step(wall_s, rate, where="pre", color=GREEN)
    whole = record.summary["kv_hit_rate"]
    if whole is not None:
        label = f"whole run: {whole:.1%}"
        axes.axhline(whole, color=GREY, linewidth=1, linestyle="--", label=label)
        axes.legend(loc="lower right")
    axes.set(xlabel="wall time (s)", ylabel="prompt tokens found in KV (share)", ylim=(0, 1.02))


_TRACK_COLOURS: dict[str, str] = {Training.TRAINING: GREEN, **COLOUR_OF_DOING}
_TRACK_WORDS: dict[str, str] = {Training.TRAINING: "training", **DOING_IN_WORDS}


def _tracks(figure: "Figure", record: RunRecord) -> None:
    """What trainer and ranks did in the last steps; a trainer that waits is left blank."""
    axes = figure.subplots()
    tracks, begin_s = _last_steps(record.timeline)
    shown = {name for spans in tracks.values() for name, _, _ in spans}
    for label, colour in _TRACK_COLOURS.items():
        words = _TRACK_WORDS[label] if label in shown else None
        for i, spans in enumerate(tracks.values()):
            bars = [(start, width) for name, start, width in spans if name == label]
            drawn = axes.broken_barh(bars, (i - 0.36, 0.72), facecolors=colour, linewidth=0)
            if words and bars:
                drawn.set_label(words)
                words = None
    axes.set_yticks(range(len(tracks)), list(tracks))
    axes.set(xlabel="wall time (s)", xlim=(begin_s, None))
    axes.margins(x=0)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if shown & _TRACK_COLOURS.keys():
        axes.legend(**_LABEL_OUTSIDE)


def _last_steps(
    timeline: Mapping[str, Any],
) -> tuple[dict[str, list[tuple[str, float, float]]], float]:
    """(name, begin in s, width in s) of the spans by track, and where the last steps begin."""
    events = timeline["traceEvents"]
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name" and event["pid"] in (RANKS, TRAINER)
    }
    spans = [event for event in events if event["ph"] == "X"]
    steps_us = [event["ts"] for event in spans if event["name"] == Training.TRAINING]
    begin_us = steps_us[-_SHOWN_STEPS] if len(steps_us) > _SHOWN_STEPS else 0.0
    tracks = {name: [] for name in list(names.values())[:_SHOWN_TRACKS]}
    for event in spans:
        track = names.get((event["pid"], event["tid"]))
        if track in tracks and event["ts"] + event["dur"] > begin_us:
            tracks[track].append((event["name"], event["ts"] / 1e6, event["dur"] / 1e6))
    return tracks, begin_us / 1e6


PICTURES: tuple[Picture, ...] = (
    Picture(
        "Learning",
        "Mean reward of the trajectories of each step, and success on held-out tasks.",
        _learning,
        height=4.5,
    ),
    Picture(
        "Goodput and waiting",
        "Trained tokens per second of each step; below, how rollout ranks spent their time.",
        _goodput,
        height=4.5,
    ),
    Picture(
        "Where sampled tokens went",
        "Every model-owned token of a training rollout is trained or lost for one reason.",
        _waterfall,
    ),
    Picture(
        "Last steps, as they happened",
        "Trainer and rollout ranks in the last steps (timeline.json has everything).",
        _tracks,
    ),
    Picture("Staleness", "Versions between a trajectory's oldest token and its update.", _lag),
    Picture("KV hits", "Prompt tokens found in the cache, of all prompt tokens, per step.", _kv),
)
