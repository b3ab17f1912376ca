"""Figures of steps that are fed piece by piece, of ranks that change roles, of single drops."""

import numpy as np
import pytest
from report_runs import (
    RANK_0,
    RANK_1,
    RANK_2,
    SHARED,
    SMALL,
    V0,
    V1,
    V2,
    S,
    facts,
    play,
    small_run,
    step_of,
    train,
    turn_ended,
    updated,
)

from tiderl_jax.core.commands import (
    Admit,
    DropReason,
    DropRollout,
    Feed,
    Migrate,
    PauseEnvironment,
    Publish,
    Repartition,
    ResumeEnvironment,
    RunTurn,
    StartStep,
    StepMode,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    RankLost,
    RankReady,
    RolloutEnded,
    TimerFired,
    Trained,
    WeightsLoaded,
)
from tiderl_jax.core.ids import Role
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.ledger import Ledger

NOTHING = TimerFired(0)


def feed(index: int, *rollouts, last: bool = False) -> Feed:
    groups = tuple(rollout.group for rollout in rollouts)
    return Feed(1, index, groups, (), last)


def streamed(*rollouts) -> list:
    """Each rollout, its group, is fed to one step as soon as it has ended."""
    turns = [(0, None, [StartStep(1, StepMode.DECOUPLED, 1)], [])]
    for i, rollout in enumerate(rollouts):
        turns += [
            (3 * i + 1, NOTHING, [Admit(rollout, RANK_0), RunTurn(rollout, RANK_0)], []),
            (3 * i + 2, turn_ended(rollout, RANK_0, 10 + i, 0, 4), [], []),
            (
                3 * i + 2,
                RolloutEnded(rollout, Outcome.FINISHED),
                [feed(i, rollout, last=rollout is rollouts[-1])],
                [facts(rollout, 1.0, 10 + i)],
            ),
            (3 * i + 3, Trained(1, i), [], []),
        ]
    return turns[:-1]


def one_row(turns: list, run=SMALL) -> dict:
    (row,) = play(Ledger(run), turns).rows()
    return row


def test_the_trainer_waits_while_it_has_nothing_to_train_on_even_within_a_step():
    turns = [*streamed(train(0), train(1)), (7, updated(1, V1, 21, 40), [], [])]
    ledger = play(Ledger(SMALL), turns)
    (row,) = ledger.rows()
    assert (row["timing_s/training"], row["idle/trainer_s"]) == (1 + 2, 2 + 2)
    spans = [event for event in ledger.timeline()["traceEvents"] if event["ph"] == "X"]
    trained = [event for event in spans if event["name"] == "training"]
    assert [(event["ts"], event["dur"]) for event in trained] == [(2e6, 1e6), (5e6, 2e6)]
    assert trained[-1]["args"] == {
        "step": 1,
        "mode": "decoupled",
        "groups": 2,
        "trained_tokens": 21,
    }


def test_several_feeds_at_once_are_one_stretch_of_training():
    turns = [
        (0, None, [StartStep(1, StepMode.DECOUPLED, 1), feed(0)], []),
        (2, NOTHING, [feed(1)], []),
        (3, Trained(1, 0), [], []),
        (5, Trained(1, 1), [], []),
        (6, NOTHING, [feed(2, last=True)], []),
        (9, updated(1, V1, 0, 0), [], []),
    ]
    assert one_row(turns)["timing_s/training"] == 5 + 3


def test_an_update_accounts_for_all_feeds_of_its_step():
    turns = streamed(train(0), train(1))
    row = one_row([*turns, (7, updated(1, V1, 21, 40), [], [])])
    assert (row["train/trained_tokens"], row["rollout/trajectories"]) == (21, 2)
    with pytest.raises(InvariantError, match="took 21 sampled tokens"):
        play(Ledger(SMALL), [*turns, (7, updated(1, V1, 11, 40), [], [])])


def test_tokens_trained_beyond_the_bound_on_lag_are_not_goodput():
    end = updated(1, V1, 21, 40, tokens_at_lag=((0, 15), (1, 4), (3, 2)))
    summary = play(Ledger(SMALL), [*streamed(train(0), train(1)), (7, end, [], [])]).summary(0)
    assert (summary["trained_tokens"], summary["waterfall"]["over_bound"]) == (15, 6)
    assert summary["goodput_tokens_per_s"] == pytest.approx(15 / 7)
    assert summary["goodput_context_tokens_per_s"] == pytest.approx(40 / 7)
    assert summary["sampled_tokens"] == 21


def test_an_update_knows_the_lag_of_every_trained_token():
    end = updated(1, V1, 21, 40, tokens_at_lag=((0, 20),))
    with pytest.raises(InvariantError, match="20 of a known lag"):
        play(Ledger(SMALL), [*streamed(train(0), train(1)), (7, end, [], [])])


