"""Names of the choices, and the presets made of them. An ablation changes exactly one name."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tiderl_jax.core.config import SchedulerConfig
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.scheduler.admission import BatchAdmission, CtbAdmission, RequestAdmission
from tiderl_jax.scheduler.batching import CtbBatching, RequestBatching
from tiderl_jax.scheduler.pipelining import ColocatedPipelining
from tiderl_jax.scheduler.policies import (
    Admission,
    Batching,
    Pipelining,
    Policies,
    Scaling,
    Staleness,
)
from tiderl_jax.scheduler.scaling import StaticScaling
from tiderl_jax.scheduler.staleness import BoundedStaleness

ADMISSION: Mapping[str, Callable[[], Admission]] = {
    "batch": BatchAdmission,
    "request": RequestAdmission,
    "ctb": CtbAdmission,
}
BATCHING: Mapping[str, Callable[[], Batching]] = {"request": RequestBatching, "ctb": CtbBatching}
STALENESS: Mapping[str, Callable[[], Staleness]] = {"bounded": BoundedStaleness}
PIPELINING: Mapping[str, Callable[[], Pipelining]] = {"colocated": ColocatedPipelining}
SCALING: Mapping[str, Callable[[], Scaling]] = {"static": StaticScaling}

DECISIONS = ("admission", "batching", "staleness", "pipelining", "scaling")

PRESETS: Mapping[str, Mapping[str, str]] = {
    "sync": {
        "admission": "batch",
        "batching": "request",
        "staleness": "bounded",
        "pipelining": "colocated",
        "scaling": "static",
    },
    "tiderl": {
        "admission": "ctb",
        "batching": "ctb",
        "staleness": "bounded",
        "pipelining": "colocated",
        "scaling": "static",
    },
}


def resolve_preset(preset: str, explicit: Mapping[str, str]) -> dict[str, str]:
    """The five names of a preset; a decision that `explicit` names (not empty) replaces its own.

    Raises:
      ConfigError: the preset, or a key of `explicit`, is unknown.
    """
    if preset not in PRESETS:
        raise unknown_name(preset, PRESETS, "scheduler.preset")
    for decision in explicit:
        if decision not in DECISIONS:
            raise unknown_name(decision, DECISIONS, "decision of the scheduler")
    return {**PRESETS[preset], **{key: name for key, name in explicit.items() if name}}


def policies(config: SchedulerConfig) -> Policies:
    """The five decision objects that a config names.

    Raises:
      ConfigError: a name is unknown.
    """
    explicit: dict[str, str] = {decision: getattr(config, decision) for decision in DECISIONS}
    names = resolve_preset(config.preset, explicit)
    return Policies(
        admission=_chosen(ADMISSION, names, "admission"),
        batching=_chosen(BATCHING, names, "batching"),
        staleness=_chosen(STALENESS, names, "staleness"),
        pipelining=_chosen(PIPELINING, names, "pipelining"),
        scaling=_chosen(SCALING, names, "scaling"),
    )


Choice = TypeVar("Choice")


def _chosen(
    choices: Mapping[str, Callable[[], Choice]], names: Mapping[str, str], decision: str
) -> Choice:
    name = names[decision]
    if name not in choices:
        raise unknown_name(name, choices, f"scheduler.{decision}")
    return choices[name]()
