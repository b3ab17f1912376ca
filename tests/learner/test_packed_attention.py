import jax.numpy as jnp
import numpy as np
import pytest

from tiderl_jax.learner import packed_attention as module
from tiderl_jax.learner.packed_attention import packed_attention


def brute_force(q_RTHE, k_RTKE, v_RTKE, segment_ids_RT):
    n_rows, n_tokens, n_heads, d_head = q_RTHE.shape
    out = np.zeros(q_RTHE.shape)
    for r in range(n_rows):
        for t in range(n_tokens):
            seen = [s for s in range(t + 1) if segment_ids_RT[r, s] == segment_ids_RT[r, t]]
            for h in range(n_heads):
                shared = h * k_RTKE.shape[2] // n_heads
                scores = np.array([q_RTHE[r, t, h] @ k_RTKE[r, s, shared] for s in seen])
                weights = np.exp(scores / np.sqrt(d_head))
                values = np.array([v_RTKE[r, s, shared] for s in seen])
                out[r, t, h] = weights / weights.sum() @ values
    return out


def inputs(rng, n_tokens, n_heads=4, n_kv_heads=2):
    shapes = [(2, n_tokens, n, 6) for n in (n_heads, n_kv_heads, n_kv_heads)]
    q, k, v = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    cuts = np.sort(rng.integers(0, 4, (2, n_tokens)), axis=1)
    return q, k, v, ((cuts + 1) % 4).astype(np.int32)  # padding (0) at the end


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(4, 2), (2, 2), (3, 1)])
@pytest.mark.parametrize("n_tokens", [5, 8, 21])
def test_attention_is_causal_inside_a_segment_and_blind_across(
    monkeypatch, n_tokens, n_heads, n_kv_heads
):
    monkeypatch.setattr(module, "QUERY_BLOCK_TOKENS", 8)
    q, k, v, segment_ids = inputs(np.random.default_rng(0), n_tokens, n_heads, n_kv_heads)
    out = packed_attention(*map(jnp.array, (q, k, v, segment_ids)))
    expected = brute_force(*(x.astype(np.float64) for x in (q, k, v)), segment_ids)
    np.testing.assert_allclose(out, expected, atol=1e-6)


def test_scores_are_float32_though_activations_are_bfloat16():
    q, k, v, segment_ids = inputs(np.random.default_rng(1), 16)
    coarse = [jnp.array(x, jnp.bfloat16) for x in (q, k, v)]
    out = packed_attention(*coarse, jnp.array(segment_ids))
    exact = [np.asarray(x, np.float64) for x in coarse]
    assert out.dtype == jnp.bfloat16
    expected = brute_force(*exact, segment_ids)
    np.testing.assert_allclose(np.asarray(out, np.float64), expected, atol=0.03)
