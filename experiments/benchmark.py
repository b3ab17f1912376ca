"""Measures one suite of claims, and writes claims.json and table.md.

    python -m experiments.benchmark --suite scheduler --workdir runs/benchmark_scheduler

A suite is a module experiments/suites/<name>.py with `run(workdir) -> results of claims`, and its
docstring says what it measures and for how long. Exit codes: 0 measured (met or not), 1 it failed,
2 there is no such suite.
"""

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console

from experiments import cli
from tiderl_jax.core.errors import ConfigError, TiderlError
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.report import claims
from tiderl_jax.report.compare import TABLE
from tiderl_jax.report.run_files import CLAIMS, write_text

SUITES = sorted(
    path.stem
    for path in (Path(__file__).parent / "suites").glob("*.py")
    if "\ndef run(workdir: Path)" in path.read_text(encoding="utf-8")
)


def main() -> int:
    """Runs the suite, writes and prints what it measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", required=True, help=", ".join(SUITES))
    parser.add_argument("--workdir", type=Path, required=True, help="where to write")
    arguments = parser.parse_args()
    if arguments.suite not in SUITES:
        cli.fail(str(unknown_name(arguments.suite, SUITES, "suite")))
    suite = importlib.import_module(f"experiments.suites.{arguments.suite}")
    try:
        results = suite.run(arguments.workdir)
    except ConfigError as error:
        cli.fail(str(error))
    except TiderlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    claims.write_claims(arguments.workdir / CLAIMS, results)
    write_text(arguments.workdir / TABLE, claims.markdown_table(results))
    Console().print(claims.rich_table(results))
    print(f"{arguments.workdir / CLAIMS}, {arguments.workdir / TABLE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
