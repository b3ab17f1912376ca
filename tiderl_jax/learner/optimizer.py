"""The optimizer: AdamW behind a global-norm clip, its rate warmed up and then decayed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from tiderl_jax.core.config import OptimizerConfig

ADAM_BETA1 = 0.9


def learning_rate(config: OptimizerConfig, total_updates: int) -> Callable[[Any], jax.Array]:
    """The rate of update n (from 0): a linear rise, then a linear fall to the final share."""

    def rate(n: Any) -> jax.Array:
        rise = (n + 1) / max(config.warmup_updates, 1)
        last = max(total_updates - 1, config.warmup_updates, 1)
        fallen = jnp.clip((n - config.warmup_updates) / max(last - config.warmup_updates, 1), 0, 1)
        fall = 1 - (1 - config.final_share) * fallen
        return config.learning_rate * jnp.minimum(jnp.minimum(rise, 1.0), fall)

    return rate


def make_optimizer(config: OptimizerConfig, total_updates: int) -> optax.GradientTransformation:
    """Decay applies to matrices only: a norm's scale has no reason to go to 0."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate(config, total_updates),
            b1=ADAM_BETA1,
            b2=config.beta2,
            weight_decay=config.weight_decay,
            mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
        ),
    )
