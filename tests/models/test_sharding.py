import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from tiderl_jax.core.config import ArchitectureConfig
from tiderl_jax.models.sharding import make_mesh, shardings
from tiderl_jax.models.transformer import ModelSpec, new_model


@pytest.fixture(scope="module")
def params():
    architecture = ArchitectureConfig(2, 16, 4, 2, 4, 24, 100.0, 1e-5, False)
    return new_model(ModelSpec(architecture, 30, "float32"), 0)[1]


def specs(tree, mesh):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(shardings(tree, mesh))
    }


def test_width_is_split_over_data_and_heads_feed_forward_vocabulary_over_tensor(params):
    found = specs(params, make_mesh(jax.devices(), tensor_parallel=2))
    assert found["blocks/1/query_DH/value"] == P("data", "tensor")
    assert found["blocks/1/output_HD/value"] == P("tensor", "data")
    assert found["blocks/0/down_FD/value"] == P("tensor", "data")
    assert found["embedding_VD/value"] == P("tensor", "data")
    assert found["head_DV/value"] == P("data", "tensor")
    assert found["final_norm_D/value"] == P()


def test_an_axis_that_the_mesh_does_not_divide_is_held_whole(params):
    found = specs(params, make_mesh(jax.devices(), tensor_parallel=4))
    assert found["embedding_VD/value"] == P(None, "data")
    assert found["blocks/0/key_DK/value"] == P("data", "tensor")


def test_moments_live_where_their_parameters_do(params):
    mesh = make_mesh(jax.devices(), tensor_parallel=2)
    state = jax.eval_shape(optax.adamw(1e-3).init, params)
    found = specs(state, mesh)
    assert found["0/mu/blocks/0/gate_DF/value"] == P("data", "tensor")
    assert found["0/count"] == P()


def test_a_sharded_matrix_is_cut_into_one_piece_a_device():
    mesh = make_mesh(jax.devices(), tensor_parallel=2)
    tree = {"gate_DF": jnp.arange(32.0).reshape(8, 4)}
    placed = jax.device_put(tree, shardings(tree, mesh))["gate_DF"]
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 2)}
    np.testing.assert_array_equal(placed, tree["gate_DF"])


def test_tensor_parallel_must_divide_the_devices():
    with pytest.raises(ValueError, match="reshape"):
        make_mesh(jax.devices(), tensor_parallel=3)
