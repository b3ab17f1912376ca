"""Names of the five decisions."""

from dataclasses import replace

import pytest
from hand import Hand, Setting

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.scheduler.presets import DECISIONS, PRESETS, policy_name, resolve_preset


def test_a_preset_names_every_decision() -> None:
    assert all(set(names) == set(DECISIONS) for names in PRESETS.values())


def test_an_ablation_differs_from_its_preset_in_exactly_the_named_decision() -> None:
    names = resolve_preset("tiderl", {"admission": "", "batching": "request"})
    changed = {key for key in DECISIONS if names[key] != PRESETS["tiderl"][key]}
    assert changed == {"batching"}


@pytest.mark.parametrize(
    ("preset", "explicit", "nearest"),
    [
        ("tiderlx", {}, "tiderl"),
        ("sync", {"admision": "ctb"}, "admission"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(
    preset: str, explicit: dict[str, str], nearest: str
) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        resolve_preset(preset, explicit)


def test_an_unknown_choice_is_refused_when_the_scheduler_is_built() -> None:
    with pytest.raises(
        ConfigError, match=r"scheduler\.batching 'requests': did you mean 'request'"
    ):
        Hand(batching="requests")


def test_a_pool_that_cannot_hold_one_rollout_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        Hand(budget_tokens=99)


def test_a_synchronous_run_trains_on_policy_whatever_bound_is_asked_for() -> None:
    assert Hand("sync", bound=3).state.limits.staleness_bound == 0
    assert replace(Hand("tiderl", bound=3).state.limits).staleness_bound == 3


def test_the_name_of_a_policy_says_what_differs_from_its_preset() -> None:
    setting = Setting("tiderl", batching="ctb", pipelining="", scaling="static")
    config = setting.config()  # its batching is that of the preset
    assert policy_name(config) == "tiderl(scaling=static)"
    assert policy_name(replace(config, scaling="")) == "tiderl"
