"""Rollouts change their rank: when a rank leaves or is lost, and when one joins."""

from tiderl_jax.core.commands import Migrate, Repartition
from tiderl_jax.core.ids import RankId, Role
from tiderl_jax.scheduler.phases import (
    move_to,
    note_idleness,
    queue_partial,
    update_evaluable,
    update_placeable,
)
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.ranking import Ranking
from tiderl_jax.scheduler.state import Group, Phase, Rank, Rollout, State


def migrate(move: Move, rollout: Rollout, target: Rank) -> None:
    """Moves one rollout; its KV stays behind."""
    move_to(move, rollout, target)
    move.say(Migrate(rollout.id, target.spec.rank))


def change_role(move: Move, rank_id: RankId, role: Role) -> None:
    """Gives a rank another role; what it rolled out goes on elsewhere."""
    rank = move.state.ranks[rank_id]
    rolled_out = rank.role is Role.ROLLOUT
    retire(move, rank)
    if rolled_out:
        vacate(move, rank)
    move.state.n_changing += 1
    move.say(Repartition(rank_id, role))


def take_role(state: State, rank: Rank, role: Role | None) -> None:
    """Changes the role of a rank, and the sums over the ranks of each role."""
    change = (role is Role.ROLLOUT) - (rank.role is Role.ROLLOUT)
    state.n_rollout_ranks += change
    state.n_trainer_ranks += (role is Role.TRAINER) - (rank.role is Role.TRAINER)
    state.pool_tokens += change * rank.budget_tokens
    rank.role = role


def retire(move: Move, rank: Rank) -> None:
    """Takes a rank out of its role."""
    state = move.state
    take_role(state, rank, None)
    state.n_serving -= rank.version is not None and rank.version == state.published
    rank.version = None
    state.n_loading -= rank.loading is not None
    rank.loading = None
    note_idleness(move, rank)
    update_placeable(state, rank)
    update_evaluable(state, rank)


def vacate(move: Move, rank: Rank) -> None:
    """Moves the rank's groups to the least loaded ranks; without any, they wait here, KV lost."""
    concerned = [group for group in move.state.groups.values() if _is_on(group, rank)]
    for group in concerned:
        target = _least_loaded(move.state)
        if target is not None:
            move_group(move, group, rank, target)
            continue
        for member in group.members:
            if member.phase.is_open:
                move_to(move, member, rank)


def _is_on(group: Group, rank: Rank) -> bool:
    here = rank.spec.rank
    return group.rank == here or any(
        member.rank == here and member.phase.is_open for member in group.members
    )


def _least_loaded(state: State) -> Rank | None:
    ranks = state.with_role(Role.ROLLOUT)
    if not ranks:
        return None
    return min(ranks, key=lambda rank: (rank.version is None, rank.expected_tokens, rank.n_open))


def move_group(move: Move, group: Group, source: Rank, target: Rank) -> None:
    """Moves the open members of a group, and those that wait for admission."""
    for member in group.members:
        if member.rank == source.spec.rank and member.phase.is_open:
            migrate(move, member, target)
    if group.rank == source.spec.rank:
        source.partial.discard(group.id)
        group.rank = target.spec.rank
        queue_partial(move, target, group)


def rebalance(move: Move) -> None:
    """A rank has joined with fresh weights: groups move to it until loads are even.

    Called after a broadcast, when no KV is valid anyway; groups with a running turn stay.
    """
    state = move.state
    loads = {rank.spec.rank: 0 for rank in state.with_role(Role.ROLLOUT)}
    groups: dict[RankId, list[tuple[int, Group]]] = {rank: [] for rank in loads}
    for group in state.groups.values():
        if group.rank is None or group.rank not in loads:
            continue
        load = sum(member.expected_tokens for member in group.members)
        loads[group.rank] += load
        running = any(member.phase is Phase.DECODING for member in group.members)
        if load and not running:
            groups[group.rank].append((load, group))
    heaviest, lightest = Ranking[RankId](), Ranking[RankId]()
    for rank, movable in groups.items():
        movable.sort(key=lambda entry: (entry[0], entry[1].born), reverse=True)
        heaviest.put(rank, (-loads[rank], rank))
        lightest.put(rank, (loads[rank], rank))
    while len(loads) > 1:
        source, target = heaviest.first(), lightest.first()
        if not groups[source]:
            return
        load, group = groups[source].pop()
        if loads[target] + load >= loads[source]:
            return
        move_group(move, group, state.ranks[source], state.ranks[target])
        for rank, change in ((source, -load), (target, load)):
            loads[rank] += change
            heaviest.put(rank, (-loads[rank], rank))
            lightest.put(rank, (loads[rank], rank))
