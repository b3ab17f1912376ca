import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner_toys import random_trajectory, sampled, trajectory

from tiderl_jax.core.errors import LearnerFault
from tiderl_jax.core.segments import Owner
from tiderl_jax.core.segments import given as segment
from tiderl_jax.learner.packing import PADDING, pack

ROWS, TOKENS = 3, 24


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_every_trajectory_lies_whole_in_one_segment_of_its_own(seed, n):
    rng = np.random.default_rng(seed)
    trajectories = [random_trajectory(rng) for _ in range(n)]
    packed = pack(trajectories, [float(index) for index in range(n)], ROWS, TOKENS)
    segments = [rows.segment_ids for rows in packed.microbatches]
    seen = set()
    for index, (t, place) in enumerate(zip(trajectories, packed.places, strict=True)):
        rows = packed.microbatches[place.microbatch]
        (own,) = set(place.cut(segments).tolist())
        assert (place.microbatch, place.row, own) not in seen
        seen.add((place.microbatch, place.row, own))
        assert own != PADDING
        assert (rows.segment_ids[place.row] == own).sum() == len(t.token_ids)
        for field, expected in (
            ("token_ids", t.token_ids),
            ("positions", np.arange(len(t.token_ids))),
            ("loss_mask", t.loss_mask),
            ("old_logp", t.logp),
            ("advantage", np.full(len(t.token_ids), index)),
        ):
            arrays = [getattr(rows, field) for rows in packed.microbatches]
            np.testing.assert_array_equal(place.cut(arrays), expected)
    n_tokens = sum(len(t.token_ids) for t in trajectories)
    assert sum((ids != PADDING).sum() for ids in segments) == n_tokens
    assert sum(rows.loss_mask.sum() for rows in packed.microbatches) == sum(
        t.n_model_tokens for t in trajectories
    )
    assert packed.efficiency == n_tokens / (len(segments) * ROWS * TOKENS)
    assert {ids.shape for ids in segments} == {(ROWS, TOKENS)}


def test_the_mask_counts_model_tokens_and_not_the_span_over_turns():
    owners = [(Owner.ENV, 3), (Owner.MODEL, 4), (Owner.ENV, 3), (Owner.MODEL, 5)]
    segments = [
        sampled([1] * n) if owner is Owner.MODEL else segment(owner, [2] * n) for owner, n in owners
    ]
    rows = pack([trajectory(segments)], [1.0], 1, 16).microbatches[0]
    expected = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0]
    np.testing.assert_array_equal(rows.loss_mask[0], np.array(expected, bool))
    assert rows.loss_mask.sum() == 9


def test_long_trajectories_go_first_so_short_ones_fill_the_gaps():
    lengths = [4, 4, 12, 4, 12]
    trajectories = [trajectory([segment(Owner.ENV, [0] * n)]) for n in lengths]
    packed = pack(trajectories, [0.0] * 5, 1, 16)
    assert len(packed.microbatches) == 3
    assert [place.microbatch for place in packed.places] == [0, 1, 0, 2, 1]


def test_what_cannot_be_packed_is_refused_by_name():
    with pytest.raises(LearnerFault, match=r"train/0/0\.0 has 25 tokens"):
        pack([trajectory([segment(Owner.ENV, [0] * 25)])], [0.0], ROWS, TOKENS)
    with pytest.raises(LearnerFault, match="nothing predicts it"):
        pack([trajectory([sampled([1])])], [0.0], ROWS, TOKENS)


def test_nothing_packs_into_nothing():
    packed = pack([], [], ROWS, TOKENS)
    assert packed.microbatches == ()
    assert packed.efficiency == 0
