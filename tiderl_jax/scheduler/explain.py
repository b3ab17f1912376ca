"""Who waits for what, and since when: the sentences to read when a run seems to stand still."""

from collections import Counter
from collections.abc import Sequence

from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rank, Rollout, State

_N_LONGEST = 5
_NS_PER_S = 1e9


def explain(state: State) -> str:
    """The learner, the versions, the ranks, the groups, and what has waited longest."""
    ranks = [rank for rank in state.ranks.values() if rank.role is not Role.TRAINER]
    return "\n".join(
        [
            _learner(state),
            _versions(state),
            *(_rank(state, rank) for rank in ranks),
            _groups(state),
            *_longest(state),
        ]
    )


def _since(state: State, since_ns: int) -> str:
    return f"for {(state.now_ns - since_ns) / _NS_PER_S:.1f} s"


def _learner(state: State) -> str:
    learner, step = state.learner, state.learner.step
    done = f"{learner.steps_done} of {state.limits.steps} steps done"
    n_needed = state.limits.prompts_per_step
    if step is None:
        waits = _since(state, state.readiness.window_began_ns)
        return f"learner: {done}; idle {waits} with {len(state.buffer)} of {n_needed} groups"
    part = f"has {len(step.groups)} of {step.n_groups} groups {_since(state, step.began_ns)}"
    if step.n_feeds > step.n_trained:
        return f"learner: {done}; the {step.mode.value} step {part} and trains them"
    return f"learner: {done}; the {step.mode.value} step {part} and waits for more"


def _versions(state: State) -> str:
    parts = [f"learner has {state.learner.version}, published is {state.published}"]
    if state.n_loading:
        loading = [rank.spec.rank for rank in state.ranks.values() if rank.loading is not None]
        parts.append(f"{state.n_loading} ranks still load ({_some(loading)})")
    if state.n_changing:
        moving = [rank.spec.rank for rank in state.ranks.values() if rank.role is None]
        parts.append(f"{state.n_changing} ranks are between roles or lost ({_some(moving)})")
    if state.evaluation:
        n_left, version = state.evaluation.n_groups_left, state.evaluation.version
        parts.append(f"version {version} is pinned until {n_left} evaluation tasks end")
    elif state.evaluation_due:
        parts.append("an evaluation waits for the newest version on all ranks")
    return "versions: " + "; ".join(parts)


def _some(names: Sequence[int]) -> str:
    more = ", ..." if len(names) > _N_LONGEST else ""
    return ", ".join(map(str, names[:_N_LONGEST])) + more


def _rank(state: State, rank: Rank) -> str:
    idle = "" if rank.idle_since_ns is None else f" (none {_since(state, rank.idle_since_ns)})"
    return (
        f"rank {rank.spec.rank}: serves {rank.version}; {rank.n_open} rollouts open, "
        f"{len(rank.decoding)} of {rank.spec.n_slots} slots decode{idle}, "
        f"{len(rank.ready)} want a turn, {rank.n_parked} parked, {len(rank.partial)} groups partly "
        f"admitted; {rank.used_tokens} of {rank.budget_tokens} KV tokens used"
    )


def _groups(state: State) -> str:
    open_groups = [g for g in state.groups.values() if g.phase is not GroupPhase.COMPLETE]
    phases = Counter(rollout.phase.value for g in open_groups for rollout in g.members)
    members = ", ".join(f"{n} {phase}" for phase, n in sorted(phases.items())) or "none"
    requested = ", ".join(f"{n} {p.name.lower()}" for p, n in state.requested.items()) or "none"
    return (
        f"groups: {len(open_groups)} open (members: {members}); requested and not here: "
        f"{requested}; {state.n_environments} of {state.limits.max_open_environments} "
        f"environments open"
    )


_WAITS_FOR = {
    Phase.STARTING: "its environment to open",
    Phase.HELD: "weights that it may train under",
    Phase.READY: "a slot and KV on rank {rank}",
    Phase.DECODING: "the engine of rank {rank}",
    Phase.ACTING: "its environment's answer",
    Phase.PARKED_READY: "room on rank {rank}, where it was paused",
    Phase.PARKED_ACTING: "its environment's answer, paused on rank {rank}",
    Phase.ENDING: "its trajectory to be closed",
}


def _longest(state: State) -> list[str]:
    """The rollouts and groups that have been in their phase the longest."""
    rollouts = [
        (rollout.since_ns, f"{rollout.id} waits for {_waits_for(rollout)}")
        for group in state.groups.values()
        for rollout in group.members
        if rollout.phase in _WAITS_FOR
    ]
    groups = [(g.since_ns, _group(g)) for g in state.groups.values() if _is_waiting(g)]
    waiting = sorted(rollouts)[:_N_LONGEST] + sorted(groups)[:_N_LONGEST]
    return [f"waits {_since(state, since_ns)}: {sentence}" for since_ns, sentence in waiting]


def _waits_for(rollout: Rollout) -> str:
    return _WAITS_FOR[rollout.phase].format(rank=rollout.rank)


def _is_waiting(group: Group) -> bool:
    return group.phase is not GroupPhase.OPEN or group.rank is None


def _group(group: Group) -> str:
    match group.phase:
        case GroupPhase.COMPLETE:
            return f"{group.id} is complete and waits for the learner"
        case GroupPhase.PROBING:
            return f"{group.id} waits for its probe"
        case GroupPhase.UNPROBED:
            return f"{group.id} waits to be probed (environments, evaluation)"
        case GroupPhase.OPEN:
            return f"{group.id} waits for a rank that takes it"
