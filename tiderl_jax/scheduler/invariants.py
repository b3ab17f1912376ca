"""Rules that no policy may break. Every sum that the scheduler keeps is counted again here."""

from collections.abc import Iterator

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import Purpose, RankId, lag
from tiderl_jax.scheduler.phases import turn_tokens
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rank, Rollout, State


def check(state: State) -> None:
    """Checks a state between two events; O(rollouts in flight).

    Raises:
      InvariantError: with the first rule that does not hold.
    """
    broken = next(_broken(state), None)
    if broken is not None:
        raise InvariantError(broken)


def _broken(state: State) -> Iterator[str]:
    """A sentence for every rule that does not hold."""
    on_rank: dict[RankId, list[Rollout]] = {rank: [] for rank in state.ranks}
    for group in state.groups.values():
        yield from _group(state, group)
        for rollout in group.members:
            if rollout.rank is not None and rollout.phase.is_open:
                on_rank[rollout.rank].append(rollout)
    for rank_id, rollouts in on_rank.items():
        rank = state.ranks[rank_id]
        yield from _pool(state, rank, rollouts)
        yield from _queues(state, rank, rollouts)
    yield from _environments(state, sum(map(len, on_rank.values())))
    yield from _versions(state)
    yield from _training(state)
    yield from _demand(state)
    if not is_alive(state):
        yield "Work is pending but nothing is in flight: the run has stalled."


def _group(state: State, group: Group) -> Iterator[str]:
    name, phase = group.id, group.phase
    pending = sorted(
        rollout.id.member for rollout in group.members if rollout.phase is Phase.PENDING
    )
    if pending != sorted(group.pending):
        yield f"The pending members of {name} are {pending}, not {sorted(group.pending)}."
    n_ended = sum(rollout.phase is Phase.ENDED for rollout in group.members)
    if n_ended != group.n_ended:
        yield f"{n_ended} members of {name} ended, not {group.n_ended}."
    if (phase is GroupPhase.COMPLETE) != (n_ended == len(group.members)):
        yield f"{name} is {phase.value} although {n_ended} of its members ended."
    if (name in state.buffer) != (phase is GroupPhase.COMPLETE):
        yield f"{name} is {phase.value}; it is in the buffer exactly when it is complete."
    if (name in state.unprobed) != (phase is GroupPhase.UNPROBED):
        yield f"{name} is {phase.value}; it waits for a probe exactly when it is unprobed."
    if (name in state.unplaced) != (phase is GroupPhase.OPEN and group.rank is None):
        yield f"{name} is {phase.value}; it waits for a rank exactly when it is open without one."
    for rollout in group.members:
        if rollout.phase.is_open and rollout.rank != group.rank:
            yield f"Rollout {rollout.id} is on rank {rollout.rank}, its group on {group.rank}."


def _pool(state: State, rank: Rank, rollouts: list[Rollout]) -> Iterator[str]:
    name, used_tokens, n_decoding = f"Rank {rank.spec.rank}", 0, 0
    for rollout in rollouts:
        if rollout.phase is Phase.DECODING:
            n_decoding += 1
            used_tokens += turn_tokens(state, rank, rollout)
            if rollout.id not in rank.decoding:
                yield f"{name} has lost the turn of {rollout.id}."
        else:
            used_tokens += rank.rounded(rollout.held_tokens)
    if used_tokens != rank.used_tokens:
        yield f"{name} counts {rank.used_tokens} used tokens where there are {used_tokens}."
    if used_tokens > rank.budget_tokens:
        yield f"{name} needs {used_tokens} tokens of a pool of {rank.budget_tokens}."
    if n_decoding != len(rank.decoding):
        yield f"{name} counts {len(rank.decoding)} turns where {n_decoding} run."
    if n_decoding > rank.spec.n_slots:
        yield f"{name} decodes {n_decoding} turns in {rank.spec.n_slots} slots."


