"""Shaping of microbatches: what is packed with what, and on which worker."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tiderl_jax.core.commands import Microbatch, StepMode
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.scheduler.microbatches import packable, shape

LIMIT = 100
SIZES = st.lists(st.integers(1, 130), max_size=60)
WORKERS = st.integers(1, 7)
MODES = st.sampled_from(StepMode)


def named(sizes: Sequence[int]) -> list[tuple[RolloutId, int]]:
    return [
        (RolloutId(GroupId(Purpose.TRAIN, i // 8), i % 8), tokens) for i, tokens in enumerate(sizes)
    ]


def sums(microbatches: Sequence[Microbatch], n_workers: int) -> list[int]:
    tokens = Counter[int]()
    for microbatch in microbatches:
        tokens[microbatch.worker] += microbatch.context_tokens
    return [tokens[worker] for worker in range(n_workers)]


@given(SIZES, WORKERS, MODES, st.booleans())
def test_every_trajectory_is_in_one_microbatch_that_keeps_to_the_limit(
    sizes: list[int], n_workers: int, mode: StepMode, last: bool
) -> None:
    tokens = dict(named(sizes))
    shaped = shape(named(sizes), LIMIT, n_workers, mode, last)
    assert sorted(rollout for part in shaped for rollout in part.rollouts) == sorted(tokens)
    for microbatch in shaped:
        assert microbatch.rollouts
        assert 0 <= microbatch.worker < n_workers
        assert microbatch.context_tokens == sum(tokens[r] for r in microbatch.rollouts)
        assert microbatch.context_tokens <= LIMIT or len(microbatch.rollouts) == 1


@given(SIZES, WORKERS, MODES, st.booleans(), st.randoms())
def test_the_order_of_readiness_changes_nothing(
    sizes: list[int], n_workers: int, mode: StepMode, last: bool, order: random.Random
) -> None:
    rollouts = named(sizes)
    shaped = shape(rollouts, LIMIT, n_workers, mode, last)
    order.shuffle(rollouts)
    assert shape(rollouts, LIMIT, n_workers, mode, last) == shaped


@given(SIZES.filter(bool), WORKERS)
def test_co_located_workers_differ_by_one_trajectory_at_most(
    sizes: list[int], n_workers: int
) -> None:
    tokens = sums(shape(named(sizes), LIMIT, n_workers, StepMode.COLOCATED, True), n_workers)
    assert max(tokens) - min(tokens) <= max(sizes)


def test_co_located_trajectories_go_longest_first_in_zig_zag() -> None:
    shaped = shape(named([10, 60, 20, 50, 30, 40]), LIMIT, 2, StepMode.COLOCATED, True)
    assert sums(shaped, 2) == [60 + 30 + 20, 50 + 40 + 10]


@given(SIZES, WORKERS, MODES)
def test_any_two_microbatches_of_a_worker_would_exceed_the_limit_together(
    sizes: list[int], n_workers: int, mode: StepMode
) -> None:
    """They are filled: so there are fewer than two for every limit's worth of tokens."""
    shaped = shape(named(sizes), LIMIT, n_workers, mode, False)
    for worker in range(n_workers):
        own = [m.context_tokens for m in shaped if m.worker == worker]
        if len(own) > 1:
            assert sum(sorted(own)[:2]) > LIMIT


@given(SIZES, WORKERS, st.booleans())
def test_decoupled_microbatches_go_round_the_workers_in_turn(
    sizes: list[int], n_workers: int, last: bool
) -> None:
    shaped = shape(named(sizes), LIMIT, n_workers, StepMode.DECOUPLED, last)
    assert [m.worker for m in shaped] == [i % n_workers for i in range(len(shaped))]


@given(SIZES.filter(bool), WORKERS)
def test_the_pipeline_ends_with_the_shortest_trajectory_alone(
    sizes: list[int], n_workers: int
) -> None:
    shaped = shape(named(sizes), LIMIT, n_workers, StepMode.DECOUPLED, True)
    assert len(shaped[-1].rollouts) == 1
    assert shaped[-1].context_tokens == min(sizes)
    assert shaped[-1].context_tokens == min(m.context_tokens for m in shaped)


# Found by search: spread over eight workers, one of these would not fit where it is emptiest.
TIGHT = [55, 55, 55, 50, 50, 45, 45, 45, 40, 40, 35, 30, 30, 25, 25, 25, 25, 20, 5]


