"""What a step costs in each mode, held against small simulations written another way."""

from collections.abc import Callable, Iterator
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiderl_jax.scheduler.step_costs import (
    Arrivals,
    MicrobatchTimes,
    StepCosts,
    best_scorers,
    break_even_ready,
    colocated_s,
    decoupled_s,
    simulated_decoupled_s,
    swap_per_microbatch_s,
)

# A 7B actor and its reference on one GPU each, microbatches of 8192 tokens.
TIMES = MicrobatchTimes(score_s=0.3, forward_s=0.35, backward_s=0.7, swap_s=0.6)
UNSCORED = MicrobatchTimes(score_s=0, forward_s=0.35, backward_s=0.7, swap_s=0)

ARRIVALS = st.builds(
    Arrivals, n_ready=st.integers(0, 40), gap_s=st.floats(0, 5), n_total=st.integers(1, 40)
)
ANY_TIMES = st.builds(
    MicrobatchTimes,
    score_s=st.floats(0.01, 2),
    forward_s=st.floats(0.01, 2),
    backward_s=st.floats(0.01, 2),
    swap_s=st.floats(0, 2),
)


def ready_times_s(arrivals: Arrivals) -> list[float]:
    later = range(1, max(0, arrivals.n_total - arrivals.n_ready) + 1)
    return ([0.0] * arrivals.n_ready + [i * arrivals.gap_s for i in later])[: arrivals.n_total]


def streamed_s(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int) -> float:
    """Runs whatever can start first, until nothing is left: one job per pass of a microbatch."""
    ready_s = ready_times_s(arrivals)
    n_actors, scored_s = n_ranks - n_scorers, dict[int, float]()
    scorers, actors = [0.0] * n_scorers, [0.0] * n_actors
    to_score = list(enumerate(ready_s))
    to_train = [[i for i in range(len(ready_s)) if i % n_actors == a] for a in range(n_actors)]
    while to_score:
        free = min(range(n_scorers), key=lambda scorer: scorers[scorer])
        i, at_s = to_score.pop(0)
        scorers[free] = scored_s[i] = max(scorers[free], at_s) + times.score_s
    while any(to_train):
        actor = min((a for a in range(n_actors) if to_train[a]), key=lambda a: actors[a])
        i = to_train[actor].pop(0)
        forwarded_s = max(actors[actor], ready_s[i]) + times.forward_s
        actors[actor] = max(forwarded_s, scored_s[i]) + times.backward_s
    return max(actors)


def in_waves_s(
    arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_at_once: int = 1_000_000
) -> float:
    """Queues the ready ones at the ranks one by one, and waits for the slowest rank."""
    waiting, now_s = ready_times_s(arrivals), 0.0
    while waiting:
        now_s = max(now_s, waiting[0])
        wave = [at_s for at_s in waiting if at_s <= now_s][:n_at_once]
        del waiting[: len(wave)]
        ranks = [2 * times.swap_s] * n_ranks
        for i in range(len(wave)):
            ranks[i % n_ranks] += times.score_s + times.forward_s + times.backward_s
        now_s += max(ranks)
    return now_s


@given(ARRIVALS, ANY_TIMES, st.integers(2, 12), st.data())
def test_the_simulated_pipeline_is_that_of_jobs_run_one_by_one(
    arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, data: st.DataObject
) -> None:
    n_scorers = data.draw(st.integers(1, n_ranks - 1))
    cost_s = simulated_decoupled_s(arrivals, times, n_ranks, n_scorers)
    assert cost_s == pytest.approx(streamed_s(arrivals, times, n_ranks, n_scorers))


@given(ARRIVALS, ANY_TIMES, st.integers(1, 12))
def test_co_located_cost_is_that_of_waves_run_one_by_one(
    arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int
) -> None:
    assert colocated_s(arrivals, times, n_ranks) == pytest.approx(
        in_waves_s(arrivals, times, n_ranks)
    )
    assert swap_per_microbatch_s(arrivals, times, n_ranks) == pytest.approx(
        in_waves_s(arrivals, times, n_ranks, n_at_once=n_ranks)
    )


def grid(n_ranks: int, swap_s: float) -> Iterator[tuple[Arrivals, MicrobatchTimes, int]]:
    """RAS x TPRM for steps of 8 to 64 microbatches."""
    times = MicrobatchTimes(TIMES.score_s, TIMES.forward_s, TIMES.backward_s, swap_s)
    for n_total in (8, 12, 16, 24, 32, 48, 64):
        for n_ready in sorted({round(n_total * i / 16) for i in range(17)}):
            for gap_s in (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2, 2.0, 4.0):
                yield Arrivals(n_ready, gap_s, n_total), times, n_ranks


