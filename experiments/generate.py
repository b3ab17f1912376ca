"""Asks a model one question through the paged decoder, greedily.

    python -m experiments.generate --checkpoint weights/smollm2-135m-instruct \
        --prompt "What is the capital of France?"
"""

import sys

from absl import flags

from experiments import cli
from tiderl_jax.core.config import DecoderConfig
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId


def generate(checkpoint: str, prompt: str, max_tokens: int, dtype: str) -> str:
    """The model's greedy answer to a first message."""
    import jax
    import numpy as np

    from tiderl_jax.decoder.engine import Engine
    from tiderl_jax.decoder.turns import Sampling, TurnRequest
    from tiderl_jax.models.chat import ChatRenderer
    from tiderl_jax.models.checkpoints import load_folder
    from tiderl_jax.models.tokenizer import Tokenizer
    from tiderl_jax.models.transformer import graph

    renderer = ChatRenderer(Tokenizer.from_folder(checkpoint))
    spec, params = load_folder(checkpoint, dtype)
    context_ids = np.concatenate([segment.token_ids for segment in renderer.first(prompt)])
    n_tokens = len(context_ids) + max_tokens
    config = DecoderConfig(
        n_slots=1,
        n_pages=-(-n_tokens // 16),
        page_tokens=16,
        prefill_chunk_tokens=64,
        decode_steps_per_dispatch=8,
        kv_after_update="drop",
    )
    device = jax.devices()[0]
    engine = Engine(graph(spec), params, spec, config, n_tokens, PolicyVersion(0), device)
    sampling = Sampling(0.0, (0, 0), max_tokens, renderer.stop_token_id)
    question = RolloutId(GroupId(Purpose.EVALUATE_GREEDY, 0), 0)
    engine.run_turn(TurnRequest(question, context_ids, sampling))
    while engine.n_active:
        for result in engine.step():
            return renderer.text(result.token_ids)
    raise AssertionError("a turn in progress always ends")


def main(argv: list[str]) -> int:
    """Prints the answer."""
    values = flags.FlagValues()
    flags.DEFINE_string("checkpoint", None, "folder in Hugging Face layout", flag_values=values)
    flags.DEFINE_string("prompt", None, "the first message", flag_values=values)
    flags.DEFINE_integer("max_tokens", 48, "sampled at most", flag_values=values)
    flags.DEFINE_string("dtype", "float32", "float32 or bfloat16", flag_values=values)
    cli.read(values, argv)
    if not values.checkpoint or not values.prompt:
        cli.fail("Name --checkpoint and --prompt.")
    try:
        print(generate(values.checkpoint, values.prompt, values.max_tokens, values.dtype))
    except TiderlError as error:
        cli.fail(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
