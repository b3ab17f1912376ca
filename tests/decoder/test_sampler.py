"""Samples follow the softmax, and depend on the request's key and index and on nothing else."""

import jax
import numpy as np
import pytest
from decoder_world import log_softmax

from tiderl_jax.decoder.sampler import sample

N_DRAWS = 20_000
jitted_sample = jax.jit(sample)
LOGITS = np.array([2.0, 1.0, 0.0, -1.0, 0.5, -3.0], np.float32)


def draw(temperature: float, index: int = 0) -> list[np.ndarray]:
    """(ids, logp_raw, logp) of one sample for each of N_DRAWS keys."""
    n = N_DRAWS
    keys = np.stack([np.arange(n), np.full(n, 7)], axis=1).astype(np.uint32)
    rows = np.tile(LOGITS, (n, 1))
    temperatures, indices = np.full(n, temperature, np.float32), np.full(n, index, np.int32)
    return sampled(rows, temperatures, keys, indices)


def sampled(*arguments: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(x) for x in jitted_sample(*arguments)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_frequencies_pass_a_chi_square_test_against_the_softmax(temperature):
    ids, _, _ = draw(temperature)
    expected = N_DRAWS * np.exp(log_softmax(LOGITS / temperature))
    observed = np.bincount(ids, minlength=len(LOGITS))
    large = expected >= 5
    chi_square = np.sum((observed - expected)[large] ** 2 / expected[large])
    assert chi_square < 20.5  # 0.1 % of 5 degrees of freedom
    assert observed[~large].sum() < 15


def test_successive_indices_of_one_key_are_independent_draws():
    samples = np.stack([draw(1.0, index)[0] for index in range(2)])
    agreement = np.mean(samples[0] == samples[1])
    assert agreement == pytest.approx(np.sum(np.exp(2 * log_softmax(LOGITS))), abs=0.02)


def test_raw_and_tempered_log_probs_are_both_returned():
    ids, logp_raw, logp = draw(0.5)
    np.testing.assert_allclose(logp_raw, log_softmax(LOGITS)[ids], atol=1e-5)
    np.testing.assert_allclose(logp, log_softmax(LOGITS / 0.5)[ids], atol=1e-5)


def test_temperature_zero_takes_the_most_probable_token_and_its_raw_log_prob():
    ids, logp_raw, logp = draw(0.0)
    assert set(ids) == {0}
    np.testing.assert_array_equal(logp, logp_raw)
    np.testing.assert_allclose(logp_raw, log_softmax(LOGITS)[0], atol=1e-5)


def test_a_sample_depends_on_its_key_and_index_but_not_on_its_row_or_neighbours():
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(6, 9)).astype(np.float32)
    temperature = np.array([0, 1, 0.3, 2, 1, 1], np.float32)
    keys = rng.integers(0, 2**32, size=(6, 2), dtype=np.uint32)
    index = np.arange(6, dtype=np.int32)
    together = sampled(logits, temperature, keys, index)
    for order in (np.arange(6)[::-1], np.array([4, 4, 0, 1, 2, 4])):
        again = sampled(logits[order], temperature[order], keys[order], index[order])
        np.testing.assert_array_equal(again[0], together[0][order])
        np.testing.assert_allclose(again[2], together[2][order], atol=1e-6)
