"""Runs one experiment in virtual time: the same scheduler, engines and environments of cost models.

    python -m experiments.simulate --config configs/first_light.py --workdir runs/simulated

Writes what a real run writes. Exit codes as of `experiments.train`: 0 complete, 1 the run failed,
2 the config is wrong, 130 stopped before the last step.
"""

import sys

from experiments import cli
from tiderl_jax.core.commands import Abort
from tiderl_jax.core.errors import ConfigError, TiderlError
from tiderl_jax.core.resolve import derived_numbers
from tiderl_jax.report.html import duration, number, percent, write_report
from tiderl_jax.report.run_files import write_simulated
from tiderl_jax.scheduler.explain import explain
from tiderl_jax.simulator.simulate import Simulated, simulate

STOPPED = 130


def main(argv: list[str]) -> int:
    """Simulates, then writes and prints."""
    arguments = cli.parse(argv)
    config = cli.experiment(arguments)
    if arguments.dry_run:
        for name, value in derived_numbers(config):
            print(f"{name:<40} {value}")
        return 0
    workdir = arguments.workdir
    if workdir is None:
        cli.fail("Name the directory of the run with --workdir runs/<name>.")

    try:
        done = simulate(config)
    except ConfigError as error:
        cli.fail(str(error))
    except TiderlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    write_simulated(workdir, config, done.ledger, timeline=True)
    for name, value in table(done):
        print(f"{name:<28} {value}")
    print(f"{'report':<28} {write_report(workdir)}")
    return exit_code(done)


def table(done: Simulated) -> list[tuple[str, str]]:
    """The figures to see first."""
    summary = done.summary
    goodput, with_context = (
        number(summary[name]) for name in ("goodput_tokens_per_s", "goodput_context_tokens_per_s")
    )
    return [
        ("policy", summary["policy"]),
        ("steps, virtual time", f"{done.ledger.n_updates}, {duration(summary['wall_s'])}"),
        ("goodput (tokens/s)", f"{goodput} ({with_context} with context)"),
        ("devices waited", percent(summary["waiting_share"])),
        ("step time (s)", number(summary["step_time_s"]["mean"])),
        ("KV hit rate", percent(summary["kv_hit_rate"])),
        ("lag (versions)", number(summary["lag"]["mean"])),
    ]


def exit_code(done: Simulated) -> int:
    """Of a run that came to an end; one that cannot go on says who waits for what."""
    if isinstance(done.last, Abort):
        print(f"error: {done.last.reason}\n{explain(done.scheduler.state)}", file=sys.stderr)
        return 1
    return 0 if done.last.complete else STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
