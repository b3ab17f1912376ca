"""Which ready turn runs, who is paused, whose KV stays.

No choice may break the pool law of a rank: KV kept for waiting rollouts, plus what running turns
may come to need, never exceeds the budget (in whole pages).
"""

from enum import Enum

from tiderl_jax.core.commands import (
    Pause,
    PauseEnvironment,
    Resume,
    ResumeEnvironment,
    RunTurn,
)
from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.phases import enter, expected_tokens, turn_tokens
from tiderl_jax.scheduler.placement import migrate
from tiderl_jax.scheduler.policies import Move
from tiderl_jax.scheduler.ranking import Key
from tiderl_jax.scheduler.state import Phase, Rank, Rollout, State


def _missing_tokens(state: State, rank: Rank, rollout: Rollout) -> int:
    """Pool tokens that are missing for the rollout's next turn; at most 0 when it fits."""
    return turn_tokens(state, rank, rollout) - rollout.used_tokens - rank.free_tokens


def _start_turn(move: Move, rank: Rank, rollout: Rollout) -> None:
    if rollout.phase is Phase.PARKED_READY:
        _resume(move, rank, rollout)
    rollout.resident = True
    enter(move, rollout, Phase.DECODING)
    move.say(RunTurn(rollout.id, rank.spec.rank))


def _resume(move: Move, rank: Rank, rollout: Rollout) -> None:
    move.state.counters.resumes += 1
    move.say(Resume(rollout.id, rank.spec.rank), ResumeEnvironment(rollout.id))


def _pause(move: Move, rank: Rank, rollout: Rollout) -> None:
    move.state.counters.pauses += 1
    rollout.held_tokens = 0
    parked = Phase.PARKED_READY if rollout.phase is Phase.READY else Phase.PARKED_ACTING
    enter(move, rollout, parked)
    move.say(Pause(rollout.id, rank.spec.rank), PauseEnvironment(rollout.id))


def _wait(move: Move, rollout: Rollout) -> None:
    enter(move, rollout, Phase.PARKED_READY if rollout.phase.is_parked else Phase.READY)


def _start_or_wait(move: Move, rollout: Rollout) -> None:
    """A turn that nothing is in the way of starts without queueing: most do."""
    state, rank = move.state, move.state.rank_of(rollout)
    is_free = rank.version is not None and rank.n_free_slots > 0
    is_alone = not (rank.ready or move.touched or rollout.phase.is_parked)
    if is_free and is_alone and not state.stopping and _missing_tokens(state, rank, rollout) <= 0:
        _start_turn(move, rank, rollout)
    else:
        _wait(move, rollout)


class RequestBatching:
    """Request-level continuous batching: slots filled FIFO, KV left to an LRU cache between turns.

    A rollout stays on its rank (sticky routing).
    """

    keeps_kv = False

    def take(self, move: Move, rollout: Rollout) -> None:
        """Every turn on the same rank."""
        _start_or_wait(move, rollout)

    def key(self, state: State, rollout: Rollout) -> Key:
        """First ready, first served."""
        return (rollout.ready_order,)

    def run(self, move: Move, rank: Rank) -> None:
        """Starts turns in order until a slot or the pool is exhausted."""
        while rank.ready and rank.n_free_slots > 0:
            rollout = move.state.live(rank.ready.first())
            if _missing_tokens(move.state, rank, rollout) > 0:
                return
            _start_turn(move, rank, rollout)


class NonstickyBatching(RequestBatching):
    """Each turn goes to the rank with the fewest rollouts, wherever its KV may be."""

    def take(self, move: Move, rollout: Rollout) -> None:
        """The emptiest rank that takes new groups."""
        state, rank = move.state, move.state.rank_of(rollout)
        if state.placeable:
            target = state.ranks[state.placeable.first()]
            if target is not rank and target.n_open < rank.n_open:
                migrate(move, rollout, target)
        _start_or_wait(move, rollout)


class LockstepBatching(RequestBatching):
    """Environments advance turn by turn: a round of turns starts when all rollouts are ready."""

    def take(self, move: Move, rollout: Rollout) -> None:
        """Every turn waits for its round."""
        _wait(move, rollout)

    def run(self, move: Move, rank: Rank) -> None:
        """Starts what belongs to the present round; the last one to be ready opens the next."""
        state = move.state
        if state.n_working == 0:
            state.lockstep_order = state.n_ready
            for other in state.with_role(Role.ROLLOUT):
                if other.version is not None:
                    self._run_round(move, other)
        else:
            self._run_round(move, rank)

    def _run_round(self, move: Move, rank: Rank) -> None:
        state = move.state
        while rank.ready and rank.n_free_slots > 0:
            rollout = state.live(rank.ready.first())
            outside = rollout.ready_order >= state.lockstep_order
            if outside or _missing_tokens(state, rank, rollout) > 0:
                return
            _start_turn(move, rank, rollout)


