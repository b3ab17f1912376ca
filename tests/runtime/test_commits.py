import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tiderl_jax.core.errors import StorageFault
from tiderl_jax.runtime.checkpoints import MANIFEST, CheckpointStore


def state(step: int) -> dict[str, jax.Array | np.ndarray]:
    return {"params": jnp.full((3, 2), float(step)), "n_updates": np.asarray(step, np.int64)}


def store(folder: Path, config_hash: str = "hash", keep: int = 2) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", config_hash, keep)


def commit(commits: CheckpointStore, step: int) -> None:
    commits.save_arrays(step, state(step))
    commits.commit(step, {"steps_done": step}, {})


def test_arrays_without_a_manifest_are_no_commit(tmp_path: Path) -> None:
    commits = store(tmp_path)
    commit(commits, 1)
    commits.save_arrays(2, state(2))
    newest = store(tmp_path).newest()
    assert newest is not None
    assert newest.step == 1


def test_a_commit_gives_back_what_was_saved(tmp_path: Path) -> None:
    commit(store(tmp_path), 7)
    again = store(tmp_path)
    manifest = again.newest()
    assert manifest is not None
    assert manifest.scheduler == {"steps_done": 7}
    loaded = again.load_arrays(manifest, state(0))
    np.testing.assert_array_equal(loaded["params"], state(7)["params"])
    assert int(loaded["n_updates"]) == 7


def test_only_the_newest_commits_stay(tmp_path: Path) -> None:
    commits = store(tmp_path, keep=2)
    for step in range(4):
        commit(commits, step)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step_000002", "step_000003"]


def test_a_folder_of_another_config_is_refused(tmp_path: Path) -> None:
    commit(store(tmp_path), 1)
    with pytest.raises(StorageFault, match="another config"):
        store(tmp_path, config_hash="other").newest()


def test_arrays_that_do_not_match_their_digest_are_refused(tmp_path: Path) -> None:
    commit(store(tmp_path), 1)
    path = tmp_path / "checkpoints" / "step_000001" / MANIFEST
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "state_digest": "0" * 16}))
    again = store(tmp_path)
    with pytest.raises(StorageFault, match="do not match"):
        again.load_arrays(again.newest(), state(0))


def test_a_broken_manifest_is_refused_by_name(tmp_path: Path) -> None:
    commit(store(tmp_path), 1)
    path = tmp_path / "checkpoints" / "step_000001" / MANIFEST
    path.write_text(path.read_text()[:30])
    with pytest.raises(StorageFault, match=r"manifest\.json cannot be read"):
        store(tmp_path).newest()
