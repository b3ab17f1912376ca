"""The files of a run directory: their names, and how they are written and read.

    config.json     {"name", "config_hash", "simulated", "seed", "config": the resolved experiment}
    metrics.jsonl   one row per training step and per complete evaluation (see `metrics.py`)
    summary.json    the figures by which runs are compared (see `summary.py`)
    timeline.json   optional: Chrome trace events (see `timeline.py`)
    claims.json     optional: what the experiment expects, and what it measured (see `claims.py`)
    report.html     made from these files alone (see `html.py`)
    events/         TensorBoard events

Every file but `metrics.jsonl`, which grows, is written whole: to a temporary name, then renamed.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import config_hash, to_json
from tiderl_jax.report.metrics import Row

if TYPE_CHECKING:
    from tiderl_jax.report.ledger import Ledger

CONFIG, SUMMARY, METRICS = "config.json", "summary.json", "metrics.jsonl"
NO_TIMELINE: Mapping[str, Any] = {"traceEvents": ()}
TIMELINE, CLAIMS, REPORT, EVENTS = "timeline.json", "claims.json", "report.html", "events"


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all, and makes sure that it stays; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, document: Any) -> None:
    """Writes a document whole or not at all. A value that is not finite is a ValueError."""
    write_text(path, json.dumps(document, allow_nan=False, indent=1) + "\n")


def write_config(folder: Path, config: ExperimentConfig, *, simulated: bool) -> None:
    """Writes what was run."""
    document = {
        "name": config.name,
        "config_hash": config_hash(config),
        "simulated": simulated,
        "seed": config.seed,
        "config": json.loads(to_json(config)),
    }
    write_json(folder / CONFIG, document)


def write_metrics(folder: Path, rows: Sequence[Row]) -> None:
    """Writes all rows anew: at the start, and on resume, when rows after the commit are void."""
    write_text(folder / METRICS, "".join(_line(row) for row in rows))


def append_metrics(folder: Path, row: Row) -> None:
    """Adds one row."""
    with (folder / METRICS).open("a", encoding="utf-8") as file:
        file.write(_line(row))


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False) + "\n"


def write_timeline(folder: Path, timeline: Mapping[str, Any]) -> None:
    """Writes the timeline, compactly."""
    write_text(folder / TIMELINE, json.dumps(timeline, allow_nan=False, separators=(",", ":")))


def write_simulated(
    folder: Path, config: ExperimentConfig, ledger: "Ledger", *, timeline: bool
) -> None:
    """Writes a run in virtual time that has ended; its summary last, so that it says so."""
    write_config(folder, config, simulated=True)
    write_metrics(folder, ledger.rows())
    if timeline:
        write_timeline(folder, ledger.timeline())
    write_json(folder / SUMMARY, ledger.summary(None))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What a run directory holds."""

    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rows: Sequence[Row]
    timeline: Mapping[str, Any]
    claims: Sequence[Mapping[str, Any]]  # empty: none were stated


def read_run(folder: Path) -> RunRecord:
    """Reads a run directory.

    Raises:
      ConfigError: a file is missing or cannot be read.
    """
    return RunRecord(
        config=_read(folder / CONFIG),
        summary=_read(folder / SUMMARY),
        rows=_read_rows(folder / METRICS),
        timeline=_read(folder / TIMELINE) if (folder / TIMELINE).exists() else NO_TIMELINE,
        claims=_read(folder / CLAIMS) if (folder / CLAIMS).exists() else (),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path.parent} is no finished run: {path.name} is missing.") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON ({error}).") from error


def _read_rows(path: Path) -> list[Row]:
    lines = _text(path).splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise ConfigError(f"{path} has a line that is not valid JSON ({error}).") from error
