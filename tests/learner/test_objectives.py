import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiderl_jax.learner import objectives

CLIP = (0.2, 0.28)


def losses(logp, old, advantage, reference, mask, denominator):
    policy = objectives.clipped_ratio(logp, old, advantage, mask, *CLIP)
    kl = objectives.kl_k3(logp, reference, mask)
    return objectives.global_mean(policy + 0.1 * kl, mask, denominator)


def random_arrays(rng, shape=(3, 5)):
    return [jnp.array(rng.normal(0, 0.4, shape), jnp.float32) for _ in range(4)]


def test_nan_in_a_masked_slot_leaves_loss_kl_and_gradient_finite():
    """Case C2."""
    logp, mask = jnp.zeros((1, 2)), jnp.array([[True, False]])
    old = jnp.array([[0.0, jnp.nan]])
    loss, gradient = jax.value_and_grad(losses)(
        logp, old, jnp.ones((1, 2)), old, mask, jnp.float32(1)
    )
    assert loss == -1.0
    np.testing.assert_array_equal(gradient, [[-1.0, 0.0]])


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 1e38])
@pytest.mark.parametrize("argument", range(4))
def test_masked_garbage_in_any_argument_has_no_influence(garbage, argument):
    rng = np.random.default_rng(0)
    mask = jnp.array(rng.random((3, 5)) < 0.5)
    clean = random_arrays(rng)
    dirty = list(clean)
    dirty[argument] = jnp.where(mask, clean[argument], garbage)
    run = jax.value_and_grad(losses)
    jax.tree.map(
        np.testing.assert_array_equal,
        run(*clean, mask, jnp.float32(7)),
        run(*dirty, mask, jnp.float32(7)),
    )


def test_every_token_s_loss_and_clipping_follow_the_definition():
    rng = np.random.default_rng(1)
    logp, old, advantage, _ = random_arrays(rng, (20, 20))
    mask = jnp.ones(logp.shape, bool)
    ratio = np.exp(np.float64(logp) - np.float64(old))
    expected = np.maximum(-ratio * advantage, -np.clip(ratio, 0.8, 1.28) * advantage)
    loss = objectives.clipped_ratio(logp, old, advantage, mask, *CLIP)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    gradient = jax.grad(lambda x: objectives.clipped_ratio(x, old, advantage, mask, *CLIP).sum())(
        logp
    )
    clipped = objectives.is_clipped(logp, old, advantage, mask, *CLIP)
    assert 0.1 < clipped.mean() < 0.9
    np.testing.assert_array_equal(np.asarray(gradient) == 0, clipped)


def test_the_ratio_is_exactly_one_on_the_policy_s_own_log_probs():
    logp, _, advantage, _ = random_arrays(np.random.default_rng(2))
    mask = jnp.ones(logp.shape, bool)

    def loss(x):
        old = jax.lax.stop_gradient(x)
        return objectives.clipped_ratio(x, old, advantage, mask, *CLIP).sum()

    value, gradient = jax.value_and_grad(loss)(logp)
    assert value == -advantage.sum()
    np.testing.assert_array_equal(gradient, -advantage)


def test_k3_is_zero_for_equal_policies_and_else_positive_with_its_known_gradient():
    logp, _, _, reference = random_arrays(np.random.default_rng(3))
    mask = jnp.ones(logp.shape, bool)
    np.testing.assert_array_equal(objectives.kl_k3(logp, logp, mask), 0)
    assert np.all(np.asarray(objectives.kl_k3(logp, reference, mask)) > 0)
    gradient = jax.grad(lambda x: objectives.kl_k3(x, reference, mask).sum())(logp)
    np.testing.assert_allclose(gradient, 1 - np.exp(reference - logp), rtol=1e-4, atol=1e-6)


def test_a_ratio_beyond_all_bounds_stays_finite():
    far = jnp.full((1, 1), -1e30)
    mask, one = jnp.ones((1, 1), bool), jnp.ones((1, 1))
    assert np.isfinite(objectives.clipped_ratio(-far, far, -one, mask, *CLIP)).all()
    assert np.isfinite(objectives.kl_k3(far, -far, mask)).all()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(10)), st.lists(st.integers(0, 10), max_size=3))
def test_the_token_mean_is_the_same_for_every_split_into_microbatches(order, cuts):
    """Two tokens with loss 1 and eight with loss 2: the mean is 1.8, not 1.5."""
    values = np.array([1.0] * 2 + [2.0] * 8, np.float32)[list(order)]
    parts = np.split(values, sorted(cuts))
    shares = [
        objectives.global_mean(
            jnp.array(part)[None], jnp.ones((1, len(part)), bool), jnp.float32(10)
        )
        for part in parts
    ]
    np.testing.assert_allclose(sum(shares), 1.8, rtol=1e-6)