Model = Callable[[Arrivals, MicrobatchTimes, int, int], float]


def outcome(decoupled: Model, n_ranks: int, swap_s: float) -> tuple[float, int, int]:
    """Share of the grid on which the choice is within 2 %; cells that each mode truly wins."""
    n_good = n_cells = n_decoupled = n_colocated = 0
    for arrivals, times, _ in grid(n_ranks, swap_s):
        n_scorers = best_scorers(times, n_ranks)
        streams_s = streamed_s(arrivals, times, n_ranks, n_scorers)
        waves_s = in_waves_s(arrivals, times, n_ranks)
        modelled_s = decoupled(arrivals, times, n_ranks, n_scorers)
        chosen_s = streams_s if modelled_s <= colocated_s(arrivals, times, n_ranks) else waves_s
        n_good += chosen_s <= 1.02 * min(streams_s, waves_s)
        n_decoupled += streams_s < waves_s
        n_colocated += waves_s < streams_s
        n_cells += 1
    return n_good / n_cells, n_decoupled, n_colocated


@pytest.mark.parametrize("n_ranks", [4, 24])
@pytest.mark.parametrize("swap_s", [0.15, 0.3, 0.6])
def test_the_closed_form_picks_within_two_percent_of_the_better_mode(
    n_ranks: int, swap_s: float
) -> None:
    share, _, _ = outcome(decoupled_s, n_ranks, swap_s)
    assert share >= 0.95


@pytest.mark.parametrize(("n_ranks", "swap_s"), [(4, 0.6), (24, 0.3)])
def test_each_mode_is_the_better_one_somewhere(n_ranks: int, swap_s: float) -> None:
    _, n_decoupled, n_colocated = outcome(decoupled_s, n_ranks, swap_s)
    assert n_decoupled > 0
    assert n_colocated > 0


@pytest.mark.parametrize("n_ranks", [4, 24])
def test_the_planned_choice_is_the_better_mode_everywhere(n_ranks: int) -> None:
    share, _, _ = outcome(simulated_decoupled_s, n_ranks, 0.3)
    assert share == 1


@pytest.mark.parametrize("n_ranks", [4, 24])
def test_the_closed_form_as_printed_would_pick_worse(n_ranks: int) -> None:
    """The reason for our reading of it."""

    def printed_s(
        arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int
    ) -> float:
        n_actors = n_ranks - n_scorers
        rounds_s = ready_times_s(arrivals)[(arrivals.n_total - 1) % n_actors :: n_actors]
        gaps_s = [after - before for before, after in zip([0.0, *rounds_s], rounds_s, strict=False)]
        fill_s = sum(range(n_actors)) * times.score_s
        return fill_s + sum(max(gap_s, times.train_s) for gap_s in gaps_s)

    share, _, _ = outcome(printed_s, n_ranks, 0.6)
    assert share < 0.9


def test_steady_rounds_are_exact_in_closed_form() -> None:
    """One actor, one scorer, all ready: there is no bubble to estimate."""
    arrivals = Arrivals(n_ready=5, gap_s=1, n_total=5)
    assert decoupled_s(arrivals, TIMES, 2, 1) == pytest.approx(5 * 1.05)
    assert simulated_decoupled_s(arrivals, TIMES, 2, 1) == pytest.approx(5 * 1.05)


def test_slow_scorers_set_the_pace() -> None:
    slow = MicrobatchTimes(score_s=3, forward_s=0.35, backward_s=0.7, swap_s=0.6)
    arrivals = Arrivals(n_ready=40, gap_s=1, n_total=40)
    assert decoupled_s(arrivals, slow, 5, 1) == pytest.approx(40 * 3, rel=0.1)
    assert simulated_decoupled_s(arrivals, slow, 5, 1) == pytest.approx(40 * 3 + 0.7)


def test_slow_arrivals_set_the_pace() -> None:
    arrivals = Arrivals(n_ready=1, gap_s=10, n_total=9)
    for cost_s in (decoupled_s, simulated_decoupled_s):
        assert cost_s(arrivals, TIMES, 4, 1) == pytest.approx(80 + 1.05, abs=0.5)
    assert colocated_s(arrivals, TIMES, 4) == pytest.approx(80 + 2 * 0.6 + 1.35)


