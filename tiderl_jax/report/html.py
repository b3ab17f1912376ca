"""`report.html`: one page that needs nothing else, made from the files of a run directory."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiderl_jax.report.page import PAGE
from tiderl_jax.report.plots import PICTURES
from tiderl_jax.report.run_files import REPORT, RunRecord, read_run, write_text
from tiderl_jax.report.theme import DARK, LIGHT


def write_report(folder: Path) -> Path:
    """Makes the report of a run directory anew; returns its path.

    Raises:
      ConfigError: a file that it is made from is missing or cannot be read.
    """
    path = folder / REPORT
    write_text(path, render(read_run(folder)))
    return path


def render(record: RunRecord) -> str:
    """The page. Every text from outside is escaped; pictures are embedded, in both themes."""
    from jinja2 import Environment  # late, as all of reporting's machinery

    pictures = [
        {
            "title": picture.title,
            "caption": picture.caption,
            "light": _embedded(picture.png(record, LIGHT)),
            "dark": _embedded(picture.png(record, DARK)),
        }
        for picture in PICTURES
    ]
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(PAGE)
    return template.render(
        run=record.config,
        policy=record.summary["policy"],
        wall=duration(record.summary["wall_s"]),
        figures=ten_figures(record.summary),
        pictures=pictures,
        waterfall=_waterfall(record.summary),
        claims=record.claims,
        config=json.dumps(record.config["config"], indent=2, sort_keys=True),
        summary=json.dumps(record.summary, indent=2),
        light=LIGHT,
        dark=DARK,
    )


def ten_figures(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The ten figures that matter, as (name, value, what it is)."""
    step, lag = summary["step_time_s"], summary["lag"]
    sampled, greedy, reward = summary["eval"], summary["eval_greedy"], summary["reward"]
    trained = summary["trained_tokens"] / max(summary["sampled_tokens"], 1)
    return [
        (
            "Held-out success, sampled",
            f"{percent(sampled['success_first'])} → {percent(sampled['success_last'])}",
            f"before → after, {sampled['episodes']} episodes at temperature 1",
        ),
        (
            "Held-out success, greedy",
            f"{percent(greedy['success_first'])} → {percent(greedy['success_last'])}",
            f"before → after, {greedy['episodes']} episodes",
        ),
        (
            "Training reward",
            f"{number(reward['first'])} → {number(reward['last'])}",
            "mean of the first → the last step",
        ),
        (
            "Goodput",
            f"{number(summary['goodput_tokens_per_s'])} tokens/s",
            f"trained tokens; {number(summary['goodput_tokens_per_device_s'])} per device, "
            f"{number(summary['goodput_context_tokens_per_s'])} with context",
        ),
        ("Sampled tokens that trained", percent(trained), "the rest is in the table below"),
        (
            "Step time",
            f"{number(step['mean'])} s",
            f"mean between updates; 95th percentile {number(step['p95'])} s",
        ),
        (
            "Rollout ranks waited",
            f"{number(summary['rollout_wait_s'])} s",
            "time in which a rollout rank decodes nothing, summed over ranks",
        ),
        (
            "Trainer waited",
            f"{number(summary['trainer_wait_s'])} s",
            "time with nothing to train on; both together are "
            f"{percent(summary['waiting_share'])} of all device time",
        ),
        (
            "KV hit rate",
            percent(summary["kv_hit_rate"]),
            "prompt tokens found in the cache, of all prompt tokens",
        ),
        (
            "Lag",
            f"{number(lag['mean'])} versions",
            f"mean over trained trajectories; at most {number(lag['max'])}",
        ),
    ]


def number(value: float | None) -> str:
    """A number for people: three significant digits, thousands set off."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "-" if share is None else f"{share:.1%}"


def duration(seconds: float) -> str:
    """A time for people: `1 h 02 min`, `3 min 04 s` or `5.6 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _embedded(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _waterfall(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(where tokens went, how many, share of those sampled)."""
    parts = {"sampled": summary["sampled_tokens"], "trained": summary["trained_tokens"]}
    parts |= summary["waterfall"]
    sampled = max(summary["sampled_tokens"], 1)
    return [
        (name.replace("_", " "), f"{n_tokens:,}", percent(n_tokens / sampled))
        for name, n_tokens in parts.items()
    ]
