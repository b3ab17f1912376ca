"""What a person gets from the command line: one sentence, exit code 2, and JAX not even started."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import cli
from tiderl_jax.core.resolve import config_hash

ROOT = Path(__file__).parent.parent.parent
CONFIGS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "configs").glob("*.py")
    if path.stem != "base" and "\ndef get_config(" in path.read_text()
)


def train(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "experiments.train", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_resolves(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights" / "smollm2-135m-instruct").mkdir(parents=True)
    arguments = cli.parse(["train", f"--config={ROOT / config}"])
    assert config_hash(cli.experiment(arguments))
    assert arguments.module.__doc__.startswith("Question: ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "Name an experiment with --config"),
        (("--config=configs/quickstart.pi",), "There is no config file 'configs/quickstart.pi'."),
        (("--config=configs/quickstart.py",), "Name the directory of the run with --workdir"),
        (
            ("--config=configs/quickstart.py", "--config.learner.clip_lo=1"),
            "'clip_lo' Did you mean \"clip_low\"",
        ),
        (
            ("--config=configs/quickstart.py", "--config.learner.clip_low=much"),
            "could not convert string to float",
        ),
        (("--config=configs/quickstart.py", "--workdirs=x"), "Did you mean: workdir"),
        (("--config=configs/quickstart.py", "extra"), "Unexpected argument 'extra'."),
        (
            ("--config=configs/quickstart.py", "--config.scheduler.preset=tide"),
            "Unknown scheduler.preset 'tide': did you mean 'tiderl'?",
        ),
        (
            ("--config=configs/quickstart.py", "--config.decoder.n_pages=2"),
            "does not fit the pool",
        ),
        (
            ("--config=configs/smollm2_textworld.py", "--config.model.checkpoint=weights/none"),
            "There is no checkpoint folder 'weights/none'",
        ),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = train(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert sentence in line


def test_a_dry_run_prints_the_derived_numbers_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = train("--config=configs/quickstart.py", "--dry_run", f"--workdir={folder}")
    assert done.returncode == 0
    assert "rollouts per step" in done.stdout
    assert not folder.exists()


def test_the_config_is_checked_before_jax_is_imported() -> None:
    code = (
        "import json, sys\n"
        "from experiments import cli\n"
        "cli.experiment(cli.parse(['train', '--config=configs/quickstart.py']))\n"
        "print(json.dumps([name for name in ('jax', 'flax') if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_an_ablation_changes_exactly_one_decision() -> None:
    def decisions(*overrides: str) -> dict[str, str]:
        arguments = ["train", f"--config={ROOT / 'configs/quickstart.py'}", *overrides]
        scheduler = cli.experiment(cli.parse(arguments)).scheduler
        return {name: getattr(scheduler, name) for name in cli.DECISIONS}

    base, ablated = decisions(), decisions("--config.scheduler.batching=request")
    assert [name for name in base if base[name] != ablated[name]] == ["batching"]