def test_spreading_keeps_to_the_limit_where_filling_was_tight() -> None:
    shaped = shape(named([*TIGHT, 1]), LIMIT, 8, StepMode.DECOUPLED, True)
    assert max(m.context_tokens for m in shaped) <= LIMIT


def test_spread_microbatches_go_fullest_first() -> None:
    shaped = shape(named([40, 30, 25, 20, 1]), LIMIT, 3, StepMode.DECOUPLED, True)
    assert [m.context_tokens for m in shaped] == [45, 40, 30, 1]


def test_the_end_of_a_step_keeps_every_worker_busy() -> None:
    """Nine trajectories that would fit one microbatch, and three workers."""
    shaped = shape(named([11] * 9), LIMIT, 3, StepMode.DECOUPLED, True)
    assert [m.context_tokens for m in shaped] == [33, 33, 22, 11]


def train(microbatches: Sequence[Sequence[int]], n_actors: int) -> tuple[float, float]:
    """When the last backward ends, and the flush bubble: what the other actors wait for it.

    All ready, a scorer for three actors; 1 ms for each pass besides 3 + 4 + 7 ms per 10 tokens.
    """
    scorers, actors = [0.0] * (n_actors // 3), [0.0] * n_actors
    for i, microbatch in enumerate(microbatches):
        size = sum(microbatch) / 10
        scorer = scorers.index(min(scorers))
        scorers[scorer] += 1 + 3 * size
        forwarded = actors[i % n_actors] + 1 + 4 * size
        actors[i % n_actors] = max(forwarded, scorers[scorer]) + 1 + 7 * size
    return max(actors), sum(max(actors) - actor for actor in actors)


def filled_as_they_come(sizes: Sequence[int]) -> list[list[int]]:
    parts: list[list[int]] = []
    for tokens in sizes:
        if parts and sum(parts[-1]) + tokens <= LIMIT:
            parts[-1].append(tokens)
        else:
            parts.append([tokens])
    return parts


@pytest.mark.parametrize("n_actors", [3, 6])
@pytest.mark.parametrize("n_rollouts", [40, 100])
def test_ending_small_shortens_the_flush_bubble_and_the_step(
    n_actors: int, n_rollouts: int
) -> None:
    """Against filled microbatches without the small end, and against filling as they come."""
    draws, measured = random.Random(0), list[list[tuple[float, float]]]()
    for _ in range(100):
        sizes = [min(LIMIT, 1 + int(draws.lognormvariate(2.9, 0.7))) for _ in range(n_rollouts)]
        tokens = dict(named(sizes))
        small, filled = (
            [
                [tokens[rollout] for rollout in microbatch.rollouts]
                for microbatch in shape(named(sizes), LIMIT, n_actors, StepMode.DECOUPLED, last)
            ]
            for last in (True, False)
        )
        shapings = (small, filled, filled_as_they_come(sizes))
        measured.append([train(parts, n_actors) for parts in shapings])
    ends = [sum(end for end, _ in column) for column in zip(*measured, strict=True)]
    bubbles = [sum(bubble for _, bubble in column) for column in zip(*measured, strict=True)]
    assert bubbles[0] < 0.97 * bubbles[1] < bubbles[2]
    assert ends[0] < ends[1] < ends[2]


@given(SIZES)
@example([LIMIT])
def test_what_fills_no_microbatch_waits_and_would_fit_one(sizes: list[int]) -> None:
    rollouts = named(sizes)
    full, rest = packable(rollouts, LIMIT)
    assert sorted([*full, *rest]) == sorted(rollouts)
    assert sum(tokens for _, tokens in rest) < LIMIT
    assert full or sum(sizes) < LIMIT


@given(SIZES, WORKERS)
def test_full_microbatches_are_shaped_as_they_were_found(sizes: list[int], n_workers: int) -> None:
    """Feeding them first changes nothing in how all would be packed."""
    full, _ = packable(named(sizes), LIMIT)
    early = shape(full, LIMIT, n_workers, StepMode.DECOUPLED, False)
    all_ = shape(named(sizes), LIMIT, n_workers, StepMode.DECOUPLED, False)
    assert early == all_[: len(early)]
    assert len(all_) - len(early) <= 1
