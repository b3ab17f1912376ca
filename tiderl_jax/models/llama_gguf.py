"""From a llama GGUF file to the names and layout of Hugging Face, and its tokenizer."""

from collections.abc import Iterator

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tiderl_jax.core.config import ArchitectureConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.models.gguf import GgufFile
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.models.transformer import ModelSpec

_OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face name -> GGUF name; within a layer, less its number and `.weight`."""

_CONTROL = 3  # token type of special tokens


def model_spec(file: GgufFile) -> ModelSpec:
    """The shape of the model in the file.

    Raises:
      ConfigError: it is not a llama.
    """
    metadata = file.metadata
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise ConfigError(f"{file.path} holds a {kind!r} model; only 'llama' is supported.")
    d_model, n_heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    # Stored in single precision; the shortest decimal that rounds to it is what was meant.
    epsilon = float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"])))
    architecture = ArchitectureConfig(
        n_layers=metadata["llama.block_count"],
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=metadata.get("llama.attention.head_count_kv", n_heads),
        d_head=metadata.get("llama.attention.key_length", d_model // n_heads),
        d_ff=metadata["llama.feed_forward_length"],
        rope_base=metadata["llama.rope.freq_base"],
        norm_epsilon=epsilon,
        tied_embedding="output.weight" not in file.entries,
    )
    return ModelSpec(architecture, len(metadata["tokenizer.ggml.tokens"]), "float32")


def tensors(file: GgufFile, architecture: ArchitectureConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, float32, [out, in], half-split rotary layout."""
    for name, gguf_name in _OUTER_NAMES.items():
        if gguf_name in file.entries:
            yield name, file.tensor(gguf_name)
    heads = {"attn_q": architecture.n_heads, "attn_k": architecture.n_kv_heads}
    for layer in range(architecture.n_layers):
        for name, gguf_name in _LAYER_NAMES.items():
            weight = file.tensor(f"blk.{layer}.{gguf_name}.weight")
            if gguf_name in heads:
                weight = half_split(weight, heads[gguf_name])
            yield f"model.layers.{layer}.{name}.weight", weight


def half_split(interleaved: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows [n_heads * d_head, in] from llama.cpp's rotary pairs (2i, 2i + 1) to (i, i + half)."""
    pairs = interleaved.reshape(n_heads, -1, 2, interleaved.shape[-1])
    return pairs.swapaxes(1, 2).reshape(interleaved.shape)


def tokenizer(file: GgufFile) -> Tokenizer:
    """The byte-level BPE tokenizer that the file carries.

    Raises:
      ConfigError: its vocabulary is of another kind.
    """
    metadata = file.metadata
    kind = (metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ConfigError(f"{file.path} has a {kind} tokenizer; only ('gpt2', 'smollm') is known.")
    words = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges)
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    special = [word for word, of_type in zip(words, types, strict=True) if of_type == _CONTROL]
    backend.add_special_tokens(special)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": metadata["tokenizer.chat_template"],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        settings[f"{role}_token"] = words[metadata[f"tokenizer.ggml.{key}_token_id"]]
    return Tokenizer(backend, settings, str(file.path))
