"""Runs a declared grid, one directory per point and seed, then compares and judges its claims.

    python -m experiments.sweep --config configs/first_light.py --workdir runs/first_light

The config file declares, beside `get_config`:
    points     {name: {key: value}}: what each point overrides
    seeds      the seeds that every point runs at
    claims     what is expected of the points (tiderl_jax.report.claims)
    simulated  optional: True runs the points in virtual time, on all cores
    figures    optional: names of what is compared (tiderl_jax.report.compare.FIGURES)
Finished points are not run again, so the same command resumes.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from rich.console import Console

from experiments import cli
from experiments.simulated_points import Point, changed, run_all
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report import claims, compare
from tiderl_jax.report.run_files import CLAIMS, RunRecord, read_run, write_text

CLAIMS_TABLE = "claims.md"


def main(argv: list[str]) -> int:
    """Runs what is missing, then writes table.md, comparison.png, claims.json and claims.md."""
    arguments = cli.parse(argv)
    cli.experiment(arguments)
    module, workdir = arguments.module, arguments.workdir
    if workdir is None:
        cli.fail("Name the directory of the sweep with --workdir runs/<name>.")
    if getattr(module, "simulated", False):
        if not simulate_points(arguments, workdir):
            return 1
    else:
        for changes, folder in grid(module, workdir):
            train_point(arguments, changes, folder)
    conclude(module, workdir)
    return 0


def grid(module: ModuleType, workdir: Path) -> Iterator[tuple[Mapping[str, object], Path]]:
    """What each run overrides, its seed included, and its directory."""
    for seed in module.seeds:
        for point, changes in module.points.items():
            yield {**changes, "seed": seed}, workdir / point / f"seed_{seed}"


def simulate_points(arguments: cli.Arguments, workdir: Path) -> bool:
    """Runs all points in virtual time; whether all of them came to their end."""
    try:
        points = [
            Point(folder, cli.resolved(changed(arguments.document, changes)))
            for changes, folder in grid(arguments.module, workdir)
        ]
    except ConfigError as error:
        cli.fail(str(error))
    failures = run_all(points)
    for folder, sentence in failures.items():
        print(f"error: {folder}: {sentence}", file=sys.stderr)
    return not failures


def train_point(arguments: cli.Arguments, changes: Mapping[str, object], folder: Path) -> None:
    """One run in a process of its own; ends the sweep if it does not complete."""
    print(f"== {folder}", flush=True)
    point = [f"--config.{key}={value}" for key, value in changes.items()]
    command = [sys.executable, "-m", "experiments.train", f"--config={arguments.path}"]
    command += [*arguments.overrides, *point, f"--workdir={folder}"]
    done = subprocess.run(command, check=False)
    if done.returncode:
        print(f"error: {folder} ended with exit code {done.returncode}.", file=sys.stderr)
        sys.exit(done.returncode)


def conclude(module: ModuleType, workdir: Path) -> None:
    """Compares the finished runs and judges the claims."""
    runs: dict[str, list[RunRecord]] = {
        point: [read_run(workdir / point / f"seed_{seed}") for seed in module.seeds]
        for point in module.points
    }
    compare.compare(runs, workdir, getattr(module, "figures", ()))
    summaries = {point: [run.summary for run in records] for point, records in runs.items()}
    results = claims.evaluate(module.claims, summaries)
    claims.write_claims(workdir / CLAIMS, results)
    write_text(workdir / CLAIMS_TABLE, claims.markdown_table(results))
    Console().print(claims.rich_table(results))
    print((workdir / compare.TABLE).read_text())
    print(f"{workdir / compare.TABLE}, {workdir / compare.PICTURE}, {workdir / CLAIMS}")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
