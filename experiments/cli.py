"""Flags shared by the entry points. Whatever is wrong with them is one sentence and exit code 2."""

import dataclasses
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from absl import flags
from ml_collections import config_flags

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import resolve
from tiderl_jax.scheduler.presets import DECISIONS, policies, resolve_preset


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
    path = _config_path(argv)
    if path is None:
        fail("Name an experiment with --config configs/<name>.py.")
    if not path.is_file():  # the flag library reports this only much later, and at length
        fail(f"There is no config file {str(path)!r}.")
    try:
        rest = values(list(argv))[1:]
    except (flags.Error, AttributeError, KeyError, ValueError, TypeError) as error:
        text = str(error.args[0] if error.args else error)
        # ml_collections quotes and escapes a message that is quoted already.
        fail(" ".join(text.strip("'").replace("\\n", " ").replace("\\'", "'").split()))
    if rest:
        fail(f"Unexpected argument {rest[0]!r}.")
    return values


def experiment(values: flags.FlagValues) -> ExperimentConfig:
    """The resolved experiment of parsed flags."""
    try:
        config = resolve(values.config.to_dict())
        chosen = {name: getattr(config.scheduler, name) or None for name in DECISIONS}
        names = resolve_preset(config.scheduler.preset, chosen)
        scheduler = dataclasses.replace(config.scheduler, **names)
        policies(scheduler)  # every name must exist
    except ConfigError as error:
        fail(str(error))
    return dataclasses.replace(config, scheduler=scheduler)


def _config_path(argv: Sequence[str]) -> Path | None:
    for position, argument in enumerate(argv):
        if argument == "--config" and position + 1 < len(argv):
            return Path(argv[position + 1].split(":")[0])
        if argument.startswith("--config="):
            return Path(argument.removeprefix("--config=").split(":")[0])
    return None


def config_module(argv: Sequence[str]) -> tuple[ModuleType, Path]:
    """The config file as a module, for what it declares beside `get_config`."""
    path = _config_path(argv)
    assert path is not None  # `parse` has seen it
    spec = importlib.util.spec_from_file_location(f"configs.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, path
