"""From the document a person edits to frozen, checked values. Every failure is one sentence."""

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import ConfigError

T = TypeVar("T")


def unknown_name(name: str, known: typing.Iterable[str], what: str) -> ConfigError:
    """The error for a name that nothing reads, naming the nearest one that exists."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(options)}."
    return ConfigError(f"Unknown {what} {name!r}: {hint}")


def into(kind: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Builds the frozen dataclass `kind` from a mapping with exactly its fields.

    Raises:
      ConfigError: a key is unknown, missing, or its value has another type.
    """
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise unknown_name(name, fields, f"key in {path}")
    missing = [name for name in fields if name not in values]
    if missing:
        raise ConfigError(f"{path}.{missing[0]} is missing.")
    return kind(**{name: _value(hints[name], values[name], f"{path}.{name}") for name in fields})


def _value(hint: Any, value: Any, path: str) -> Any:
    options: tuple[Any, ...] = (hint,)
    if isinstance(hint, types.UnionType):
        options = typing.get_args(hint)
    if value is None and type(None) in options:
        return None
    kind: Any = next(option for option in options if option is not type(None))
    if dataclasses.is_dataclass(kind):
        return into(typing.cast(type[Any], kind), _section(value, path), path)
    if typing.get_origin(kind) is Mapping:
        return types.MappingProxyType(dict(_section(value, path)))
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{path} must be of type {kind.__name__}, not {value!r}.")
    if kind is float and not math.isfinite(typing.cast(float, value)):
        raise ConfigError(f"{path} must be finite, not {value!r}.")
    return value


def _section(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path} must be a section, not {value!r}.")
    return typing.cast(Mapping[str, Any], value)


def resolve(document: Mapping[str, Any]) -> ExperimentConfig:
    """Resolves and checks a whole experiment.

    Raises:
      ConfigError: with the first thing that is wrong, in one sentence.
    """
    config = into(ExperimentConfig, document)
    for holds, sentence in _limits(config):
        if not holds:
            raise ConfigError(sentence)
    return config


def _group_limits(config: ExperimentConfig) -> typing.Iterator[tuple[bool, str]]:
    group, n_members = config.rollout.group, config.rollout.samples_per_prompt
    yield group.extra_members >= 0, "rollout.group.extra_members must be at least 0."
    yield group.deadline_s >= 0, "rollout.group.deadline_s must be at least 0."
    yield (
        0 <= group.min_members <= n_members,
        "rollout.group.min_members must be between 0 and rollout.samples_per_prompt.",
    )
    yield (
        group.below_minimum in ("drop", "top_up"),
        f"rollout.group.below_minimum must be 'drop' or 'top_up', not {group.below_minimum!r}.",
    )
    yield (
        group.deadline_s > 0 or (group.min_members == 0 and group.below_minimum == "drop"),
        "rollout.group.min_members and below_minimum do nothing without a deadline_s.",
    )


def _partition_limits(config: ExperimentConfig) -> typing.Iterator[tuple[bool, str]]:
    partition = config.partition
    low, high = partition.min_rollout_ranks, partition.max_rollout_ranks
    moves = high > 0
    yield (
        not moves or 1 <= low <= partition.n_rollout_ranks <= high,
        "partition.min_rollout_ranks <= n_rollout_ranks <= max_rollout_ranks must hold, from 1 on.",
    )
    yield low == 0 or moves, "partition.min_rollout_ranks does nothing without max_rollout_ranks."
    yield (
        not (moves and partition.share_devices),
        "Ranks of a shared machine do not move: leave partition.max_rollout_ranks at 0.",
    )
    n_ranks = partition.n_rollout_ranks + partition.actor_devices
    yield (
        high < n_ranks or partition.share_devices,
        f"partition.max_rollout_ranks must leave the trainer one of the {n_ranks} ranks.",
    )
    yield (
        partition.actor_devices % max(partition.actor_tensor_parallel, 1) == 0,
        "partition.actor_tensor_parallel must divide partition.actor_devices.",
    )


