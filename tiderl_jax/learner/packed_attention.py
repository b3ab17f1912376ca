"""Attention inside packed rows: causal, and never across segments.

Shapes: R rows, T tokens of a row, H query heads, K key/value heads, G = H / K query heads of a
key/value head, E head width, Q queries of a block, S keys that a block may see.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from tiderl_jax.models.transformer import Attend

QUERY_BLOCK_TOKENS = 128
"""Queries computed together. A block sees only the keys up to its own end, which halves the work of
long rows; smaller blocks save more but compile and dispatch for longer (measured on a CPU)."""


def packed_attend(segment_ids: Int[Array, "R T"]) -> Attend:
    """The transformer's `attend` for these rows; padding sees padding only."""

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        del layer  # every layer attends alike
        return packed_attention(q, k, v, segment_ids)

    return attend


def packed_attention(
    q: Float[Array, "R T H E"],
    k: Float[Array, "R T K E"],
    v: Float[Array, "R T K E"],
    segment_ids: Int[Array, "R T"],
) -> Float[Array, "R T H E"]:
    """Softmax attention with float32 scores over the earlier tokens of the same segment."""
    n_rows, n_tokens, n_heads, d_head = q.shape
    n_kv_heads = k.shape[2]
    q_RKGTE = q.reshape(n_rows, n_tokens, n_kv_heads, -1, d_head).transpose(0, 2, 3, 1, 4)
    k_RKTE, v_RKTE = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    mixed = []
    for start in range(0, n_tokens, QUERY_BLOCK_TOKENS):
        end = min(start + QUERY_BLOCK_TOKENS, n_tokens)
        mixed_RKGQE = _attend_block(
            q_RKGTE[:, :, :, start:end],
            k_RKTE[:, :, :end],
            v_RKTE[:, :, :end],
            _visible(segment_ids, start, end),
        )
        mixed.append(mixed_RKGQE)
    mixed_RKGTE = jnp.concatenate(mixed, axis=3)
    return mixed_RKGTE.transpose(0, 3, 1, 2, 4).reshape(n_rows, n_tokens, n_heads, d_head)


def _visible(segment_ids_RT: jax.Array, start: int, end: int) -> jax.Array:
    """bool [R, Q, S]: which of the keys before `end` the queries from `start` may see."""
    same_RQS = segment_ids_RT[:, start:end, None] == segment_ids_RT[:, None, :end]
    earlier_QS = jnp.arange(end)[None, :] <= jnp.arange(start, end)[:, None]
    return same_RQS & earlier_QS[None]


@jax.checkpoint
def _attend_block(
    q_RKGQE: jax.Array, k_RKSE: jax.Array, v_RKSE: jax.Array, visible_RQS: jax.Array
) -> jax.Array:
    """One block of queries. Its [Q, S] scores are computed again for the gradient, never kept."""
    n_rows, n_kv_heads, n_shared, n_queries, d_head = q_RKGQE.shape
    q_RKNE = q_RKGQE.reshape(n_rows, n_kv_heads, n_shared * n_queries, d_head) * d_head**-0.5
    scores_RKNS = jnp.matmul(
        q_RKNE, k_RKSE.transpose(0, 1, 3, 2), preferred_element_type=jnp.float32
    )
    scores_RKGQS = scores_RKNS.reshape(n_rows, n_kv_heads, n_shared, n_queries, -1)
    scores_RKGQS = jnp.where(visible_RQS[:, None, None], scores_RKGQS, -jnp.inf)
    weights_RKGQS = jax.nn.softmax(scores_RKGQS, axis=-1).astype(v_RKSE.dtype)
    mixed_RKNE = weights_RKGQS.reshape(scores_RKNS.shape) @ v_RKSE
    return mixed_RKNE.reshape(q_RKGQE.shape)
