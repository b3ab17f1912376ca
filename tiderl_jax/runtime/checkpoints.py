"""Commits: a step is committed when its manifest has been renamed into place, and not before.

Arrays are written by Orbax and awaited; then the manifest, with the scheduler's snapshot and the
digests, goes to a temporary name, is synced, and is renamed. Resume believes manifests only.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from tiderl_jax.core.errors import StorageFault
from tiderl_jax.runtime.weights import digest

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a commit promises."""

    step: int
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
        self._saved: dict[int, str] = {}  # step -> digest of arrays without a manifest yet

    def save_arrays(self, step: int, state: Any) -> None:
        """Writes the learner's state of a step and waits; it counts only after `commit`."""
        path = self._path(step) / "state"
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path.absolute(), _by_path(state), force=True)
            checkpointer.wait_until_finished()
        self._saved[step] = digest(state)

    def commit(self, step: int, scheduler: dict[str, Any], ledger: dict[str, Any]) -> bool:
        """Makes a saved step the newest commit; False if no arrays of that step were saved."""
        if step not in self._saved:
            return False
        manifest = Manifest(step, self._config_hash, self._saved.pop(step), scheduler, ledger)
        write_atomically(self._path(step) / MANIFEST, json.dumps(asdict(manifest), indent=1))
        for older in self._committed()[self._keep :]:
            shutil.rmtree(self._path(older))
        return True

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

    def load_arrays(self, manifest: Manifest, like: Any) -> Any:
        """The learner's state of a commit, sharded as `like`, its digest proved.

        Raises:
          StorageFault: the arrays are not what the manifest promises.
        """
        abstract = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), like
        )
        path = (self._path(manifest.step) / "state").absolute()
        with ocp.StandardCheckpointer() as checkpointer:
            loaded = checkpointer.restore(path, _by_path(abstract))
        state = jax.tree.unflatten(jax.tree.structure(like), list(_in_order(loaded, like)))
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


def write_atomically(path: Path, text: str) -> None:
    """Writes a file whole or not at all: temporary name, sync, rename, sync of the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path)


def _by_path(tree: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _in_order(by_path: dict[str, Any], like: Any) -> Any:
    return (by_path[_name(path)] for path, _ in jax.tree_util.tree_leaves_with_path(like))
