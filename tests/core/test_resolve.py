import dataclasses

import pytest

from configs import base
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import config_hash, into, resolve, to_json


def document() -> dict:
    return base.get_config().to_dict()


def test_the_base_document_has_exactly_the_keys_of_the_resolved_experiment() -> None:
    resolved = resolve(document())
    assert resolved.rollout.prompts_per_step == 32
    assert dataclasses.asdict(resolved.scheduler.priority)["evaluation"] == 8.0


def test_an_unknown_key_is_refused_with_the_nearest_name() -> None:
    values = document()
    values["rollout"]["prompts_per_stop"] = 3
    with pytest.raises(ConfigError, match="'prompts_per_step'"):
        resolve(values)


def test_a_missing_key_is_named() -> None:
    values = document()
    del values["learner"]["clip_low"]
    with pytest.raises(ConfigError, match=r"config\.learner\.clip_low is missing"):
        resolve(values)


@pytest.mark.parametrize("wrong", ["32", 3.5, True, None])
def test_a_value_of_another_type_is_refused(wrong: object) -> None:
    values = document()
    values["rollout"]["prompts_per_step"] = wrong
    with pytest.raises(ConfigError, match=r"rollout\.prompts_per_step must be of type int"):
        resolve(values)


def test_a_number_that_is_not_finite_is_refused() -> None:
    values = document()
    values["learner"]["clip_low"] = float("nan")
    with pytest.raises(ConfigError, match="must be finite"):
        resolve(values)


def test_an_int_where_a_float_belongs_becomes_a_float() -> None:
    values = document()
    values["rollout"]["deadline_s"] = 3
    assert type(resolve(values).rollout.deadline_s) is float


def test_a_section_must_be_a_section() -> None:
    values = document()
    values["decoder"] = 7
    with pytest.raises(ConfigError, match="must be a section"):
        resolve(values)


@pytest.mark.parametrize(
    ("section", "key", "value", "sentence"),
    [
        ("decoder", "n_pages", 4, "does not fit the pool"),
        ("learner", "updates_per_step", 5, "must divide"),
        ("learner", "tokens_per_row", 16, "tokens_per_row"),
        ("decoder", "kv_after_update", "burn", "kv_after_update"),
        ("rollout", "temperature", 0.0, "temperature"),
        ("model", "checkpoint", "somewhere", "not both"),
        ("scheduler", "staleness_bound", -1, "staleness_bound"),
    ],
)
def test_limits_between_keys_are_checked(
    section: str, key: str, value: object, sentence: str
) -> None:
    values = document()
    values[section][key] = value
    with pytest.raises(ConfigError, match=sentence):
        resolve(values)


def test_the_hash_follows_every_value_and_nothing_else() -> None:
    values = document()
    same = config_hash(resolve(values))
    assert config_hash(resolve(dict(reversed(values.items())))) == same
    values["learner"]["clip_high"] = 0.29
    assert config_hash(resolve(values)) != same
    assert '"clip_high": 0.29' in to_json(resolve(values))


def test_into_names_the_path_of_what_is_wrong() -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        size: int

    with pytest.raises(ConfigError, match=r"options\.size must be of type int, not 'a'"):
        into(Options, {"size": "a"}, "options")