class _Room(Enum):
    MADE = "made"
    COMES = "comes"  # when turns of lower priority have ended
    BLOCKED = "blocked"  # by rollouts of higher priority


class CtbBatching:
    """Continuous Task Batching (TideRL, section on CTB): tasks keep their KV between turns.

    When a turn lacks room, rollouts of lower priority that do not decode are paused, the lowest
    first. A paused rollout competes for its next turn with its priority; since nothing new is
    admitted beside it, it comes back before anything new starts.
    """

    keeps_kv = True

    def take(self, move: Move, rollout: Rollout) -> None:
        """Every turn on the same rank; a paused rollout may escape (see `run`)."""
        _start_or_wait(move, rollout)

    def key(self, state: State, rollout: Rollout) -> Key:
        """P = w1 evaluation + w2 group completion + w3 active + w4 context; ties by age."""
        group, limits = state.groups[rollout.id.group], state.limits
        weights = limits.priority
        priority = (
            weights.evaluation * group.is_evaluation
            + weights.group_completion * group.share_ended
            + weights.active * (rollout.n_turns > 0)
            + weights.context * rollout.context_tokens / limits.max_context_tokens
        )
        return (-priority, group.born, rollout.id.member)

    def run(self, move: Move, rank: Rank) -> None:
        """Starts turns by priority, then lets paused environments work on where there is room.

        A turn that only waits for running turns of lower priority is not overtaken. One that
        waits for rollouts of higher priority lets others use the room meanwhile.
        """
        blocked: list[Rollout] = []
        while rank.ready and rank.n_free_slots > len(blocked):
            rollout = move.state.live(rank.ready.first())
            room = self._make_room(move, rank, rollout)
            if room is _Room.COMES:
                break
            if room is _Room.MADE:
                _start_turn(move, rank, rollout)
            else:
                blocked.append(rollout)
                rank.ready.discard(rollout.id)
        for rollout in blocked:
            rank.ready.put(rollout.id, self.key(move.state, rollout))
        if rank.parked_acting and not rank.ready:
            self._resume_acting(move, rank)
        elif blocked and blocked[0].phase is Phase.PARKED_READY:
            self._escape(move, blocked[0])

    def _escape(self, move: Move, rollout: Rollout) -> None:
        """A paused rollout leaves its rank for one that could run it at once and waits for none.

        Its KV is lost anyway; what it gives up is the group's common prefix.
        """
        state = move.state
        if not state.placeable:
            return
        target = state.ranks[state.placeable.first()]
        grown = expected_tokens(state, target, rollout.context_tokens)
        if target.ready or target.n_parked or target.n_free_slots == 0:
            return
        if target.expected_tokens + grown > target.budget_tokens:
            return
        if turn_tokens(state, target, rollout) <= target.free_tokens:
            move.state.counters.escapes += 1
            migrate(move, rollout, target)
            self.run(move, target)

    def _make_room(self, move: Move, rank: Rank, rollout: Rollout) -> _Room:
        state, missing = move.state, _missing_tokens(move.state, rank, rollout)
        if missing <= 0:
            return _Room.MADE
        key, victims = rank.ready[rollout.id], list[Rollout]()
        while missing > 0 and rank.idle:
            victim = state.live(rank.idle.first())
            if self.key(state, victim) <= key:
                break
            victims.append(victim)
            rank.idle.discard(victim.id)
            missing -= victim.used_tokens
        if missing <= 0:
            for victim in victims:
                _pause(move, rank, victim)
            return _Room.MADE
        for victim in victims:
            rank.idle.put(victim.id, tuple(-part for part in self.key(state, victim)))
        for other in map(state.live, rank.decoding):
            if self.key(state, other) > key:
                missing -= other.used_tokens
        return _Room.COMES if missing <= 0 else _Room.BLOCKED

    def _resume_acting(self, move: Move, rank: Rank) -> None:
        """Restarts the clocks of paused environments whose next turn would fit now."""
        while rank.parked_acting:
            rollout = move.state.live(rank.parked_acting.first())
            if _missing_tokens(move.state, rank, rollout) > 0:
                return
            _resume(move, rank, rollout)
            enter(move, rollout, Phase.ACTING)
