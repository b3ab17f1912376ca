"""Every metric of a run, declared once: what is added up, over what, in which unit and window.

A row of `metrics.jsonl` has the three axes (`AXES`) and either the metrics of a training step
(window: from the update before to its own) or those of one complete evaluation; the two never share
a window. Ratios are sum over sum. The learner's own figures join the row of their step under
`train/`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tiderl_jax.core.ids import Purpose
from tiderl_jax.report.sums import (
    NS_PER_S,
    WAITING,
    Doing,
    EvaluationResult,
    Loss,
    Sum,
    Sums,
    Training,
    Window,
    is_time,
    lost_tokens,
    rank_ns,
    trainer_ns,
)

STEP, EPISODES, WALL_S = AXES = ("train/step", "rollout/episodes", "wall_s")

Row = dict[str, float | None]


class Over(Enum):
    """The stretch of a run over which a metric's sums are taken."""

    STEP = "step"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Metric:
    """(sum of the numerators) / (sum of the denominators), or over 1; times are in seconds."""

    name: str
    unit: str
    numerator: Sequence[str]
    denominator: Sequence[str] = ()
    over: Over = Over.STEP
    alias: str | None = None  # the name that verl's dashboards know

    def value(self, sums: Sums) -> float | None:
        """Its value; None where the denominator is 0, because nothing was measured."""
        above = _total(sums, self.numerator)
        if not self.denominator:
            return above
        below = _total(sums, self.denominator)
        return above / below if below else None


def _total(sums: Sums, names: Sequence[str]) -> float:
    return sum(sums[name] / NS_PER_S if is_time(name) else sums[name] for name in names)


def _per_trajectory(name: str, unit: str, numerator: Sum, alias: str | None = None) -> Metric:
    return Metric(f"rollout/{name}", unit, [numerator], [Sum.TRAJECTORIES], alias=alias)


def _per_second(name: str, unit: str, numerator: Sum, below: Sum = Sum.WINDOW_NS) -> Metric:
    return Metric(f"perf/{name}", unit, [numerator], [below])


def _seconds(name: str, numerators: Sequence[str], alias: str | None = None) -> Metric:
    return Metric(name, "s", numerators, alias=alias)


_WAITING_NS = [rank_ns(doing) for doing in WAITING]
_ROLLOUT_NS = [rank_ns(Doing.DECODING), *_WAITING_NS]
_TRAINER_NS = [trainer_ns(training) for training in Training]

STEP_METRICS: tuple[Metric, ...] = (
    # Of the trajectories handed to the step.
    _per_trajectory("reward_mean", "reward", Sum.REWARD, "critic/rewards/mean"),
    _per_trajectory("success_share", "1", Sum.SUCCESSES),
    _per_trajectory("truncated_share", "1", Sum.TRUNCATED),
    _per_trajectory("turns_mean", "turns", Sum.TRAJECTORY_TURNS, "num_turns/mean"),
    _per_trajectory("model_tokens_mean", "tokens", Sum.MODEL_TOKENS, "response_length/mean"),
    _per_trajectory("context_tokens_mean", "tokens", Sum.CONTEXT_TOKENS),
    Metric("rollout/trajectories", "trajectories", [Sum.TRAJECTORIES]),
    # Of everything that rolled out in the window.
    Metric("rollout/ended_turns_mean", "turns", [Sum.ENDED_TURNS], [Sum.ENDED]),
    Metric("rollout/ended_context_tokens_mean", "tokens", [Sum.ENDED_CONTEXT_TOKENS], [Sum.ENDED]),
    Metric("rollout/sampled_tokens", "tokens", [Sum.SAMPLED_TOKENS]),
    Metric("rollout/evaluation_tokens", "tokens", [Sum.EVALUATION_TOKENS]),
    Metric(
        "rollout/cut_turn_share",
        "1",
        [Sum.CUT_TURNS],
        [Sum.TURNS],
        alias="response_length/clip_ratio",
    ),
    Metric("rollout/pauses", "pauses", [Sum.PAUSES]),
    Metric("rollout/environment_failures", "failures", [Sum.ENVIRONMENT_FAILURES]),
    Metric("rollout/engine_failures", "failures", [Sum.ENGINE_FAILURES]),
    *(Metric(f"rollout/lost_tokens/{why}", "tokens", [lost_tokens(why)]) for why in Loss),
    Metric("train/trained_tokens", "tokens", [Sum.TRAINED_TOKENS]),
    Metric("train/microbatches", "micro-batches", [Sum.MICROBATCHES]),
    Metric("staleness/lag_mean", "versions", [Sum.LAG], [Sum.LAGGED]),
    Metric("kv/hit_rate", "1", [Sum.FOUND_TOKENS], [Sum.FOUND_TOKENS, Sum.PREFILLED_TOKENS]),
    Metric("kv/found_tokens", "tokens", [Sum.FOUND_TOKENS]),
    Metric("kv/prefilled_tokens", "tokens", [Sum.PREFILLED_TOKENS]),
    _per_second("goodput_tokens_per_s", "tokens/s", Sum.TRAINED_TOKENS),
    _per_second(
        "goodput_tokens_per_device_s", "tokens/s/device", Sum.TRAINED_TOKENS, Sum.DEVICE_NS
    ),
    _per_second("goodput_context_tokens_per_s", "tokens/s", Sum.TRAINED_CONTEXT_TOKENS),
    _per_second("reward_per_s", "reward/s", Sum.REWARD),
    Metric(
        "perf/decoded_tokens_per_rank_s",
        "tokens/s/rank",
        [Sum.SAMPLED_TOKENS, Sum.EVALUATION_TOKENS],
        [rank_ns(Doing.DECODING)],
    ),
    Metric("perf/repartitions", "ranks", [Sum.REPARTITIONS]),
    _seconds("timing_s/step", [Sum.WINDOW_NS], "timing_s/step"),
    _seconds("timing_s/decoding", [rank_ns(Doing.DECODING)], "timing_s/gen"),
    _seconds("timing_s/training", [trainer_ns(Training.TRAINING)]),
    _seconds("idle/rollout_s", _WAITING_NS),
    *(_seconds(f"idle/rollout_{cause}_s", [rank_ns(cause)]) for cause in WAITING),
    _seconds("idle/trainer_s", [trainer_ns(Training.WAITING)]),
    Metric("idle/rollout_share", "1", _WAITING_NS, _ROLLOUT_NS),
    Metric("idle/trainer_share", "1", [trainer_ns(Training.WAITING)], _TRAINER_NS),
    _seconds("idle/trainer_device_s", [Sum.TRAINER_WAITING_DEVICE_NS]),
    Metric(
        "idle/device_share", "1", [*_WAITING_NS, Sum.TRAINER_WAITING_DEVICE_NS], [Sum.DEVICE_NS]
    ),
)


