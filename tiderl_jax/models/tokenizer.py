"""Text to token ids and back.

Text has two doors. `encode_template` parses special tokens, because templates are made of them;
`encode_content` never does, so that no observation can forge the end of a turn.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, SupportsIndex

import tokenizers
from tokenizers import models, pre_tokenizers

from tiderl_jax.core.errors import ConfigError, EnvironmentFault

WORD_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<obs>{{ message['content'] }}<act>"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}<end>"
    "{% else %}{{ raise_exception('it has no system message') }}{% endif %}"
    "{% endfor %}"
)
"""The chat template of closed-vocabulary worlds: `<obs> words <act>`, answered `words <end>`."""

_WORD_SPECIALS = ("<obs>", "<act>", "<end>")


class Tokenizer:
    """A tokenizer with its chat template and its stop token."""

    def __init__(self, backend: tokenizers.Tokenizer, settings: dict[str, Any], name: str):
        """`settings` is the content of tokenizer_config.json; `name` appears in error messages.

        Raises:
          ConfigError: the settings lack a chat template or a known end-of-turn token.
        """
        self.name = name
        self.settings = settings
        self._template_door = backend
        self._content_door = tokenizers.Tokenizer.from_str(backend.to_str())
        self._content_door.encode_special_tokens = True
        template, stop = settings.get("chat_template"), _text(settings.get("eos_token"))
        if not isinstance(template, str):
            raise ConfigError(f"The tokenizer of {name} has no chat_template.")
        if stop is None or backend.token_to_id(stop) is None:
            raise ConfigError(f"The tokenizer of {name} has no known eos_token to end a turn.")
        self.chat_template: str = template
        self.stop_token: str = stop
        self.stop_token_id: int = backend.token_to_id(stop)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.words: tuple[str, ...] = _closed_vocabulary(backend)

    @classmethod
    def from_folder(cls, folder: str | Path) -> "Tokenizer":
        """Reads tokenizer.json and tokenizer_config.json of a Hugging Face style folder.

        Raises:
          ConfigError: a file is missing, or holds no chat template or stop token.
        """
        folder = Path(folder)
        paths = [folder / "tokenizer.json", folder / "tokenizer_config.json"]
        for path in paths:
            if not path.is_file():
                raise ConfigError(f"There is no tokenizer file {path}.")
        settings = json.loads(paths[1].read_text())
        template = folder / "chat_template.jinja"  # where newer exports keep it
        if template.is_file():
            settings["chat_template"] = template.read_text()
        return cls(tokenizers.Tokenizer.from_file(str(paths[0])), settings, str(folder))

    @classmethod
    def from_words(cls, words: Iterable[str]) -> "Tokenizer":
        """One token per word of a closed vocabulary; text is split at white space.

        Raises:
          ConfigError: a word is repeated, empty, holds white space, or is a special token.
        """
        words = tuple(words)
        for word in words:
            if word in _WORD_SPECIALS or word.split() != [word]:
                raise ConfigError(f"{word!r} cannot be a word of a vocabulary.")
        if len(set(words)) != len(words):
            raise ConfigError("A word of the vocabulary is repeated.")
        vocabulary = {word: index for index, word in enumerate(words)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens(list(_WORD_SPECIALS))
        settings = {"chat_template": WORD_TEMPLATE, "eos_token": "<end>"}
        return cls(backend, settings, "the closed vocabulary")

    def encode_template(self, text: str) -> list[int]:
        """Ids of trusted text; special tokens in it are parsed."""
        return self._template_door.encode(text, add_special_tokens=False).ids

    def encode_content(self, text: str) -> list[int]:
        """Ids of foreign text; special tokens in it are plain text.

        Raises:
          EnvironmentFault: a word is not in a closed vocabulary.
        """
        if self.words:
            unknown = sorted(set(text.split()).difference(self.words))
            if unknown:
                raise EnvironmentFault(f"The word {unknown[0]!r} is not in {self.name}.")
        return self._content_door.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Iterable[SupportsIndex]) -> str:
        """The text of ids, special tokens included."""
        ids = [int(token_id) for token_id in token_ids]
        return self._template_door.decode(ids, skip_special_tokens=False)

    def save(self, folder: str | Path) -> None:
        """Writes what `from_folder` reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._template_door.save(str(folder / "tokenizer.json"))
        settings = json.dumps(self.settings, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(settings + "\n")


def _text(token: Any) -> str | None:
    """A special token of tokenizer_config.json: a string, or a mapping that holds one."""
    return token["content"] if isinstance(token, dict) else token


def _closed_vocabulary(backend: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Every word of a word-level tokenizer, in the order of ids; empty for open text."""
    if not isinstance(backend.model, models.WordLevel):
        return ()
    vocabulary = backend.get_vocab(with_added_tokens=False)
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__))
