"""What of the scheduler survives a commit. Work in flight does not: it is made again from prompts.

A group that arrived but had not trained by the commit is listed under `unfinished_train_indices`;
after a resume the driver hands these out again before any new one.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from tiderl_jax.core.ids import PolicyVersion, Purpose, RankId, Role
from tiderl_jax.scheduler.elastic import Elastic
from tiderl_jax.scheduler.limits import Limits
from tiderl_jax.scheduler.placement import take_role
from tiderl_jax.scheduler.readiness import Readiness
from tiderl_jax.scheduler.state import Counters, Learner, Rank, RankSpec, State
from tiderl_jax.scheduler.step_costs import StepCosts


def snapshot(state: State) -> dict[str, Any]:
    """The surviving part as JSON types. A step that is running counts as not done."""
    step = state.learner.step
    in_flight = [*state.groups, *(step.groups if step else ())]
    unfinished = {group.number for group in in_flight if group.purpose is Purpose.TRAIN}
    return {
        "version": state.learner.version,
        "digest": state.learner.digest,
        "steps_done": state.learner.steps_done,
        "groups_trained": state.learner.groups_trained,
        "next_train_index": state.next_train_index,
        "unfinished_train_indices": sorted(unfinished | state.returning),
        "evaluated_step": state.evaluated_step,
        "n_evaluations": state.n_evaluations,
        "counters": dataclasses.asdict(state.counters),
    }


def beginning() -> dict[str, Any]:
    """The snapshot of a run that has not begun: the learner holds version 0."""
    return {
        "version": 0,
        "digest": None,
        "steps_done": 0,
        "groups_trained": 0,
        "next_train_index": 0,
        "unfinished_train_indices": [],
        "evaluated_step": None,
        "n_evaluations": 0,
        "counters": dataclasses.asdict(Counters()),
    }


def restore(
    limits: Limits, ranks: tuple[RankSpec, ...], costs: StepCosts, saved: Mapping[str, Any]
) -> State:
    """A state with nothing in flight, at the point where the snapshot was taken."""
    version, trained = PolicyVersion(saved["version"]), saved["groups_trained"]
    n_home = sum(spec.role is Role.ROLLOUT for spec in ranks)
    state = State(
        limits=limits,
        costs=costs,
        learner=Learner(version, saved["digest"], saved["steps_done"], trained),
        readiness=Readiness(),
        elastic=Elastic(limits.prompts_per_step, n_home, n_home),
        ranks={RankId(spec.rank): Rank(spec, None) for spec in ranks},
        counters=Counters(**copy.deepcopy(saved["counters"])),
        next_train_index=saved["next_train_index"],
        returning=set(saved["unfinished_train_indices"]),
        evaluated_step=saved["evaluated_step"],
        n_evaluations=saved["n_evaluations"],
        published_groups=trained,
        growth_tokens=float(limits.max_tokens_per_turn),
    )
    for rank in state.ranks.values():
        take_role(state, rank, rank.spec.role)
    return state
