"""Objectives: pure functions from log-probs to a loss per token, and the one way to sum them.

Shapes: R packed rows, T tokens of a row. Log-probs are in nats. A masked slot may hold anything,
NaN included: it is replaced before any arithmetic, for a gradient leaks through a later `where`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

MAX_LOG_RATIO = 20.0
"""Beyond e^20 a ratio is a fault, not a policy change; float32 must still hold its products."""


def masked(values: Float[Array, "R T"], mask: Bool[Array, "R T"]) -> Float[Array, "R T"]:
    """The values where the mask holds, 0 elsewhere."""
    return jnp.where(mask, values, 0.0)


def global_mean(
    values: Float[Array, "R T"], mask: Bool[Array, "R T"], denominator: Float[Array, ""]
) -> Float[Array, ""]:
    """This micro-batch's share of a mean whose denominator counts the whole update.

    Shares of all micro-batches add up to the same mean, however rows are split.
    """
    return masked(values, mask).sum() / denominator


def log_ratio(
    logp: Float[Array, "R T"], old_logp: Float[Array, "R T"], mask: Bool[Array, "R T"]
) -> Float[Array, "R T"]:
    """log(pi / pi_old) of every token, bounded, 0 where masked."""
    return jnp.clip(masked(logp, mask) - masked(old_logp, mask), -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_ratio(
    logp: Float[Array, "R T"],
    old_logp: Float[Array, "R T"],
    advantage: Float[Array, "R T"],
    mask: Bool[Array, "R T"],
    clip_low: float,
    clip_high: float,
) -> Float[Array, "R T"]:
    """PPO's pessimistic loss (arXiv 1707.06347, eq. 7), clipped to [1 - clip_low, 1 + clip_high].

    `old_logp` are the log-probs that the decoder recorded when it sampled the tokens. The bounds
    may differ (DAPO's clip-higher, arXiv 2503.14476, section 3.1).
    """
    ratio = jnp.exp(log_ratio(logp, old_logp, mask))
    advantage = masked(advantage, mask)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def is_clipped(
    logp: Float[Array, "R T"],
    old_logp: Float[Array, "R T"],
    advantage: Float[Array, "R T"],
    mask: Bool[Array, "R T"],
    clip_low: float,
    clip_high: float,
) -> Bool[Array, "R T"]:
    """The tokens whose gradient `clipped_ratio` cuts off."""
    ratio = jnp.exp(log_ratio(logp, old_logp, mask))
    too_high = (ratio > 1.0 + clip_high) & (masked(advantage, mask) > 0)
    too_low = (ratio < 1.0 - clip_low) & (masked(advantage, mask) < 0)
    return too_high | too_low


def kl_k3(
    logp: Float[Array, "R T"], reference_logp: Float[Array, "R T"], mask: Bool[Array, "R T"]
) -> Float[Array, "R T"]:
    """The k3 estimate of KL(pi || reference): r - 1 - log r, r = reference / pi; never negative.

    Source: J. Schulman, "Approximating KL divergence" (2020); GRPO, arXiv 2402.03300, eq. 4.
    """
    towards_reference = log_ratio(reference_logp, logp, mask)
    return jnp.expm1(towards_reference) - towards_reference


def imitation(logp: Float[Array, "R T"], mask: Bool[Array, "R T"]) -> Float[Array, "R T"]:
    """Negative log-likelihood of the given tokens."""
    return -masked(logp, mask)
