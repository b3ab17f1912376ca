"""The life of rollouts: they take turns with their environments, end, fail, run out of time."""

from tiderl_jax.core.commands import (
    DropReason,
    EndRollout,
    PauseEnvironment,
    Release,
    SetTimer,
    StepEnvironment,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    RolloutEnded,
    RolloutFailed,
    TimerFired,
    TurnEnded,
    TurnStop,
)
from tiderl_jax.core.ids import PolicyVersion, Purpose, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.ahead import is_held
from tiderl_jax.scheduler.groups import (
    count_fault,
    drop_group,
    end_late_groups,
    member_ended,
    note_oldest,
    try_again,
)
from tiderl_jax.scheduler.phases import enter, queue, queue_partial
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rollout

_GROWTH_WEIGHT = 0.05
"""Of the newest turn in the running mean of growth per turn."""

# Looking a member up in its enum costs as much as what is done with it.
_STARTING, _ACTING = Phase.STARTING, Phase.ACTING
_MAY_DECODE = (Phase.DECODING,)
_MAY_ANSWER = (Phase.ACTING, Phase.STARTING, Phase.PARKED_ACTING)
_MAY_END = (Phase.ACTING, Phase.PARKED_ACTING, Phase.ENDING)
_LENGTH, _TRAIN = TurnStop.LENGTH, Purpose.TRAIN


def _expect(move: Move, rollout_id: RolloutId, phases: tuple[Phase, ...]) -> Rollout | None:
    rollout = move.state.rollout(rollout_id)
    if rollout is None or rollout.phase not in phases:
        move.ignore()
        return None
    return rollout


def environment_ready(move: Move, event: EnvironmentReady) -> None:
    """The next turn may run, if the context and the rollout's time allow one."""
    rollout = _expect(move, event.rollout, _MAY_ANSWER)
    if rollout is None:
        return
    state, is_first = move.state, rollout.phase is _STARTING
    if is_first:
        rollout.context_tokens = rollout.last_turn_tokens = event.appended_tokens
    else:
        rollout.context_tokens += event.appended_tokens
    limits = state.limits
    if rollout.context_tokens + limits.max_tokens_per_turn > limits.max_context_tokens:
        _context_full(move, rollout)
    elif rollout.n_turns > 0 and move.now_ns >= rollout.deadline_ns:
        _end(move, rollout, Outcome.TRUNCATED_TIME)
    else:
        move.reconsider = False
        if is_first and is_held(move, rollout):
            enter(move, rollout, Phase.HELD)
            move.say(PauseEnvironment(rollout.id))
            return
        rollout.ready_order = state.n_ready
        state.n_ready += 1
        move.policies.batching.take(move, rollout)


def _context_full(move: Move, rollout: Rollout) -> None:
    """A rollout that has sampled nothing has nothing to train on: its task is impossible."""
    if rollout.n_turns > 0:
        _end(move, rollout, Outcome.TRUNCATED_LENGTH)
        return
    count_fault(move, f"the first prompt of {rollout.id} leaves no room for a turn")
    drop_group(move, move.state.groups[rollout.id.group], DropReason.ENV_ERROR)


def turn_ended(move: Move, event: TurnEnded) -> None:
    """Replaces estimates by real usage, then hands the turn to the environment or ends."""
    rollout = _expect(move, event.rollout, _MAY_DECODE)
    if rollout is None:
        return
    state, group = move.state, move.state.groups[rollout.id.group]
    rollout.context_tokens += event.generated_tokens
    rollout.n_turns += 1
    grown_tokens = rollout.context_tokens - rollout.last_turn_tokens
    state.growth_tokens += _GROWTH_WEIGHT * (grown_tokens - state.growth_tokens)
    rollout.last_turn_tokens = rollout.held_tokens = rollout.context_tokens
    sampled = event.oldest_version
    if rollout.oldest_version is None or sampled < rollout.oldest_version:
        rollout.oldest_version = sampled
    _check_version(move, rollout, sampled)
    move.reconsider = note_oldest(state, group, sampled)
    if event.stop is _LENGTH:
        _end(move, rollout, Outcome.TRUNCATED_LENGTH)
    elif move.now_ns >= rollout.deadline_ns:
        _end(move, rollout, Outcome.TRUNCATED_TIME)
    else:
        if not move.policies.batching.keeps_kv:
            _release(move, rollout)
        enter(move, rollout, _ACTING)
        move.say(StepEnvironment(rollout.id))


