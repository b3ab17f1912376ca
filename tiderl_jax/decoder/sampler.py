"""Sampling on the device. A sample is a function of its request's key and its index in the turn."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32


def sample(
    logits_BV: Float[Array, "B V"],
    temperature_B: Float[Array, " B"],
    key_words_B2: UInt32[Array, "B 2"],
    index_B: Int[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, " B"], Float[Array, " B"]]:
    """(ids, logp_raw, logp): one token a row, by the Gumbel trick; greedy at temperature 0.

    `logp_raw` is log softmax(logits); `logp` is of the distribution sampled from, that is log
    softmax(logits / temperature). A greedy token's `logp` is its `logp_raw`. Both in nats.
    """
    is_greedy_B = temperature_B == 0
    scaled_BV = logits_BV / jnp.where(is_greedy_B, 1.0, temperature_B)[:, None]
    noise_BV = _gumbel(key_words_B2, index_B, logits_BV.shape[1])
    noisy_BV = scaled_BV + jnp.where(is_greedy_B[:, None], 0.0, noise_BV)
    ids_B = jnp.argmax(noisy_BV, axis=-1).astype(jnp.int32)
    return ids_B, _logp(logits_BV, ids_B), _logp(scaled_BV, ids_B)


def _gumbel(key_words_B2: jax.Array, index_B: jax.Array, n: int) -> jax.Array:
    def one(key_words_2: jax.Array, index: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(key_words_2, impl="threefry2x32")
        return jax.random.gumbel(jax.random.fold_in(key, index), (n,), jnp.float32)

    return jax.vmap(one)(key_words_B2, index_B)


def _logp(logits_BV: jax.Array, ids_B: jax.Array) -> jax.Array:
    chosen_B = jnp.take_along_axis(logits_BV, ids_B[:, None], axis=1)[:, 0]
    return chosen_B - jax.nn.logsumexp(logits_BV, axis=-1)
