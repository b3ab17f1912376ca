"""Paged attention against a loop in float64, and what is written where."""

import jax.numpy as jnp
import numpy as np
import pytest

from tiderl_jax.decoder import paged_attention

N_PAGES, PAGE = 7, 4


def reference(q_THE, k_SKE, v_SKE, positions_T):
    """One row, one head, one query at a time."""
    q_THE, k_SKE, v_SKE = (x.astype(np.float64) for x in (q_THE, k_SKE, v_SKE))
    out = np.zeros(q_THE.shape)
    n_groups = q_THE.shape[1] // k_SKE.shape[1]
    for t, position in enumerate(positions_T):
        for h in range(q_THE.shape[1]):
            k, v = k_SKE[: position + 1, h // n_groups], v_SKE[: position + 1, h // n_groups]
            score = k @ q_THE[t, h] / np.sqrt(q_THE.shape[2])
            weight = np.exp(score - score.max())
            out[t, h] = (weight / weight.sum()) @ v
    return out


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_attention_over_scattered_pages_equals_attention_over_the_row(n_kv_heads):
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 3, 4, 8)).astype(np.float32)
    k, v = rng.normal(size=(2, n_kv_heads, N_PAGES, PAGE, 8)).astype(np.float32)
    table = np.array([[5, 0, 3], [2, 6, 1]], np.int32)
    positions = np.array([[8, 9, 10], [0, 1, 2]], np.int32)
    out = paged_attention.attend(*map(jnp.asarray, (q, k, v, table, positions)))
    for row in range(2):
        k_row, v_row = (x[:, table[row]].reshape(n_kv_heads, -1, 8) for x in (k, v))
        expected = reference(
            *(
                x.astype(np.float64)
                for x in (q[row], np.moveaxis(k_row, 0, 1), np.moveaxis(v_row, 0, 1))
            ),
            positions[row],
        )
        np.testing.assert_allclose(out[row], expected, atol=1e-5)


def test_tokens_are_written_at_their_positions_and_padding_nowhere():
    pages = np.zeros((1, N_PAGES, PAGE, 1), np.float32)
    new = np.array([[1, 2, 3], [4, 5, 6]], np.float32).reshape(2, 3, 1, 1)
    table = np.array([[5, 1], [2, 0]], np.int32)
    positions = np.array([[3, 4, 5], [7, 8, 9]], np.int32)  # 8 and 9 are outside of the table
    is_token = np.array([[True, True, False], [True, True, True]])
    arguments = map(jnp.asarray, (pages, new, table, positions, is_token))
    written = paged_attention.write(*arguments)[0, :, :, 0]
    expected = np.zeros((N_PAGES, PAGE))
    expected[5, 3], expected[1, 0], expected[0, 3] = 1, 2, 4
    np.testing.assert_array_equal(written, expected)
