"""Who waits for what: the sentences to read when a run seems to stand still."""

from collections import Counter

from tiderl_jax.scheduler.state import GroupPhase, Rank, State


def explain(state: State) -> str:
    """A few lines: the learner, the versions, the ranks, the groups."""
    return "\n".join(
        [
            _learner(state),
            _versions(state),
            *map(_rank, state.ranks.values()),
            _groups(state),
        ]
    )


def _learner(state: State) -> str:
    learner, n_needed = state.learner, state.limits.prompts_per_step
    done = f"{learner.steps_done} of {state.limits.steps} steps done"
    if learner.training:
        return f"learner: {done}; trains {len(learner.training)} groups"
    return f"learner: {done}; idle with {len(state.buffer)} of {n_needed} groups"


def _versions(state: State) -> str:
    parts = [f"learner has {state.learner.version}, published is {state.published}"]
    if state.n_loading:
        parts.append(f"{state.n_loading} ranks still load")
    if state.evaluation:
        n_left, version = state.evaluation.n_groups_left, state.evaluation.version
        parts.append(f"version {version} is pinned until {n_left} evaluation tasks end")
    elif state.evaluation_due:
        parts.append("an evaluation waits for the newest version on all ranks")
    return "versions: " + "; ".join(parts)


def _rank(rank: Rank) -> str:
    return (
        f"rank {rank.spec.rank}: serves {rank.version}; {rank.n_open} rollouts open, "
        f"{len(rank.decoding)} of {rank.spec.n_slots} slots decode, {len(rank.ready)} want a turn, "
        f"{rank.n_parked} parked, {len(rank.partial)} groups partly admitted; "
        f"{rank.used_tokens} of {rank.budget_tokens} KV tokens used"
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
