"""Laws that hold in every run: no token and no nanosecond is lost or counted twice."""

from hypothesis import given, settings
from hypothesis import strategies as st
from report_runs import RANKS, RandomRun, play

from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.sums import Doing, Training

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
def test_decoding_and_waiting_of_the_ranks_are_the_time_of_the_step(seed, n_turns):
    for row in random_ledger(seed, n_turns).rows():
        if "timing_s/step" not in row:
            continue
        step_s = row["timing_s/step"]
        busy_and_idle_s = row["timing_s/decoding"] + row["idle/rollout_s"]
        assert abs(busy_and_idle_s - len(RANKS) * step_s) < 1e-6
        assert abs(row["timing_s/training"] + row["idle/trainer_s"] - step_s) < 1e-6


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
    assert len(spans) == (len(RANKS) + 1 if wall_us else 0)