def _queues(state: State, rank: Rank, rollouts: list[Rollout]) -> Iterator[str]:
    name = f"Rank {rank.spec.rank}"
    wanting = {r.id for r in rollouts if r.phase in (Phase.READY, Phase.PARKED_READY)}
    if wanting != set(rank.ready.members()):
        yield f"{name} has lost or invented a rollout that wants a turn."
    acting = {r.id for r in rollouts if r.phase is Phase.PARKED_ACTING}
    if acting != set(rank.parked_acting.members()):
        yield f"{name} has lost or invented a paused rollout."
    n_parked = sum(rollout.phase.is_parked for rollout in rollouts)
    if n_parked != rank.n_parked:
        yield f"{name} counts {rank.n_parked} paused rollouts, not {n_parked}."
    if len(rollouts) != rank.n_open:
        yield f"{name} counts {rank.n_open} open rollouts, not {len(rollouts)}."
    if sum(rollout.expected_tokens for rollout in rollouts) != rank.expected_tokens:
        yield f"{name} expects tokens of rollouts that are not there."
    for group_id in rank.partial.members():
        group = state.groups.get(group_id)
        if group is None or group.rank != rank.spec.rank or not group.pending:
            yield f"{name} would admit members of {group_id}, which has none for it."


def _environments(state: State, n_rollouts: int) -> Iterator[str]:
    groups = state.groups.values()
    n_open = n_rollouts + sum(group.holds_probe for group in groups)
    if n_open != state.n_environments:
        yield f"{state.n_environments} environments are counted where {n_open} are open."
    if n_open > state.limits.max_open_environments:
        allowed = state.limits.max_open_environments
        yield f"{n_open} environments are open; {allowed} are allowed."
    n_begun = sum(len(group.members) - group.n_ended for group in groups if group.begun)
    if n_begun != state.n_begun_members:
        yield f"{state.n_begun_members} members are counted as begun where {n_begun} are."


def _versions(state: State) -> Iterator[str]:
    newest, published = state.learner.version, state.published
    if published is not None and published > newest:
        yield f"Version {published} was published; the learner has {newest}."
    for rank in state.ranks.values():
        if rank.version is not None and (published is None or rank.version > published):
            yield f"Rank {rank.spec.rank} serves {rank.version}; published was {published}."
    pinned = state.evaluation.version if state.evaluation else published
    if pinned != published:
        yield f"Version {published} was published while {pinned} is evaluated."


def _training(state: State) -> Iterator[str]:
    learner, bound = state.learner, state.limits.staleness_bound
    if len(learner.training) not in (0, state.limits.prompts_per_step):
        yield f"A step trains {len(learner.training)} groups."
    for group, oldest in learner.training.items():
        age = lag(learner.version, oldest)
        if not 0 <= age <= bound:
            yield f"{group} trains with lag {age}; the bound is {bound}."
        if group.purpose is not Purpose.TRAIN:
            yield f"{group} is an evaluation and trains."
        arrives_again = group.number >= state.next_train_index or group.number in state.returning
        if group in state.groups or arrives_again:
            yield f"{group} trains and could train again."


def _demand(state: State) -> Iterator[str]:
    limits = state.limits
    n_open = sum(
        not group.is_evaluation and group.phase is not GroupPhase.COMPLETE
        for group in state.groups.values()
    )
    if n_open != state.n_open_groups:
        yield f"{state.n_open_groups} groups are counted as open where {n_open} are."
    n_open += state.requested.get(Purpose.TRAIN, 0)
    if n_open > limits.max_open_groups:
        yield f"{n_open} groups are open; {limits.max_open_groups} are allowed."
    horizon = min(state.learner.steps_done + 1 + limits.staleness_bound, limits.steps)
    n_groups = state.n_accepted_groups + n_open
    if n_groups > horizon * limits.prompts_per_step:
        yield f"{n_groups} groups were accepted or are open, more than {horizon} steps can use."


def is_alive(state: State) -> bool:
    """Whether a driver owes some event, or the run is over.

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
