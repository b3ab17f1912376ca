"""Laws that hold in every run: no token and no nanosecond is lost or counted twice."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import ROLES, RandomRun, play

from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.sums import Doing, Training, rank_ns, trainer_ns

seeds = st.integers(0, 2**32 - 1)


def random_ledger(seed: int, n_turns: int) -> Ledger:
    random_run = RandomRun(seed)
    return play(Ledger(random_run.run), list(random_run.turns(n_turns)))


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(0, 250))
def test_sampled_tokens_are_trained_or_lost(seed, n_turns):
    summary = random_ledger(seed, n_turns).summary(0)
    lost = summary["waterfall"].values()
    assert min(lost) >= 0
    assert summary["sampled_tokens"] == summary["trained_tokens"] + sum(lost)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 250))
def test_the_time_of_ranks_and_trainer_is_the_time_of_the_step(seed, n_turns):
    for window in random_ledger(seed, n_turns).snapshot()["windows"]:
        sums = Counter(window["sums"])
        step_ns = sums["window_ns"]
        assert sum(sums[rank_ns(doing)] for doing in Doing) == len(ROLES) * step_ns
        assert sum(sums[trainer_ns(training)] for training in Training) == step_ns
        assert sums["trainer_waiting_device_ns"] <= sums[rank_ns(Doing.TRAINER)]


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 250))
def test_the_spans_of_each_track_follow_each_other_without_gap_or_overlap(seed, n_turns):
    ledger = random_ledger(seed, n_turns)
    names = {*map(str, Doing), *map(str, Training)}
    spans: dict[tuple[int, int], list[dict]] = {}
    for event in ledger.timeline()["traceEvents"]:
        if event["ph"] == "X" and event["name"] in names and event["pid"] < 3:
            spans.setdefault((event["pid"], event["tid"]), []).append(event)
    wall_us = ledger.now_ns / 1e3
    for track in spans.values():
        ends = [event["ts"] + event["dur"] for event in track]
        assert track[0]["ts"] == 0
        assert abs(ends[-1] - wall_us) < 1e-3
        for end, following in zip(ends, track[1:], strict=False):
            assert abs(end - following["ts"]) < 1e-3
    assert len(spans) == (len(ROLES) + 1 if wall_us else 0)


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(0, 250))
def test_without_a_timeline_all_else_is_the_same(seed, n_turns):
    random_run = RandomRun(seed)
    bare = play(Ledger(random_run.run, timeline=False), list(random_run.turns(n_turns)))
    drawn = random_ledger(seed, n_turns)
    assert (bare.summary(0), bare.rows()) == (drawn.summary(0), drawn.rows())
    assert bare.timeline()["traceEvents"] == []
