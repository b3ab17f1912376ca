"""Random worlds, one per seed: limits, policies, machine, workload and faults; and what every run
of one must have done in the end.

Each kind of fault is there in half of the worlds, at a rate of its own, so that some worlds have
one kind alone (swarm testing: Groce et al. 2012).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tiderl_jax.core.commands import Finish
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.identity import generator
from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.scheduler.presets import (
    ADMISSION,
    BATCHING,
    PIPELINING,
    PRESETS,
    SCALING,
    STALENESS,
    policies,
)
from tiderl_jax.simulator.simulate import Simulated

PAGE_TOKENS = 16
MAX_CONTEXT_TOKENS = 2048
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "admission": ADMISSION,
    "batching": BATCHING,
    "staleness": STALENESS,
    "pipelining": PIPELINING,
    "scaling": SCALING,
}
_HIGHEST_RATES = {
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


def n_pages(n_rollouts: float) -> int:
    """Of a pool that holds so many whole rollouts."""
    return round(n_rollouts * MAX_CONTEXT_TOKENS / PAGE_TOKENS)


def random_changes(seed: int) -> dict[str, Any]:
    """Dotted keys and values, for a config whose sizes are those of this module."""
    draw = generator(seed, "random config")
    delay_scale = float(draw.choice([0.1, 1.0, 5.0]))
    return {
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
        "decoder.n_pages": n_pages(float(draw.uniform(1.2, 10.0))),
        "decoder.kv_after_update": _one(draw, ["drop", "keep_labelled"]),
        "learner.kl_coefficient": float(draw.choice([0.0, 0.001])),
        **_sizes(draw, max(1.0, delay_scale)),
        **_policy(draw),
        **_machine(draw),
        **_faults(draw),
    }


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


def _policy(draw: np.random.Generator) -> dict[str, Any]:
    """A preset as it is, with one decision made otherwise, or with all five."""
    policy: dict[str, Any] = {
        "scheduler.preset": _one(draw, list(PRESETS)),
        "scheduler.staleness_bound": int(draw.integers(0, 4)),
        "scheduler.max_open_groups": int(draw.integers(2, 17)),
        "scheduler.max_open_environments": int(draw.integers(1, 41)),
        "scheduler.max_open_rollouts_per_rank": int(draw.choice([0, 3, 16])),
        "scheduler.elastic.confirm_steps": int(draw.integers(1, 3)),
        "scheduler.elastic.trial_steps": 1,
    }
    n_otherwise = int(draw.choice([0, 1, len(CHOICES)], p=[0.5, 0.3, 0.2]))
    for decision in draw.permutation(list(CHOICES))[:n_otherwise]:
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
    return {
        f"simulation.faults.{kind}": float(draw.uniform(0, rate)) * int(draw.integers(2))
        for kind, rate in _HIGHEST_RATES.items()
    }


def flaws(config: ExperimentConfig, run: Simulated) -> list[str]:
    """What is wrong with a run that should have done all its steps, in sentences."""
    if run.last != Finish(complete=True):
        return [f"The run ended with {run.last}."]
    return [*_lost_groups(run), *_left_over(config, run), *_wrong_sums(config, run)]


def _lost_groups(run: Simulated) -> Iterator[str]:
    """Every group that was asked for trained once or was dropped, and the tasks stand behind it."""
    tally = run.tally
    trained, dropped = set(tally.trained_groups), set(tally.dropped_groups)
    if len(trained) < len(tally.trained_groups):
        yield "A group trained twice."
    if trained & dropped:
        yield f"{min(trained & dropped)} trained and was dropped."
    n_arrived = run.scheduler.state.next_train_index
    arrived = {GroupId(Purpose.TRAIN, number) for number in range(n_arrived)}
    if trained | dropped != arrived:
        yield f"{min((trained | dropped) ^ arrived)} was lost or invented."
    n_asked = sum(workload.asked_groups for workload in tally.workloads.values())
    if n_asked != len(arrived):
        yield f"{n_asked} groups were asked for; {len(arrived)} arrived."


def _left_over(config: ExperimentConfig, run: Simulated) -> Iterator[str]:
    state = run.scheduler.state
    if (state.learner.steps_done, run.ledger.n_updates) != (config.steps, config.steps):
        yield f"{state.learner.steps_done} of {config.steps} steps were done."
    if state.groups or state.n_environments:
        yield f"{len(state.groups)} groups and {state.n_environments} environments were left."


def _wrong_sums(config: ExperimentConfig, run: Simulated) -> Iterator[str]:
    summary, bound = run.summary, run.scheduler.state.limits.staleness_bound
    accounted = summary["trained_tokens"] + sum(summary["waterfall"].values())
    if accounted != summary["sampled_tokens"]:
        yield f"{summary['sampled_tokens']} tokens were sampled, {accounted} are accounted for."
    staleness = policies(config.scheduler).staleness
    if (staleness.drops or staleness.trims) and max(run.tally.tokens_at_lag) > bound:
        yield f"Tokens trained at lag {max(run.tally.tokens_at_lag)}; the bound is {bound}."
