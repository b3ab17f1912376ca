"""Every figure of a small run, against values worked out by hand from its log."""

import json
from collections import Counter

import pytest
from report_runs import (
    RANK_0,
    SMALL,
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
    DropGroup,
    DropReason,
    Publish,
    RunTurn,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import RolloutEnded, RolloutFailed, TimerFired, TurnStop, WeightsLoaded
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.metrics import WALL_S
from tiderl_jax.report.sums import total


@pytest.fixture
def ledger() -> Ledger:
    return play(Ledger(SMALL), small_run())


def step_rows(ledger: Ledger) -> list[dict]:
    return [row for row in ledger.rows() if "timing_s/step" in row]


def test_goodput_is_trained_tokens_from_the_start_to_the_last_update(ledger):
    summary = ledger.summary(0)
    assert summary["goodput_tokens_per_s"] == pytest.approx((22 + 6) / 24)
    assert summary["goodput_tokens_per_device_s"] == pytest.approx((22 + 6) / 24 / 3)
    assert summary["goodput_context_tokens_per_s"] == pytest.approx((60 + 30) / 24)
    assert summary["trained_tokens"] == 28
    assert (summary["devices"], summary["policy"], summary["wall_s"]) == (3, "sync", 30)


def test_every_sampled_token_is_trained_or_lost_for_one_reason(ledger):
    summary = ledger.summary(0)
    assert summary["sampled_tokens"] == 12 + 10 + 8 + 3 + 6 + 5
    assert summary["waterfall"] == {
        "zero_advantage": 8,
        "stale": 0,
        "over_bound": 0,
        "trimmed": 0,
        "env_error": 3,
        "engine_error": 0,
        "late": 0,
        "redundant": 0,
        "unfinished": 5,
    }


def test_waiting_is_the_time_in_which_a_rank_decodes_nothing(ledger):
    summary = ledger.summary(0)
    assert summary["rollout_wait_s"] == pytest.approx((10 - 3) + (10 - 1) + (14 - 3) + 14)
    assert summary["trainer_wait_s"] == pytest.approx(8 + 10)


def test_waiting_is_split_by_what_is_waited_for(ledger):
    first, second = (
        {
            cause: row[f"idle/rollout_{cause}_s"]
            for cause in ("environments", "staleness", "weights", "scheduler", "not_admitted")
        }
        for row in step_rows(ledger)
    )
    assert first == pytest.approx(
        {
            "environments": (1 + 1) + (2 + 4),
            "staleness": 4 + 2,
            "weights": 0,
            "scheduler": 0,
            "not_admitted": 1 + 1,
        }
    )
    assert second == pytest.approx(
        {
            "environments": 2 + 2 + 1,
            "staleness": 4 + 11,
            "weights": 1 + 3,
            "scheduler": 1,
            "not_admitted": 0,
        }
    )


def test_kv_hit_rate_is_over_all_turns_of_the_run(ledger):
    found, prefilled = 16 + 10 + 4, 20 + 4 + 10 + 10 + 10 + 6
    assert ledger.summary(0)["kv_hit_rate"] == pytest.approx(found / (found + prefilled))


def test_step_time_is_between_consecutive_updates():
    turns = [(at_s, updated(i, i, 0, 0), [], []) for i, at_s in enumerate((5, 6, 8, 12), 1)]
    step_time = play(Ledger(SMALL), turns).summary(0)["step_time_s"]
    assert step_time == pytest.approx({"mean": 7 / 3, "p50": 2, "p95": 3.8})


def test_step_time_of_a_single_update_is_not_measured():
    summary = play(Ledger(SMALL), [(5, updated(1, V1, 0, 0), [], [])]).summary(0)
    assert summary["step_time_s"] == {"mean": None, "p50": None, "p95": None}


def test_lag_counts_every_trained_trajectory(ledger):
    lag = ledger.summary(0)["lag"]
    assert lag == {"mean": pytest.approx(1 / 3), "max": 1, "histogram": {"0": 2, "1": 1}}


def test_reward_is_the_mean_over_the_trajectories_of_the_first_and_the_last_step(ledger):
    assert ledger.summary(0)["reward"] == {"first": 0.5, "last": pytest.approx((0.25 + 1) / 2)}


def test_negative_rewards_are_kept():
    turns = [
        (1, None, [Admit(train(0), RANK_0)], []),
        (
            2,
            RolloutEnded(train(0), Outcome.FINISHED),
            step_of(1, train(0).group),
            [facts(train(0), -2.0)],
        ),
        (3, updated(1, V1, 0, 0), [], []),
    ]
    ledger = play(Ledger(SMALL), turns)
    assert ledger.summary(0)["reward"] == {"first": -2.0, "last": -2.0}


def test_rows_measure_the_trajectories_that_were_trained(ledger):
    first, second = step_rows(ledger)
    assert (first["train/step"], first["rollout/episodes"], first[WALL_S]) == (1, 2, 10)
    assert (second["train/step"], second["rollout/episodes"], second[WALL_S]) == (2, 4, 24)
    assert first["rollout/success_share"] == 0.5
    assert first["rollout/model_tokens_mean"] == 11
    assert first["rollout/context_tokens_mean"] == 22
    assert (first["rollout/truncated_share"], second["rollout/truncated_share"]) == (0, 0.5)
    assert second["rollout/cut_turn_share"] == pytest.approx(1 / 3)
    assert second["perf/goodput_tokens_per_s"] == pytest.approx(6 / 14)
    assert second["idle/trainer_share"] == pytest.approx(10 / 14)
    assert second["perf/decoded_tokens_per_rank_s"] == pytest.approx((8 + 3 + 6) / 3)


def test_a_token_limit_of_two_is_never_measured_as_more():
    """The figure is of what the trajectory kept, not of what the decoder would have said."""
    rollout = train(0)
    turns = [
        (0, None, [Admit(rollout, RANK_0), RunTurn(rollout, RANK_0)], []),
        (1, turn_ended(rollout, RANK_0, 2, 0, 4, TurnStop.LENGTH), [], []),
        (
            2,
            RolloutEnded(rollout, Outcome.TRUNCATED_LENGTH),
            step_of(1, rollout.group),
            [facts(rollout, 0.0, 2, Outcome.TRUNCATED_LENGTH)],
        ),
        (3, updated(1, V1, 2, 6), [], []),
    ]
    (row,) = step_rows(play(Ledger(SMALL), turns))
    assert row["rollout/model_tokens_mean"] == 2
    assert row["rollout/truncated_share"] == 1
    assert row["rollout/cut_turn_share"] == 1


def test_an_update_that_hides_tokens_is_refused():
    turns = small_run()
    at_s, _, commands, known = turns[8]
    turns[8] = (at_s, updated(1, V1, 21, 60), commands, known)
    with pytest.raises(InvariantError, match="took 22 sampled tokens"):
        play(Ledger(SMALL), turns)


def test_tokens_of_a_turn_that_outlives_its_group_are_lost_for_the_reason_of_the_drop():
    turns = [
        (0, None, [Admit(train(0), RANK_0), RunTurn(train(0), RANK_0)], []),
        (1, TimerFired(S), [DropGroup(train(0).group, DropReason.STALE)], []),
        (2, turn_ended(train(0), RANK_0, 7, 0, 4), [], []),
    ]
    summary = play(Ledger(SMALL), turns).summary(0)
    assert (summary["sampled_tokens"], summary["waterfall"]["stale"]) == (7, 7)


def test_a_rank_waits_again_once_its_turn_was_dropped_or_lost():
    for end in (
        (2, TimerFired(0), [DropGroup(train(0).group, DropReason.STALE)], []),
        (2, RolloutFailed(train(0), "lost"), [], []),
    ):
        turns = [
            (0, None, [Admit(train(0), RANK_0), RunTurn(train(0), RANK_0)], []),
            end,
            (6, updated(1, V1, 0, 0), [], []),
        ]
        (row,) = step_rows(play(Ledger(SMALL), turns))
        assert row["timing_s/decoding"] == 2
        assert row["idle/rollout_s"] == 4 + 6


def idle_s(turns: list, cause: str) -> float:
    """Waiting for one cause, in a run that is closed by an update after 10 s."""
    (row,) = step_rows(play(Ledger(SMALL), [*turns, (10, updated(1, V1, 0, 0), [], [])]))
    return row[f"idle/rollout_{cause}_s"]


def test_an_idle_rank_is_held_once_another_rank_has_taken_the_last_group_that_may_start():
    turns = [(0, None, [], []), (4, TimerFired(0), [Admit(train(0), RANK_0)], [])]
    assert (idle_s(turns, "not_admitted"), idle_s(turns, "staleness")) == (2 * 4, 6)


def test_a_dropped_group_makes_room_under_the_bound_on_staleness():
    turns = [
        (0, None, [Admit(train(0), RANK_0)], []),
        (4, TimerFired(0), [DropGroup(train(0).group, DropReason.STALE)], []),
    ]
    assert (idle_s(turns, "staleness"), idle_s(turns, "not_admitted")) == (4, 2 * 6)


def test_a_rank_waits_for_the_newest_version_that_was_published_to_it():
    turns = [
        (0, None, [Publish(V1, (RANK_0,))], []),
        (1, TimerFired(0), [Publish(V2, (RANK_0,))], []),
        (2, WeightsLoaded(RANK_0, V1, "digest"), [], []),
        (5, WeightsLoaded(RANK_0, V2, "digest"), [], []),
    ]
    assert idle_s(turns, "weights") == 5


def test_the_facts_of_a_dropped_group_never_count():
    turns = [
        (0, RolloutEnded(train(0), Outcome.FINISHED), [], [facts(train(0), 1.0)]),
        (1, TimerFired(0), [DropGroup(train(0).group, DropReason.STALE)], []),
        (2, None, step_of(1, train(0).group), []),
        (3, updated(1, V1, 0, 0), [], []),
    ]
    (row,) = step_rows(play(Ledger(SMALL), turns))
    assert row["rollout/trajectories"] == 0


def test_sums_of_stretches_keep_what_is_negative():
    assert total([Counter({"reward": -3}), Counter({"reward": 1})]) == Counter({"reward": -2})


def test_the_learners_figures_join_the_row_of_their_step():
    ledger = Ledger(SMALL)
    turns = small_run()
    play(ledger, turns[:8])
    ledger.learner({"loss": 0.5, "kl": float("nan"), "timing_s/optimizer": 2.0})
    play(ledger, turns[8:])
    first, second = step_rows(ledger)
    assert (first["train/loss"], first["train/kl"], first["timing_s/optimizer"]) == (0.5, None, 2)
    assert "train/loss" not in second


def test_the_summary_has_exactly_the_declared_keys(ledger):
    assert set(ledger.summary(None)) == {
        "goodput_tokens_per_s",
        "goodput_tokens_per_device_s",
        "goodput_context_tokens_per_s",
        "trained_tokens",
        "sampled_tokens",
        "waterfall",
        "kv_hit_rate",
        "rollout_wait_s",
        "trainer_wait_s",
        "waiting_device_s",
        "waiting_share",
        "step_time_s",
        "group_completion_s",
        "lengths",
        "lag",
        "repartitions",
        "compiles_after_warmup",
        "reward",
        "eval",
        "eval_greedy",
        "wall_s",
        "devices",
        "policy",
    }


def test_a_run_in_which_nothing_happened_has_a_summary():
    summary = Ledger(SMALL).summary(None)
    assert summary["goodput_tokens_per_s"] == 0
    assert summary["kv_hit_rate"] is None
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


@pytest.mark.parametrize("n_before", [9, 22])  # right after an update
def test_a_resumed_ledger_reports_as_if_it_had_not_stopped(ledger, n_before):
    turns = small_run()
    before = play(Ledger(SMALL), turns[:n_before])
    snapshot = json.loads(json.dumps(before.snapshot(), allow_nan=False))
    resumed = play(Ledger(SMALL, snapshot=snapshot), turns[n_before:])
    assert resumed.rows()[0] == ledger.rows()[0]
    assert resumed.summary(0)["trained_tokens"] == 28
    assert resumed.summary(0)["waterfall"] == ledger.summary(0)["waterfall"]
    assert resumed.summary(0)["step_time_s"] == ledger.summary(0)["step_time_s"]
    assert resumed.now_ns == 30 * S


def test_tokens_in_flight_are_unfinished_after_a_restart():
    before = play(Ledger(SMALL), small_run()[:6])
    resumed = Ledger(SMALL, snapshot=before.snapshot())
    summary = resumed.summary(0)
    assert summary["sampled_tokens"] == summary["waterfall"]["unfinished"] == 22


def test_facts_of_failed_rollouts_count_nowhere():
    ledger = Ledger(SMALL)
    ledger.rollout(facts(train(0), 1.0, 5, Outcome.ENV_ERROR))
    ledger.observe(None, step_of(1, train(0).group), 0)
    ledger.observe(updated(1, V2, 0, 0), [], S)
    assert Counter(row["rollout/trajectories"] for row in ledger.rows()) == Counter([0])
