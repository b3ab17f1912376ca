import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiderl_jax.learner.advantages import group_relative


def advantages(rewards, group_ids, normalise_by_std=True):
    return group_relative(np.array(rewards, float), np.array(group_ids), normalise_by_std)


def test_groups_are_told_by_their_ids_and_not_by_their_place():
    """Case C6."""
    interleaved = advantages([1, 0, 1, 0], [1, 2, 1, 2])
    np.testing.assert_array_equal(interleaved, np.zeros(4))
    np.testing.assert_array_equal(advantages([1, 1, 0, 0], [1, 2, 1, 2])[:2] > 0, [True, True])


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12), st.data())
def test_a_permutation_of_rows_gives_the_permuted_result(rows, data):
    rewards, groups = map(list, zip(*rows, strict=True))
    order = data.draw(st.permutations(range(len(rows))))
    permuted = advantages([rewards[i] for i in order], [groups[i] for i in order])
    np.testing.assert_allclose(permuted, advantages(rewards, groups)[list(order)], atol=1e-8)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=10))
def test_a_normalised_advantage_is_bounded_whatever_the_rewards(rewards):
    n = len(rewards)
    result = advantages(rewards, [0] * n)
    assert np.all(np.abs(result) <= (n - 1) / np.sqrt(n) + 1e-9)
    assert abs(result.sum()) < 1e-6


def test_a_lone_success_and_a_lone_failure_have_the_known_values():
    np.testing.assert_allclose(advantages([1, 0, 0, 0], [0] * 4), [1.5, -0.5, -0.5, -0.5])
    np.testing.assert_allclose(advantages([1, 0, 0, 0], [0] * 4, False), [0.75] + [-0.25] * 3)
    expected = [-2.474874] + [0.353553] * 7
    np.testing.assert_allclose(advantages([0] + [0.95] * 7, [0] * 8), expected, rtol=1e-5)


@pytest.mark.parametrize("rewards", [[0.95] * 8, [0.1 + 0.2, 0.3], [1e8, 1e8 + 1e-6], [7.0]])
@pytest.mark.parametrize("normalise", [True, False])
def test_equal_rewards_have_no_advantage_though_rounding_tells_them_apart(rewards, normalise):
    np.testing.assert_array_equal(advantages(rewards, [3] * len(rewards), normalise), 0)


def test_no_trajectory_has_no_advantages():
    assert group_relative(np.zeros(0), np.zeros(0, int), True).shape == (0,)
