"""What a training step did, in counts that add up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiderl_jax.core.ids import PolicyVersion, lag
from tiderl_jax.learner.packing import Packed
from tiderl_jax.learner.selection import Sample, Selection

NON_FINITE_GRADIENT = "non_finite_gradient"


@dataclass(frozen=True, slots=True)
class StepReport:
    """One training step. Trained and untrained tokens add up to all model-owned tokens given."""

    trained_tokens: int  # model-owned, of trajectories that advanced an update
    context_tokens: int  # all tokens of the same trajectories
    untrained_tokens: tuple[tuple[str, int], ...]  # (reason, model-owned tokens)
    n_microbatches: int
    lags: tuple[int, ...]  # of every trained trajectory, at the moment of use
    tokens_at_lag: tuple[tuple[int, int], ...]  # (lag of a token's own version, trained tokens)
    reward_mean: float  # of all trajectories that may train; NaN without any
    metrics: dict[str, float]  # a metric that nothing was measured for is absent


@dataclass(frozen=True, slots=True)
class Update:
    """One optimizer update: what it used, and what came back (on device until the step's end)."""

    samples: list[Sample]
    packed: Packed
    sums: list[dict[str, Any]]  # of each micro-batch
    logp: list[Any]  # [R, T] of each micro-batch, under the parameters before the update
    outcome: dict[str, Any]  # grad_norm, applied


def make_report(
    selection: Selection,
    updates: Sequence[Update],
    trainer_version: PolicyVersion,
    learning_rate: float,
) -> StepReport:
    """The report of a step from its finished updates (all on the host)."""
    untrained = selection.untrained_tokens.copy()
    trained: list[Sample] = []
    for update in updates:
        if update.outcome["applied"]:
            trained += update.samples
        else:
            untrained[NON_FINITE_GRADIENT] += sum(
                sample.trajectory.n_model_tokens for sample in update.samples
            )
    return StepReport(
        trained_tokens=sum(sample.trajectory.n_model_tokens for sample in trained),
        context_tokens=sum(len(sample.trajectory.token_ids) for sample in trained),
        untrained_tokens=tuple(sorted(untrained.items())),
        n_microbatches=sum(len(update.packed.microbatches) for update in updates),
        lags=tuple(lag(trainer_version, sample.trajectory.oldest_version) for sample in trained),
        tokens_at_lag=_tokens_at_lag(trained, trainer_version),
        reward_mean=selection.reward_mean,
        metrics={
            "learning_rate": learning_rate,
            "updates": float(len(updates)),
            "skipped_updates": float(sum(not update.outcome["applied"] for update in updates)),
            **_means(updates),
            **_sampler_gap(updates, trainer_version),
        },
    )


def _tokens_at_lag(
    trained: Sequence[Sample], trainer_version: PolicyVersion
) -> tuple[tuple[int, int], ...]:
    counts: Counter[int] = Counter()
    for sample in trained:
        trajectory = sample.trajectory
        counts.update((trainer_version - trajectory.versions[trajectory.loss_mask]).tolist())
    return tuple(sorted(counts.items()))


def _means(updates: Sequence[Update]) -> dict[str, float]:
    if not updates:
        return {}
    names = updates[0].sums[0].keys()
    total = {name: sum(float(s[name]) for u in updates for s in u.sums) for name in names}
    n_tokens = sum(sample.trajectory.n_model_tokens for u in updates for sample in u.samples)
    per_token = {name: total[name] / n_tokens for name in names if name != "loss"}
    return {
        **per_token,
        "loss": total["loss"] / len(updates),
        "grad_norm": float(np.mean([update.outcome["grad_norm"] for update in updates])),
        "packing_efficiency": float(np.mean([update.packed.efficiency for update in updates])),
    }


def _sampler_gap(updates: Sequence[Update], trainer_version: PolicyVersion) -> dict[str, float]:
    """|recorded - trainer| log-prob before any update, over tokens that this very policy sampled.

    Older tokens differ because the policy changed; these differ by numerics only.
    """
    gaps = [
        np.abs(place.cut(update.logp) - sample.trajectory.logp)[fresh]
        for update in updates[:1]
        for sample, place in zip(update.samples, update.packed.places, strict=True)
        if (fresh := sample.trajectory.versions == trainer_version).any()
    ]
    if not gaps:
        return {}
    gap = np.concatenate(gaps)
    return {"logp_gap_mean": float(gap.mean()), "logp_gap_max": float(gap.max())}
