"""Flags shared by the entry points. Whatever is wrong with them is one sentence and exit code 2."""

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

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


@dataclass(frozen=True)
class Arguments:
    """A parsed command line."""

    path: Path  # of the config file
    module: ModuleType  # the config file, for what it declares beside `get_config`
    document: dict[str, Any]  # the config with all overrides
    overrides: list[str]  # as they were given
    workdir: Path | None
    dry_run: bool


def parse(argv: Sequence[str]) -> Arguments:
    """Reads `--config FILE[:arg] [--config.key=value ...] --workdir DIR [--dry_run]`."""
    named, rest = _split(list(argv[1:]))
    path, _, arg = named.partition(":")
    module = _load(Path(path))
    values = flags.FlagValues()
    flags.DEFINE_string("workdir", None, "directory of the run", flag_values=values)
    flags.DEFINE_bool("dry_run", False, "print the derived numbers and stop", flag_values=values)
    config = module.get_config(arg or None)
    line = [argv[0], *rest]
    with one_sentence():  # an unknown key fails here, a value of another type in `read`
        config_flags.DEFINE_config_dict("config", config, flag_values=values, sys_argv=line)
    unknown = read(values, line)
    if unknown:
        fail(f"Unexpected argument {unknown[0]!r}.")
    return Arguments(
        path=Path(path),
        module=module,
        document=values.config.to_dict(),
        overrides=[argument for argument in rest if argument.startswith("--config.")],
        workdir=None if values.workdir is None else Path(values.workdir),
        dry_run=values.dry_run,
    )


def read(values: flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses flags; returns what is left of the command line."""
    with one_sentence():
        return values(argv)[1:]


@contextmanager
def one_sentence() -> Iterator[None]:
    """Whatever the flag libraries have to say."""
    try:
        yield
    except (flags.Error, AttributeError, KeyError, ValueError, TypeError) as error:
        text = str(error.args[0] if error.args else error)
        # ml_collections quotes and escapes a message that is quoted already.
        fail(" ".join(text.strip("'").replace("\\n", " ").replace("\\'", "'").split()))


def experiment(arguments: Arguments) -> ExperimentConfig:
    """The resolved experiment; whatever is wrong with it ends the program."""
    try:
        return resolved(arguments.document)
    except ConfigError as error:
        fail(str(error))


def resolved(document: Mapping[str, Any]) -> ExperimentConfig:
    """A document as an experiment, its scheduler's decisions named.

    Raises:
      ConfigError: with the first thing that is wrong, in one sentence.
    """
    config = resolve(document)
    chosen = {name: getattr(config.scheduler, name) for name in DECISIONS}
    names = resolve_preset(config.scheduler.preset, chosen)
    scheduler = dataclasses.replace(config.scheduler, **names)
    policies(scheduler)  # every name must exist
    checkpoint = config.model.checkpoint
    if checkpoint and not Path(checkpoint).is_dir():
        raise ConfigError(
            f"There is no checkpoint folder {checkpoint!r} (experiments.convert makes one)."
        )
    return dataclasses.replace(config, scheduler=scheduler)


def _split(argv: list[str]) -> tuple[str, list[str]]:
    """The value of `--config`, and all other arguments."""
    for position, argument in enumerate(argv):
        if argument.startswith("--config="):
            return argument.removeprefix("--config="), argv[:position] + argv[position + 1 :]
        if argument == "--config" and position + 1 < len(argv):
            return argv[position + 1], argv[:position] + argv[position + 2 :]
    fail("Name an experiment with --config configs/<name>.py.")


def _load(path: Path) -> ModuleType:
    """The config file as a module. It is code of this repository, and is trusted as such."""
    spec = importlib.util.spec_from_file_location(f"configs.{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        fail(f"There is no config file {str(path)!r}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
