"""Rules that no policy may break. Every sum that the scheduler keeps is counted again here."""

from collections.abc import Iterator

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import Purpose, lag
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rank, Rollout, State

Rule = tuple[bool, str]


def check(state: State) -> None:
    """Checks a state between two events; O(rollouts in flight).

    Raises:
      InvariantError: with the first rule that does not hold.
    """
    for holds, sentence in _rules(state):
        if not holds:
            raise InvariantError(sentence)


def _rules(state: State) -> Iterator[Rule]:
    by_rank: dict[int, list[Rollout]] = {rank: [] for rank in state.ranks}
    for group in state.groups.values():
        yield from _group_rules(state, group)
        for rollout in group.members:
            if rollout.phase.is_open and rollout.rank is not None:
                by_rank[rollout.rank].append(rollout)
    for rank in state.ranks.values():
        yield from _rank_rules(state, rank, by_rank[rank.spec.rank])
    yield from _environment_rules(state, by_rank)
    yield from _training_rules(state)
    yield from _demand_rules(state)
    yield is_alive(state), "Work is pending but nothing is in flight: the run has stalled."


def _group_rules(state: State, group: Group) -> Iterator[Rule]:
    pending = {rollout.id.member for rollout in group.members if rollout.phase is Phase.PENDING}
    n_ended = sum(rollout.phase is Phase.ENDED for rollout in group.members)
    yield (
        pending == set(group.pending) and len(pending) == len(group.pending),
        f"The pending members of {group.id} are {sorted(pending)}, not {list(group.pending)}.",
    )
    yield n_ended == group.n_ended, f"{n_ended} members of {group.id} ended, not {group.n_ended}."
    yield (
        (group.phase is GroupPhase.COMPLETE) == (n_ended == len(group.members)),
        f"{group.id} is {group.phase.value} although {n_ended} of its members ended.",
    )
    yield (
        (group.id in state.buffer) == (group.phase is GroupPhase.COMPLETE),
        f"{group.id} is {group.phase.value} and must be in the buffer exactly when complete.",
    )
    waiting = group.id in state.unprobed, group.id in state.unplaced
    should_wait = (
        group.phase is GroupPhase.UNPROBED,
        group.phase is GroupPhase.OPEN and group.rank is None,
    )
    yield waiting == should_wait, f"{group.id} ({group.phase.value}) is in the wrong queue."
    for rollout in group.members:
        yield (
            not rollout.phase.is_open or rollout.rank == group.rank,
            f"Rollout {rollout.id} is on rank {rollout.rank}, its group on {group.rank}.",
        )


def _rank_rules(state: State, rank: Rank, rollouts: list[Rollout]) -> Iterator[Rule]:
    name = f"Rank {rank.spec.rank}"
    used = sum(_pool_tokens(state, rank, rollout) for rollout in rollouts)
    yield (
        used == rank.used_tokens,
        f"{name} counts {rank.used_tokens} used tokens where there are {used}.",
    )
    yield (
        used <= rank.budget_tokens,
        f"{name} needs {used} tokens of a pool of {rank.budget_tokens}.",
    )
    decoding = {rollout.id for rollout in rollouts if rollout.phase is Phase.DECODING}
    yield decoding == set(rank.decoding), f"{name} does not decode what it counts as decoding."
    yield (
        len(decoding) <= rank.spec.n_slots,
        f"{name} decodes {len(decoding)} turns in {rank.spec.n_slots} slots.",
    )
    for phases, queue in (
        ((Phase.READY, Phase.PARKED_READY), rank.ready),
        ((Phase.PARKED_ACTING,), rank.parked_acting),
    ):
        waiting = {rollout.id for rollout in rollouts if rollout.phase in phases}
        yield waiting == set(queue.members()), f"{name} has lost or invented a waiting rollout."
    n_parked = sum(rollout.phase.is_parked for rollout in rollouts)
    yield n_parked == rank.n_parked, f"{name} counts {rank.n_parked} parked, not {n_parked}."
    yield len(rollouts) == rank.n_open, f"{name} counts {rank.n_open} open, not {len(rollouts)}."
    partial = {
        group.id
        for group in state.groups.values()
        if group.rank == rank.spec.rank and group.pending
    }
    yield partial == set(rank.partial.members()), f"{name} has lost a group with pending members."


