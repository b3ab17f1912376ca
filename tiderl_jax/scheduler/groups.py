"""The life of groups: they arrive, are probed, complete, or are dropped."""

from collections import deque

from tiderl_jax.core.commands import Abort, DropGroup, DropReason
from tiderl_jax.core.events import ProbeFailed, ProbeMeasured, TasksArrived
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId
from tiderl_jax.scheduler.phases import enter, queue_partial
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rollout, State


def tasks_arrived(move: Move, event: TasksArrived) -> None:
    """Takes in new groups; those that were here before are ignored."""
    state = move.state
    fresh = [group for group in event.groups if _is_fresh(state, group)]
    if not fresh:
        move.ignore()
        return
    purpose = fresh[0].purpose
    n_missing = state.requested.pop(purpose) - len(fresh)
    if state.evaluation is not None and purpose.is_evaluation:
        state.evaluation.n_groups_left -= n_missing
    for group in fresh:
        _arrive(move, group, event.n_members)


def _is_fresh(state: State, group: GroupId) -> bool:
    if group.purpose not in state.requested or group in state.groups:
        return False
    if group.purpose is not Purpose.TRAIN:
        return True
    return group.number >= state.next_train_index or group.number in state.returning


def _arrive(move: Move, group_id: GroupId, n_members: int) -> None:
    state = move.state
    members = [Rollout(RolloutId(group_id, member)) for member in range(n_members)]
    group = Group(group_id, state.n_born, members, deque(range(n_members)))
    state.n_born += 1
    state.groups[group_id] = group
    if not group.is_evaluation:
        state.n_open_groups += 1
        state.next_train_index = max(state.next_train_index, group_id.number + 1)
        state.returning.discard(group_id.number)
    if move.policies.admission.probes:
        state.unprobed.put(group_id, _arrival_order(group))
    else:
        group.phase = GroupPhase.OPEN
        state.unplaced.put(group_id, _arrival_order(group))


def _arrival_order(group: Group) -> tuple[float, ...]:
    return (0 if group.is_evaluation else 1, group.born)


def probe_measured(move: Move, event: ProbeMeasured) -> None:
    """The group may be placed, unless its prompt leaves no room for a turn."""
    state, group = move.state, move.state.groups.get(event.group)
    if group is None or group.phase is not GroupPhase.PROBING:
        move.ignore()
        return
    group.phase = GroupPhase.OPEN
    group.prompt_tokens = event.prompt_tokens
    if event.prompt_tokens + state.limits.max_tokens_per_turn > state.limits.max_context_tokens:
        count_fault(move, f"the first prompt of {group.id} leaves no room for a turn")
        drop_group(move, group, DropReason.ENV_ERROR)
    else:
        state.unplaced.put(group.id, _arrival_order(group))


def probe_failed(move: Move, event: ProbeFailed) -> None:
    """A training group is replaced by another; an evaluation task is probed again."""
    state, group = move.state, move.state.groups.get(event.group)
    if group is None or group.phase is not GroupPhase.PROBING:
        move.ignore()
        return
    group.phase = GroupPhase.UNPROBED
    give_up_probe(state, group)
    count_fault(move, event.reason)
    if group.is_evaluation and group.n_probes < state.limits.max_attempts:
        _unbegin(state, group)
        state.unprobed.put(group.id, _arrival_order(group))
    else:
        drop_group(move, group, DropReason.ENV_ERROR)


def begin(state: State, group: Group) -> None:
    """Reserves environments for all members."""
    group.begun = True
    state.n_begun_members += len(group.members)


def _unbegin(state: State, group: Group) -> None:
    if group.begun:
        group.begun = False
        state.n_begun_members -= len(group.members) - group.n_ended


def give_up_probe(state: State, group: Group) -> None:
    """The probe's environment is closed, or becomes a member's."""
    state.n_environments -= group.holds_probe
    group.holds_probe = False


def complete(move: Move, group: Group) -> None:
    """All members have ended: the group waits for the learner, or its evaluation is done."""
    state = move.state
    group.phase = GroupPhase.COMPLETE
    if group.is_evaluation:
        del state.groups[group.id]
        _evaluated(state)
    else:
        state.n_open_groups -= 1
        state.buffer[group.id] = None


def _evaluated(state: State) -> None:
    if state.evaluation is not None:
        state.evaluation.n_groups_left -= 1


def drop_group(move: Move, group: Group, reason: DropReason) -> None:
    """Forgets a group at once; a driver has freed its slots, KV and environments on return."""
    state = move.state
    for member in group.members:
        member.held_tokens = 0
        enter(move, member, Phase.ENDED)
    group.pending.clear()
    if group.rank is not None:
        queue_partial(move, state.ranks[group.rank], group)
    state.unprobed.discard(group.id)
    state.unplaced.discard(group.id)
    give_up_probe(state, group)
    _unbegin(state, group)
    if group.is_evaluation:
        _evaluated(state)
    elif group.phase is GroupPhase.COMPLETE:
        del state.buffer[group.id]
    else:
        state.n_open_groups -= 1
    _forget_oldest(state, group)
    del state.groups[group.id]
    dropped = state.counters.dropped_groups
    dropped[reason.value] = dropped.get(reason.value, 0) + 1
    move.say(DropGroup(group.id, reason))


def count_fault(move: Move, reason: str) -> None:
    """Counts a fault of the infrastructure; beyond the budget the run is over."""
    counters, limits = move.state.counters, move.state.limits
    counters.faults += 1
    if counters.faults > limits.max_faults and not move.state.over:
        move.state.over = True
        move.say(
            Abort(
                f"More than {limits.max_faults} faults of environments and engines happened "
                f"(environment.max_faults); the last one: {reason}."
            )
        )


def older(first: PolicyVersion | None, second: PolicyVersion | None) -> PolicyVersion | None:
    """The older of two versions; None is none."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def index_oldest(state: State, group: Group) -> None:
    """Keeps `State.by_oldest` for what may train."""
    if group.is_evaluation:
        return
    oldest: PolicyVersion | None = None
    for member in group.members:
        oldest = older(oldest, member.oldest_version)
    if oldest == group.oldest_version:
        return
    _forget_oldest(state, group)
    group.oldest_version = oldest
    if oldest is not None:
        state.by_oldest.setdefault(oldest, {})[group.id] = None


def _forget_oldest(state: State, group: Group) -> None:
    if group.oldest_version is None:
        return
    same = state.by_oldest[group.oldest_version]
    del same[group.id]
    if not same:
        del state.by_oldest[group.oldest_version]
