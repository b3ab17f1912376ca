"""Log-probs of given tokens, over chunks, so that [tokens, vocabulary] never exists whole.

Shapes: R rows, T tokens of a row, C tokens of a row in a chunk, D model width, V vocabulary.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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
    where the mask does not hold; slot 0 must be masked. The entropy carries no gradient. Chunks are
    cut along T, so that rows stay on their devices.
    """
    n_rows, n_tokens, _ = hidden.shape
    chunk = min(max(chunk_tokens // n_rows, 1), n_tokens)
    n_chunks = -(-n_tokens // chunk)

    # The tokens that count go first: chunks without any are skipped.
    order_RT = jnp.argsort(~mask, axis=1, stable=True)
    before_RTD = jnp.take_along_axis(hidden, jnp.maximum(order_RT - 1, 0)[:, :, None], axis=1)

    def cut(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (0, n_chunks * chunk - n_tokens)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(n_rows, n_chunks, chunk, *x.shape[2:]), 1, 0)

    def one(args: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden_RCD, token_ids_RC, mask_RC = args
        return jax.lax.cond(mask_RC.any(), score, skip, hidden_RCD, token_ids_RC, mask_RC)

    def score(
        hidden_RCD: jax.Array, token_ids_RC: jax.Array, mask_RC: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        logits_RCV = logits(hidden_RCD) / temperature
        logp_RC, entropy_RC = _gather(logits_RCV, token_ids_RC)
        return jnp.where(mask_RC, logp_RC, 0.0), jnp.where(mask_RC, entropy_RC, 0.0)

    def skip(
        hidden_RCD: jax.Array, token_ids_RC: jax.Array, mask_RC: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        del hidden_RCD, token_ids_RC
        return jnp.zeros(mask_RC.shape, jnp.float32), jnp.zeros(mask_RC.shape, jnp.float32)

    sorted_ids_RT = jnp.take_along_axis(token_ids, order_RT, axis=1)
    sorted_mask_RT = jnp.take_along_axis(mask, order_RT, axis=1)
    chunks = (cut(before_RTD), cut(sorted_ids_RT), cut(sorted_mask_RT))
    scored = jax.lax.map(jax.checkpoint(one), chunks)
    back_RT = jnp.argsort(order_RT, axis=1)

    def join(x_NRC: jax.Array) -> jax.Array:
        x_RT = jnp.moveaxis(x_NRC, 0, 1).reshape(n_rows, -1)[:, :n_tokens]
        return jnp.take_along_axis(x_RT, back_RT, axis=1)

    return join(scored[0]), join(scored[1])


def _gather(logits_RCV: jax.Array, token_ids_RC: jax.Array) -> tuple[jax.Array, jax.Array]:
    normaliser_RC = jax.nn.logsumexp(logits_RCV, axis=-1)
    # A comparison instead of a gather: its gradient is no scatter.
    vocabulary_V = jnp.arange(logits_RCV.shape[-1])
    is_token_RCV = vocabulary_V[None, None, :] == token_ids_RC[:, :, None]
    chosen_RC = jnp.where(is_token_RCV, logits_RCV, 0.0).sum(axis=-1)
    logp_RCV = jax.lax.stop_gradient(logits_RCV - normaliser_RC[:, :, None])
    entropy_RC = -(jnp.exp(logp_RCV) * logp_RCV).sum(axis=-1)
    return chosen_RC - normaliser_RC, entropy_RC
