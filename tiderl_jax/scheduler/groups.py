"""The life of groups: they arrive, are probed, complete, run out of time, or are dropped."""

from collections import deque

from tiderl_jax.core.commands import Abort, DropGroup, DropReason, DropRollout
from tiderl_jax.core.events import ProbeFailed, ProbeMeasured, TasksArrived
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId
from tiderl_jax.scheduler.phases import enter, queue_partial
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rollout, State

_GROUP_WEIGHT = 0.05
"""Of the newest group in the running mean of tokens per group."""


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
    n_needed = n_members if group_id.purpose.is_evaluation else state.limits.group.n_needed
    pending = deque(range(n_members))
    group = Group(group_id, state.n_born, n_needed, members, pending, move.now_ns)
    state.n_born += 1
    state.n_unfinished_members += n_members
    state.groups[group_id] = group
    if not group.is_evaluation:
        is_ahead = state.n_begun_groups >= move.policies.staleness.horizon(state)
        if move.policies.admission.opens_ahead and is_ahead:
            group.ahead = True
            state.ahead[group_id] = None
        state.n_open_groups += 1
        state.next_train_index = max(state.next_train_index, group_id.number + 1)
        state.returning.discard(group_id.number)
    if move.policies.admission.needs_probe(state):
        state.unprobed.put(group_id, _arrival_order(group))
    else:
        turn_phase(move, group, GroupPhase.OPEN)
        state.unplaced.put(group_id, _arrival_order(group))


def turn_phase(move: Move, group: Group, phase: GroupPhase) -> None:
    """Puts a group into a phase."""
    group.phase, group.since_ns = phase, move.now_ns


def _arrival_order(group: Group) -> tuple[float, ...]:
    return (0 if group.is_evaluation else 1, not group.begun, group.born)


def probe_measured(move: Move, event: ProbeMeasured) -> None:
    """The group may be placed, unless its prompt leaves no room for a turn."""
    state, group = move.state, move.state.groups.get(event.group)
    if group is None or group.phase is not GroupPhase.PROBING:
        move.ignore()
        return
    turn_phase(move, group, GroupPhase.OPEN)
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
    turn_phase(move, group, GroupPhase.UNPROBED)
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
    state.n_begun_members += group.n_unfinished


def _unbegin(state: State, group: Group) -> None:
    if group.begun:
        group.begun = False
        state.n_begun_members -= group.n_unfinished


def give_up_probe(state: State, group: Group) -> None:
    """The probe's environment is closed, or becomes a member's."""
    state.n_environments -= group.holds_probe
    group.holds_probe = False


def member_ended(move: Move, group: Group, rollout: Rollout) -> None:
    """A member is over; the last one that is needed completes its group."""
    group.ended[rollout.id] = rollout.context_tokens
    move.state.n_begun_members -= 1
    move.state.n_unfinished_members -= 1
    if len(group.ended) == group.n_needed:
        complete(move, group, DropReason.REDUNDANT)


def complete(move: Move, group: Group, others: DropReason) -> None:
    """The group waits for the learner, or its evaluation is done; its other members are dropped."""
    state = move.state
    for member in group.members:
        if member.id not in group.ended:
            _drop_member(move, member, others)
            state.n_begun_members -= 1
            state.n_unfinished_members -= 1
    group.members = [member for member in group.members if member.id in group.ended]
    _forget_pending(move, group)
    turn_phase(move, group, GroupPhase.COMPLETE)
    index_oldest(state, group)
    if group.is_evaluation:
        del state.groups[group.id]
        _evaluated(state)
        return
    n_tokens = sum(group.ended.values())
    state.n_open_groups -= 1
    state.buffer[group.id] = n_tokens
    state.buffer_tokens += n_tokens
    state.readiness.group_completes(n_tokens, _GROUP_WEIGHT)


def _drop_member(move: Move, member: Rollout, reason: DropReason) -> None:
    if member.phase.is_open:
        move.say(DropRollout(member.id, reason))
    member.held_tokens, member.resident = 0, False
    enter(move, member, Phase.ENDED)


