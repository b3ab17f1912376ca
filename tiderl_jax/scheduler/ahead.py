"""Environments that open ahead (ours): what staleness does not let in yet may at least get ready.

An environment can take as long to open as a rollout takes to end. Opening it samples nothing, so no
bound on staleness speaks against it. A group that arrives beyond the bound is `ahead`: its members
are placed and their environments opened, then they are held, with their clocks stopped, until the
bound lets the group in and its rank serves the weights that it may train under.
"""

from tiderl_jax.core.commands import ResumeEnvironment
from tiderl_jax.scheduler.groups import set_deadline, start_clock
from tiderl_jax.scheduler.phases import enter
from tiderl_jax.scheduler.placement import move_group
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, Phase, Rank, Rollout


def is_held(move: Move, rollout: Rollout) -> bool:
    """Whether the first turn of a rollout whose environment is ready must wait."""
    state, group = move.state, move.state.groups[rollout.id.group]
    if group.is_evaluation or not move.policies.admission.opens_ahead:
        return False
    return group.ahead or not move.policies.staleness.may_start(state, state.rank_of(rollout))


def let_in(move: Move) -> None:
    """Groups are ahead no longer, the oldest first, as far as staleness lets them in now."""
    state, staleness = move.state, move.policies.staleness
    while state.ahead and state.n_begun_groups < staleness.horizon(state):
        group = state.groups[next(iter(state.ahead))]
        del state.ahead[group.id]
        group.ahead = False
        if group.rank is None:
            continue
        set_deadline(move, group)
        _to_emptiest(move, group, state.ranks[group.rank])
        for member in group.members:
            if member.phase is Phase.HELD:
                enter(move, member, Phase.HELD)  # it counts from now on


def _to_emptiest(move: Move, group: Group, rank: Rank) -> None:
    """Loads have changed since the group was placed, and it has no KV that would bind it."""
    state = move.state
    if state.placeable:
        target = state.ranks[state.placeable.first()]
        counted_tokens = sum(member.expected_tokens for member in group.members)
        if target.expected_tokens + counted_tokens < rank.expected_tokens:
            move_group(move, group, rank, target)


def begin_held(move: Move, rank: Rank) -> None:
    """First turns may run on a rank that has the right weights now; the clocks start."""
    state = move.state
    if not move.policies.staleness.may_start(state, rank):
        return
    for rollout in [state.live(rollout) for rollout in rank.held]:
        start_clock(move, rollout)
        rollout.ready_order = state.n_ready
        state.n_ready += 1
        enter(move, rollout, Phase.READY)
        move.say(ResumeEnvironment(rollout.id))
