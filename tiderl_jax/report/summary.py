"""`summary.json`: the figures by which runs are compared, the same keys for real and simulated.

Windows. Goodput, waiting, step times, group times, lag and reward: from the start of the scheduler
to the last update, so the work after it (a last evaluation) is in none of them. Tokens, lengths,
waterfall, KV and repartitions: the whole run. Seconds are the driver's: wall time in a real run,
virtual time in a simulated one. Device-seconds of waiting count a device once: one that trainer and
rollout share waits only as a rollout rank.

What was not measured is null: for example the step time of a run with one update.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tiderl_jax.core.ids import Purpose
from tiderl_jax.report.facts import RunFacts
from tiderl_jax.report.metrics import METRICS
from tiderl_jax.report.sums import (
    NS_PER_S,
    EvaluationResult,
    Loss,
    Sum,
    Sums,
    Window,
    family,
    total,
)

_METRIC = {metric.name: metric for metric in METRICS}


def summarise(
    run: RunFacts,
    windows: Sequence[Window],
    tail: Sums,
    evaluations: Sequence[EvaluationResult],
    *,
    wall_ns: int,
    compiles_after_warmup: int | None,
) -> dict[str, Any]:
    """The figures of a run.

    Args:
      run: its shape.
      windows: one per training step, in order.
      tail: the sums after the last update; tokens still open are in it as unfinished.
      evaluations: the complete ones.
      wall_ns: from the start to now.
      compiles_after_warmup: counted by the driver; None where nothing compiles.
    """
    updated = total(window.sums for window in windows)
    whole = total([updated, tail])

    def figure(name: str, sums: Sums) -> float:
        return _METRIC[name].value(sums) or 0.0

    return {
        "policy": run.policy,
        "devices": run.n_devices,
        "wall_s": wall_ns / NS_PER_S,
        "goodput_tokens_per_s": figure("perf/goodput_tokens_per_s", updated),
        "goodput_tokens_per_device_s": figure("perf/goodput_tokens_per_device_s", updated),
        "goodput_context_tokens_per_s": figure("perf/goodput_context_tokens_per_s", updated),
        "trained_tokens": whole[Sum.TRAINED_TOKENS],
        "sampled_tokens": whole[Sum.SAMPLED_TOKENS],
        "waterfall": {str(why): 0 for why in Loss} | family(whole, "lost_tokens"),
        "kv_hit_rate": _METRIC["kv/hit_rate"].value(whole),
        "rollout_wait_s": figure("idle/rollout_s", updated),
        "trainer_wait_s": figure("idle/trainer_s", updated),
        "waiting_device_s": {
            "rollout": figure("idle/rollout_s", updated),
            "trainer": figure("idle/trainer_device_s", updated),
            "total": figure("idle/rollout_s", updated) + figure("idle/trainer_device_s", updated),
        },
        "waiting_share": _METRIC["idle/device_share"].value(updated),
        "step_time_s": _step_times(windows),
        "group_completion_s": _group_times(windows),
        "lag": _lags(updated),
        "lengths": {
            "sampled_turns": _METRIC["rollout/ended_turns_mean"].value(whole),
            "trained_turns": _METRIC["rollout/turns_mean"].value(whole),
            "sampled_context_tokens": _METRIC["rollout/ended_context_tokens_mean"].value(whole),
            "trained_context_tokens": _METRIC["rollout/context_tokens_mean"].value(whole),
        },
        "repartitions": whole[Sum.REPARTITIONS],
        "compiles_after_warmup": compiles_after_warmup,
        "reward": _first_and_last([window.sums for window in windows]),
        "eval": _evaluation(evaluations, Purpose.EVALUATE),
        "eval_greedy": _evaluation(evaluations, Purpose.EVALUATE_GREEDY),
    }


def _step_times(windows: Sequence[Window]) -> dict[str, float | None]:
    """Between consecutive updates, so one less than there are updates."""
    gaps_s = np.diff([window.end_ns for window in windows]) / NS_PER_S
    if not len(gaps_s):
        return {"mean": None, "p50": None, "p95": None}
    return {
        "mean": float(gaps_s.mean()),
        "p50": float(np.percentile(gaps_s, 50)),
        "p95": float(np.percentile(gaps_s, 95)),
    }


def _group_times(windows: Sequence[Window]) -> dict[str, float | None]:
    """Of the groups that trained: from the first turn to the end of the last member."""
    times_s = np.array([time_ns for window in windows for time_ns in window.group_ns]) / NS_PER_S
    if not len(times_s):
        return {"p50": None, "p95": None}
    return {f"p{q}": float(np.percentile(times_s, q)) for q in (50, 95)}


def _lags(sums: Sums) -> dict[str, Any]:
    counts = {int(lag): n for lag, n in family(sums, "trained_at_lag").items()}
    return {
        "mean": _METRIC["staleness/lag_mean"].value(sums),
        "max": max(counts, default=None),
        "histogram": {str(lag): counts[lag] for lag in sorted(counts)},
    }


def _first_and_last(steps: Sequence[Sums]) -> dict[str, float | None]:
    means = [_METRIC["rollout/reward_mean"].value(sums) for sums in steps]
    measured = [mean for mean in means if mean is not None] or [None]
    return {"first": measured[0], "last": measured[-1]}


def _evaluation(
    evaluations: Sequence[EvaluationResult], purpose: Purpose
) -> dict[str, float | int | None]:
    """Of the oldest and the newest version evaluated; `episodes` are those of the newest."""
    ours = sorted(
        (one for one in evaluations if one.purpose == purpose), key=lambda one: one.version
    )
    first, last = (ours[0].sums, ours[-1].sums) if ours else (Counter(), Counter())
    kind = "sampled" if purpose is Purpose.EVALUATE else "greedy"
    success, returned = _METRIC[f"eval/{kind}_success"], _METRIC[f"eval/{kind}_return"]
    return {
        "success_first": success.value(first),
        "success_last": success.value(last),
        "return_first": returned.value(first),
        "return_last": returned.value(last),
        "episodes": last[Sum.TRAJECTORIES],
    }