def _check_version(move: Move, rollout: Rollout, sampled: PolicyVersion) -> None:
    state = move.state
    if sampled > state.learner.version:
        raise InvariantError(
            f"Rollout {rollout.id} sampled under version {sampled}, which the learner "
            f"(at {state.learner.version}) has not minted."
        )
    pinned = state.evaluation.version if state.evaluation else sampled
    if sampled != pinned and rollout.id.group.purpose is not _TRAIN:
        raise InvariantError(
            f"Rollout {rollout.id} evaluates version {pinned} but sampled under {sampled}."
        )


def _release(move: Move, rollout: Rollout) -> None:
    rollout.held_tokens = 0
    if rollout.resident and rollout.rank is not None:
        rollout.resident = False
        move.say(Release(rollout.id, rollout.rank))


def _end(move: Move, rollout: Rollout, outcome: Outcome) -> None:
    _release(move, rollout)
    enter(move, rollout, Phase.ENDING)
    move.say(EndRollout(rollout.id, outcome))


def rollout_ended(move: Move, event: RolloutEnded) -> None:
    """A member is over; the last one completes its group."""
    if not event.outcome.may_train:
        rollout_failed(move, RolloutFailed(event.rollout, f"it ended as {event.outcome.value}"))
        return
    rollout = _expect(move, event.rollout, _MAY_END)
    if rollout is None:
        return
    _release(move, rollout)
    enter(move, rollout, Phase.ENDED)
    group = move.state.groups[rollout.id.group]
    member_ended(move, group, rollout)
    if group.phase is GroupPhase.COMPLETE:
        return
    move.reconsider = False
    _raise_priority(move, group)


def _raise_priority(move: Move, group: Group) -> None:
    """One missing member blocks the whole group: the others have become more urgent."""
    for member in group.members:
        if member.phase.is_open:
            queue(move, member)
    if group.rank is not None:
        queue_partial(move, move.state.ranks[group.rank], group)


def environment_failed(move: Move, event: EnvironmentFailed) -> None:
    """Never a reward of 0: the member is tried again, or its group is dropped."""
    _fail(move, event.rollout, event.reason, DropReason.ENV_ERROR)


def rollout_failed(move: Move, event: RolloutFailed) -> None:
    """As `environment_failed`, for what the engine lost."""
    _fail(move, event.rollout, event.reason, DropReason.ENGINE_ERROR)


def _fail(move: Move, rollout_id: RolloutId, reason: str, dropped: DropReason) -> None:
    rollout = move.state.rollout(rollout_id)
    if rollout is None or not rollout.phase.is_open:
        move.ignore()
        return
    state, group = move.state, move.state.groups[rollout_id.group]
    count_fault(move, reason)
    _release(move, rollout)
    enter(move, rollout, Phase.ENDED)
    if rollout_id.attempt + 1 >= state.limits.max_attempts:
        drop_group(move, group, dropped)
        return
    state.counters.retries += 1
    try_again(move, group, rollout_id.member)


def timer_fired(move: Move, event: TimerFired) -> None:
    """Ends what waits for the scheduler past its deadline; the rest ends at its next event."""
    state = move.state
    if event.at_ns != state.timer_ns:
        move.ignore()  # another was set for an earlier time
        return
    state.timer_ns = None
    end_late_groups(move)
    while state.deadlines and state.deadlines[0][0] <= move.now_ns:
        rollout = state.rollout(state.deadlines.popleft()[1])
        if rollout is None or rollout.n_turns == 0 or rollout.deadline_ns > move.now_ns:
            continue
        if rollout.phase is Phase.READY or rollout.phase.is_parked:
            _end(move, rollout, Outcome.TRUNCATED_TIME)


def set_timer(move: Move) -> None:
    """Keeps a timer for the earliest deadline of a rollout or group that is still open."""
    state = move.state
    groups = state.group_deadlines
    if groups and (state.timer_ns is None or groups[0][0] < state.timer_ns):
        _set_timer(move, groups[0][0])
    if state.timer_ns is not None:
        return
    while state.deadlines:
        rollout = state.rollout(state.deadlines[0][1])
        if rollout is not None and rollout.phase.is_open:
            _set_timer(move, state.deadlines[0][0])
            return
        state.deadlines.popleft()


def _set_timer(move: Move, at_ns: int) -> None:
    move.state.timer_ns = at_ns
    move.say(SetTimer(at_ns))