def _pool_tokens(state: State, rank: Rank, rollout: Rollout) -> int:
    if rollout.phase is Phase.DECODING:
        return rank.rounded(rollout.context_tokens + state.limits.max_tokens_per_turn)
    return rank.rounded(rollout.held_tokens)


def _environment_rules(state: State, by_rank: dict[int, list[Rollout]]) -> Iterator[Rule]:
    n_open = sum(map(len, by_rank.values()))
    n_open += sum(group.holds_probe for group in state.groups.values())
    yield (
        n_open == state.n_environments,
        f"{state.n_environments} environments are counted where {n_open} are open.",
    )
    yield (
        n_open <= state.limits.max_open_environments,
        f"{n_open} environments are open; {state.limits.max_open_environments} are allowed.",
    )
    begun = [group for group in state.groups.values() if group.begun]
    n_begun = sum(len(group.members) - group.n_ended for group in begun)
    yield (
        n_begun == state.n_begun_members,
        f"{state.n_begun_members} members are counted as begun where {n_begun} are.",
    )


def _training_rules(state: State) -> Iterator[Rule]:
    learner, bound = state.learner, state.limits.staleness_bound
    for rank in state.ranks.values():
        ordered = rank.version is None or (
            state.published is not None and rank.version <= state.published <= learner.version
        )
        yield (
            ordered,
            (
                f"Versions run backwards: the learner has {learner.version}, published was "
                f"{state.published}, rank {rank.spec.rank} serves {rank.version}."
            ),
        )
    for group, oldest in learner.training.items():
        age = lag(learner.version, oldest)
        yield 0 <= age <= bound, f"{group} trains with lag {age}; the bound is {bound}."
        yield group not in state.groups, f"{group} trains and could train again."
        yield group.purpose is Purpose.TRAIN, f"{group} is an evaluation and trains."
        yield (
            group.index < state.next_train_index and group.index not in state.returning,
            f"{group} trains and could arrive again.",
        )
    yield (
        len(learner.training) in (0, state.limits.prompts_per_step),
        f"A step trains {len(learner.training)} groups.",
    )


def _demand_rules(state: State) -> Iterator[Rule]:
    limits = state.limits
    n_open = sum(
        group.id.purpose is Purpose.TRAIN and group.phase is not GroupPhase.COMPLETE
        for group in state.groups.values()
    )
    n_coming = state.requested.get(Purpose.TRAIN, 0)
    yield n_open == state.n_open_groups, f"{n_open} groups are open, not {state.n_open_groups}."
    yield (
        n_open + n_coming <= limits.max_open_groups,
        f"{n_open + n_coming} groups are open; {limits.max_open_groups} are allowed.",
    )
    horizon = min(state.learner.steps_done + 1 + limits.staleness_bound, limits.steps)
    n_groups = state.n_accepted_groups + n_open + n_coming
    yield (
        n_groups <= horizon * limits.prompts_per_step,
        f"{n_groups} groups were accepted or are open, more than {horizon} steps can use.",
    )


def is_alive(state: State) -> bool:
    """Whether some event is owed by a driver, or the run is over.

    Paused environments and timers do not count: neither makes work go on.
    """
    return (
        state.over
        or bool(state.requested)
        or bool(state.learner.training)
        or state.n_loading > 0
        or any(
            group.phase is GroupPhase.PROBING
            or any(rollout.phase.waits_for_driver for rollout in group.members)
            for group in state.groups.values()
        )
    )
