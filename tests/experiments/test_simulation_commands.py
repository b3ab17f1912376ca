"""Simulations from the command line: what starts, what is written, what is not run again."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import benchmark, cli, simulate, simulated_points, sweep
from experiments.simulated_points import Point, changed
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import read_run

ROOT = Path(__file__).parent.parent.parent

EXPERIMENT = '''"""Question: does a sweep in virtual time work?"""

from configs import quickstart
from tiderl_jax.report.claims import Claim, ratio

simulated = True
points = {"sync": {"scheduler.preset": "sync"}, "tiderl": {"scheduler.preset": "tiderl"}}
seeds = (0, 1)
figures = ("goodput (tokens/s)", "KV hit rate")
claims = [
    Claim("goodput", ratio("goodput_tokens_per_s", "tiderl", "sync"), at_least=0.0),
    Claim("the impossible", ratio("goodput_tokens_per_s", "tiderl", "sync"), at_least=1e9),
]


def get_config(arg=None):
    config = quickstart.get_config()
    config.simulation.hardware = "h100"
    config.model.dtype = "bfloat16"
    config.steps = 2
    config.rollout.prompts_per_step = 2
    config.rollout.min_prompts_per_step = 2
    config.rollout.samples_per_prompt = 2
    config.evaluation.n_tasks = 2
    return config
'''


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "tiny.py"
    path.write_text(EXPERIMENT)
    return f"--config={path}"


def run(*arguments: str) -> int:
    return simulate.main(["simulate", *arguments])


def test_simulating_starts_neither_jax_nor_anything_that_draws() -> None:
    slow = ("jax", "flax", "matplotlib", "scipy", "jinja2", "torch")
    code = (
        "import json, sys\n"
        "from experiments import cli, simulate\n"
        "cli.experiment(cli.parse(['simulate', '--config=configs/quickstart.py']))\n"
        f"print(json.dumps([name for name in {slow} if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_a_simulated_run_leaves_what_a_real_run_leaves(experiment, tmp_path, capsys) -> None:
    folder = tmp_path / "run"
    assert run(experiment, f"--workdir={folder}") == 0
    record = read_run(folder)
    assert record.config["simulated"]
    assert [row["train/step"] for row in record.rows if "timing_s/step" in row] == [1, 2]
    assert record.summary["sampled_tokens"] > 0
    assert record.summary["compiles_after_warmup"] is None
    assert record.timeline["traceEvents"]
    assert "simulated run" in (folder / "report.html").read_text()
    assert "goodput (tokens/s)" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_run(experiment, tmp_path) -> None:
    for name in ("one", "two"):
        assert run(experiment, f"--workdir={tmp_path / name}") == 0
    for name in ("summary.json", "metrics.jsonl", "timeline.json"):
        assert (tmp_path / "one" / name).read_text() == (tmp_path / "two" / name).read_text()


def test_a_dry_run_prints_the_derived_numbers_and_writes_nothing(
    experiment, tmp_path, capsys
) -> None:
    folder = tmp_path / "run"
    assert run(experiment, "--dry_run", f"--workdir={folder}") == 0
    assert "rollouts per step" in capsys.readouterr().out
    assert not folder.exists()


def test_a_run_that_cannot_go_on_says_why_and_who_waits_for_what(
    experiment, tmp_path, capsys
) -> None:
    crashes = ("--config.simulation.faults.crash=1.0", "--config.environment.max_faults=3")
    assert run(experiment, f"--workdir={tmp_path / 'run'}", *crashes) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "learner: 0 of 2 steps done" in said


def test_a_directory_is_asked_for(experiment, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(experiment)
    assert "--workdir" in capsys.readouterr().err


def test_a_sweep_compares_its_points_and_judges_its_claims(experiment, tmp_path) -> None:
    folder = tmp_path / "sweep"
    assert sweep.main(["sweep", experiment, f"--workdir={folder}"]) == 0
    table = (folder / "table.md").read_text()
    assert table.startswith("| run | seeds | goodput (tokens/s) | KV hit rate |")
    assert [line.split(" | ")[:2] for line in table.splitlines()[2:]] == [
        ["| sync", "2"],
        ["| tiderl", "2"],
    ]
    met = {one["name"]: one["met"] for one in json.loads((folder / "claims.json").read_text())}
    assert met == {"goodput": True, "the impossible": False}
    assert "| the impossible | sync |" in (folder / "claims.md").read_text()
    assert (folder / "comparison.png").exists()
    point = folder / "tiderl" / "seed_1"
    written = {path.name for path in point.iterdir()}
    assert written == {"config.json", "metrics.jsonl", "summary.json"}
    config = json.loads((point / "config.json").read_text())
    assert (config["seed"], config["config"]["scheduler"]["preset"]) == (1, "tiderl")


def points_of(experiment: str, folder: Path, **changes: object) -> list[Point]:
    document = cli.parse(["sweep", experiment]).document
    return [Point(folder / "point", cli.resolved(changed(document, changes)))]


def test_a_finished_point_is_run_again_only_if_its_config_has_changed(experiment, tmp_path) -> None:
    summary = tmp_path / "point" / "summary.json"
    assert simulated_points.run_all(points_of(experiment, tmp_path)) == {}
    summary.write_text("{}")
    assert simulated_points.run_all(points_of(experiment, tmp_path)) == {}
    assert summary.read_text() == "{}"
    assert simulated_points.run_all(points_of(experiment, tmp_path, steps=1)) == {}
    assert json.loads(summary.read_text())["trained_tokens"] > 0


def test_a_point_that_fails_is_named_and_leaves_no_summary(experiment, tmp_path) -> None:
    broken = {"simulation.faults.crash": 1.0, "environment.max_faults": 3}
    points = points_of(experiment, tmp_path, **broken)
    (failed,) = simulated_points.run_all(points).items()
    assert failed[0] == points[0].folder
    assert failed[1]
    assert not points[0].is_finished


def test_a_point_may_change_only_what_there_is() -> None:
    document = {"steps": 3, "scheduler": {"preset": "sync"}}
    assert changed(document, {"scheduler.preset": "tiderl", "steps": 4}) == {
        "steps": 4,
        "scheduler": {"preset": "tiderl"},
    }
    assert document == {"steps": 3, "scheduler": {"preset": "sync"}}
    for key in ("scheduler.presets", "schedule.preset", "steps.preset"):
        with pytest.raises(ConfigError, match="part of the key"):
            changed(document, {key: 1})


def test_a_benchmark_writes_and_prints_its_claims(tmp_path, monkeypatch, capsys) -> None:
    class Suite:
        @staticmethod
        def run(workdir: Path) -> list:
            return [result(Claim("cost of deciding", None, at_most=50.0), [12.0])]

    monkeypatch.setitem(sys.modules, "experiments.suites.tiny", Suite)
    monkeypatch.setattr(benchmark, "SUITES", ["tiny"])
    monkeypatch.setattr("sys.argv", ["benchmark", "--suite=tiny", f"--workdir={tmp_path}"])
    assert benchmark.main() == 0
    (claim,) = json.loads((tmp_path / "claims.json").read_text())
    assert (claim["value"], claim["met"]) == (12.0, True)
    assert "| cost of deciding |" in (tmp_path / "table.md").read_text()
    assert "1 of 1 met" in capsys.readouterr().out


def test_an_unknown_suite_is_named_with_the_nearest_one(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", "--suite=schedule", f"--workdir={tmp_path}"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert "did you mean 'scheduler'" in capsys.readouterr().err


def test_every_suite_says_what_it_measures() -> None:
    assert "scheduler" in benchmark.SUITES
    for name in benchmark.SUITES:
        assert importlib.import_module(f"experiments.suites.{name}").__doc__