@pytest.mark.parametrize("reason", [DropReason.LATE, DropReason.REDUNDANT])
def test_a_dropped_member_takes_its_tokens_and_facts_with_it(reason):
    kept, ended, running = (train(0, i) for i in range(3))
    turns = [
        (0, None, [Admit(one, RANK_0) for one in (kept, ended, running)], []),
        (0, NOTHING, [RunTurn(one, RANK_0) for one in (kept, ended, running)], []),
        (1, turn_ended(kept, RANK_0, 10, 0, 4), [], []),
        (1, turn_ended(ended, RANK_0, 7, 0, 4), [], []),
        (2, RolloutEnded(kept, Outcome.FINISHED), [], [facts(kept, 1.0, 10)]),
        (2, RolloutEnded(ended, Outcome.FINISHED), [], [facts(ended, 0.0, 7)]),
        (3, NOTHING, [DropRollout(ended, reason), DropRollout(running, reason)], []),
        (3, NOTHING, step_of(1, kept.group), []),
        (4, turn_ended(running, RANK_0, 3, 0, 4), [], []),
        (5, updated(1, V1, 10, 20), [], []),
    ]
    ledger = play(Ledger(SMALL), turns)
    summary = ledger.summary(0)
    assert summary["waterfall"][reason.value] == 7 + 3
    assert (summary["sampled_tokens"], summary["trained_tokens"]) == (20, 10)
    assert ledger.rows()[0]["rollout/trajectories"] == 1
    assert ledger.rows()[0]["timing_s/decoding"] == 3


def test_a_rank_waits_as_a_rollout_rank_only_while_it_is_one():
    turns = [
        (0, None, [], []),
        (2, NOTHING, [Repartition(RANK_1, Role.TRAINER)], []),
        (3, RankReady(RANK_1, Role.TRAINER), [], []),
        (7, NOTHING, [Repartition(RANK_1, Role.ROLLOUT)], []),
        (8, RankReady(RANK_1, Role.ROLLOUT), [], []),
        (10, updated(1, V1, 0, 0), [], []),
    ]
    ledger = play(Ledger(SMALL), turns)
    (row,) = ledger.rows()
    assert row["idle/rollout_s"] == 10 + 2 + 2
    assert row["idle/trainer_s"] == 10
    assert row["idle/trainer_device_s"] == 10 + 4
    assert row["perf/repartitions"] == ledger.summary(0)["repartitions"] == 2
    sums = ledger.snapshot()["windows"][0]["sums"]
    assert (sums["rank_ns/moving"], sums["rank_ns/trainer"]) == (2 * S, 14 * S)


def test_waiting_is_also_counted_in_device_seconds():
    summary = play(Ledger(SMALL), small_run()).summary(0)
    assert summary["waiting_device_s"] == {
        "rollout": summary["rollout_wait_s"],
        "trainer": 18,
        "total": pytest.approx(summary["rollout_wait_s"] + 18),
    }
    assert summary["waiting_share"] == pytest.approx((41 + 18) / (24 * 3))


def test_a_device_that_both_roles_share_waits_once_and_never_while_it_trains():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0)], []),
        (1, EnvironmentReady(rollout, 4), [RunTurn(rollout, RANK_0)], []),
        (3, turn_ended(rollout, RANK_0, 5, 0, 4), [], []),
        (4, RolloutEnded(rollout, Outcome.FINISHED), step_of(1, rollout.group), []),
        (9, updated(1, V1, 5, 9), [], []),
    ]
    ledger = play(Ledger(SHARED), turns)
    summary = ledger.summary(0)
    assert summary["waiting_device_s"] == {"rollout": 2 + 4, "trainer": 0, "total": 6}
    assert summary["waiting_share"] == pytest.approx(6 / 18)
    assert summary["trainer_wait_s"] == 4


def test_a_lost_rank_does_not_wait_and_its_turns_do_not_run():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0), RunTurn(rollout, RANK_0)], []),
        (2, RankLost(RANK_0, returns=True), [], []),
        (5, RankReady(RANK_0, Role.ROLLOUT), [Publish(V0, (RANK_0,))], []),
        (6, WeightsLoaded(RANK_0, V0, "digest"), [], []),
        (8, NOTHING, [RunTurn(rollout, RANK_0)], []),
        (10, updated(1, V1, 0, 0), [], []),
    ]
    row = one_row(turns)
    assert row["timing_s/decoding"] == 2 + 2
    assert (row["idle/rollout_weights_s"], row["idle/rollout_scheduler_s"]) == (1, 2)
    assert row["idle/rollout_s"] == 10 + 3


