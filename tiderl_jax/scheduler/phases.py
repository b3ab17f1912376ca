"""One door between the phases of a rollout, so that no sum and no queue is ever forgotten."""

import math

from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, Phase, Rank, Rollout, State

_GROWING = (Phase.STARTING, Phase.READY, Phase.DECODING, Phase.ACTING)
_WANTS_TURN = (Phase.READY, Phase.PARKED_READY)
_PAUSABLE = (Phase.READY, Phase.ACTING)


def turn_tokens(state: State, rank: Rank, rollout: Rollout) -> int:
    """Pool tokens that the rollout's next turn may come to need, in whole pages."""
    return rank.rounded(rollout.context_tokens + state.limits.max_tokens_per_turn)


def expected_tokens(state: State, rank: Rank, context_tokens: int) -> int:
    """Pool tokens after one more turn of the usual growth (CTB's first-turn and later estimate)."""
    grown = context_tokens + math.ceil(state.growth_tokens)
    return rank.rounded(min(grown, state.limits.max_context_tokens))


def enter(move: Move, rollout: Rollout, phase: Phase) -> None:
    """Puts a rollout into a phase, and into every sum and queue that the phase belongs to."""
    was, rollout.phase = rollout.phase, phase
    move.state.n_environments += phase.is_open - was.is_open
    if rollout.rank is None:
        return
    rank = move.state.rank_of(rollout)
    rank.n_open += phase.is_open - was.is_open
    rank.n_parked += phase.is_parked - was.is_parked
    if phase is Phase.DECODING:
        rank.decoding[rollout.id] = None
    else:
        rank.decoding.pop(rollout.id, None)
    _account(move.state, rank, rollout)
    queue(move, rollout)
    update_placeable(move.state, rank)
    move.touched[rank.spec.rank] = None


def _account(state: State, rank: Rank, rollout: Rollout) -> None:
    if rollout.phase is Phase.DECODING:
        used_tokens = turn_tokens(state, rank, rollout)
    else:
        used_tokens = rank.rounded(rollout.held_tokens)
    rank.used_tokens += used_tokens - rollout.used_tokens
    rollout.used_tokens = used_tokens
    grows = rollout.phase in _GROWING
    expected = expected_tokens(state, rank, rollout.context_tokens) if grows else 0
    change = expected - rollout.expected_tokens
    rollout.expected_tokens = expected
    rank.expected_tokens += change
    if rollout.id.group.purpose.is_evaluation:
        rank.expected_evaluation_tokens += change


def queue(move: Move, rollout: Rollout) -> None:
    """Files the rollout under its present priority wherever it waits."""
    rank = move.state.rank_of(rollout)
    key = move.policies.batching.key(move.state, rollout)
    if rollout.phase in _WANTS_TURN:
        rank.ready.put(rollout.id, key)
    else:
        rank.ready.discard(rollout.id)
    if rollout.phase in _PAUSABLE and rollout.held_tokens > 0:
        rank.idle.put(rollout.id, tuple(-part for part in key))
    else:
        rank.idle.discard(rollout.id)
    if rollout.phase is Phase.PARKED_ACTING:
        rank.parked_acting.put(rollout.id, key)
    else:
        rank.parked_acting.discard(rollout.id)


def queue_partial(move: Move, rank: Rank, group: Group) -> None:
    """Files a group with pending members on its rank: evaluation, nearly complete, oldest."""
    if group.pending:
        share = group.n_ended / len(group.members)
        rank.partial.put(group.id, (0 if group.is_evaluation else 1, -share, group.born))
    else:
        rank.partial.discard(group.id)
    update_placeable(move.state, rank)
    move.touched[rank.spec.rank] = None


def update_placeable(state: State, rank: Rank) -> None:
    """A rank takes new groups only when none of its own waits; the emptiest comes first."""
    if rank.partial or rank.version is None:
        state.placeable.discard(rank.spec.rank)
    else:
        state.placeable.put(rank.spec.rank, (rank.expected_tokens - rank.budget_tokens,))
