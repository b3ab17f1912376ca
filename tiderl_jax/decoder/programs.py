"""The two compiled programs of a decoder, for a few fixed sizes of batch and page table.

Shapes: R prefill rows of C tokens, B decode rows, W pages of a row, D decode steps of a dispatch.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import PyTreeDef

from tiderl_jax.decoder import paged_attention
from tiderl_jax.decoder.sampler import sample
from tiderl_jax.models.transformer import Attend, ModelSpec, Transformer

Pages = list[tuple[jax.Array, jax.Array]]
"""Per layer the key and the value pages, each [K, N, P, E] in the model's dtype."""


class PrefillRows(NamedTuple):
    """Chunks of contexts whose KV is to be computed; several chunks may be of one context."""

    token_ids: np.ndarray  # int32 [R, C]
    start: np.ndarray  # int32 [R], position of the first token
    n_tokens: np.ndarray  # int32 [R], 0 for a row of padding
    page_table: np.ndarray  # int32 [R, W]


class DecodeRows(NamedTuple):
    """Turns that sample their next tokens."""

    token_ids: np.ndarray  # int32 [B], the last token known
    positions: np.ndarray  # int32 [B], its position
    n_left: np.ndarray  # int32 [B], tokens the turn may still sample; 0 for a row of padding
    index: np.ndarray  # int32 [B], tokens the turn has sampled
    key_words: np.ndarray  # uint32 [B, 2]
    temperature: np.ndarray  # float32 [B]
    stop_token_id: np.ndarray  # int32 [B]
    page_table: np.ndarray  # int32 [B, W]


class Sampled(NamedTuple):
    """One dispatch's samples. A row that ended earlier has id -1 from then on."""

    token_ids: np.ndarray  # int32 [D, B]
    logp_raw: np.ndarray  # float32 [D, B]
    logp: np.ndarray  # float32 [D, B]


def empty_pages(spec: ModelSpec, n_pages: int, page_tokens: int, device: jax.Device) -> Pages:
    """A pool of zeros on `device`."""
    a = spec.architecture
    shape = (a.n_kv_heads, n_pages, page_tokens, a.d_head)

    def zeros() -> jax.Array:
        return jnp.zeros(shape, jnp.dtype(spec.dtype), device=device)

    return [(zeros(), zeros()) for _ in range(a.n_layers)]


def sizes(largest: int, n: int) -> tuple[int, ...]:
    """Up to `n` ascending bucket sizes: `largest`, its half, its quarter, ..., rounded up."""
    return tuple(sorted({-(-largest // 2**halvings) for halvings in range(n)}))


def bucket(needed: int, ascending: tuple[int, ...]) -> int:
    """The smallest size that holds `needed`."""
    return next(size for size in ascending if size >= needed)


class Programs(NamedTuple):
    """Compiled once per shape of their rows. Both donate the pages that they are given."""

    prefill: Callable[[list[jax.Array], Pages, PrefillRows], Pages]
    decode: Callable[[list[jax.Array], Pages, DecodeRows], tuple[Pages, jax.Array]]


@lru_cache
def programs(graphdef: nnx.GraphDef, structure: PyTreeDef, n_steps: int) -> Programs:
    """The programs of a model whose parameters have this tree structure.

    They take the parameters' leaves, which reach the device faster than a tree of them. Engines of
    one model share the compiled code. `decode` samples up to `n_steps` tokens a row and returns
    them packed; see `unpack`.
    """

    def model(leaves: list[jax.Array]) -> Transformer:
        return nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))

    return Programs(
        jax.jit(partial(_prefill, model), donate_argnums=1),
        jax.jit(partial(_decode, model, n_steps), donate_argnums=1),
    )


def unpack(packed: jax.Array) -> Sampled:
    """Waits for a dispatch and copies its samples (int32 [3, D, B]) to the host in one piece."""
    packed_3DB = np.asarray(packed)
    return Sampled(packed_3DB[0], packed_3DB[1].view(np.float32), packed_3DB[2].view(np.float32))


def _paged(
    pages: Pages, page_table_BW: jax.Array, positions_BT: jax.Array, is_token_BT: jax.Array
) -> tuple[Attend, Pages]:
    """An `attend` for the model, and the list in which it leaves the written pages.

    A layer writes the KV of all rows before any row reads: rows of one dispatch may continue each
    other, or share a page that one of them is computing.
    """
    written = list(pages)

    def attend(layer: int, q_BTHE: jax.Array, k_BTKE: jax.Array, v_BTKE: jax.Array) -> jax.Array:
        k_pages, v_pages = pages[layer]
        k_pages = paged_attention.write(k_pages, k_BTKE, page_table_BW, positions_BT, is_token_BT)
        v_pages = paged_attention.write(v_pages, v_BTKE, page_table_BW, positions_BT, is_token_BT)
        written[layer] = (k_pages, v_pages)
        return paged_attention.attend(q_BTHE, k_pages, v_pages, page_table_BW, positions_BT)

    return attend, written


def _prefill(model: Callable, leaves: list[jax.Array], pages: Pages, rows: PrefillRows) -> Pages:
    offset_C = jnp.arange(rows.token_ids.shape[1])
    positions_RC = rows.start[:, None] + offset_C[None, :]
    is_token_RC = offset_C[None, :] < rows.n_tokens[:, None]
    attend, written = _paged(pages, rows.page_table, positions_RC, is_token_RC)
    model(leaves).hidden(rows.token_ids, positions_RC, attend)
    return written


def _decode(
    model: Callable, n_steps: int, leaves: list[jax.Array], pages: Pages, rows: DecodeRows
) -> tuple[Pages, jax.Array]:
    transformer = model(leaves)
    n_rows = rows.token_ids.shape[0]

    def some_row_goes_on(carry: tuple) -> jax.Array:
        step, _, _, _, n_left_B, _ = carry
        return (step < n_steps) & jnp.any(n_left_B > 0)

    def one_token(carry: tuple) -> tuple:
        step, pages, ids_B, packed_3DB, n_left_B, n_done_B = carry
        goes_on_B = n_left_B > 0
        positions_B1 = (rows.positions + n_done_B)[:, None]
        attend, written = _paged(pages, rows.page_table, positions_B1, goes_on_B[:, None])
        hidden_B1D = transformer.hidden(ids_B[:, None], positions_B1, attend)
        ids_B, logp_raw_B, logp_B = sample(
            transformer.logits(hidden_B1D[:, 0]),
            rows.temperature,
            rows.key_words,
            rows.index + n_done_B,
        )
        packed_3B = jnp.stack([jnp.where(goes_on_B, ids_B, -1), _bits(logp_raw_B), _bits(logp_B)])
        n_left_B = jnp.where(goes_on_B & (ids_B != rows.stop_token_id), n_left_B - 1, 0)
        packed_3DB = packed_3DB.at[:, step].set(packed_3B)
        return step + 1, written, ids_B, packed_3DB, n_left_B, n_done_B + goes_on_B

    none_3DB = jnp.full((3, n_steps, n_rows), -1, jnp.int32)
    start = (0, pages, rows.token_ids, none_3DB, rows.n_left, jnp.zeros(n_rows, jnp.int32))
    _, pages, _, packed_3DB, _, _ = jax.lax.while_loop(some_row_goes_on, one_token, start)
    return pages, packed_3DB


def _bits(x_B: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x_B, jnp.int32)
