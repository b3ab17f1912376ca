"""Names of the choices, and the presets made of them. An ablation changes exactly one name."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from tiderl_jax.core.config import SchedulerConfig
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.scheduler.admission import (
    BatchAdmission,
    CtbAdmission,
    EagerCtbAdmission,
    RequestAdmission,
)
from tiderl_jax.scheduler.batching import (
    CtbBatching,
    LockstepBatching,
    NonstickyBatching,
    RequestBatching,
)
from tiderl_jax.scheduler.guarded import GuardedErsScaling
from tiderl_jax.scheduler.pipelining import (
    ColocatedPipelining,
    DecoupledPipelining,
    FullBatchPipelining,
    PlannedRa2pPipelining,
    Ra2pPipelining,
    SwapPerMicrobatchPipelining,
)
from tiderl_jax.scheduler.policies import (
    Admission,
    Batching,
    Pipelining,
    Policies,
    Scaling,
    Staleness,
)
from tiderl_jax.scheduler.scaling import ErsScaling, StaticScaling
from tiderl_jax.scheduler.staleness import (
    BatchwiseStaleness,
    BoundedStaleness,
    PacedStaleness,
    TrimmedStaleness,
)

ADMISSION: Mapping[str, Callable[[], Admission]] = {
    "batch": BatchAdmission,
    "request": RequestAdmission,
    "ctb": CtbAdmission,
    "ctb_eager": EagerCtbAdmission,
}
BATCHING: Mapping[str, Callable[[], Batching]] = {
    "request": RequestBatching,
    "request_nonsticky": NonstickyBatching,
    "lockstep": LockstepBatching,
    "ctb": CtbBatching,
}
STALENESS: Mapping[str, Callable[[], Staleness]] = {
    "bounded": BoundedStaleness,
    "paced": PacedStaleness,
    "trimmed": TrimmedStaleness,
    "batchwise": BatchwiseStaleness,
}
PIPELINING: Mapping[str, Callable[[], Pipelining]] = {
    "full_batch": FullBatchPipelining,
    "swap_per_microbatch": SwapPerMicrobatchPipelining,
    "colocated": ColocatedPipelining,
    "decoupled": DecoupledPipelining,
    "ra2p": Ra2pPipelining,
    "ra2p_planned": PlannedRa2pPipelining,
}
SCALING: Mapping[str, Callable[[], Scaling]] = {
    "static": StaticScaling,
    "ers": ErsScaling,
    "ers_guarded": GuardedErsScaling,
}

DECISIONS = ("admission", "batching", "staleness", "pipelining", "scaling")

_PRESETS: Mapping[str, tuple[str, str, str, str, str]] = {
    # verl-like: a batch of independent episodes, then a step
    "sync": ("batch", "request", "bounded", "full_batch", "static"),
    # the same, with environments that advance turn by turn
    "sync_lockstep": ("batch", "lockstep", "bounded", "full_batch", "static"),
    # verl's one-step-off: the next batch is rolled out while the trainer works on the last
    "one_step_off": ("request", "request", "batchwise", "full_batch", "static"),
    # AReaL-like: interruptible generation, capacity rule, sticky routing
    "async": ("request", "request", "paced", "full_batch", "static"),
    "async_nonsticky": ("request", "request_nonsticky", "paced", "full_batch", "static"),
    # StreamRL-like: disaggregated, microbatches stream into the trainer, with a swap for each
    "stream": ("request", "request", "paced", "swap_per_microbatch", "static"),
    # TideRL as the paper gives it
    "tiderl_paper": ("ctb", "ctb", "bounded", "ra2p", "ers"),
    # TideRL and beyond: nothing is paid where nothing is scarce, every move has to prove itself
    "tiderl": ("ctb_eager", "ctb", "trimmed", "ra2p_planned", "ers_guarded"),
}

PRESETS: Mapping[str, Mapping[str, str]] = {
    preset: dict(zip(DECISIONS, names, strict=True)) for preset, names in _PRESETS.items()
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


def policy_name(config: SchedulerConfig) -> str:
    """The preset, with every decision that differs from it: `tiderl(scaling=static)`."""
    preset = PRESETS[config.preset]
    chosen = {decision: getattr(config, decision) for decision in DECISIONS}
    changes = [f"{key}={name}" for key, name in chosen.items() if name not in ("", preset[key])]
    return f"{config.preset}({', '.join(changes)})" if changes else config.preset


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
