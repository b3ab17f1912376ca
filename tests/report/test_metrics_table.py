"""The table of metrics is complete, and everything in it is measured."""

from collections import Counter

from report_runs import SMALL, play, small_run

from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.metrics import AXES, METRICS, STEP_METRICS, Metric, Over, aliases
from tiderl_jax.report.sums import (
    Doing,
    Loss,
    Sum,
    Training,
    lost_tokens,
    rank_ns,
    total,
    trainer_ns,
)

GROUPS = {"rollout", "train", "eval", "timing_s", "perf", "staleness", "idle", "kv"}


def test_names_are_unique_and_in_a_known_group():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert {name.split("/")[0] for name in names} == GROUPS
    assert not set(names) & set(AXES)


def test_every_metric_is_made_of_declared_sums():
    families = [rank_ns(doing) for doing in Doing]
    families += [trainer_ns(training) for training in Training]
    families += [lost_tokens(why) for why in Loss]
    declared = {*Sum, *families}
    for metric in METRICS:
        assert {*metric.numerator, *metric.denominator} <= declared


def test_ratios_are_sum_over_sum():
    """Two turns found 1 of 1 and 0 of 9 prompt tokens: 1 of 10, not the mean of 100 % and 0."""
    metric = Metric("x", "1", [Sum.FOUND_TOKENS], [Sum.FOUND_TOKENS, Sum.PREFILLED_TOKENS])
    sums = total([Counter({Sum.FOUND_TOKENS: 1}), Counter({Sum.PREFILLED_TOKENS: 9})])
    assert metric.value(sums) == 0.1


def test_a_ratio_over_nothing_is_not_measured():
    assert Metric("x", "1", [Sum.LAG], [Sum.LAGGED]).value(Counter()) is None


def test_times_are_in_seconds():
    sums = Counter({Sum.WINDOW_NS: 2_500_000_000, Sum.TRAINED_TOKENS: 5})
    assert Metric("x", "s", [Sum.WINDOW_NS]).value(sums) == 2.5
    assert Metric("x", "tokens/s", [Sum.TRAINED_TOKENS], [Sum.WINDOW_NS]).value(sums) == 2


def test_every_row_of_a_step_has_the_axes_and_every_metric_of_a_step():
    rows = play(Ledger(SMALL), small_run()).rows()
    assert len(rows) == 2
    for row in rows:
        assert set(row) == {*AXES, *(metric.name for metric in STEP_METRICS)}
    assert all(metric.over is Over.STEP for metric in STEP_METRICS)


def test_rows_are_known_to_other_dashboards_by_their_names():
    row = play(Ledger(SMALL), small_run()).rows()[0]
    also = aliases(row)
    assert also["critic/rewards/mean"] == row["rollout/reward_mean"]
    assert also["num_turns/mean"] == row["rollout/turns_mean"]
    assert not set(also) & set(row)
