"""Rules that no policy may break. Every sum that the scheduler keeps is counted again here."""

from collections.abc import Iterator

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import Purpose, RankId, Role, lag
from tiderl_jax.scheduler.phases import turn_tokens
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rank, Rollout, State


def check(state: State, *, drops: bool = True) -> None:
    """Checks a state between two events; O(rollouts in flight).

    Args:
      state: of a scheduler.
      drops: whether its staleness drops what is older than the bound (see `policies.Staleness`).

    Raises:
      InvariantError: with the first rule that does not hold.
    """
    broken = next(_broken(state, drops), None)
    if broken is not None:
        raise InvariantError(broken)


def _broken(state: State, drops: bool) -> Iterator[str]:
    """A sentence for every rule that does not hold."""
    on_rank: dict[RankId, list[Rollout]] = {rank: [] for rank in state.ranks}
    for group in state.groups.values():
        yield from _group(state, group)
        for rollout in group.members:
            if rollout.rank is not None and rollout.phase.is_open:
                on_rank[rollout.rank].append(rollout)
    for rank_id, rollouts in on_rank.items():
        rank = state.ranks[rank_id]
        yield from _role(state, rank, rollouts)
        yield from _pool(state, rank, rollouts)
        yield from _queues(state, rank, rollouts)
    yield from _environments(state, sum(map(len, on_rank.values())))
    yield from _partition(state)
    yield from _versions(state)
    yield from _training(state, drops)
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
    ended = {rollout.id for rollout in group.members if rollout.phase is Phase.ENDED}
    if ended != set(group.ended):
        yield f"{len(ended)} members of {name} ended, not {len(group.ended)}."
    if phase is GroupPhase.COMPLETE and len(ended) != len(group.members):
        yield f"{name} is complete although {len(ended)} of its members ended."
    if phase is not GroupPhase.COMPLETE and len(ended) >= group.n_needed:
        yield f"{name} is {phase.value} although enough of its members ended."
    if (name in state.buffer) != (phase is GroupPhase.COMPLETE):
        yield f"{name} is {phase.value}; it is in the buffer exactly when it is complete."
    if (name in state.unprobed) != (phase is GroupPhase.UNPROBED):
        yield f"{name} is {phase.value}; it waits for a probe exactly when it is unprobed."
    if (name in state.unplaced) != (phase is GroupPhase.OPEN and group.rank is None):
        yield f"{name} is {phase.value}; it waits for a rank exactly when it is open without one."


def _role(state: State, rank: Rank, rollouts: list[Rollout]) -> Iterator[str]:
    name = f"Rank {rank.spec.rank}"
    if rank.role is Role.TRAINER and rollouts:
        yield f"{name} trains, and {len(rollouts)} rollouts are on it."
    if rank.role is not Role.ROLLOUT and (rank.decoding or rank.loading or rank.version):
        yield f"{name} does not roll out, but decodes or holds a version."
    idle = rank.role is Role.ROLLOUT and not rank.decoding
    if idle != (rank.idle_since_ns is not None):
        yield f"{name} has lost the time since which it runs no turn."


def _partition(state: State) -> Iterator[str]:
    """Roles are one field of each rank, so their sets are disjoint; together they are the pool."""
    n_without = sum(rank.role is None for rank in state.ranks.values())
    if n_without < state.n_changing:
        yield f"{state.n_changing} ranks are owed, but only {n_without} are without a role."
    rolling = state.with_role(Role.ROLLOUT)
    sums = (len(rolling), sum(rank.budget_tokens for rank in rolling))
    if sums != (state.n_rollout_ranks, state.pool_tokens):
        yield f"The ranks that roll out are miscounted: they are {len(rolling)}."
    n_trainers = len(state.with_role(Role.TRAINER))
    if n_trainers != state.n_trainer_ranks:
        yield f"{state.n_trainer_ranks} ranks are counted as trainers where {n_trainers} are."
    n_loading = sum(rank.loading is not None for rank in state.ranks.values())
    if n_loading != state.n_loading:
        yield f"{state.n_loading} ranks are counted as loading where {n_loading} are."
    n_working = sum(
        rollout.phase.waits_for_driver
        for group in state.groups.values()
        for rollout in group.members
    )
    if n_working != state.n_working:
        yield f"{state.n_working} rollouts are counted as working where {n_working} are."


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
    if wanting != rank.ready.keys():
        yield f"{name} has lost or invented a rollout that wants a turn."
    held = {r.id for r in rollouts if r.phase is Phase.HELD and not state.groups[r.id.group].ahead}
    if held != set(rank.held):
        yield f"{name} has lost or invented a rollout that waits for its weights."
    acting = {r.id for r in rollouts if r.phase is Phase.PARKED_ACTING}
    if acting != rank.parked_acting.keys():
        yield f"{name} has lost or invented a paused rollout."
    n_parked = sum(rollout.phase.is_parked for rollout in rollouts)
    if n_parked != rank.n_parked:
        yield f"{name} counts {rank.n_parked} paused rollouts, not {n_parked}."
    if len(rollouts) != rank.n_open:
        yield f"{name} counts {rank.n_open} open rollouts, not {len(rollouts)}."
    if sum(rollout.expected_tokens for rollout in rollouts) != rank.expected_tokens:
        yield f"{name} expects tokens of rollouts that are not there."
    for group_id in rank.partial:
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
    n_begun = sum(group.n_unfinished for group in groups if group.begun)
    if n_begun != state.n_begun_members:
        yield f"{state.n_begun_members} members are counted as begun where {n_begun} are."
    n_unfinished = sum(group.n_unfinished for group in groups)
    if n_unfinished != state.n_unfinished_members:
        yield f"{state.n_unfinished_members} members are unfinished where {n_unfinished} are."


