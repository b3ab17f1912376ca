"""Log-probs of given tokens, over chunks, so that [tokens, vocabulary] never exists whole.

Shapes: R rows, T tokens of a row, C tokens of a row in a chunk, N chunks, D model width,
V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Score = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""(hidden before each token, token ids, mask) -> (log-probs, entropies), of any [R, C]."""


def token_log_probs(
    logits: Callable[[jax.Array], jax.Array],
    hidden: Float[Array, "R T D"],
    token_ids: Int[Array, "R T"],
    mask: Bool[Array, "R T"],
    temperature: float,
    chunk_tokens: int,
) -> tuple[Float[Array, "R T"], Float[Array, "R T"]]:
    """(log-prob of each token given those before it, entropy of its distribution), in nats.

    Slot t is predicted from the hidden state of slot t - 1, and log-probs are those of the
    distribution that was sampled from: logits are divided by `temperature`. Both are float32, and 0
    where the mask does not hold; slot 0 must be masked. The entropy carries no gradient. Logits
    exist for about `chunk_tokens` tokens at a time.
    """

    def score(
        before_RCD: jax.Array, token_ids_RC: jax.Array, mask_RC: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        logp_RC, entropy_RC = _of_tokens(logits(before_RCD) / temperature, token_ids_RC)
        return jnp.where(mask_RC, logp_RC, 0.0), jnp.where(mask_RC, entropy_RC, 0.0)

    if chunk_tokens >= mask.size:
        return score(jnp.roll(hidden, 1, axis=1), token_ids, mask)
    return _in_chunks(score, hidden, token_ids, mask, max(chunk_tokens // len(mask), 1))


def _in_chunks(
    score: Score,
    hidden_RTD: jax.Array,
    token_ids_RT: jax.Array,
    mask_RT: jax.Array,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """Cut along T, so that rows stay on their devices; what counts goes first, so that the chunks
    at the end, without any such token, are not computed."""
    n_rows, n_tokens = mask_RT.shape
    n_chunks = -(-n_tokens // chunk)
    order_RT = jnp.argsort(~mask_RT, axis=1, stable=True)
    before_RTD = jnp.take_along_axis(hidden_RTD, jnp.maximum(order_RT - 1, 0)[:, :, None], axis=1)

    def cut(x: jax.Array) -> jax.Array:
        padding = [(0, 0), (0, n_chunks * chunk - n_tokens)] + [(0, 0)] * (x.ndim - 2)
        cut_RNC = jnp.pad(x, padding).reshape(n_rows, n_chunks, chunk, *x.shape[2:])
        return jnp.moveaxis(cut_RNC, 1, 0)

    def skip(*args: jax.Array) -> tuple[jax.Array, jax.Array]:
        zeros_RC = jnp.zeros(args[-1].shape, jnp.float32)
        return zeros_RC, zeros_RC

    @jax.checkpoint
    def one(args: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        return jax.lax.cond(args[-1].any(), score, skip, *args)

    def join(x_NRC: jax.Array) -> jax.Array:
        x_RT = jnp.moveaxis(x_NRC, 0, 1).reshape(n_rows, -1)[:, :n_tokens]
        return jnp.take_along_axis(x_RT, jnp.argsort(order_RT, axis=1), axis=1)

    sorted_ids_RT = jnp.take_along_axis(token_ids_RT, order_RT, axis=1)
    sorted_mask_RT = jnp.take_along_axis(mask_RT, order_RT, axis=1)
    logp_NRC, entropy_NRC = jax.lax.map(
        one, (cut(before_RTD), cut(sorted_ids_RT), cut(sorted_mask_RT))
    )
    return join(logp_NRC), join(entropy_NRC)


def _of_tokens(logits_RCV: jax.Array, token_ids_RC: jax.Array) -> tuple[jax.Array, jax.Array]:
    normaliser_RC = jax.nn.logsumexp(logits_RCV, axis=-1)
    # A comparison instead of a gather: its gradient is no scatter.
    vocabulary_V = jnp.arange(logits_RCV.shape[-1])
    is_token_RCV = vocabulary_V[None, None, :] == token_ids_RC[:, :, None]
    chosen_RC = jnp.where(is_token_RCV, logits_RCV, 0.0).sum(axis=-1)
    logp_RCV = jax.lax.stop_gradient(logits_RCV - normaliser_RC[:, :, None])
    entropy_RC = -(jnp.exp(logp_RCV) * logp_RCV).sum(axis=-1)
    return chosen_RC - normaliser_RC, entropy_RC
