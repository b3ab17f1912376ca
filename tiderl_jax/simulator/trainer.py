"""When the feeds of a training step are trained: the trainer's ranks in both of RA2P's modes.

What a rank does and how long it takes is known when the feed comes, so a feed costs one happening.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from tiderl_jax.core.commands import StepMode
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.step_costs import StepCosts
from tiderl_jax.simulator.clock import NS_PER_S, Happening, VirtualClock


@dataclass(frozen=True, slots=True)
class Work:
    """A microbatch: who trains it, and how long it is."""

    worker: int  # index among the step's ranks that train
    n_tokens: int


@dataclass(slots=True)
class _Step:
    number: int
    mode: StepMode
    n_ranks: int
    worker_free_ns: list[float]
    scorer_free_ns: list[tuple[float, int]]  # a heap, with the scorer's index
    n_feeds: int = 0
    n_trained: int = 0
    trained_ns: float = 0.0  # when all feeds so far are trained
    closed: bool = False


class VirtualTrainer:
    """One step at a time, feed by feed."""

    def __init__(
        self, clock: VirtualClock, costs: StepCosts, update_s: Callable[[int], float]
    ) -> None:
        """`update_s`: reduction of gradients and optimizer, by number of ranks."""
        self._clock = clock
        self._costs = costs
        self._update_s = update_s
        self._step: _Step | None = None
        self._scorers: tuple[RankId, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self._step is not None

    @property
    def is_busy(self) -> bool:
        """Whether a feed is not trained yet, or its update runs."""
        return self._step is not None and self._step.n_feeds > self._step.n_trained

    def start(self, step: int, mode: StepMode, n_scorers: int, ranks: Sequence[RankId]) -> None:
        """Opens a step. Ranks that begin or cease to score swap their weights first.

        Raises:
          InvariantError: a step is open, or the ranks cannot be divided so.
        """
        if self._step is not None:
            raise InvariantError(f"Step {step} starts while step {self._step.number} is open.")
        is_scored = self._costs.score_s_per_token > 0
        scores_apart = mode is StepMode.DECOUPLED and is_scored
        if not 0 <= n_scorers < len(ranks) or (n_scorers > 0) != scores_apart:
            raise InvariantError(
                f"Step {step} is {mode.value} with {n_scorers} scorers of {len(ranks)} ranks."
            )
        scorers = self._choose_scorers(ranks, n_scorers)
        free_ns = {rank: float(self._clock.now_ns) for rank in ranks}
        for rank in set(scorers) ^ set(self._scorers):
            if rank in free_ns:
                free_ns[rank] += self._costs.swap_s * NS_PER_S
        self._scorers = scorers
        scorer_free_ns = [(free_ns.pop(rank), i) for i, rank in enumerate(scorers)]
        heapify(scorer_free_ns)
        self._step = _Step(step, mode, len(ranks), list(free_ns.values()), scorer_free_ns)

    def _choose_scorers(self, ranks: Sequence[RankId], n_scorers: int) -> tuple[RankId, ...]:
        """Those that scored before, then the last ones."""
        ordered = sorted(ranks, key=lambda rank: (rank not in self._scorers, -rank))
        return tuple(ordered[:n_scorers])

    def feed(
        self, step: int, feed: int, microbatches: Sequence[Work], last: bool, done: Happening
    ) -> None:
        """Trains microbatches; `done` happens when they and all before them are trained.

        After the last feed of a step it happens when the update is done, and the step is closed.

        Raises:
          InvariantError: the feed does not belong to the open step, or comes out of turn.
        """
        now = self._checked(step, feed, microbatches)
        now.n_feeds += 1
        now.closed = last
        colocated = now.mode is StepMode.COLOCATED
        ends_ns = (self._colocated if colocated else self._decoupled)(now, microbatches)
        now.trained_ns = max(now.trained_ns, ends_ns)
        after_ns = self._update_s(now.n_ranks) * NS_PER_S if last else 0.0
        self._clock.at(round(now.trained_ns + after_ns), lambda: self._finish(now, done))

    def _finish(self, step: _Step, done: Happening) -> Event | None:
        step.n_trained += 1
        if step.closed and step.n_trained == step.n_feeds:
            self._step = None
        return done()

    def _checked(self, step: int, feed: int, microbatches: Sequence[Work]) -> _Step:
        now = self._step
        if now is None or now.number != step or now.closed or now.n_feeds != feed:
            raise InvariantError(f"Feed {feed} of step {step} comes out of turn.")
        if now.mode is StepMode.COLOCATED and self.is_busy:
            raise InvariantError(f"Feed {feed} of step {step} comes while its ranks are at work.")
        if any(not 0 <= work.worker < len(now.worker_free_ns) for work in microbatches):
            raise InvariantError(f"Feed {feed} of step {step} names a worker that there is not.")
        return now

    def _colocated(self, step: _Step, microbatches: Sequence[Work]) -> float:
        """Every rank for itself: swap, score all its microbatches, swap back, train them."""
        score_s = [0.0] * len(step.worker_free_ns)
        train_s = [0.0] * len(step.worker_free_ns)
        for work in microbatches:
            times = self._costs.times(work.n_tokens)
            score_s[work.worker] += times.score_s
            train_s[work.worker] += times.train_s
        ends_ns = float(self._clock.now_ns)
        for worker, free_ns in enumerate(step.worker_free_ns):
            if train_s[worker] > 0:
                work_s = 2 * self._costs.swap_s + score_s[worker] + train_s[worker]
                begins_ns = max(free_ns, self._clock.now_ns)
                ends_ns = max(ends_ns, begins_ns + work_s * NS_PER_S)
                step.worker_free_ns[worker] = begins_ns + work_s * NS_PER_S
        return ends_ns

    def _decoupled(self, step: _Step, microbatches: Sequence[Work]) -> float:
        """The next free scorer scores; a backward waits for its score, a forward does not."""
        now_ns = ends_ns = float(self._clock.now_ns)
        for work in microbatches:
            times = self._costs.times(work.n_tokens)
            scored_ns = now_ns
            if step.scorer_free_ns:
                free_ns, scorer = step.scorer_free_ns[0]
                scored_ns = max(now_ns, free_ns) + times.score_s * NS_PER_S
                heapreplace(step.scorer_free_ns, (scored_ns, scorer))
            begins_ns = max(now_ns, step.worker_free_ns[work.worker])
            forwarded_ns = begins_ns + times.forward_s * NS_PER_S
            trained_ns = max(forwarded_ns, scored_ns) + times.backward_s * NS_PER_S
            step.worker_free_ns[work.worker] = trained_ns
            ends_ns = max(ends_ns, trained_ns)
        return ends_ns
