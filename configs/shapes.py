"""Shapes of the models that simulations stand for. Constants, not an experiment.

Biases and norms of heads are left out; together they are below 0.1 % of the parameters.
"""

from typing import NamedTuple


class Shape(NamedTuple):
    """A decoder-only transformer and its vocabulary."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    vocab_size: int
    tied_embedding: bool
    rope_base: float
    norm_epsilon: float = 1e-6

    def keys(self) -> dict[str, object]:
        """The dotted keys that make a config simulate this model, in bfloat16."""
        shape = self._asdict()
        vocab_size = shape.pop("vocab_size")
        return {
            **{f"model.architecture.{name}": value for name, value in shape.items()},
            "model.dtype": "bfloat16",
            "simulation.vocab_size": vocab_size,
        }


# Qwen2.5 technical report and the published configurations.
QWEN25_7B = Shape(28, 3584, 28, 4, 128, 18944, 152_064, False, 1e6)
QWEN25_14B = Shape(48, 5120, 40, 8, 128, 13824, 152_064, False, 1e6)

# The text part of Qwen3-VL-4B has the shape of Qwen3-4B. Its vision tower, about 0.4e9 parameters
# (assumed), is left out.
QWEN3_VL_4B = Shape(36, 2560, 32, 8, 128, 9728, 151_936, True, 5e6)

# Qwen3.5-9B-like text shape, assumed but for width, heads and feed-forward width. Three quarters
# of its layers are linear attention with a state of constant size: one KV head in all 32 layers
# stands for four in every fourth, which gives the right KV per token.
QWEN35_9B = Shape(32, 4096, 16, 1, 256, 12288, 248_320, False, 1e7)