def _versions(state: State) -> Iterator[str]:
    newest, published = state.learner.version, state.published
    if published is not None and published > newest:
        yield f"Version {published} was published; the learner has {newest}."
    for rank in state.ranks.values():
        if rank.version is not None and (published is None or rank.version > published):
            yield f"Rank {rank.spec.rank} serves {rank.version}; published was {published}."
    serving = [rank for rank in state.ranks.values() if rank.version is not None]
    n_serving = sum(rank.version == published for rank in serving)
    if n_serving != state.n_serving:
        yield f"{state.n_serving} ranks are counted as serving {published} where {n_serving} do."
    keys = {rank.spec.rank: (rank.expected_evaluation_tokens, rank.spec.rank) for rank in serving}
    if keys != state.evaluable:
        yield f"Evaluation could go to the ranks {list(state.evaluable)}; {list(keys)} serve."
    pinned = state.evaluation.version if state.evaluation else published
    if pinned != published:
        yield f"Version {published} was published while {pinned} is evaluated."


def _training(state: State, drops: bool) -> Iterator[str]:
    learner, step, bound = state.learner, state.learner.step, state.limits.staleness_bound
    if sum(state.buffer.values()) != state.buffer_tokens:
        yield f"The buffer counts {state.buffer_tokens} tokens, not {sum(state.buffer.values())}."
    if step is None:
        return
    if not state.limits.min_prompts_per_step <= step.n_groups <= state.limits.prompts_per_step:
        yield f"A step takes {step.n_groups} groups."
    if step.n_missing < 0 or step.closed != (step.n_missing == 0 and not step.waiting):
        yield f"A step of {step.n_groups} groups has {len(step.groups)}; closed: {step.closed}."
    if step.n_trained > step.n_feeds:
        yield f"{step.n_trained} feeds were trained where {step.n_feeds} were given."
    for group, oldest in step.groups.items():
        age = lag(learner.version, oldest)
        if age < 0 or (drops and age > bound):
            yield f"{group} trains with lag {age}; the bound is {bound}."
        if group.purpose is not Purpose.TRAIN:
            yield f"{group} is an evaluation and trains."
        arrives_again = group.number >= state.next_train_index or group.number in state.returning
        if group in state.groups or (arrives_again and not state.over):
            yield f"{group} trains and could train again."


def _demand(state: State) -> Iterator[str]:
    limits, learner = state.limits, state.learner
    n_open = sum(
        not group.is_evaluation and group.phase is not GroupPhase.COMPLETE
        for group in state.groups.values()
    )
    if n_open != state.n_open_groups:
        yield f"{state.n_open_groups} groups are counted as open where {n_open} are."
    n_open += state.requested.get(Purpose.TRAIN, 0)
    if n_open > limits.max_open_groups:
        yield f"{n_open} groups are open; {limits.max_open_groups} are allowed."
    ahead = [group for group in state.groups.values() if group.ahead]
    if [group.id for group in ahead] != list(state.ahead):
        yield f"{len(state.ahead)} groups are counted as ahead where {len(ahead)} are."
    if any(member.n_turns or member.phase is Phase.DECODING for g in ahead for member in g.members):
        yield "A group that is ahead of what staleness lets in has begun to sample."
    n_groups, per_step = state.n_accepted_groups + n_open, limits.prompts_per_step
    n_begun = state.n_begun_groups
    horizon = learner.groups_trained + (1 + limits.staleness_bound) * per_step
    if n_begun > horizon:
        yield f"{n_begun} groups were accepted or have begun; {horizon} are within the bound."
    if n_groups > learner.groups_trained + (limits.steps - learner.steps_done) * per_step:
        yield f"{n_groups} groups were accepted or are open, more than the steps left can use."


def is_alive(state: State) -> bool:
    """Whether a driver owes some event, or the run is over.

    Paused environments and timers do not count: neither makes work go on.
    """
    return (
        state.over
        or bool(state.requested)
        or _trainer_owes(state)
        or state.n_loading > 0
        or state.n_changing > 0
        or state.n_working > 0
        or any(group.phase is GroupPhase.PROBING for group in state.groups.values())
    )


def _trainer_owes(state: State) -> bool:
    step = state.learner.step
    return step is not None and (step.closed or step.n_feeds > step.n_trained)
