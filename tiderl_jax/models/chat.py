"""The renderer: messages to segments, each turn as a delta that never touches what came before.

The chat template is rendered once with a mark in place of every message, and cut there. The pieces
belong to the template, the contents to the environment, and the model's tokens stay as they were
sampled. A template for which this is not the whole truth is refused when it is loaded.
"""

from collections.abc import Iterable, Sequence
from typing import NoReturn, SupportsIndex

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.segments import Owner, Segment, given
from tiderl_jax.models.tokenizer import Tokenizer

_OBSERVED, _ANSWERED = "\ue000observed\ue001", "\ue000answered\ue001"  # private-use characters

_PROBES = (
    "You are in a kitchen. Exits: north, 2 doors.",
    "<think>\nThe key is near.\n</think>\n\ngo north",
    "[1] first result\n\n[2] second result: 42%",
    "take the key",
    "It's done (score 1/3)!",
)
"""Texts of the generated conversations, for open vocabularies."""


class ChatRenderer:
    """Renders a dialogue with one environment. Observations are stripped of outer white space."""

    def __init__(self, tokenizer: Tokenizer, system: str | None = None):
        """Loads and verifies the template; `system` is an optional first message.

        Raises:
          ConfigError: the template is broken, or not append-only, or ends the model's turn with
            something else than the tokenizer's stop token; the message names it.
        """
        self._tokenizer = tokenizer
        self._template = _compile(tokenizer)
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self.stop_token_id = tokenizer.stop_token_id
        opening = self._render([_OBSERVED])
        if system is not None and system not in opening:
            raise self._refusal("leaves out the system message")
        self._first_pieces = self._cut(opening, _OBSERVED)
        _, closing = self._cut(self._render([_OBSERVED, _ANSWERED, _OBSERVED]), _ANSWERED)
        if not closing.startswith(tokenizer.stop_token):
            raise self._refusal(f"does not end a turn with {tokenizer.stop_token!r}")
        self._next_pieces = self._cut(closing.removeprefix(tokenizer.stop_token), _OBSERVED)
        self._verify()

    def first(self, observation: str) -> list[Segment]:
        """The prompt of the first turn."""
        return self._segments(self._first_pieces, observation)

    def next(self, observation: str) -> list[Segment]:
        """What follows the stop token that the model sampled, up to its next turn."""
        return self._segments(self._next_pieces, observation)

    def turn(self, text: str) -> list[int]:
        """The ids with which the model would say `text`, stop token included (for imitation)."""
        return [*self._tokenizer.encode_content(text.strip()), self.stop_token_id]

    def text(self, token_ids: Iterable[SupportsIndex]) -> str:
        """What the model said, without the stop token."""
        ids = [int(token_id) for token_id in token_ids]
        if ids and ids[-1] == self.stop_token_id:
            ids.pop()
        return self._tokenizer.decode(ids)

    def _segments(self, pieces: tuple[str, str], observation: str) -> list[Segment]:
        before, after = pieces
        tokens = (
            (Owner.TEMPLATE, self._tokenizer.encode_template(before)),
            (Owner.ENV, self._tokenizer.encode_content(observation.strip())),
            (Owner.TEMPLATE, self._tokenizer.encode_template(after)),
        )
        return [given(owner, token_ids) for owner, token_ids in tokens if token_ids]

    def _render(self, texts: Sequence[str]) -> str:
        """The whole dialogue of alternating observations and answers, rendered at once."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
        waiting = len(texts) % 2 == 1
        try:
            return self._template.render(
                messages=self._system + messages,
                add_generation_prompt=waiting,
                **_special_tokens(self._tokenizer),
            )
        except (jinja2.TemplateError, TypeError) as cause:
            raise self._refusal(f"cannot be rendered ({cause})") from cause

    def _cut(self, rendered: str, mark: str) -> tuple[str, str]:
        """What stands before and after the one place where the mark appears."""
        pieces = rendered.split(mark)
        if len(pieces) != 2:
            raise self._refusal("does not show each message exactly once, as it is")
        return pieces[0], pieces[1]

    def _verify(self) -> None:
        """Full render equals prefix plus deltas, as text and as ids (cases C8 and C10)."""
        words = self._tokenizer.words
        probes = [f"{word} {words[0]}" for word in words[:5]] or list(_PROBES)
        texts = [probes[i % len(probes)] for i in range(2 * len(probes) + 1)]
        encode, stop = self._tokenizer.encode_template, self._tokenizer.stop_token
        built_text, built_ids = "", list[int]()
        for n_messages, text in enumerate(texts, start=1):
            if n_messages % 2 == 0:
                built_text += text + stop
                built_ids += self.turn(text)
                continue
            before, after = self._first_pieces if n_messages == 1 else self._next_pieces
            built_text += before + text + after
            segments = self.first(text) if n_messages == 1 else self.next(text)
            built_ids += [token_id for segment in segments for token_id in segment.token_ids]
            rendered = self._render(texts[:n_messages])
            if rendered != built_text:
                raise self._refusal("changes earlier turns when a new one is added")
            if encode(rendered) != built_ids:
                raise self._refusal("lets tokens grow across the edge of a message")

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(f"The chat template of {self._tokenizer.name} {what}.")


def _compile(tokenizer: Tokenizer) -> jinja2.Template:
    """The template in a sandbox, with what Hugging Face templates may call."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(tokenizer.chat_template)
    except jinja2.TemplateError as cause:
        sentence = f"The chat template of {tokenizer.name} is not valid ({cause})."
        raise ConfigError(sentence) from cause


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Templates refer to the tokenizer's special tokens by name."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    found = {name: tokenizer.settings.get(name) for name in names}
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in found.items()
        if token is not None
    }