def _limits(config: ExperimentConfig) -> typing.Iterator[tuple[bool, str]]:
    """Every limit on one field or between fields, as (holds, what to do about it)."""
    rollout, decoder, learner, model = (
        config.rollout,
        config.decoder,
        config.learner,
        config.model,
    )
    yield config.steps >= 1, "steps must be at least 1."
    yield config.environment.max_turns >= 1, "environment.max_turns must be at least 1."
    yield (
        rollout.prompts_per_step >= 1 and rollout.samples_per_prompt >= 1,
        "rollout.prompts_per_step and rollout.samples_per_prompt must be at least 1.",
    )
    yield (
        rollout.prompts_per_step % max(learner.updates_per_step, 1) == 0
        and learner.updates_per_step >= 1,
        "learner.updates_per_step must divide rollout.prompts_per_step.",
    )
    yield (
        rollout.max_tokens_per_turn < rollout.max_context_tokens,
        "rollout.max_tokens_per_turn must be below rollout.max_context_tokens.",
    )
    yield (
        0 <= rollout.min_prompts_per_step <= rollout.prompts_per_step,
        "rollout.min_prompts_per_step must be between 0 and rollout.prompts_per_step.",
    )
    yield (
        rollout.min_prompts_per_step in (0, rollout.prompts_per_step)
        or learner.updates_per_step == 1,
        "A step of a varying number of groups has one update: set learner.updates_per_step to 1.",
    )
    yield rollout.temperature > 0, "rollout.temperature must be above 0 (training is sampled)."
    yield (
        rollout.max_context_tokens <= decoder.n_pages * decoder.page_tokens,
        f"One rollout of rollout.max_context_tokens = {rollout.max_context_tokens} does not fit "
        f"the pool of decoder.n_pages x decoder.page_tokens = "
        f"{decoder.n_pages * decoder.page_tokens} tokens.",
    )
    yield (
        rollout.max_context_tokens <= learner.tokens_per_row,
        "learner.tokens_per_row must be at least rollout.max_context_tokens.",
    )
    yield (
        decoder.kv_after_update in ("drop", "keep_labelled"),
        f"decoder.kv_after_update must be 'drop' or 'keep_labelled', "
        f"not {decoder.kv_after_update!r}.",
    )
    yield (
        (model.checkpoint == "") != (model.architecture is None),
        "Give either model.checkpoint or model.architecture, not both and not neither.",
    )
    yield (
        model.dtype in ("float32", "bfloat16"),
        f"model.dtype must be 'float32' or 'bfloat16', not {model.dtype!r}.",
    )
    yield (
        config.evaluation.split in ("held_out", "tune"),
        f"evaluation.split must be 'held_out' or 'tune', not {config.evaluation.split!r}.",
    )
    yield config.scheduler.staleness_bound >= 0, "scheduler.staleness_bound must be at least 0."
    yield from _group_limits(config)
    yield from _partition_limits(config)


def to_json(config: ExperimentConfig) -> str:
    """The resolved experiment as canonical JSON (sorted keys)."""
    return json.dumps(_plain(config), sort_keys=True, indent=2) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        items = typing.cast(Mapping[str, Any], value)
        return {key: _plain(item) for key, item in items.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in typing.cast(typing.Sequence[Any], value)]
    return value


def config_hash(config: ExperimentConfig) -> str:
    """16 hex digits that identify the resolved experiment."""
    return hashlib.blake2b(to_json(config).encode(), digest_size=8).hexdigest()


def derived_numbers(config: ExperimentConfig) -> list[tuple[str, str]]:
    """The numbers that follow from the config, for the table printed at start."""
    rollout, decoder, learner = config.rollout, config.decoder, config.learner
    per_step = rollout.prompts_per_step * rollout.samples_per_prompt
    return [
        ("config hash", config_hash(config)),
        ("rollouts per step", f"{per_step}"),
        ("rollouts per optimizer update", f"{per_step // learner.updates_per_step}"),
        ("optimizer updates", f"{config.steps * learner.updates_per_step}"),
        ("training rollouts in all", f"{config.steps * per_step}"),
        ("tokens per microbatch", f"{learner.tokens_per_row * learner.rows_per_microbatch}"),
        ("KV pool per rank, tokens", f"{decoder.n_pages * decoder.page_tokens}"),
        (
            "longest rollouts that fit a rank's pool",
            f"{decoder.n_pages * decoder.page_tokens // rollout.max_context_tokens}",
        ),
        ("evaluation episodes per evaluation", f"{2 * config.evaluation.n_tasks}"),
    ]
