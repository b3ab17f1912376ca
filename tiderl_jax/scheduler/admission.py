"""Which task starts, on which rank, when.

The three choices answer three questions (`policies.Admission`); `admit` asks them in one order:
evaluation, then groups that are partly admitted, then new groups, oldest first. The members of a
group go to one rank, the emptiest when its first member starts.
"""

from tiderl_jax.core.commands import Admit, Probe
from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.groups import (
    begin,
    give_up_probe,
    set_deadline,
    start_clock,
    turn_phase,
)
from tiderl_jax.scheduler.phases import enter, expected_tokens, queue_partial
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.state import Group, GroupPhase, Phase, Rank, State


class BatchAdmission:
    """Synchronous: the groups of a step start on ranks that serve the newest version, no sooner."""

    on_policy = True
    opens_ahead = False

    def needs_probe(self, state: State) -> bool:
        """Never: starting costs nothing."""
        return False

    def may_open(self, state: State, group: Group) -> bool:
        """Evaluation runs alone, before the groups of its step."""
        return group.is_evaluation or not state.evaluation_due

    def accepts(self, move: Move, rank: Rank, group: Group) -> bool:
        """Only the newest version rolls out."""
        return rank.version == move.state.learner.version or group.is_evaluation

    def fits(self, state: State, rank: Rank, group: Group) -> bool:
        """Turns queue for slots and for the pool; starting costs neither."""
        return True


class RequestAdmission:
    """Opens rollouts first come, first served, up to a cap per rank."""

    on_policy = False
    opens_ahead = False

    def needs_probe(self, state: State) -> bool:
        """Never: tokens are not looked at."""
        return False

    def may_open(self, state: State, group: Group) -> bool:
        """Always: the demand is paced by staleness already."""
        return True

    def accepts(self, move: Move, rank: Rank, group: Group) -> bool:
        """The staleness bound must hold for what trains."""
        return group.is_evaluation or move.policies.staleness.may_start(move.state, rank)

    def fits(self, state: State, rank: Rank, group: Group) -> bool:
        """The cap on open rollouts; without one, all that staleness lets in."""
        cap = state.limits.max_open_rollouts_per_rank
        return cap == 0 or rank.n_open < cap


class CtbAdmission:
    """Token-aware (TideRL, section on CTB): a rank is a pool that must hold the expected growth."""

    on_policy = False
    opens_ahead = False

    def needs_probe(self, state: State) -> bool:
        """Always: the estimate of a first turn comes from the probe."""
        return True

    def may_open(self, state: State, group: Group) -> bool:
        """Always: task diversity and staleness pace the demand already."""
        return True

    def accepts(self, move: Move, rank: Rank, group: Group) -> bool:
        """Paused rollouts come back before new ones start; evaluation waits for neither."""
        if group.is_evaluation:
            return True
        return rank.n_parked == 0 and move.policies.staleness.may_start(move.state, rank)

    def fits(self, state: State, rank: Rank, group: Group) -> bool:
        """The pool still holds the expected first turn; training gives way to evaluation."""
        taken = rank.expected_evaluation_tokens if group.is_evaluation else rank.expected_tokens
        return taken + expected_tokens(state, rank, group.prompt_tokens) <= rank.budget_tokens


class EagerCtbAdmission(CtbAdmission):
    """CTB that costs nothing while KV is not scarce: no probe delays a group that must fit.

    The environments of the next step's groups open while this step's are rolled out.
    """

    opens_ahead = True

    def accepts(self, move: Move, rank: Rank, group: Group) -> bool:
        """What is ahead samples nothing yet, so its rank may have any weights."""
        return rank.n_parked == 0 if group.ahead else super().accepts(move, rank, group)

    def needs_probe(self, state: State) -> bool:
        """Only when the pools might not hold all unfinished rollouts at their largest."""
        return state.n_unfinished_members * state.limits.max_context_tokens > state.pool_tokens


