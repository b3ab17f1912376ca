"""Commits: a step is committed when its manifest has been renamed into place, and not before.

Arrays are written by Orbax and awaited; then the manifest, with the scheduler's snapshot and the
digests, goes to a temporary name, is synced, and is renamed. Resume believes manifests only.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from tiderl_jax.core.errors import StorageFault
from tiderl_jax.report.run_files import write_text
from tiderl_jax.runtime.weights import digest

MANIFEST = "manifest.json"

State = Mapping[str, Any]
"""A learner's state: arrays by name."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a commit promises."""

    step: int
    complete: bool  # nothing is left to do
    config_hash: str
    state_digest: str  # of every array of the learner's state
    scheduler: dict[str, Any]  # the scheduler's snapshot
    ledger: dict[str, Any]  # the run's counters so far


class CheckpointStore:
    """The commits of one run directory; the newest `keep` of them stay."""

    def __init__(self, folder: Path, config_hash: str, keep: int) -> None:
        self._folder = folder
        self._config_hash = config_hash
        self._keep = keep
        self._digests: dict[int, str] = {}  # of the arrays that this process wrote

    def save_arrays(self, step: int, state: State) -> None:
        """Writes the learner's state of a step and waits; it counts only after `commit`."""
        path = self._path(step) / "state"
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), dict(state), force=True)
            checkpointer.wait_until_finished()
        self._digests[step] = digest(state)

    def has_arrays(self, step: int) -> bool:
        """Whether this process has written the arrays of a step."""
        return step in self._digests

    def commit(
        self, step: int, scheduler: dict[str, Any], ledger: dict[str, Any], complete: bool = False
    ) -> None:
        """Makes a step whose arrays are written the newest commit (also a second time)."""
        manifest = Manifest(
            step, complete, self._config_hash, self._digests[step], scheduler, ledger
        )
        write_text(self._path(step) / MANIFEST, json.dumps(asdict(manifest), indent=1))
        for older in self._committed()[self._keep :]:
            shutil.rmtree(self._path(older))

    def newest(self) -> Manifest | None:
        """The newest commit's manifest; None in a fresh folder.

        Raises:
          StorageFault: a manifest cannot be read, or belongs to another experiment.
        """
        steps = self._committed()
        if not steps:
            return None
        path = self._path(steps[0]) / MANIFEST
        try:
            manifest = Manifest(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise StorageFault(f"The manifest {path} cannot be read ({error}).") from error
        if manifest.config_hash != self._config_hash:
            raise StorageFault(
                f"{self._folder.parent} holds a run of another config "
                f"({manifest.config_hash}, not {self._config_hash}); choose another --workdir."
            )
        return manifest

    def load_arrays(self, manifest: Manifest, like: State) -> State:
        """The learner's state of a commit, sharded as `like`, its digest proved.

        Raises:
          StorageFault: the arrays are not what the manifest promises.
        """
        path = (self._path(manifest.step) / "state").absolute()
        abstract = {name: ocp.utils.to_shape_dtype_struct(leaf) for name, leaf in like.items()}
        with ocp.StandardCheckpointer() as checkpointer:
            state = checkpointer.restore(path, abstract)
        if digest(state) != manifest.state_digest:
            raise StorageFault(
                f"The arrays of step {manifest.step} do not match their manifest; remove "
                f"{self._path(manifest.step)} to resume from the commit before it."
            )
        return state

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:06d}"

    def _committed(self) -> list[int]:
        """Committed steps, newest first."""
        names = (path.parent.name for path in self._folder.glob(f"step_*/{MANIFEST}"))
        return sorted((int(name.removeprefix("step_")) for name in names), reverse=True)
