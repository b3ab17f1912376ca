"""Small simulated experiments, by hand and by seed."""

from typing import Any

import numpy as np

from configs import base
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.identity import generator
from tiderl_jax.core.resolve import resolve
from tiderl_jax.scheduler.presets import (
    ADMISSION,
    BATCHING,
    PIPELINING,
    PRESETS,
    SCALING,
    STALENESS,
)

PAGE_TOKENS = 16
MAX_CONTEXT_TOKENS = 2048
CHOICES = {
    "admission": ADMISSION,
    "batching": BATCHING,
    "staleness": STALENESS,
    "pipelining": PIPELINING,
    "scaling": SCALING,
}


def small_config(preset: str, *, pool: float = 4.0, **changes: object) -> ExperimentConfig:
    """4 steps of 3 groups of 4 on 2 + 2 ranks; every rank's pool holds `pool` whole rollouts.

    `changes` are dotted keys, with `__` for the dot.
    """
    config = base.get_config()
    config.name = "small"
    config.steps = 4
    config.environment.name = "simulated"
    config.environment.max_turns = 6
    config.environment.max_faults = 10_000
    config.environment.idle_lease_s = 1000.0
    config.model.dtype = "bfloat16"
    config.model.architecture.update(
        n_layers=4, d_model=1024, n_heads=8, n_kv_heads=8, d_head=128, d_ff=4096
    )
    config.rollout.prompts_per_step = 3
    config.rollout.samples_per_prompt = 4
    config.rollout.max_tokens_per_turn = 128
    config.rollout.max_context_tokens = MAX_CONTEXT_TOKENS
    config.rollout.deadline_s = 600.0
    config.decoder.n_slots = 6
    config.decoder.page_tokens = PAGE_TOKENS
    config.decoder.n_pages = round(pool * MAX_CONTEXT_TOKENS / PAGE_TOKENS)
    config.scheduler.preset = preset
    config.scheduler.max_open_groups = 8
    config.scheduler.max_open_environments = 40
    config.scheduler.max_open_rollouts_per_rank = 0
    config.learner.kl_coefficient = 0.001
    config.learner.tokens_per_row = MAX_CONTEXT_TOKENS
    config.learner.rows_per_microbatch = 1
    config.evaluation.n_tasks = 3
    config.evaluation.every_steps = 2
    config.partition.share_devices = False
    config.partition.n_rollout_ranks = 2
    config.partition.actor_devices = 2
    config.simulation.hardware = "h100"
    config.simulation.vocab_size = 32_000
    config.simulation.profile = "webshop"
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return resolve(config.to_dict())


def random_config(seed: int) -> ExperimentConfig:
    """Limits, policies, machine, workload and faults drawn from a seed.

    Each kind of fault is there in half of the worlds, at a rate of its own.
    """
    draw = generator(seed, "random config")
    preset, delay_scale = _one(draw, list(PRESETS)), float(draw.choice([0.1, 1.0, 5.0]))
    changes: dict[str, Any] = {
        "seed": seed,
        "steps": int(draw.integers(1, 4)),
        "simulation.profile": _one(draw, ["webshop", "game", "toolcall", "mixed", "alternating"]),
        "simulation.delay_scale": delay_scale,
        "simulation.delay_tail": float(draw.uniform(0.0, 2.0)),
        "simulation.turns_scale": float(draw.uniform(0.2, 1.5)),
        "environment.max_turns": int(draw.integers(1, 9)),
        "environment.step_deadline_s": float(draw.choice([20.0, 300.0])) * max(1.0, delay_scale),
        "environment.idle_lease_s": float(draw.choice([20.0, 1000.0])),
        "evaluation.n_tasks": int(draw.integers(0, 4)),
        "evaluation.every_steps": int(draw.integers(0, 3)),
        "decoder.n_slots": int(draw.integers(1, 33)),
        "decoder.kv_after_update": _one(draw, ["drop", "keep_labelled"]),
        "learner.kl_coefficient": float(draw.choice([0.0, 0.001])),
        **_sizes(draw, max(1.0, delay_scale)),
        **_policy(draw, preset),
        **_machine(draw),
        **_faults(draw),
    }
    return small_config(preset, pool=float(draw.uniform(1.2, 10.0)), **changes)


def _one(draw: np.random.Generator, values: list[Any]) -> Any:
    return values[draw.integers(len(values))]


def _sizes(draw: np.random.Generator, delay_scale: float) -> dict[str, Any]:
    """Of a step and its groups; what limits the time of a group leaves time enough to some."""
    n_prompts, n_members = int(draw.integers(1, 5)), int(draw.integers(1, 6))
    sizes: dict[str, Any] = {
        "rollout.prompts_per_step": n_prompts,
        "rollout.min_prompts_per_step": int(draw.integers(0, n_prompts + 1)),
        "rollout.samples_per_prompt": n_members,
        "rollout.deadline_s": float(draw.choice([10.0, 60.0, 600.0])),
    }
    if draw.random() < 0.4:
        sizes["rollout.group.extra_members"] = int(draw.integers(0, 3))
    if draw.random() < 0.4:
        sizes["rollout.group.deadline_s"] = float(draw.choice([100.0, 400.0])) * delay_scale
        sizes["rollout.group.min_members"] = int(draw.integers(0, n_members + 1))
        sizes["rollout.group.below_minimum"] = _one(draw, ["drop", "top_up"])
    return sizes


def _policy(draw: np.random.Generator, preset: str) -> dict[str, Any]:
    """A preset as it is, or with one decision made otherwise."""
    policy: dict[str, Any] = {
        "scheduler.staleness_bound": int(draw.integers(0, 4)),
        "scheduler.max_open_groups": int(draw.integers(2, 17)),
        "scheduler.max_open_environments": int(draw.integers(1, 41)),
        "scheduler.max_open_rollouts_per_rank": int(draw.choice([0, 3, 16])),
        "scheduler.elastic.confirm_steps": int(draw.integers(1, 3)),
        "scheduler.elastic.trial_steps": 1,
    }
    if draw.random() < 0.4:
        decision = _one(draw, list(CHOICES))
        policy[f"scheduler.{decision}"] = _one(draw, list(CHOICES[decision]))
    return policy


def _machine(draw: np.random.Generator) -> dict[str, Any]:
    n_rollout, n_trainers = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    machine: dict[str, Any] = {
        "partition.n_rollout_ranks": n_rollout,
        "partition.actor_devices": n_trainers,
    }
    if draw.random() < 0.25:
        machine["partition.share_devices"] = True
    elif draw.random() < 0.6:
        machine["partition.min_rollout_ranks"] = int(draw.integers(1, n_rollout + 1))
        machine["partition.max_rollout_ranks"] = int(
            draw.integers(n_rollout, n_rollout + n_trainers)
        )
    return machine


def _faults(draw: np.random.Generator) -> dict[str, Any]:
    highest = {
        "probe": 0.1,
        "crash": 0.05,
        "hang": 0.03,
        "late": 0.1,
        "engine": 0.03,
        "duplicate": 0.2,
        "rank_loss_per_hour": 60.0,
        "slow_weights": 0.3,
        "lost_acknowledgement": 0.3,
    }
    return {
        f"simulation.faults.{kind}": float(draw.uniform(0, rate)) * int(draw.integers(2))
        for kind, rate in highest.items()
    }
