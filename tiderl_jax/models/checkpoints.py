"""Hugging Face style folders in and out: config.json, *.safetensors, tokenizer files.

The names of the two worlds meet in one declared table. Nothing is guessed: a tensor that the table
does not know, a missing one, or one of another shape is refused by name.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tiderl_jax.core.config import ArchitectureConfig
from tiderl_jax.core.errors import ConfigError, WeightsFault
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.models.transformer import ModelSpec, new_model

TreePath = tuple[str | int, ...]

_OUTER = {
    "model.embed_tokens.weight": ("embedding_VD", False),
    "model.norm.weight": ("final_norm_D", False),
    "lm_head.weight": ("head_DV", True),
}
_LAYER = {
    "input_layernorm.weight": ("attention_norm_D", False),
    "self_attn.q_proj.weight": ("query_DH", True),
    "self_attn.k_proj.weight": ("key_DK", True),
    "self_attn.v_proj.weight": ("value_DK", True),
    "self_attn.o_proj.weight": ("output_HD", True),
    "post_attention_layernorm.weight": ("feed_forward_norm_D", False),
    "mlp.gate_proj.weight": ("gate_DF", True),
    "mlp.up_proj.weight": ("up_DF", True),
    "mlp.down_proj.weight": ("down_FD", True),
}
"""Hugging Face name -> (our name, whether their [out, in] is our [in, out])."""


def _name_table(architecture: ArchitectureConfig) -> Iterator[tuple[str, TreePath, bool]]:
    """(their name, path in our tree, transposed) of every tensor of the model."""
    for name, (ours, transposed) in _OUTER.items():
        if not (architecture.tied_embedding and ours == "head_DV"):
            yield name, (ours,), transposed
    for layer in range(architecture.n_layers):
        for name, (ours, transposed) in _LAYER.items():
            yield f"model.layers.{layer}.{name}", ("blocks", layer, ours), transposed


def load_folder(path: str | Path, dtype: str) -> tuple[ModelSpec, nnx.State]:
    """Reads a llama checkpoint; every parameter is cast to `dtype`.

    Raises:
      ConfigError: the folder lacks a file, or holds a model that the transformer cannot express.
      WeightsFault: a tensor is missing, unknown, or of another shape than config.json says.
    """
    folder = Path(path)
    spec = _read_spec(folder, dtype)
    tensors = dict(_read_tensors(folder))
    if spec.architecture.tied_embedding:
        tensors.pop("lm_head.weight", None)  # some exports repeat the embedding here
    flat = {}
    abstract = jax.eval_shape(lambda: new_model(spec, seed=0)[1])
    expected = dict(nnx.to_flat_state(abstract))
    for name, tree_path, transposed in _name_table(spec.architecture):
        if name not in tensors:
            raise WeightsFault(f"{folder} holds no tensor {name}.")
        theirs = tensors.pop(name)
        ours = theirs.T if transposed else theirs
        variable = expected[tree_path]
        if ours.shape != variable.shape:
            shape = variable.shape[::-1] if transposed else variable.shape
            raise WeightsFault(
                f"{name} in {folder} has shape {theirs.shape}, but config.json says {shape}."
            )
        flat[tree_path] = variable.replace(jnp.asarray(ours, dtype))
    if tensors:
        raise WeightsFault(f"{folder} holds a tensor that nothing reads: {min(tensors)}.")
    return spec, nnx.from_flat_state(flat)


def save_folder(path: str | Path, spec: ModelSpec, params: nnx.State, tokenizer: Tokenizer) -> None:
    """Writes a folder that `load_folder`, `Tokenizer.from_folder` and transformers read."""
    flat = dict(nnx.to_flat_state(params))
    tensors = {}
    for name, tree_path, transposed in _name_table(spec.architecture):
        ours = np.asarray(flat[tree_path][...])
        tensors[name] = ours.T if transposed else ours
    write_folder(path, spec, tensors, tokenizer)


def write_folder(
    path: str | Path, spec: ModelSpec, tensors: Mapping[str, np.ndarray], tokenizer: Tokenizer
) -> None:
    """Writes tensors that have their Hugging Face names and layout already."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    # safetensors writes the memory as it lies, so transposed views must be laid out anew
    laid_out = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(laid_out, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.dumps(_config_json(spec, tokenizer), indent=2)
    (folder / "config.json").write_text(config + "\n")


def _read_tensors(folder: Path) -> Iterable[tuple[str, np.ndarray]]:
    """Every tensor of every shard, by its own name."""
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ConfigError(f"There is no .safetensors file in {folder}.")
    for shard in shards:
        try:
            with safe_open(shard, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 (it is not a mapping)
                    yield name, opened.get_tensor(name)
        except SafetensorError as cause:
            raise WeightsFault(f"{shard} cannot be read ({cause}).") from cause


def _read_spec(folder: Path, dtype: str) -> ModelSpec:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"There is no checkpoint file {path}.")
    config = json.loads(path.read_text())
    # Newer transformers keep rotary settings together; older ones keep the base at the top.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    demands = (
        ("model_type", config.get("model_type"), ("llama",)),
        ("hidden_act", config.get("hidden_act", "silu"), ("silu",)),
        ("attention_bias", config.get("attention_bias", False), (False,)),
        ("mlp_bias", config.get("mlp_bias", False), (False,)),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), ("default",)),
    )
    for key, value, supported in demands:
        if value not in supported:
            raise ConfigError(f"{path} has {key} = {value!r}; only {supported[0]!r} is supported.")
    try:
        architecture = _architecture(config, rope)
        return ModelSpec(architecture, config["vocab_size"], dtype)
    except KeyError as cause:
        raise ConfigError(f"{path} lacks {cause}.") from cause


def _architecture(config: dict[str, Any], rope: dict[str, Any]) -> ArchitectureConfig:
    """Absent keys have the defaults of the llama configuration of transformers."""
    n_heads = config["num_attention_heads"]
    return ArchitectureConfig(
        n_layers=config["num_hidden_layers"],
        d_model=config["hidden_size"],
        n_heads=n_heads,
        n_kv_heads=config.get("num_key_value_heads") or n_heads,
        d_head=config.get("head_dim") or config["hidden_size"] // n_heads,
        d_ff=config["intermediate_size"],
        rope_base=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        norm_epsilon=float(config.get("rms_norm_eps", 1e-6)),
        tied_embedding=bool(config.get("tie_word_embeddings", False)),
    )


def _config_json(spec: ModelSpec, tokenizer: Tokenizer) -> dict[str, Any]:
    a = spec.architecture
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "num_hidden_layers": a.n_layers,
        "hidden_size": a.d_model,
        "num_attention_heads": a.n_heads,
        "num_key_value_heads": a.n_kv_heads,
        "head_dim": a.d_head,
        "intermediate_size": a.d_ff,
        "rope_theta": a.rope_base,
        "rms_norm_eps": a.norm_epsilon,
        "tie_word_embeddings": a.tied_embedding,
        "max_position_embeddings": tokenizer.settings.get("model_max_length", 2048),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.stop_token_id,
        "torch_dtype": spec.dtype,
    }
