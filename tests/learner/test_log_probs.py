import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learner_reference import log_softmax

from tiderl_jax.learner.log_probs import token_log_probs

R, T, D, V = 2, 21, 8, 50
TEMPERATURE = 0.7


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(R, T, D)).astype(np.float32)
    head = rng.normal(size=(D, V)).astype(np.float32)
    mask = rng.random((R, T)) < 0.4
    mask[:, 0] = False
    return hidden, head, rng.integers(0, V, (R, T)).astype(np.int32), mask


def run(hidden, head, token_ids, mask, chunk_tokens):
    return token_log_probs(
        lambda x: x @ head, hidden, jnp.array(token_ids), jnp.array(mask), TEMPERATURE, chunk_tokens
    )


@pytest.mark.parametrize("chunk_tokens", [1, 8, 14, 42, 1000])
def test_log_probs_and_entropy_equal_a_full_softmax_for_every_chunk_size(case, chunk_tokens):
    hidden, head, token_ids, mask = case
    logp, entropy = run(jnp.array(hidden), jnp.array(head), token_ids, mask, chunk_tokens)
    full = log_softmax(hidden.astype(np.float64) @ head / TEMPERATURE)
    for r in range(R):
        for t in range(T):
            before = full[r, t - 1]
            expected = (before[token_ids[r, t]], -(np.exp(before) * before).sum())
            got = (logp[r, t], entropy[r, t])
            np.testing.assert_allclose(got, expected if mask[r, t] else (0, 0), atol=2e-5)


def test_the_gradient_equals_that_of_a_full_softmax(case):
    hidden, head, token_ids, mask = case
    weight = jnp.array(np.random.default_rng(1).normal(size=(R, T)), jnp.float32)

    def chunked(hidden, head):
        return (weight * run(hidden, head, token_ids, mask, 8)[0]).sum()

    def full(hidden, head):
        logp = jax.nn.log_softmax(hidden[:, :-1] @ head / TEMPERATURE)
        chosen = jnp.take_along_axis(logp, jnp.array(token_ids)[:, 1:, None], axis=2)[:, :, 0]
        return jnp.where(jnp.array(mask)[:, 1:], weight[:, 1:] * chosen, 0).sum()

    arguments = (jnp.array(hidden), jnp.array(head))
    jax.tree.map(
        lambda got, expected: np.testing.assert_allclose(got, expected, atol=1e-5),
        jax.grad(chunked, (0, 1))(*arguments),
        jax.grad(full, (0, 1))(*arguments),
    )


def shapes_in(jaxpr):
    for equation in jaxpr.eqns:
        for variable in (*equation.invars, *equation.outvars):
            yield getattr(variable.aval, "shape", ())
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from shapes_in(inner)


def test_tokens_times_vocabulary_exists_for_one_chunk_only(case):
    hidden, head, token_ids, mask = case
    gradient = jax.grad(lambda h, w: run(h, w, token_ids, mask, 8)[0].sum(), (0, 1))
    jaxpr = jax.make_jaxpr(gradient)(jnp.array(hidden), jnp.array(head))
    with_vocabulary = [shape for shape in shapes_in(jaxpr.jaxpr) if V in shape]
    assert (R, 4, V) in with_vocabulary
    assert max(np.prod(shape) for shape in with_vocabulary) == max(8 * V, D * V)


def test_chunks_without_a_token_that_counts_are_not_computed(case):
    """Garbage in slots that do not count cannot even be noticed."""
    hidden, head, token_ids, mask = case
    mask = np.zeros_like(mask)
    hidden = jnp.full(hidden.shape, jnp.nan)
    logp, entropy = run(hidden, jnp.array(head), token_ids, mask, 8)
    gradient = jax.grad(lambda h: run(h, jnp.array(head), token_ids, mask, 8)[0].sum())(hidden)
    for array in (logp, entropy, gradient):
        np.testing.assert_array_equal(array, 0)