def admit(move: Move) -> None:
    """Admits, places and probes all that may start now."""
    if not (move.state.unprobed or move.state.unplaced):
        _fill_partial(move)
        return
    _probe(move, evaluation_only=True)
    _place(move, evaluation_only=True)
    _fill_partial(move)
    _place(move, evaluation_only=False)
    _probe(move, evaluation_only=False)


def _probe(move: Move, evaluation_only: bool) -> None:
    """Opens groups to admission: a group begins only when all of it may have environments."""
    state = move.state
    while state.unprobed:
        group = state.groups[state.unprobed.first()]
        if evaluation_only and not group.is_evaluation:
            return
        if not state.may_begin(group) or not (group.is_evaluation or _may_probe_training(state)):
            return
        state.unprobed.discard(group.id)
        begin(state, group)
        turn_phase(move, group, GroupPhase.PROBING)
        group.n_probes += 1
        group.holds_probe = True
        state.n_environments += 1
        move.say(Probe(group.id))


def _may_probe_training(state: State) -> bool:
    """Not while evaluation tasks are on their way: they pin the version that training waits for."""
    return not any(purpose.is_evaluation for purpose in state.requested)


def _place(move: Move, evaluation_only: bool) -> None:
    state, admission = move.state, move.policies.admission
    while state.unplaced:
        group = _next_to_place(state)
        if evaluation_only and not group.is_evaluation:
            return
        if not (group.begun or state.may_begin(group)) or not admission.may_open(state, group):
            return
        rank = _emptiest(move, group)
        if rank is None:
            return
        if not group.begun:
            begin(state, group)
        state.unplaced.discard(group.id)
        group.rank = rank.spec.rank
        queue_partial(move, rank, group)
        _fill(move, rank)


def _next_to_place(state: State) -> Group:
    """Evaluation first; but while it waits for environments, groups that have theirs go on.

    They were probed before the evaluation came, and it waits for them.
    """
    first = state.groups[state.unplaced.first()]
    if not first.is_evaluation or first.begun or state.may_begin(first):
        return first
    begun = (state.groups[group] for group in state.unplaced)
    return min((g for g in begun if g.begun), key=lambda group: group.born, default=first)


def _emptiest(move: Move, group: Group) -> Rank | None:
    state, admission = move.state, move.policies.admission
    if group.is_evaluation:
        if not state.evaluable:
            return None
        rank = state.ranks[state.evaluable.first()]
        return rank if admission.fits(state, rank, group) else None
    while state.placeable:
        rank = state.ranks[state.placeable.first()]
        if admission.accepts(move, rank, group):
            if state.n_loading and rank.n_open >= _share(state):
                return None  # the ranks that still load get theirs
            return rank if admission.fits(state, rank, group) else None
        state.placeable.discard(rank.spec.rank)  # comes back with the next change on this rank
    return None


def _share(state: State) -> int:
    """Open rollouts of each rank if all were spread evenly."""
    return -(-state.n_unfinished_members // state.n_rollout_ranks)


def _fill_partial(move: Move) -> None:
    """Tries the ranks where something changed."""
    ranks = move.state.ranks
    for rank in [ranks[rank] for rank in move.touched if ranks[rank].partial]:
        _fill(move, rank)


def _fill(move: Move, rank: Rank) -> None:
    """Admits pending members of the rank's groups until the next one does not fit."""
    state, admission = move.state, move.policies.admission
    while rank.partial and rank.role is Role.ROLLOUT:
        group = state.groups[rank.partial.first()]
        if not (admission.accepts(move, rank, group) and admission.fits(state, rank, group)):
            return
        give_up_probe(state, group)
        if state.n_environments == state.limits.max_open_environments:
            return  # only when this group alone is larger than the limit
        _admit(move, rank, group)


def _admit(move: Move, rank: Rank, group: Group) -> None:
    rollout = group.members[group.pending.popleft()]
    rollout.rank = rank.spec.rank
    rollout.context_tokens = group.prompt_tokens
    start_clock(move, rollout)
    set_deadline(move, group)
    enter(move, rollout, Phase.STARTING)
    queue_partial(move, rank, group)
    move.say(Admit(rollout.id, rank.spec.rank))
