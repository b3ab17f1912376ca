"""How scorer and actor share a training step, and when the step takes what is ready.

`full_batch` and `swap_per_microbatch` are what RA2P is held against (TideRL, loss C2); `colocated`
and `decoupled` are its two modes; `ra2p` chooses between them at each step (TideRL, section on
Resource-Aware Ref-Actor Pipelining).
"""

from tiderl_jax.core.commands import StepMode
from tiderl_jax.core.ids import RolloutId
from tiderl_jax.scheduler.microbatches import packable
from tiderl_jax.scheduler.policies import StepPlan
from tiderl_jax.scheduler.state import State, Step
from tiderl_jax.scheduler.step_costs import (
    Arrivals,
    MicrobatchTimes,
    best_scorers,
    colocated_s,
    decoupled_s,
    simulated_decoupled_s,
)

_NS_PER_S = 1e9
_COLOCATED = StepPlan(StepMode.COLOCATED, 0)


def microbatch_times(state: State) -> MicrobatchTimes:
    """Seconds of a full microbatch on one trainer rank."""
    return state.costs.times(state.limits.microbatch_tokens)


def arrivals(state: State, n_groups: int) -> Arrivals:
    """What is ready of a step of `n_groups`, and how fast the rest is expected."""
    readiness, tokens = state.readiness, state.limits.microbatch_tokens
    n_total = max(1, round(n_groups * readiness.group_tokens / tokens))
    n_ready = min(n_total, state.buffer_tokens // tokens)
    return Arrivals(n_ready, readiness.expected_gap_ns(state.now_ns, tokens) / _NS_PER_S, n_total)


def _something_is_ready(state: State, n_groups: int) -> bool:
    whole = len(state.buffer) >= n_groups
    return whole or state.buffer_tokens >= state.limits.microbatch_tokens


def _all(step: Step) -> list[RolloutId]:
    return list(step.waiting)


class FullBatchPipelining:
    """Waits for the whole batch: the scorer sees all of it, then the actor."""

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """Not before the last group is ready."""
        return _COLOCATED if len(state.buffer) >= n_groups else None

    def feed(self, state: State, step: Step) -> list[RolloutId] | None:
        """Everything at once."""
        return _all(step)


class SwapPerMicrobatchPipelining:
    """Streams through shared ranks: scorer and actor swap for every round of microbatches."""

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """As soon as one microbatch is ready."""
        return _COLOCATED if _something_is_ready(state, n_groups) else None

    def feed(self, state: State, step: Step) -> list[RolloutId] | None:
        """One microbatch for every worker that can have one, when the round before is trained."""
        if step.n_feeds > step.n_trained:
            return None
        limits, taken, n_tokens = state.limits, list[RolloutId](), 0
        for rollout, tokens in step.waiting.items():
            if taken and n_tokens + tokens > limits.microbatch_tokens * step.n_workers:
                return taken
            taken.append(rollout)
            n_tokens += tokens
        return taken if step.n_missing == 0 or n_tokens >= limits.microbatch_tokens else None


class ColocatedPipelining:
    """Optimised co-located aggregation: what is ready goes in one wave, with two swaps."""

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """As soon as one microbatch is ready."""
        return _COLOCATED if _something_is_ready(state, n_groups) else None

    def feed(self, state: State, step: Step) -> list[RolloutId] | None:
        """All that is ready, once it saturates every rank or is the rest of the batch."""
        if step.mode is StepMode.DECOUPLED:
            return _stream(state, step)
        if step.n_feeds > step.n_trained:
            return None
        saturating = step.n_workers * state.limits.microbatch_tokens
        if step.n_missing and sum(step.waiting.values()) < saturating:
            return None
        return _all(step)


def _stream(state: State, step: Step) -> list[RolloutId] | None:
    """Whole microbatches at once; what does not fill one waits, unless the ranks would be idle."""
    if step.n_missing == 0 or step.n_feeds == step.n_trained:
        return _all(step)
    full, _ = packable(list(step.waiting.items()), state.limits.microbatch_tokens)
    return [rollout for rollout, _ in full] or None


class DecoupledPipelining(ColocatedPipelining):
    """Decoupled streaming: some ranks only score, the others only train."""

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """As soon as one microbatch is ready; one rank alone cannot be divided."""
        if not _something_is_ready(state, n_groups):
            return None
        return _decoupled(state) or _COLOCATED


def _decoupled(state: State) -> StepPlan | None:
    """The split of the trainer's ranks that balances scoring and training; None: none does."""
    times = microbatch_times(state)
    n_scorers = best_scorers(times, state.n_trainers)
    if times.score_s > 0 and n_scorers == 0:
        return None
    return StepPlan(StepMode.DECOUPLED, n_scorers)


class Ra2pPipelining(ColocatedPipelining):
    """The cheaper mode at each step, by RAS and TPRM (TideRL's cost model).

    C_dec in closed form, the co-located cost by a small simulation.
    """

    def plan(self, state: State, n_groups: int) -> StepPlan | None:
        """As soon as one microbatch is ready."""
        if not _something_is_ready(state, n_groups):
            return None
        decoupled = _decoupled(state)
        if decoupled is None:
            return _COLOCATED
        expected, times, n_ranks = (
            arrivals(state, n_groups),
            microbatch_times(state),
            (state.n_trainers),
        )
        streams_s = self.decoupled_s(expected, times, n_ranks, decoupled.n_scorers)
        return decoupled if streams_s <= colocated_s(expected, times, n_ranks) else _COLOCATED

    def decoupled_s(
        self, expected: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int
    ) -> float:
        """C_dec as the paper gives it."""
        return decoupled_s(expected, times, n_ranks, n_scorers)


class PlannedRa2pPipelining(Ra2pPipelining):
    """RA2P with both costs by simulation."""

    def decoupled_s(
        self, expected: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int
    ) -> float:
        """The decoupled pipeline, microbatch by microbatch."""
        return simulated_decoupled_s(expected, times, n_ranks, n_scorers)