def test_a_rollout_goes_on_at_the_rank_that_it_migrates_to():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0), RunTurn(rollout, RANK_0)], []),
        (2, NOTHING, [Migrate(rollout, RANK_1), RunTurn(rollout, RANK_1)], []),
        (7, turn_ended(rollout, RANK_1, 9, 0, 4), [], []),
        (7, RolloutEnded(rollout, Outcome.FINISHED), [], []),
    ]
    ledger = play(Ledger(SMALL), turns)
    events = ledger.timeline()["traceEvents"]
    decoding = [
        (event["tid"], event["ts"], event["dur"])
        for event in events
        if event["pid"] == 2 and event["name"] == "decoding"
    ]
    assert decoding == [(RANK_0, 0, 2e6), (RANK_1, 2e6, 5e6)]
    (migrated,) = (event for event in events if event["name"] == "migrate")
    assert (migrated["ts"], migrated["args"]) == (2e6, {"from_rank": RANK_0, "rank": RANK_1})
    assert ledger.summary(0)["sampled_tokens"] == 9


def test_an_event_that_arrives_twice_counts_once():
    turns = small_run()
    twice = [again for turn in turns for again in (turn, (*turn[:2], [], []))]
    once, echoed = play(Ledger(SMALL), turns), play(Ledger(SMALL), twice)
    assert echoed.summary(0) == once.summary(0)
    assert echoed.rows() == once.rows()


def test_a_group_takes_from_its_first_turn_to_the_end_of_its_last_member():
    summary = play(Ledger(SMALL), small_run()).summary(0)
    times_s = [8 - 2, 20 - 13]
    percentiles = {"p50": np.percentile(times_s, 50), "p95": np.percentile(times_s, 95)}
    assert summary["group_completion_s"] == pytest.approx(percentiles)


def test_lengths_of_all_that_ended_stand_beside_lengths_of_what_trained():
    short, long = train(0), train(1)
    turns = [
        (0, None, [Admit(short, RANK_0), Admit(long, RANK_1)], []),
        (1, RolloutEnded(short, Outcome.FINISHED), [], [facts(short, 1.0, 10)]),
        (2, RolloutEnded(long, Outcome.FINISHED), [], [facts(long, 1.0, 30)]),
        (3, NOTHING, step_of(1, short.group), []),
        (4, updated(1, V2, 0, 0), [], []),
    ]
    assert play(Ledger(SMALL), turns).summary(0)["lengths"] == {
        "sampled_turns": 1,
        "trained_turns": 1,
        "sampled_context_tokens": 40,
        "trained_context_tokens": 20,
    }


def test_a_trainer_rank_shows_as_one():
    (span,) = (
        event
        for event in play(Ledger(SMALL), small_run()).timeline()["traceEvents"]
        if event["ph"] == "X" and (event["pid"], event["tid"]) == (2, RANK_2)
    )
    assert (span["name"], span["dur"]) == ("trainer", 30e6)


def test_a_group_that_a_step_took_is_accepted_once():
    """One group per step, no staleness: after its update the next one may start at once."""
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0)], []),
        (1, RolloutEnded(rollout, Outcome.FINISHED), step_of(1, rollout.group), []),
        (3, updated(1, V1, 0, 0), [], []),
        (7, updated(2, V2, 0, 0), [], []),
    ]
    first, second = play(Ledger(SMALL), turns).rows()
    assert first["idle/rollout_staleness_s"] == 3 + 2
    assert second["idle/rollout_not_admitted_s"] == 4 + 4


def test_a_rank_that_comes_back_waits_for_no_version_of_before():
    turns = [
        (0, None, [Publish(V0, (RANK_0,))], []),
        (1, RankLost(RANK_0, returns=True), [], []),
        (3, RankReady(RANK_0, Role.ROLLOUT), [], []),
        (10, updated(1, V1, 0, 0), [], []),
    ]
    assert one_row(turns)["idle/rollout_weights_s"] == 1


def test_a_rollout_that_has_ended_cannot_fail_any_more():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0), RunTurn(rollout, RANK_0)], []),
        (1, turn_ended(rollout, RANK_0, 5, 0, 4), [], []),
        (1, RolloutEnded(rollout, Outcome.FINISHED), [], []),
        (2, EnvironmentFailed(rollout, "its answer came late"), step_of(1, rollout.group), []),
        (3, updated(1, V1, 5, 9), [], []),
    ]
    row = one_row(turns)
    assert (row["train/trained_tokens"], row["rollout/environment_failures"]) == (5, 0)


def test_a_rank_whose_rollouts_are_held_waits_for_staleness_and_not_for_the_scheduler():
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0)], []),
        (2, EnvironmentReady(rollout, 5), [PauseEnvironment(rollout)], []),
        (7, NOTHING, [ResumeEnvironment(rollout)], []),
        (8, NOTHING, [RunTurn(rollout, RANK_0)], []),
        (10, updated(1, V1, 0, 0), [], []),
    ]
    row = one_row(turns)
    assert row["idle/rollout_environments_s"] == 2
    assert row["idle/rollout_scheduler_s"] == 1
    assert row["idle/rollout_staleness_s"] == 5 + 10  # the other rank has nothing