def test_eight_ready_microbatches_take_at_most_seven_tenths_of_streaming_with_swaps() -> None:
    """The setting of the paper's micro-benchmark: four GPUs, one of them the reference's."""
    arrivals = Arrivals(n_ready=8, gap_s=1, n_total=8)
    chosen_s = min(streamed_s(arrivals, TIMES, 4, 1), in_waves_s(arrivals, TIMES, 4))
    assert chosen_s <= 0.7 * in_waves_s(arrivals, TIMES, 4, n_at_once=4)


@given(ANY_TIMES, st.integers(2, 40))
def test_the_best_scorers_keep_up_better_than_any_other_number(
    times: MicrobatchTimes, n_ranks: int
) -> None:
    def rate(n_scorers: int) -> float:
        return min(n_scorers / times.score_s, (n_ranks - n_scorers) / times.train_s)

    best = best_scorers(times, n_ranks)
    assert 1 <= best < n_ranks
    assert rate(best) == pytest.approx(max(rate(n) for n in range(1, n_ranks)))


def test_there_are_no_scorers_without_something_to_score_or_with_one_rank() -> None:
    assert best_scorers(UNSCORED, 8) == 0
    assert best_scorers(TIMES, 1) == 0


@given(ARRIVALS, st.integers(1, 9))
def test_without_a_scorer_streaming_costs_forward_and_backward_only(
    arrivals: Arrivals, n_ranks: int
) -> None:
    streams_s = simulated_decoupled_s(arrivals, UNSCORED, n_ranks, 0)
    n_rounds = ceil(arrivals.n_total / n_ranks)
    last_s = ready_times_s(arrivals)[-1]
    assert max(n_rounds * 1.05, last_s + 1.05) <= streams_s + 1e-9
    assert streams_s <= colocated_s(arrivals, UNSCORED, n_ranks) + 1e-9
    assert decoupled_s(arrivals, UNSCORED, n_ranks, 0) <= streams_s + 1e-9


def test_ranks_that_cannot_be_divided_never_stream() -> None:
    arrivals = Arrivals(n_ready=8, gap_s=1, n_total=8)
    for n_ranks, n_scorers in ((1, 0), (4, 4), (4, 0)):
        assert decoupled_s(arrivals, TIMES, n_ranks, n_scorers) == inf
        assert simulated_decoupled_s(arrivals, TIMES, n_ranks, n_scorers) == inf
    assert break_even_ready(arrivals, TIMES, 1) == 9


def test_what_never_arrives_costs_nothing() -> None:
    some, all_ = Arrivals(n_ready=6, gap_s=inf, n_total=20), Arrivals(6, 1, 6)
    for cost_s in (decoupled_s, simulated_decoupled_s):
        assert cost_s(some, TIMES, 4, 1) == cost_s(all_, TIMES, 4, 1)
        assert cost_s(Arrivals(0, inf, 20), TIMES, 4, 1) == 0
    assert colocated_s(some, TIMES, 4) == colocated_s(all_, TIMES, 4)


@given(st.floats(0, 3), st.integers(1, 20), st.integers(2, 8), ANY_TIMES)
def test_break_even_is_the_first_ready_count_at_which_streaming_is_not_dearer(
    gap_s: float, n_total: int, n_ranks: int, times: MicrobatchTimes
) -> None:
    n_even = break_even_ready(Arrivals(3, gap_s, n_total), times, n_ranks)

    def streams(n_ready: int) -> bool:
        arrivals, n_scorers = Arrivals(n_ready, gap_s, n_total), best_scorers(times, n_ranks)
        streamed = decoupled_s(arrivals, times, n_ranks, n_scorers)
        return streamed <= colocated_s(arrivals, times, n_ranks)

    assert not any(streams(n_ready) for n_ready in range(n_even))
    assert n_even == n_total + 1 or streams(n_even)


def test_streaming_that_costs_the_same_breaks_even() -> None:
    assert break_even_ready(Arrivals(n_ready=1, gap_s=1, n_total=1), UNSCORED, 4) == 0


def test_times_grow_with_tokens_and_carry_the_overhead_of_each_pass() -> None:
    costs = StepCosts(1e-4, 2e-4, 3e-4, swap_s=5, microbatch_s=0.01)
    times = costs.times(1000)
    assert (times.score_s, times.forward_s, times.backward_s) == pytest.approx((0.11, 0.21, 0.31))
    assert times.swap_s == 5
    assert StepCosts(0, 2e-4, 3e-4, swap_s=0, microbatch_s=0.01).times(1000).score_s == 0
