"""Runs one experiment: warm start, reinforcement, evaluation, report. The same command resumes.

    python -m experiments.train --config configs/quickstart.py --workdir runs/quickstart

Exit codes: 0 complete, 1 the run failed, 2 the config is wrong, 130 stopped before the last step.
"""

import sys

from experiments import cli
from tiderl_jax.core.errors import ConfigError, TiderlError
from tiderl_jax.core.resolve import derived_numbers
from tiderl_jax.envs import registry
from tiderl_jax.runtime.supported import check_supported

STOPPED = 130


def main(argv: list[str]) -> int:
    """Resolves the config before JAX starts, then trains."""
    arguments = cli.parse(argv)
    config = cli.experiment(arguments)
    try:
        check_supported(config)
    except ConfigError as error:
        cli.fail(str(error))
    if arguments.dry_run:
        for name, value in derived_numbers(config):
            print(f"{name:<40} {value}")
        return 0
    if arguments.workdir is None:
        cli.fail("Name the directory of the run with --workdir runs/<name>.")

    try:
        world = registry.world(config.environment.name, config.environment.options)
        from tiderl_jax.runtime.training import train  # starts JAX, and nothing before it does

        complete = train(config, world, arguments.workdir)
    except ConfigError as error:
        cli.fail(str(error))
    except TiderlError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if complete else STOPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
