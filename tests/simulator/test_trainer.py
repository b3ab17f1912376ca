"""Step times of the simulated trainer: by hand, and against one that acts instant by instant."""

from collections import deque

import numpy as np
import pytest

from tiderl_jax.core.commands import StepMode
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event, Trained
from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.step_costs import (
    Arrivals,
    StepCosts,
    best_scorers,
    colocated_s,
    simulated_decoupled_s,
    swap_per_microbatch_s,
)
from tiderl_jax.simulator.clock import NS_PER_S, VirtualClock
from tiderl_jax.simulator.trainer import VirtualTrainer, Work

COSTS = StepCosts(
    score_s_per_token=1.0,
    forward_s_per_token=2.0,
    backward_s_per_token=4.0,
    swap_s=10.0,
    microbatch_s=0.0,
)
UNSCORED = StepCosts(0.0, 2.0, 4.0, 0.0, 0.0)
COLOCATED, DECOUPLED = StepMode.COLOCATED, StepMode.DECOUPLED
RANKS = [RankId(2), RankId(5), RankId(7)]


class Bench:
    """A trainer, and when its feeds were trained."""

    def __init__(self, costs: StepCosts = COSTS, update_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.trainer = VirtualTrainer(self.clock, costs, lambda n_ranks: update_s * n_ranks)
        self.trained_s: list[float] = []

    def start(self, mode: StepMode, n_scorers: int = 0, ranks: list[RankId] = RANKS) -> None:
        self.step = getattr(self, "step", -1) + 1
        self.n_feeds = 0
        self.trainer.start(self.step, mode, n_scorers, ranks)

    def feed(self, *works: tuple[int, int], last: bool = False) -> None:
        """(worker, tokens) of each microbatch."""
        feed, self.n_feeds = self.n_feeds, self.n_feeds + 1

        def done() -> Event:
            self.trained_s.append(self.clock.now_ns / NS_PER_S)
            return Trained(self.step, feed)

        self.trainer.feed(self.step, feed, [Work(*work) for work in works], last, done)

    def at(self, at_s: float, *works: tuple[int, int], last: bool = False) -> None:
        """Feeds later."""
        self.clock.at(round(at_s * NS_PER_S), lambda: self.feed(*works, last=last))

    def run(self) -> list[float]:
        """Until the step is over."""
        while self.trainer.is_open:
            self.clock.next()
        return self.trained_s


def test_a_colocated_feed_swaps_scores_swaps_and_trains_every_rank_for_itself() -> None:
    bench = Bench()
    bench.start(COLOCATED)
    bench.feed((0, 3), (1, 2), (0, 1), last=True)
    assert bench.run() == [10 + (3 + 1) + 10 + 6 * (3 + 1)]


def test_each_colocated_feed_pays_two_swaps() -> None:
    bench = Bench()
    bench.start(COLOCATED)
    bench.feed((0, 1))
    bench.at(100, (0, 1), last=True)
    assert bench.run() == [27, 127]


def test_without_a_scorer_a_feed_is_trained_only() -> None:
    bench = Bench(UNSCORED)
    bench.start(COLOCATED)
    bench.feed((0, 3), (1, 2), last=True)
    assert bench.run() == [18]


def test_decoupled_ranks_overlap_score_and_forward_and_backward_waits_for_the_score() -> None:
    bench = Bench()
    bench.start(COLOCATED)
    bench.feed((0, 1), last=True)
    bench.run()
    bench.start(DECOUPLED, 1)
    began_s = bench.trained_s[-1]
    bench.feed((0, 1), (1, 1), (0, 1), last=True)
    # The scorer swaps first: scores at 11, 12, 13; forwards at 2 (both workers), then backwards
    # at 11 + 4 and 12 + 4; the third one's forward follows at 17, its backward at 21.
    assert bench.run()[-1] == began_s + 21


def test_only_ranks_that_begin_or_cease_to_score_swap() -> None:
    bench = Bench()
    ends_s = []
    for _ in range(2):
        bench.start(DECOUPLED, 1)
        began_s = bench.clock.now_ns / NS_PER_S
        bench.feed((0, 1), last=True)
        ends_s.append(bench.run()[-1] - began_s)
    assert ends_s == [10 + 1 + 4, 2 + 4]


def test_ranks_that_scored_go_on_scoring_when_others_join() -> None:
    bench = Bench()
    for ranks, swap_s in (([*RANKS], 10), ([*RANKS, RankId(9)], 0), (RANKS[:2], 10)):
        bench.start(DECOUPLED, 1, ranks)
        began_s = bench.clock.now_ns / NS_PER_S
        bench.feed((0, 1), last=True)
        assert bench.run()[-1] - began_s == max(2, swap_s + 1) + 4


def test_a_rank_that_scored_swaps_back_before_it_trains() -> None:
    bench = Bench()
    bench.start(DECOUPLED, 1)
    bench.feed((0, 1), last=True)
    began_s = bench.run()[-1]
    bench.start(COLOCATED)
    bench.feed((2, 1), last=True)
    assert bench.run()[-1] - began_s == 10 + (10 + 1 + 10 + 6)


def test_the_update_follows_the_last_feed_on_all_ranks() -> None:
    bench = Bench(update_s=2.0)
    bench.start(COLOCATED)
    bench.feed((0, 1), last=True)
    assert bench.run() == [27 + 6]
    assert not bench.trainer.is_busy
    bench.start(DECOUPLED, 1)
    bench.feed((0, 1), last=True)
    assert bench.run()[-1] == 33 + 15 + 6


def test_a_feed_is_trained_when_it_and_all_before_it_are() -> None:
    bench = Bench()
    bench.start(DECOUPLED, 1)
    bench.feed((0, 20))
    bench.feed((1, 1))
    bench.at(500, (1, 1), last=True)
    assert bench.run() == [120, 120, 506]


def instant_by_instant(
    arrivals: list[tuple[int, int, int]], n_workers: int, n_scorers: int
) -> dict[int, int]:
    """End of each (arrival, worker, tokens), each rank acting once per second."""
    to_score: deque[int] = deque()
    queues: list[deque[int]] = [deque() for _ in range(n_workers)]
    score_left, scoring = {}, [-1] * n_scorers
    forward_left, backward_left, ends = {}, {}, {}
    for now in range(100_000):
        for i, (at, worker, n_tokens) in enumerate(arrivals):
            if at == now:
                to_score.append(i)
                queues[worker].append(i)
                score_left[i], forward_left[i], backward_left[i] = (
                    n_tokens,
                    2 * n_tokens,
                    4 * n_tokens,
                )
        scored = {i for i, left in score_left.items() if left == 0}
        for scorer in range(n_scorers):
            if scoring[scorer] < 0 and to_score:
                scoring[scorer] = to_score.popleft()
            if scoring[scorer] >= 0:
                score_left[scoring[scorer]] -= 1
                if score_left[scoring[scorer]] == 0:
                    scoring[scorer] = -1
        for queue in queues:
            if queue and forward_left[queue[0]]:
                forward_left[queue[0]] -= 1
            elif queue and queue[0] in scored:
                backward_left[queue[0]] -= 1
                if backward_left[queue[0]] == 0:
                    ends[queue.popleft()] = now + 1
        if len(ends) == len(arrivals):
            return ends
    raise AssertionError("It never ends.")


@pytest.mark.parametrize("seed", range(10))
def test_a_decoupled_stream_ends_when_ranks_that_act_every_second_end(seed: int) -> None:
    draw = np.random.default_rng(seed)
    n_scorers, n_workers = int(draw.integers(1, 3)), int(draw.integers(1, 4))
    arrivals = sorted(
        (10 + int(draw.integers(0, 200)), int(draw.integers(n_workers)), int(draw.integers(1, 9)))
        for _ in range(20)
    )
    bench = Bench()
    bench.start(DECOUPLED, n_scorers, [RankId(i) for i in range(n_scorers + n_workers)])
    for i, (at_s, worker, n_tokens) in enumerate(arrivals):
        bench.at(at_s, (worker, n_tokens), last=i == len(arrivals) - 1)
    ends = instant_by_instant(arrivals, n_workers, n_scorers)
    in_order = np.maximum.accumulate([ends[i] for i in range(len(arrivals))])
    assert bench.run() == in_order.tolist()


@pytest.mark.parametrize("n_ready", [0, 3, 8])
@pytest.mark.parametrize("gap_s", [0.5, 30.0])
def test_steps_last_as_long_as_the_scheduler_expects(n_ready: int, gap_s: float) -> None:
    """The scheduler's own simulations of both modes, of equal microbatches that come one by one."""
    costs = StepCosts(1.0, 2.0, 4.0, 3.0, 0.5)
    arrivals, ranks = Arrivals(n_ready, gap_s, 8), [RankId(i) for i in range(4)]
    times = costs.times(1)
    n_scorers = best_scorers(times, len(ranks))
    n_workers = len(ranks) - n_scorers
    bench = Bench(costs)
    bench.start(DECOUPLED, n_scorers, ranks)
    bench.feed((0, 0), last=True)
    began_s = bench.run()[-1]  # the scorers have swapped
    bench.start(DECOUPLED, n_scorers, ranks)
    for i in range(8):
        bench.at(began_s + arrivals.at_s(i), (i % n_workers, 1), last=i == 7)
    expected_s = simulated_decoupled_s(arrivals, times, len(ranks), n_scorers)
    assert bench.run()[-1] - began_s == pytest.approx(expected_s)


@pytest.mark.parametrize("n_ready", [3, 8])
@pytest.mark.parametrize(("expected", "n_at_once"), [(colocated_s, 8), (swap_per_microbatch_s, 4)])
def test_colocated_waves_last_as_long_as_the_scheduler_expects(
    n_ready: int, expected: object, n_at_once: int
) -> None:
    costs, ranks = StepCosts(1.0, 2.0, 4.0, 3.0, 0.5), [RankId(i) for i in range(4)]
    arrivals, n_fed = Arrivals(n_ready, 5.0, 8), 0
    bench = Bench(costs)
    bench.start(COLOCATED, 0, ranks)
    while n_fed < 8:
        now_s = max(bench.clock.now_ns / NS_PER_S, arrivals.at_s(n_fed))
        n_arrived = sum(arrivals.at_s(i) <= now_s for i in range(8))
        wave = range(min(n_at_once, n_arrived - n_fed))
        n_fed += len(wave)
        bench.at(now_s, *((i % 4, 1) for i in wave), last=n_fed == 8)
        bench.clock.next()
    assert bench.trained_s[-1] == expected(arrivals, costs.times(1), 4)


def test_steps_and_feeds_that_come_out_of_turn_are_refused() -> None:
    bench = Bench()
    with pytest.raises(InvariantError, match="out of turn"):
        bench.trainer.feed(0, 0, [], True, lambda: None)
    bench.start(COLOCATED)
    with pytest.raises(InvariantError, match="while step 0 is open"):
        bench.trainer.start(1, COLOCATED, 0, RANKS)
    for step, feed in ((1, 0), (0, 1)):
        with pytest.raises(InvariantError, match="out of turn"):
            bench.trainer.feed(step, feed, [], True, lambda: None)
    with pytest.raises(InvariantError, match="a worker that there is not"):
        bench.feed((3, 1))
    bench.n_feeds = 0
    bench.feed((0, 1))
    with pytest.raises(InvariantError, match="while its ranks are at work"):
        bench.feed((0, 1))
    bench.n_feeds = 1
    bench.clock.next()
    bench.feed((0, 1), last=True)
    with pytest.raises(InvariantError, match="out of turn"):
        bench.feed((0, 1))


@pytest.mark.parametrize(
    ("costs", "mode", "n_scorers"),
    [
        (COSTS, DECOUPLED, 0),
        (COSTS, DECOUPLED, 3),
        (COSTS, COLOCATED, 1),
        (UNSCORED, DECOUPLED, 1),
        (COSTS, DECOUPLED, -1),
    ],
)
def test_ranks_that_cannot_be_divided_so_are_refused(
    costs: StepCosts, mode: StepMode, n_scorers: int
) -> None:
    with pytest.raises(InvariantError, match="scorers of 3 ranks"):
        Bench(costs).start(mode, n_scorers)


def test_without_a_scorer_all_ranks_may_stream() -> None:
    bench = Bench(UNSCORED)
    bench.start(DECOUPLED, 0)
    bench.feed((0, 1), (1, 2), (2, 3), last=True)
    assert bench.run() == [18]
