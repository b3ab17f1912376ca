import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tiderl_jax.core.errors import WeightsFault
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.runtime.weights import Published, digest, load, publish


def params() -> dict[str, jax.Array]:
    return {"a": jnp.arange(24.0).reshape(4, 6), "b": jnp.ones(8, jnp.bfloat16)}


def test_one_flipped_value_changes_the_digest() -> None:
    other = params()
    other["b"] = other["b"].at[3].set(1.0078125)  # the next bfloat16 after 1
    assert digest(other) != digest(params())


def test_two_exchanged_values_change_the_digest() -> None:
    other = params()
    other["a"] = other["a"].at[0, :2].set(jnp.array([1.0, 0.0]))
    assert digest(other) != digest(params())


def test_a_leaf_under_another_name_or_dtype_changes_the_digest() -> None:
    base = params()
    assert digest({"a": base["a"], "c": base["b"]}) != digest(base)
    assert digest({**base, "b": base["b"].astype(jnp.float32)}) != digest(base)


def test_the_digest_does_not_depend_on_where_the_weights_lie() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    spread = {
        "a": jax.device_put(params()["a"], NamedSharding(mesh, PartitionSpec("x", "y"))),
        "b": jax.device_put(params()["b"], NamedSharding(mesh, PartitionSpec(("x", "y")))),
    }
    assert digest(spread) == digest(params())


def test_a_version_moves_to_another_device_and_proves_itself() -> None:
    target = jax.sharding.SingleDeviceSharding(jax.devices()[5])
    loaded = load(publish(PolicyVersion(3), params()), target)
    assert loaded["a"].sharding == target
    np.testing.assert_array_equal(loaded["a"], params()["a"])


def test_weights_that_are_not_what_was_published_are_refused() -> None:
    good = publish(PolicyVersion(3), params())
    wrong = Published(good.version, good.digest, {**params(), "a": params()["a"] + 1})
    with pytest.raises(WeightsFault, match="is not served"):
        load(wrong, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
