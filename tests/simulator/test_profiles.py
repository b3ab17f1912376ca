"""Profiles against the figures that they are said to come from."""

from functools import cache

import numpy as np
import pytest

from tiderl_jax.core.identity import generator
from tiderl_jax.simulator.distributions import (
    Clipped,
    Counts,
    Delays,
    Geometric,
    LogNormal,
    Mixture,
    UniformInts,
)
from tiderl_jax.simulator.profiles import PROFILES, Workload

N = 100_000


def draw(of: Counts | Delays | Mixture) -> np.ndarray:
    return of.sample(generator(0, "profile"), N)


def only(name: str) -> Workload:
    (workload,) = PROFILES[name].workloads
    return workload


@cache
def percentiles(name: str, field: str) -> dict[int, float]:
    values = draw(getattr(only(name), field))
    return {p: float(np.percentile(values, p)) for p in (0, 50, 90, 99, 100)}


def test_a_log_normal_has_the_percentiles_that_it_is_made_of() -> None:
    values = draw(LogNormal.of_percentiles(29, 56))
    assert np.percentile(values, [50, 90]) == pytest.approx([29, 56], rel=0.02)


def test_a_mixture_is_rare_as_often_as_it_says() -> None:
    values = draw(Mixture(LogNormal(1, 0.1), LogNormal(1000, 0.5), 0.08))
    assert np.mean(values > 100) == pytest.approx(0.08, abs=0.003)
    assert np.median(values[values < 100]) == pytest.approx(1, rel=0.02)
    assert np.log(values[values > 100]).std() == pytest.approx(0.5, rel=0.05)


def test_uniform_integers_reach_both_ends_and_nothing_else() -> None:
    values, counts = np.unique(draw(UniformInts(3, 6)), return_counts=True)
    assert list(values) == [3, 4, 5, 6]
    assert counts / N == pytest.approx(0.25, abs=0.01)


def test_a_geometric_count_has_its_mean_and_begins_at_one() -> None:
    values = draw(Geometric(4))
    assert values.min() == 1
    assert values.mean() == pytest.approx(4, rel=0.02)


def test_clipping_puts_values_at_the_ends() -> None:
    values = draw(Clipped(Geometric(4), 2, 6))
    assert np.mean(values == 2) == pytest.approx(1 - 0.75**2, abs=0.01)
    assert np.mean(values == 6) == pytest.approx(0.75**5, abs=0.01)


def test_stretched_delays_are_longer_by_the_scale_and_wider_by_the_tail() -> None:
    mixture = Mixture(LogNormal(0.2, 1.0), LogNormal(60, 1.2), 0.08)
    assert Delays(mixture, 600).stretched(3, 0.5) == Delays(
        Mixture(LogNormal(0.2 * 3, 0.5), LogNormal(60 * 3, 0.6), 0.08), 1800
    )


def test_software_engineering_has_the_turns_of_the_replayed_sessions() -> None:
    turns = percentiles("swe", "turns")
    assert (turns[0], turns[100]) == (5, 99)
    assert [turns[50], turns[90]] == pytest.approx([29, 56], rel=0.03)
    assert 85 <= turns[99] <= 99


def test_software_engineering_has_the_tool_times_of_the_trace() -> None:
    tool_s = percentiles("swe", "answer_s")
    assert [tool_s[50], tool_s[90]] == pytest.approx([0.3, 13.6], rel=0.05)
    assert 216 * 0.9 <= tool_s[99] <= 216 * 1.5  # one log-normal overshoots the 99th percentile
    values = draw(only("swe").answer_s)
    assert np.mean(values > 60) == pytest.approx(0.04, abs=0.005)
    assert values[values > 60].sum() / values.sum() == pytest.approx(0.85, abs=0.12)


def test_software_engineering_has_the_token_counts_of_the_trace() -> None:
    generated = percentiles("swe", "generated_tokens")
    assert [generated[50], generated[90]] == pytest.approx([214, 1700], rel=0.05)
    assert percentiles("swe", "observation_tokens")[50] == pytest.approx(875, rel=0.03)


def test_terminal_tools_have_the_tail_of_the_trace() -> None:
    """As two log-normals: their 90th percentile is below that of the trace."""
    tool_s = percentiles("terminal", "answer_s")
    assert tool_s[50] == pytest.approx(0.3, abs=0.1)
    assert tool_s[99] == pytest.approx(216, rel=0.15)
    assert np.mean(draw(only("terminal").answer_s) > 60) == pytest.approx(0.04, abs=0.005)


def test_terminal_episodes_take_six_minutes() -> None:
    """Waiting, and decoding at the trace's 41 tokens per second."""
    terminal = only("terminal")
    turn_s = draw(terminal.answer_s).mean() + draw(terminal.generated_tokens).mean() / 41
    mean_s = draw(terminal.start_s).mean() + draw(terminal.turns).mean() * turn_s
    assert mean_s == pytest.approx(5.9 * 60, rel=0.25)
    assert terminal.never_ends == 0.02


def test_tool_calling_has_the_calls_of_its_benchmark() -> None:
    turns = np.rint(draw(only("toolcall").turns))
    assert turns.mean() == pytest.approx(5.7, abs=0.25)
    assert np.percentile(turns, 90) == 8
    assert turns.max() == 10
    assert percentiles("toolcall", "answer_s")[50] == pytest.approx(0.3, rel=0.03)


@pytest.mark.parametrize("name", ["game", "vlm"])
def test_games_have_the_turns_and_tokens_of_peers(name: str) -> None:
    turns, tokens = percentiles(name, "turns"), percentiles(name, "generated_tokens")
    assert (turns[0], turns[100], tokens[0], tokens[100]) == (5, 10, 64, 512)


def test_game_answers_take_one_to_fifty_milliseconds() -> None:
    values = draw(only("game").answer_s)
    assert values.max() == 0.05
    assert np.percentile(values, 2.5) == pytest.approx(0.001, rel=0.1)


def test_the_fast_and_the_slow_differ_manifold_in_how_long_they_take() -> None:
    fast_s, slow_s = (
        draw(workload.turns).mean() * draw(workload.answer_s).mean()
        for workload in PROFILES["mixed"].workloads
    )
    assert slow_s > 20 * fast_s


@pytest.mark.parametrize("name", PROFILES)
def test_every_draw_is_finite_and_at_least_a_token_a_turn_and_no_time(name: str) -> None:
    for workload in PROFILES[name].workloads:
        for field in ("turns", "prompt_tokens", "generated_tokens", "observation_tokens"):
            values = draw(getattr(workload, field))
            assert values.min() >= 1, field
            assert values.max() < 1e5, field
        for delays in (workload.start_s, workload.answer_s):
            assert 0 < draw(delays).min() <= draw(delays).max() <= delays.cap_s
        assert 0 < workload.success < 1
