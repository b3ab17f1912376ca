"""The timeline is a valid Chrome trace that shows who did what, and says what it leaves out."""

import json

import pytest
from report_runs import RANK_0, SMALL, RandomRun, play, small_run, train

from tiderl_jax.core.commands import Admit, Pause, Resume, RunTurn
from tiderl_jax.core.events import EnvironmentReady, TimerFired
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.timeline import Span, Timeline


@pytest.fixture
def trace() -> dict:
    return play(Ledger(SMALL), small_run()).timeline()


def spans_of(trace: dict, track: str) -> list[tuple[str, float, float]]:
    """(name, begin, end), in seconds, of one track's spans."""
    events = trace["traceEvents"]
    (where,) = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == track
    }
    return [
        (event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
        for event in events
        if event["ph"] == "X" and (event["pid"], event["tid"]) == where
    ]


def test_the_track_of_a_rank_shows_what_it_did(trace):
    assert spans_of(trace, "rank 0")[:5] == [
        ("not_admitted", 0, 1),
        ("environments", 1, 2),
        ("decoding", 2, 5),
        ("environments", 5, 6),
        ("staleness", 6, 10),
    ]


def test_the_track_of_the_trainer_shows_its_steps(trace):
    assert spans_of(trace, "trainer") == [
        ("waiting", 0, 8),
        ("training", 8, 10),
        ("waiting", 10, 20),
        ("training", 20, 24),
        ("waiting", 24, 30),
    ]


def test_each_rollout_has_a_track_even_if_it_is_not_over(trace):
    assert spans_of(trace, "train/1/1.1") == [
        ("environment", 16, 17),
        ("decoding", 17, 19),
        ("environment", 19, 20),
    ]
    assert spans_of(trace, "train/2/0.0") == [
        ("environment", 25, 26),
        ("decoding", 26, 28),
        ("waiting", 28, 30),
    ]


def test_a_parked_rollout_is_shown_as_parked_until_it_runs():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0)], []),
        (1, EnvironmentReady(rollout, 5), [Pause(rollout, RANK_0)], []),
        (3, TimerFired(0), [Resume(rollout, RANK_0)], []),
        (4, TimerFired(0), [RunTurn(rollout, RANK_0)], []),
        (6, TimerFired(0), [], []),
    ]
    assert spans_of(play(Ledger(SMALL), turns).timeline(), "train/0/0.0") == [
        ("environment", 0, 1),
        ("parked", 1, 3),
        ("waiting", 3, 4),
        ("decoding", 4, 6),
    ]


def test_publishing_is_an_instant(trace):
    instants = {event["name"]: event for event in trace["traceEvents"] if event["ph"] == "i"}
    assert instants["publish 1"]["ts"] == 10e6
    assert instants["weights 1 loaded"]["ts"] in (11e6, 13e6)


@pytest.mark.parametrize("seed", range(3))
def test_every_event_follows_the_format(seed):
    random_run = RandomRun(seed)
    ledger = play(Ledger(random_run.run), list(random_run.turns(300)))
    trace = json.loads(json.dumps(ledger.timeline(), allow_nan=False))
    named = {
        (event["pid"], event["tid"])
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    begins = []
    for event in trace["traceEvents"]:
        assert event["ph"] in "XiM"
        if event["ph"] == "M":
            continue
        begins.append(event["ts"])
        assert (event["pid"], event["tid"]) in named
        assert event["ph"] == "i" or event["dur"] > 0
    assert begins == sorted(begins)


def test_drawing_the_timeline_twice_gives_the_same():
    ledger = play(Ledger(SMALL), small_run())
    assert ledger.timeline() == ledger.timeline()


def test_beyond_its_limits_the_oldest_is_dropped_and_the_metadata_say_so():
    timeline = Timeline(max_spans=3, max_rollouts=2)
    for i in range(5):
        timeline.rank(RANK_0, Span("decoding", 10 * i, 10 * i + 5))
        timeline.rollout(train(i), [Span("decoding", 10 * i, 10 * i + 5)])
    trace = timeline.chrome_trace({"policy": "sync"})
    names = [
        event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"
    ]
    assert names == ["rank 0", "train/3/0.0", "train/4/0.0"]
    assert len([event for event in trace["traceEvents"] if event["ph"] == "X"]) == 3 + 2
    told = trace["otherData"]
    assert (told["spans_dropped"], told["rollout_tracks_dropped"]) == (2, 3)
    assert told["policy"] == "sync"
