"""One door between the phases of a rollout, so that no sum and no queue is ever forgotten."""

import math

from tiderl_jax.core.ids import Purpose, Role
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, Phase, Rank, Rollout, State

_DECODING, _HELD, _PARKED_ACTING = Phase.DECODING, Phase.HELD, Phase.PARKED_ACTING
_ROLLOUT, _TRAIN = Role.ROLLOUT, Purpose.TRAIN


def turn_tokens(state: State, rank: Rank, rollout: Rollout) -> int:
    """Pool tokens that the rollout's next turn may come to need, in whole pages."""
    return rank.rounded(rollout.context_tokens + state.limits.max_tokens_per_turn)


def expected_tokens(state: State, rank: Rank, context_tokens: int) -> int:
    """Pool tokens after one more turn of the usual growth (CTB's first-turn and later estimate)."""
    grown, most = context_tokens + math.ceil(state.growth_tokens), state.limits.max_context_tokens
    return rank.rounded(grown if grown < most else most)


def enter(move: Move, rollout: Rollout, phase: Phase) -> None:
    """Puts a rollout into a phase, and into every sum and queue that the phase belongs to."""
    state, was = move.state, rollout.phase
    rollout.phase, rollout.since_ns = phase, move.now_ns
    n_opened = phase.is_open - was.is_open
    state.n_environments += n_opened
    state.n_working += phase.waits_for_driver - was.waits_for_driver
    if rollout.rank is None:
        return
    rank = state.ranks[rollout.rank]
    rank.n_open += n_opened
    rank.n_parked += phase.is_parked - was.is_parked
    if phase is _DECODING:
        rank.decoding[rollout.id] = None
        if rank.idle_since_ns is not None:
            note_idleness(move, rank)
    elif was is _DECODING:
        rank.decoding.pop(rollout.id, None)
        if not rank.decoding:
            note_idleness(move, rank)
    elif was is _HELD:
        rank.held.pop(rollout.id, None)
    is_ahead = phase is _HELD and state.groups[rollout.id.group].ahead
    if phase is _HELD and not is_ahead:
        rank.held[rollout.id] = None
    if _account(state, rank, rollout, is_ahead) or n_opened:
        update_placeable(state, rank)
    _file(move, rank, rollout)
    move.touched[rollout.rank] = None


def move_to(move: Move, rollout: Rollout, target: Rank) -> None:
    """Moves an open rollout to another rank, without its KV; a running turn is to go on there."""
    phase = Phase.READY if rollout.phase is Phase.DECODING else rollout.phase
    rollout.held_tokens, rollout.resident = 0, False
    n_environments, n_working = move.state.n_environments, move.state.n_working
    n_working += phase.waits_for_driver - rollout.phase.waits_for_driver
    enter(move, rollout, Phase.ENDED)
    rollout.rank, rollout.phase = target.spec.rank, Phase.PENDING
    if phase is Phase.READY:
        rollout.ready_order = move.state.n_ready
        move.state.n_ready += 1
    enter(move, rollout, phase)
    move.state.n_environments, move.state.n_working = n_environments, n_working


def note_idleness(move: Move, rank: Rank) -> None:
    """Counts the time in which a rollout rank runs no turn."""
    idle = rank.role is _ROLLOUT and not rank.decoding
    if idle and rank.idle_since_ns is None:
        rank.idle_since_ns = move.now_ns
    elif not idle and rank.idle_since_ns is not None:
        move.state.readiness.idle_rank_ns += move.now_ns - rank.idle_since_ns
        rank.idle_since_ns = None


def _account(state: State, rank: Rank, rollout: Rollout, is_ahead: bool) -> bool:
    """Counts the rollout's tokens; whether its rank expects more or fewer than before."""
    phase = rollout.phase
    if phase is _DECODING:
        used_tokens = turn_tokens(state, rank, rollout)
    else:
        used_tokens = rank.rounded(rollout.held_tokens)
    if used_tokens != rollout.used_tokens:
        rank.used_tokens += used_tokens - rollout.used_tokens
        rollout.used_tokens = used_tokens
    expected = 0
    if phase.may_grow and not is_ahead:
        expected = expected_tokens(state, rank, rollout.context_tokens)
    change = expected - rollout.expected_tokens
    if change == 0:
        return False
    rollout.expected_tokens = expected
    rank.expected_tokens += change
    if rollout.id.group.purpose is not _TRAIN:
        rank.expected_evaluation_tokens += change
        update_evaluable(state, rank)
    return True


def queue(move: Move, rollout: Rollout) -> None:
    """Files the rollout under its present priority wherever it waits."""
    _file(move, move.state.rank_of(rollout), rollout)


def _file(move: Move, rank: Rank, rollout: Rollout) -> None:
    name, phase = rollout.id, rollout.phase
    wants_turn, is_acting = phase.wants_turn, phase is _PARKED_ACTING
    pausable = phase.is_pausable and rollout.held_tokens > 0
    if not wants_turn:
        rank.ready.pop(name, None)
    if not pausable:
        rank.idle.pop(name, None)
    if not is_acting:
        rank.parked_acting.pop(name, None)
    if not (wants_turn or pausable or is_acting):
        return
    key = move.policies.batching.key(move.state, rollout)
    if wants_turn:
        rank.ready.put(name, key)
    if pausable:
        rank.idle.put(name, tuple([-part for part in key]))
    if is_acting:
        rank.parked_acting.put(name, key)


def queue_partial(move: Move, rank: Rank, group: Group) -> None:
    """Files a group with pending members on its rank: evaluation, nearly complete, oldest."""
    key = (0 if group.is_evaluation else 1, -group.share_ended, group.born)
    if group.pending:
        rank.partial.put(group.id, key)
    else:
        rank.partial.discard(group.id)
    update_placeable(move.state, rank)
    move.touched[rank.spec.rank] = None


def update_placeable(state: State, rank: Rank) -> None:
    """A rank takes new groups only when none of its own waits; the emptiest comes first."""
    if rank.role is _ROLLOUT and rank.version is not None and not rank.partial:
        key = (rank.expected_tokens - rank.budget_tokens, rank.n_open)
        state.placeable.put(rank.spec.rank, key)
    else:
        state.placeable.discard(rank.spec.rank)


def update_evaluable(state: State, rank: Rank) -> None:
    """A rank takes evaluation tasks when it has weights; the one with the fewest comes first."""
    if rank.version is None:
        state.evaluable.discard(rank.spec.rank)
    else:
        key = (rank.expected_evaluation_tokens, rank.spec.rank)
        state.evaluable.put(rank.spec.rank, key)
