"""The compiled step against a float64 reference, and the laws that its gradient obeys."""

from functools import cache, partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_reference import float64
from learner_reference import grpo_loss as reference_loss
from learner_toys import ARCHITECTURE, learner_config, leaves, mesh, model, random_trajectory

from tiderl_jax.learner.learner import grpo_loss
from tiderl_jax.learner.packing import pack
from tiderl_jax.learner.train_step import (
    Placement,
    Policy,
    accumulate_program,
    score_program,
    zeros_program,
)
from tiderl_jax.models.sharding import shardings

TEMPERATURE = 0.7
CONFIG = learner_config(kl_coefficient=0.3)


@cache
def programs():
    graphdef, params = model()
    _, reference = model(seed=1)
    placement = Placement(mesh(), shardings(params, mesh()))
    policy = Policy(graphdef, "float32", TEMPERATURE, chunk_tokens=32)
    return (
        params,
        reference,
        zeros_program(params, placement),
        score_program(policy, placement),
        accumulate_program(policy, partial(grpo_loss, CONFIG), placement),
    )


def gradient(trajectories, advantages, n_rows=4, spoil=lambda rows: rows):
    """The gradient and the loss of one update."""
    params, reference, zeros, score, accumulate = programs()
    denominator = np.float32(sum(t.n_model_tokens for t in trajectories))
    grads, loss = zeros(), 0.0
    for rows in pack(trajectories, advantages, n_rows, 32).microbatches:
        rows = rows._replace(reference_logp=np.asarray(score(reference, rows)))
        grads, sums, _ = accumulate(params, grads, spoil(rows), denominator)
        loss += float(sums["loss"])
    return leaves(grads), loss


def case(seed, n=12):
    rng = np.random.default_rng(seed)
    trajectories = [random_trajectory(rng, group=i) for i in range(n)]
    return trajectories, [float(x) for x in rng.normal(size=n)]


def assert_equal_gradients(got, expected, share):
    """Equal up to this share of the gradient's norm: float32 sums depend on their order."""
    norm = np.sqrt(sum(np.square(g).sum() for g in expected[0]))
    for a, b in zip(got[0], expected[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=share * norm)
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=share * norm)


def test_loss_and_gradient_follow_the_definition():
    """Against central differences of a float64 loop over tokens, along random directions."""
    trajectories, advantages = case(0, n=5)
    params, reference = (float64(tree) for tree in programs()[:2])
    grads, loss = gradient(trajectories, advantages)

    def at(shift, direction):
        moved = jax.tree.map(lambda x, d: x + shift * d, params, direction)
        return reference_loss(
            moved, reference, trajectories, advantages, CONFIG, ARCHITECTURE, TEMPERATURE
        )

    rng = np.random.default_rng(1)
    np.testing.assert_allclose(loss, at(0, params), rtol=1e-5)
    for _ in range(3):
        direction = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        slope = (at(1e-5, direction) - at(-1e-5, direction)) / 2e-5
        along = sum((g * d).sum() for g, d in zip(grads, leaves(direction), strict=True))
        np.testing.assert_allclose(along, slope, rtol=1e-4, atol=1e-5)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**16), st.permutations(range(12)))
def test_no_order_of_rows_changes_the_gradient(seed, order):
    trajectories, advantages = case(seed)
    permuted = gradient([trajectories[i] for i in order], [advantages[i] for i in order])
    assert_equal_gradients(permuted, gradient(trajectories, advantages), share=1e-6)


def test_no_split_into_microbatches_changes_the_gradient():
    trajectories, advantages = case(3)
    split = gradient(trajectories, advantages, n_rows=1)
    assert_equal_gradients(split, gradient(trajectories, advantages), share=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_garbage_in_masked_and_padded_slots_has_no_influence(garbage):
    trajectories, advantages = case(4)

    def spoil(rows):
        def dirty(values):
            return np.where(rows.loss_mask, values, np.float32(garbage))

        return rows._replace(
            old_logp=dirty(rows.old_logp),
            advantage=dirty(rows.advantage),
            reference_logp=dirty(rows.reference_logp),
        )

    spoiled = gradient(trajectories, advantages, spoil=spoil)
    assert_equal_gradients(spoiled, gradient(trajectories, advantages), share=0)