def _evaluation(kind: str) -> tuple[Metric, ...]:
    def per_episode(name: str, unit: str, numerator: Sum) -> Metric:
        return Metric(
            f"eval/{kind}_{name}", unit, [numerator], [Sum.TRAJECTORIES], over=Over.EVALUATION
        )

    return (
        per_episode("success", "1", Sum.SUCCESSES),
        per_episode("return", "reward", Sum.REWARD),
        per_episode("turns_mean", "turns", Sum.TRAJECTORY_TURNS),
        per_episode("truncated_share", "1", Sum.TRUNCATED),
        Metric(f"eval/{kind}_episodes", "episodes", [Sum.TRAJECTORIES], over=Over.EVALUATION),
    )


EVALUATION_METRICS: dict[Purpose, tuple[Metric, ...]] = {
    Purpose.EVALUATE: _evaluation("sampled"),
    Purpose.EVALUATE_GREEDY: _evaluation("greedy"),
}

METRICS: tuple[Metric, ...] = (
    *STEP_METRICS,
    *(metric for metrics in EVALUATION_METRICS.values() for metric in metrics),
)


def step_row(window: Window, start_ns: int) -> Row:
    """The row of one training step. `wall_s` counts from `start_ns`."""
    learner = {_learner_name(name): _finite(value) for name, value in window.learner.items()}
    return _row(window, start_ns, STEP_METRICS, window.sums) | learner


def evaluation_row(result: EvaluationResult, start_ns: int) -> Row:
    """The row of one evaluation; its `train/step` is the number of updates it evaluated."""
    return _row(result, start_ns, EVALUATION_METRICS[Purpose(result.purpose)], result.sums)


def _row(
    at: Window | EvaluationResult, start_ns: int, metrics: Sequence[Metric], sums: Sums
) -> Row:
    axes: Row = {
        STEP: at.step,
        EPISODES: at.n_episodes,
        WALL_S: (at.end_ns - start_ns) / NS_PER_S,
    }
    return axes | {metric.name: metric.value(sums) for metric in metrics}


def _learner_name(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def _finite(value: float) -> float | None:
    """JSON has no NaN; None says as much."""
    return float(value) if math.isfinite(value) else None


def aliases(row: Mapping[str, float | None]) -> Row:
    """The row's metrics that dashboards know by another name, under that name."""
    return {
        metric.alias: row[metric.name]
        for metric in METRICS
        if metric.alias not in (None, metric.name) and metric.name in row
    }
