"""A whole run in miniature: real threads, real decoders, real environments, real files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from experiments import cli
from tiderl_jax.core.errors import StorageFault
from tiderl_jax.envs import registry
from tiderl_jax.runtime.training import train

ROOT = Path(__file__).parent.parent.parent
CONFIG = Path(tiny.__file__)


def run(folder: Path, *overrides: str) -> bool:
    config = cli.experiment(cli.parse(["test", f"--config={CONFIG}", *overrides]))
    world = registry.world(config.environment.name, config.environment.options)
    return train(config, world, folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert run(folder)
    return folder


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.timeout(300)
def test_a_run_leaves_everything_that_its_directory_promises(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "config.json",
        "metrics.jsonl",
        "summary.json",
        "timeline.json",
        "report.html",
        "events",
        "journal",
        "checkpoints",
    }
    steps = [row["train/step"] for row in rows(finished) if "rollout/trajectories" in row]
    assert steps == [1, 2, 3]
    assert json.loads((finished / "timeline.json").read_text())["traceEvents"]


def test_tokens_are_conserved_and_nothing_is_trained_beyond_the_bound(finished: Path) -> None:
    figures = summary(finished)
    lost = sum(figures["waterfall"].values())
    assert figures["trained_tokens"] + lost == figures["sampled_tokens"]
    assert figures["lag"]["max"] is None or figures["lag"]["max"] <= 1
    assert figures["eval"]["episodes"] == 3


def test_nothing_compiles_after_warm_up(finished: Path) -> None:
    assert summary(finished)["compiles_after_warmup"] == 0


def test_the_decoder_recorded_the_log_probs_that_the_trainer_computes(finished: Path) -> None:
    gaps = [row["train/logp_gap_max"] for row in rows(finished) if "train/logp_gap_max" in row]
    assert all(gap < 1e-4 for gap in gaps)


def test_the_same_command_on_a_complete_run_changes_nothing(finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*.json*")}
    assert run(finished)
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*.json*")} == before


def test_another_config_on_the_same_directory_is_refused(finished: Path) -> None:
    with pytest.raises(StorageFault, match="another config"):
        run(finished, "--config.seed=5")


def command(folder: Path, *overrides: str) -> list[str]:
    arguments = [f"--config={CONFIG}", f"--workdir={folder}", *overrides]
    return [sys.executable, "-m", "experiments.train", *arguments]


def started(folder: Path, *overrides: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(folder, *overrides),
        cwd=ROOT,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_step(process: subprocess.Popen, step: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step") and int(line.split()[1]) >= step:
            return
    raise AssertionError("the run ended before that step")


@pytest.mark.timeout(300)
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    many = "--config.steps=40"
    process = started(folder, many)
    wait_for_step(process, 3)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    done = len([row for row in rows(folder) if "rollout/trajectories" in row])
    assert 3 <= done < 40

    process = started(folder, many)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert f"resuming after step {done}" in output
    steps = [row["train/step"] for row in rows(folder) if "rollout/trajectories" in row]
    assert steps == list(range(1, 41))


@pytest.mark.timeout(300)
def test_a_killed_run_goes_on_from_its_last_commit(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    many = "--config.steps=20"
    process = started(folder, many)
    wait_for_step(process, 4)
    process.kill()
    process.communicate(timeout=100)

    process = started(folder, many)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "resuming after step" in output
    steps = [row["train/step"] for row in rows(folder) if "rollout/trajectories" in row]
    assert steps == list(range(1, 21))
    figures = summary(folder)
    lost = sum(figures["waterfall"].values())
    assert figures["trained_tokens"] + lost == figures["sampled_tokens"]


def test_two_processes_cannot_use_one_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = started(folder, "--config.steps=10000")
    while not (folder / "lock").exists():
        assert process.poll() is None
    with pytest.raises(StorageFault, match="in use"):
        run(folder, "--config.steps=10000")
    process.kill()
    process.communicate()
