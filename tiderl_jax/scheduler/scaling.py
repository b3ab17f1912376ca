"""Which ranks roll out and which train (TideRL, section on Elastic Resource Scaling)."""

from tiderl_jax.core.ids import RankId, Role
from tiderl_jax.scheduler.pipelining import arrivals, microbatch_times
from tiderl_jax.scheduler.readiness import Window
from tiderl_jax.scheduler.state import State
from tiderl_jax.scheduler.step_costs import break_even_ready

Moves = list[tuple[RankId, Role]]


class StaticScaling:
    """The partition that the run started with, for ever; every step takes B_ideal."""

    def plan(self, state: State, window: Window | None) -> Moves:
        """No rank moves."""
        return []

    def n_groups(self, state: State) -> int:
        """B_ideal."""
        return state.limits.prompts_per_step


def toward_rollout(state: State, n_ranks: int) -> Moves:
    """The trainer gives up its last ranks, as far as the limits allow."""
    trainers = state.with_role(Role.TRAINER)
    n_allowed = state.limits.max_rollout_ranks - len(state.with_role(Role.ROLLOUT))
    n_moved = max(0, min(n_ranks, n_allowed, len(trainers) - 1))
    return [(rank.spec.rank, Role.ROLLOUT) for rank in trainers[len(trainers) - n_moved :]]


def toward_trainer(state: State) -> Moves:
    """The rollout rank with the least to lose goes to the trainer: one per step, no more."""
    ranks = state.with_role(Role.ROLLOUT)
    if len(ranks) <= max(1, state.limits.min_rollout_ranks):
        return []
    idlest = min(ranks, key=lambda rank: (rank.expected_tokens, -rank.spec.rank))
    return [(idlest.spec.rank, Role.TRAINER)]


class ErsScaling:
    """Deficits by trend, with confirmation, as the paper gives them.

    Generation deficit: fewer groups than B_ideal in the buffer; the trainer gives up a rank.
    Consumption deficit: HoL > tau x step time, or RAS above break-even; the trainer gets one, and
    takes less at once (down to B_min) until the buffer has filled again.
    At cold start and while an evaluation is due, rollout has all the ranks that it may have.
    """

    def plan(self, state: State, window: Window | None) -> Moves:
        """The moves between an update (or the start) and its broadcast."""
        elastic, config = state.elastic, state.limits.elastic
        if window is None or state.evaluation_due:
            return toward_rollout(state, len(state.ranks))
        self._follow(state)
        if elastic.generation_deficits >= config.confirm_steps:
            elastic.generation_deficits = 0
            return toward_rollout(state, 1)
        if elastic.consumption_deficits >= config.confirm_steps:
            elastic.consumption_deficits = 0
            return self._consume(state)
        return []

    def _follow(self, state: State) -> None:
        """Takes the queue's metrics into their trends, and counts deficits in a row."""
        elastic, limits = state.elastic, state.limits
        weight, n_ready = limits.elastic.trend_weight, len(state.buffer)
        if elastic.buffer_groups < 0:
            elastic.buffer_groups = n_ready
        elastic.buffer_groups += weight * (n_ready - elastic.buffer_groups)
        elastic.head_of_line_ns += weight * (head_of_line_ns(state) - elastic.head_of_line_ns)
        late = elastic.head_of_line_ns > limits.elastic.tau * state.readiness.step_ns
        consumes_too_slowly = late or _above_break_even(state)
        generates_too_slowly = elastic.buffer_groups < limits.prompts_per_step
        if consumes_too_slowly:
            elastic.consumption_deficits += 1
            elastic.generation_deficits = 0
        elif generates_too_slowly:
            elastic.generation_deficits += 1
            elastic.consumption_deficits = 0
        else:
            elastic.generation_deficits = elastic.consumption_deficits = 0

    def _consume(self, state: State) -> Moves:
        moves, limits = toward_trainer(state), state.limits
        if moves:
            n_before = len(state.with_role(Role.ROLLOUT))
            lowered = state.elastic.n_groups * (n_before - 1) // n_before
            state.elastic.n_groups = max(limits.min_prompts_per_step, lowered)
        return moves

    def n_groups(self, state: State) -> int:
        """The fetch size: back to B_ideal once the buffer holds as much."""
        if len(state.buffer) >= state.limits.prompts_per_step:
            state.elastic.n_groups = state.limits.prompts_per_step
        return state.elastic.n_groups


def head_of_line_ns(state: State) -> int:
    """HoL: the age of the oldest group in the buffer; 0 when it is empty."""
    oldest = next(iter(state.buffer), None)
    return 0 if oldest is None else state.now_ns - state.groups[oldest].since_ns


def _above_break_even(state: State) -> bool:
    """Whether more is ready than the number at which decoupled streaming becomes the cheaper."""
    expected = arrivals(state, state.limits.prompts_per_step)
    n_even = break_even_ready(expected, microbatch_times(state), state.n_trainers)
    return 0 < n_even < expected.n_ready
