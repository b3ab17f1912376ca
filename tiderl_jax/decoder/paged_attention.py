"""Attention over paged KV in plain jax.numpy: the specification, and the default.

Shapes: B rows, T new tokens of a row, W pages of a row, P tokens of a page, N pages of the pool,
H query heads, K key/value heads, G query heads per key/value head, E head width, S = W * P.
Pages of one layer are [K, N, P, E]: gathering a row's pages needs no transposition, and a page of
one head is one contiguous block, as accelerator kernels want it.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MASKED = -1e30  # finite, so that a row of padding stays finite


def write(
    pages_KNPE: Float[Array, "K N P E"],
    new_BTKE: Float[Array, "B T K E"],
    page_table_BW: Int[Array, "B W"],
    positions_BT: Int[Array, "B T"],
    is_token_BT: Bool[Array, "B T"],
) -> Float[Array, "K N P E"]:
    """Stores keys or values at their positions of their rows' pages; padding is not stored."""
    n_pages, page_tokens = pages_KNPE.shape[1:3]
    page_BT = jnp.take_along_axis(
        page_table_BW, positions_BT // page_tokens, axis=1, mode="fill", fill_value=n_pages
    )
    page_BT = jnp.where(is_token_BT, page_BT, n_pages)  # outside of the pool: dropped
    offset_BT = positions_BT % page_tokens
    new_KBTE = jnp.moveaxis(new_BTKE, 2, 0)
    return pages_KNPE.at[:, page_BT, offset_BT].set(new_KBTE, mode="drop")


def attend(
    q_BTHE: Float[Array, "B T H E"],
    k_pages_KNPE: Float[Array, "K N P E"],
    v_pages_KNPE: Float[Array, "K N P E"],
    page_table_BW: Int[Array, "B W"],
    positions_BT: Int[Array, "B T"],
) -> Float[Array, "B T H E"]:
    """Each query attends to its row's positions up to its own; softmax in float32."""
    B, T, H, E = q_BTHE.shape
    K = k_pages_KNPE.shape[0]
    q_BTKGE = q_BTHE.reshape(B, T, K, H // K, E)
    k_KBSE = _gather(k_pages_KNPE, page_table_BW)
    v_KBSE = _gather(v_pages_KNPE, page_table_BW)
    score_KBTGS = jnp.einsum(
        "btkge,kbse->kbtgs", q_BTKGE, k_KBSE, preferred_element_type=jnp.float32
    )
    positions_S = jnp.arange(k_KBSE.shape[2])
    visible_BTS = positions_S[None, None, :] <= positions_BT[:, :, None]
    score_KBTGS = jnp.where(visible_BTS[None, :, :, None, :], score_KBTGS * E**-0.5, MASKED)
    weight_KBTGS = jax.nn.softmax(score_KBTGS, axis=-1).astype(v_KBSE.dtype)
    return jnp.einsum("kbtgs,kbse->btkge", weight_KBTGS, v_KBSE).reshape(B, T, H, E)


def _gather(pages_KNPE: jax.Array, page_table_BW: jax.Array) -> jax.Array:
    K, _, _, E = pages_KNPE.shape
    row_pages_KBWPE = pages_KNPE.at[:, page_table_BW].get(mode="promise_in_bounds")
    return row_pages_KBWPE.reshape(K, page_table_BW.shape[0], -1, E)
