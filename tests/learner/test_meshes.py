"""The same step on meshes of every kind gives the same parameters."""

from functools import cache

import jax
import numpy as np
import pytest
from learner_toys import fresh_learner, learner, learner_config, leaves, mesh, random_groups

from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.learner.packing import empty_rows
from tiderl_jax.learner.train_step import Placement

CHUNKED = learner_config(logp_chunk_tokens=32)


@cache
def after_three_steps(data, tensor):
    rng = np.random.default_rng(0)
    subject = fresh_learner() if data * tensor == 1 else learner(CHUNKED, on=mesh(data, tensor))
    for step in range(3):
        report = subject.step(random_groups(rng), PolicyVersion(step))
    return leaves(subject.weights()), report


@pytest.mark.parametrize(("data", "tensor"), [(1, 2), (4, 1), (4, 2)])
def test_three_steps_give_the_same_parameters_on_every_mesh(data, tensor):
    expected, expected_report = after_three_steps(1, 1)
    got, report = after_three_steps(data, tensor)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert report.metrics["loss"] == pytest.approx(expected_report.metrics["loss"], abs=1e-5)
    assert report.trained_tokens == expected_report.trained_tokens


def test_the_rows_of_a_microbatch_are_split_over_the_data_axis():
    rows = empty_rows(8, 32).token_ids
    placed = jax.device_put(rows, Placement(mesh(4, 2), None).rows)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 32)}