def _forget_pending(move: Move, group: Group) -> None:
    group.pending.clear()
    if group.rank is not None:
        queue_partial(move, move.state.ranks[group.rank], group)


def start_clock(move: Move, rollout: Rollout) -> None:
    """A rollout has its time from its admission, or from when it is held no longer."""
    rollout.deadline_ns = move.now_ns + move.state.limits.deadline_ns
    move.state.deadlines.append((rollout.deadline_ns, rollout.id))


def set_deadline(move: Move, group: Group) -> None:
    """A training group has its time from the admission of its first member, once it is let in."""
    limit_ns = move.state.limits.group.deadline_ns
    if group.is_evaluation or group.ahead:
        return
    if limit_ns and group.deadline_ns is None:
        group.deadline_ns = move.now_ns + limit_ns
        move.state.group_deadlines.append((group.deadline_ns, group.id))


def end_late_groups(move: Move) -> None:
    """What becomes of groups whose time is over: trained in part, topped up, or dropped."""
    state, limits = move.state, move.state.limits.group
    while state.group_deadlines and state.group_deadlines[0][0] <= move.now_ns:
        deadline_ns, group_id = state.group_deadlines.popleft()
        group = state.groups.get(group_id)
        if group is None or group.deadline_ns != deadline_ns or group.phase is GroupPhase.COMPLETE:
            continue
        if len(group.ended) >= limits.n_viable:
            complete(move, group, DropReason.LATE)
        elif limits.tops_up and not group.topped_up:
            _top_up(move, group)
        else:
            drop_group(move, group, DropReason.LATE)


def _top_up(move: Move, group: Group) -> None:
    """Members that are late start anew, as the next attempt, with the group's whole time."""
    group.topped_up, group.deadline_ns = True, None
    for position, member in enumerate(group.members):
        if member.phase.is_open:
            _drop_member(move, member, DropReason.LATE)
            try_again(move, group, position)
    set_deadline(move, group)


def try_again(move: Move, group: Group, position: int) -> None:
    """The next attempt of a member waits for admission."""
    failed = group.members[position]
    again = RolloutId(group.id, position, failed.id.attempt + 1)
    group.members[position] = Rollout(again)
    group.pending.append(position)
    index_oldest(move.state, group)
    if group.rank is not None:
        queue_partial(move, move.state.ranks[group.rank], group)


def _evaluated(state: State) -> None:
    if state.evaluation is not None:
        state.evaluation.n_groups_left -= 1


def drop_group(move: Move, group: Group, reason: DropReason) -> None:
    """Forgets a group at once; a driver has freed its slots, KV and environments on return."""
    state = move.state
    for member in group.members:
        member.held_tokens = 0
        enter(move, member, Phase.ENDED)
    _forget_pending(move, group)
    state.unprobed.discard(group.id)
    state.unplaced.discard(group.id)
    give_up_probe(state, group)
    _unbegin(state, group)
    state.n_unfinished_members -= group.n_unfinished
    if group.is_evaluation:
        _evaluated(state)
    elif group.phase is GroupPhase.COMPLETE:
        state.buffer_tokens -= state.buffer.pop(group.id)
    else:
        state.n_open_groups -= 1
        state.ahead.pop(group.id, None)
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


def note_oldest(state: State, group: Group, sampled: PolicyVersion) -> bool:
    """Takes in the oldest version of a turn that ended; True if the group has become older."""
    known = group.oldest_version
    if group.is_evaluation or (known is not None and known <= sampled):
        return False
    _file_oldest(state, group, sampled)
    return True


def index_oldest(state: State, group: Group) -> None:
    """Keeps `State.by_oldest` for what may train, after members have come or gone."""
    if group.is_evaluation:
        return
    sampled = (member.oldest_version for member in group.members)
    oldest = min((version for version in sampled if version is not None), default=None)
    if oldest != group.oldest_version:
        _file_oldest(state, group, oldest)


def _file_oldest(state: State, group: Group, oldest: PolicyVersion | None) -> None:
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
