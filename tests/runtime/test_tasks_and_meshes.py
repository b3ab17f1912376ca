import jax
import pytest

from tiderl_jax.core.config import EvaluationConfig, PartitionConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.ids import Purpose
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.protocol import Split
from tiderl_jax.runtime.meshes import partition
from tiderl_jax.runtime.tasks import TaskSource

EVALUATION = EvaluationConfig(split="held_out", n_tasks=3, every_steps=0)


class Numbered:
    """A world whose task seeds show the split and the index."""

    def task(self, split: Split, index: int) -> Task:
        return Task(split.value, index)


def test_training_groups_walk_the_training_split_without_repeating() -> None:
    source = TaskSource(Numbered(), 8, EVALUATION)
    groups = source.take(Purpose.TRAIN, 2) + source.take(Purpose.TRAIN, 2)
    assert [source.task(group) for group in groups] == [Task("train", i) for i in range(4)]


def test_every_evaluation_plays_the_same_held_out_tasks_under_new_identities() -> None:
    source = TaskSource(Numbered(), 8, EVALUATION)
    first, second = source.take(Purpose.EVALUATE, 3), source.take(Purpose.EVALUATE, 3)
    assert [source.task(group) for group in first] == [source.task(group) for group in second]
    assert not set(first) & set(second)
    assert source.task(first[0]) == Task("held_out", 0)
    assert source.n_members(Purpose.EVALUATE) == 1
    assert source.n_members(Purpose.TRAIN) == 8


def test_a_resumed_run_hands_out_untrained_groups_before_new_ones() -> None:
    source = TaskSource(
        Numbered(),
        8,
        EVALUATION,
        n_evaluations=1,
        next_train_index=9,
        unfinished_train_indices=[5, 2],
    )
    assert [group.number for group in source.take(Purpose.TRAIN, 4)] == [2, 5, 9, 10]
    assert source.take(Purpose.EVALUATE, 1)[0].number == 3


def partitioned(**changes: object):
    values = {
        "n_rollout_ranks": 2,
        "min_rollout_ranks": 0,
        "max_rollout_ranks": 0,
        "actor_devices": 4,
        "actor_tensor_parallel": 2,
        "share_devices": False,
    }
    return partition(PartitionConfig(**{**values, **changes}), jax.devices())


def test_roles_have_disjoint_devices() -> None:
    places = partitioned()
    assert dict(places.actor.shape) == {"data": 2, "tensor": 2}
    assert not set(places.actor.devices.flat) & set(places.rollout.values())
    assert places.n_devices == 6


def test_shared_devices_are_counted_once() -> None:
    places = partitioned(share_devices=True)
    assert set(places.rollout.values()) <= set(places.actor.devices.flat)
    assert places.n_devices == 4


def test_a_partition_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 10 devices and 8 are there"):
        partitioned(actor_devices=8)
