"""Points of a sweep in virtual time: many small runs in a pool of processes, one core each."""

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.progress import track

from tiderl_jax.core.commands import Abort
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.core.resolve import config_hash, resolve, to_json, unknown_name
from tiderl_jax.report.run_files import CONFIG, SUMMARY, write_simulated
from tiderl_jax.simulator.simulate import simulate


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep."""

    folder: Path
    config: ExperimentConfig

    @property
    def is_finished(self) -> bool:
        """Whether its directory holds a finished run of exactly this config."""
        if not (self.folder / SUMMARY).exists():
            return False
        written = json.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        return written["config_hash"] == config_hash(self.config)


def changed(document: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """A document with other values at dotted keys.

    Raises:
      ConfigError: there is no such key.
    """
    whole = copy.deepcopy(dict(document))
    for key, value in changes.items():
        section: Any = whole
        *path, last = key.split(".")
        for name in path:
            section = section[_known(name, section, key)]
        section[_known(last, section, key)] = value
    return whole


def _known(name: str, section: Any, key: str) -> str:
    if not isinstance(section, Mapping) or name not in section:
        known = section if isinstance(section, Mapping) else ()
        raise unknown_name(name, known, f"part of the key {key!r}:")
    return name


def run_all(points: Sequence[Point]) -> dict[Path, str]:
    """Runs what is not finished; returns one sentence for each run that failed."""
    todo = [point for point in points if not point.is_finished]
    if not todo:
        return {}
    failures = dict(track(_results(todo), description="simulating", total=len(todo)))
    return {folder: sentence for folder, sentence in failures.items() if sentence}


def _results(points: Sequence[Point]) -> Iterator[tuple[Path, str]]:
    """(directory, "" or what went wrong) of each run, as they end."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        running = {
            pool.submit(_run, to_json(point.config), str(point.folder)): point.folder
            for point in points
        }
        for done in as_completed(running):
            yield running[done], done.result()


def _run(config_json: str, folder: str) -> str:
    """One run, in a process of the pool."""
    config = resolve(json.loads(config_json))
    try:
        done = simulate(config, timeline=False)
    except TiderlError as error:
        return str(error)
    if isinstance(done.last, Abort):
        return done.last.reason
    write_simulated(Path(folder), config, done.ledger, timeline=False)
    return ""
