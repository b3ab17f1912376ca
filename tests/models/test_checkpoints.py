import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tiderl_jax.core.config import ArchitectureConfig
from tiderl_jax.core.errors import ConfigError, WeightsFault
from tiderl_jax.models.checkpoints import load_folder, save_folder
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.models.transformer import ModelSpec, graph

TOKENIZER = Tokenizer.from_words(["up", "down"])
TINY = ArchitectureConfig(
    n_layers=2,
    d_model=12,
    n_heads=4,
    n_kv_heads=2,
    d_head=6,
    d_ff=20,
    rope_base=500.0,
    norm_epsilon=1e-5,
    tied_embedding=False,
)


@pytest.fixture
def saved(tmp_path, random_params):
    """Writes a checkpoint into `tmp_path`."""

    def save(tied: bool = False, dtype: str = "float32"):
        spec = ModelSpec(replace(TINY, tied_embedding=tied), TOKENIZER.vocab_size, dtype)
        params = random_params(spec)
        save_folder(tmp_path, spec, params, TOKENIZER)
        return spec, params

    return save


def edit_tensors(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder, **values) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_saved_is_loaded_bit_for_bit(tmp_path, saved, tied: bool, dtype: str) -> None:
    spec, params = saved(tied, dtype)
    loaded_spec, loaded = load_folder(tmp_path, dtype)
    assert loaded_spec == spec
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    nnx.merge(graph(spec), loaded)  # the graph accepts them


def test_shards_are_read_as_one(tmp_path, saved) -> None:
    _, params = saved()
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    for shard, part in enumerate((names[:7], names[7:])):
        save_file({n: tensors[n] for n in part}, tmp_path / f"model-{shard}.safetensors")
    _, loaded = load_folder(tmp_path, "float32")
    for ours, theirs in zip(jax.tree.leaves(loaded), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_old_and_new_spellings_of_the_configuration_mean_the_same(tmp_path, saved) -> None:
    spec, _ = saved()
    edit_config(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 500.0})
    assert load_folder(tmp_path, "float32")[0] == spec
    edit_config(tmp_path, rope_parameters=None, rope_theta=None, rms_norm_eps=None)
    architecture = load_folder(tmp_path, "float32")[0].architecture
    assert (architecture.rope_base, architecture.norm_epsilon) == (10_000.0, 1e-6)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"model_type": "qwen3"}, "model_type = 'qwen3'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_type = 'yarn'"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
    ],
)
def test_a_model_that_cannot_be_expressed_is_refused(
    tmp_path, saved, values: dict, what: str
) -> None:
    saved()
    edit_config(tmp_path, **values)
    with pytest.raises(ConfigError, match=what):
        load_folder(tmp_path, "float32")


def test_a_wrong_tensor_is_refused_by_name(tmp_path, saved) -> None:
    key = "model.layers.1.mlp.gate_proj.weight"
    saved()
    edit_tensors(tmp_path, lambda tensors: tensors.update({key: tensors[key].T.copy()}))
    with pytest.raises(WeightsFault, match=rf"{key} .* \(12, 20\), .* says \(20, 12\)"):
        load_folder(tmp_path, "float32")
    saved()
    edit_tensors(tmp_path, lambda tensors: tensors.pop(key))
    with pytest.raises(WeightsFault, match=f"no tensor {key}"):
        load_folder(tmp_path, "float32")
    saved()
    bias = key.replace("weight", "bias")
    edit_tensors(tmp_path, lambda tensors: tensors.update({bias: np.zeros(4, np.float32)}))
    with pytest.raises(WeightsFault, match=f"nothing reads: {bias}"):
        load_folder(tmp_path, "float32")


def test_a_tied_model_ignores_a_repeated_head(tmp_path, saved) -> None:
    spec, _ = saved(tied=True)
    head = np.zeros((spec.vocab_size, TINY.d_model), np.float32)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.weight": head}))
    load_folder(tmp_path, "float32")


def test_a_missing_or_torn_file_is_named(tmp_path, saved) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_folder(tmp_path, "float32")
    saved()
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(WeightsFault, match=r"model\.safetensors cannot be read"):
        load_folder(tmp_path, "float32")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \.safetensors file"):
        load_folder(tmp_path, "float32")
