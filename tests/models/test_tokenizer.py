import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tiderl_jax.core.errors import ConfigError, EnvironmentFault
from tiderl_jax.models.tokenizer import Tokenizer

SETTINGS = {"chat_template": "{{ messages }}", "eos_token": {"content": "<|end|>"}}


def byte_level() -> Tokenizer:
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", "<|start|>"])
    return Tokenizer(backend, SETTINGS, "the byte tokenizer")


BYTES = byte_level()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(["<|end|>", "<|start|>"]))).map("".join))
def test_content_never_yields_a_special_token_and_decodes_to_itself(text: str) -> None:
    ids = BYTES.encode_content(text)
    assert all(token_id < 256 for token_id in ids)
    assert BYTES.decode(ids) == text


def test_templates_do_yield_special_tokens() -> None:
    assert BYTES.encode_template("<|start|>a<|end|>") == [257, *BYTES.encode_content("a"), 256]
    assert (BYTES.stop_token_id, BYTES.vocab_size) == (256, 258)


def test_a_saved_tokenizer_is_the_same_when_read_back(tmp_path) -> None:
    BYTES.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    text = "<|start|> ünï 123"
    assert again.encode_template(text) == BYTES.encode_template(text)
    assert again.encode_content(text) == BYTES.encode_content(text)
    assert again.settings == SETTINGS


def test_a_chat_template_in_a_file_of_its_own_is_read(tmp_path) -> None:
    BYTES.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("other")
    assert Tokenizer.from_folder(tmp_path).chat_template == "other"


def test_a_folder_without_tokenizer_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("missing", "words"), [("chat_template", "chat_template"), ("eos_token", "eos_token")]
)
def test_a_tokenizer_without_template_or_stop_token_is_refused(missing: str, words: str) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != missing}
    backend = tokenizers.Tokenizer(models.BPE())
    backend.add_special_tokens(["<|end|>"])
    with pytest.raises(ConfigError, match=words):
        Tokenizer(backend, settings, "it")


def test_a_closed_vocabulary_has_one_token_per_word_and_three_special_ones(tmp_path) -> None:
    tokenizer = Tokenizer.from_words(["up", "goal-up", "down"])
    assert tokenizer.vocab_size == 6
    assert tokenizer.words == ("up", "goal-up", "down")
    assert tokenizer.encode_content(" goal-up\n up down ") == [1, 0, 2]
    assert tokenizer.decode([1, 0]) == "goal-up up"
    assert tokenizer.stop_token_id == tokenizer.encode_template("<end>")[0]
    tokenizer.save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).words == tokenizer.words


@pytest.mark.parametrize("text", ["left", "up left", "<end>", "up<end>"])
def test_a_word_outside_the_closed_vocabulary_is_a_fault(text: str) -> None:
    with pytest.raises(EnvironmentFault, match=r"left|<end>"):
        Tokenizer.from_words(["up"]).encode_content(text)


@pytest.mark.parametrize("words", [["a", "a"], ["a b"], [""], ["<act>"]])
def test_an_ambiguous_vocabulary_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        Tokenizer.from_words(words)
