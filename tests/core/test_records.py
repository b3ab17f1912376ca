import numpy as np
import pytest

from tiderl_jax.core.identity import generator, key_words
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId, lag
from tiderl_jax.core.segments import Owner, Segment, given
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory


def model_segment(n_tokens: int, version: int) -> Segment:
    logp = np.full(n_tokens, -0.5)
    return Segment(Owner.MODEL, np.arange(n_tokens), logp, logp, np.full(n_tokens, version))


def trajectory(*segments: Segment) -> Trajectory:
    rollout = RolloutId(GroupId(Purpose.TRAIN, 0), 0)
    return Trajectory(rollout, Task("toy", 0), segments, 1.0, Outcome.FINISHED, n_turns=2)


def test_the_length_of_a_response_is_a_count_over_turns_not_a_span() -> None:
    """Case C1: three prompt tokens, a turn of 4, three observed tokens, a turn of 5."""
    record = trajectory(
        given(Owner.TEMPLATE, [1, 2, 3]),
        model_segment(4, version=0),
        given(Owner.ENV, [7, 8, 9]),
        model_segment(5, version=1),
    )
    assert record.loss_mask.astype(int).tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert record.n_model_tokens == 9


def test_the_oldest_version_is_taken_over_the_tokens_that_may_train() -> None:
    record = trajectory(given(Owner.ENV, [1]), model_segment(2, 5), model_segment(2, 3))
    assert record.oldest_version == 3
    assert lag(PolicyVersion(7), record.oldest_version) == 4


def test_a_segment_cannot_be_changed_after_its_birth() -> None:
    segment = model_segment(3, 0)
    with pytest.raises(ValueError, match="read-only"):
        segment.token_ids[0] = 9


def test_a_segment_does_not_follow_later_changes_of_its_source() -> None:
    source = np.array([1, 2, 3], np.int32)
    segment = given(Owner.ENV, source)
    source[0] = 99
    assert segment.token_ids.tolist() == [1, 2, 3]


def test_a_sampled_token_without_a_version_is_refused() -> None:
    with pytest.raises(ValueError, match="policy version"):
        Segment(Owner.MODEL, np.array([1]), np.zeros(1), np.zeros(1), np.array([-1]))


def test_fields_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one value per token"):
        Segment(Owner.MODEL, np.array([1, 2]), np.zeros(1), np.zeros(2), np.zeros(2))


def test_only_finished_and_truncated_rollouts_may_train() -> None:
    may = {outcome for outcome in Outcome if outcome.may_train}
    assert may == {
        Outcome.FINISHED,
        Outcome.TRUNCATED_LENGTH,
        Outcome.TRUNCATED_TURNS,
        Outcome.TRUNCATED_TIME,
    }


def test_randomness_depends_on_identity_only() -> None:
    assert key_words(1, "sample", 2, 3) == key_words(1, "sample", 2, 3)
    different = {
        key_words(1, "sample", 2, 3),
        key_words(2, "sample", 2, 3),
        key_words(1, "delay", 2, 3),
        key_words(1, "sample", 3, 2),
        key_words(1, "sample", 23),
    }
    assert len(different) == 5
    assert generator(1, "map", 4).random() == generator(1, "map", 4).random()
