"""Flags shared by the entry points. Whatever is wrong with them is one sentence and exit code 2."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from absl import flags
from ml_collections import config_flags

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import resolve


def fail(sentence: str) -> NoReturn:
    """Ends the program before anything has been started or written."""
    print(f"error: {sentence}", file=sys.stderr)
    sys.exit(2)


def parse(argv: Sequence[str]) -> flags.FlagValues:
    """Reads `--config FILE[:arg] [--config.key=value ...] --workdir DIR [--dry_run]`."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file(
        "config", help_string="configs/<name>.py[:arg]", lock_config=True, flag_values=values
    )
    flags.DEFINE_string("workdir", None, "directory of the run", flag_values=values)
    flags.DEFINE_bool("dry_run", False, "print the derived numbers and stop", flag_values=values)
    _check_file(argv)
    try:
        rest = values(list(argv))[1:]
    except (flags.Error, AttributeError, KeyError, ValueError, TypeError) as error:
        text = str(error.args[0] if error.args else error)
        # ml_collections quotes a message that is quoted already.
        fail(" ".join(text.replace("\\n", " ").replace("\\'", "'").strip("'").split()))
    if rest:
        fail(f"Unexpected argument {rest[0]!r}.")
    if values.config is None:
        fail("Name an experiment with --config configs/<name>.py.")
    return values


def experiment(values: flags.FlagValues) -> ExperimentConfig:
    """The resolved experiment of parsed flags."""
    try:
        return resolve(values.config.to_dict())
    except ConfigError as error:
        fail(str(error))


def _check_file(argv: Sequence[str]) -> None:
    """The flag library reports a missing file only much later, and at length."""
    for position, argument in enumerate(argv):
        if argument == "--config":
            named = argv[position + 1] if position + 1 < len(argv) else ""
        elif argument.startswith("--config="):
            named = argument.removeprefix("--config=")
        else:
            continue
        path = Path(named.split(":")[0])
        if not path.is_file():
            fail(f"There is no config file {str(path)!r}.")
