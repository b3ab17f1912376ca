"""From turns in progress to the rows of a dispatch, and from its samples back to the turns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tiderl_jax.core.events import TurnStop
from tiderl_jax.core.ids import PolicyVersion, RolloutId
from tiderl_jax.decoder.kv_cache import Holding
from tiderl_jax.decoder.programs import DecodeRows, PrefillRows, Sampled
from tiderl_jax.decoder.turns import Sampling, TurnResult


@dataclass(eq=False, slots=True)
class Turn:
    """A turn in progress. Its arrays are as long as it can become."""

    rollout: RolloutId
    sampling: Sampling
    holding: Holding
    token_ids: np.ndarray  # int32 [context + max_tokens]
    n_context: int
    found_tokens: int = 0  # context tokens whose KV need not be computed
    n_sampled: int = 0
    logp_raw: np.ndarray = field(init=False)  # float32 [max_tokens], nats
    logp: np.ndarray = field(init=False)  # float32 [max_tokens], nats
    versions: np.ndarray = field(init=False)  # int32 [max_tokens]

    def __post_init__(self) -> None:
        max_tokens = self.sampling.max_tokens
        self.logp_raw = np.zeros(max_tokens, np.float32)
        self.logp = np.zeros(max_tokens, np.float32)
        self.versions = np.zeros(max_tokens, np.int32)

    @property
    def known_ids(self) -> np.ndarray:
        """int32 [T]: context and samples so far."""
        return self.token_ids[: self.n_context + self.n_sampled]

    @property
    def n_to_prefill(self) -> int:
        """Known tokens without KV, except the last, which decoding feeds."""
        return self.n_context + self.n_sampled - 1 - self.holding.n_tokens

    @property
    def n_left(self) -> int:
        """Tokens that the turn may still sample."""
        return self.sampling.max_tokens - self.n_sampled

    @property
    def stop(self) -> TurnStop | None:
        """Why the turn is over, if it is."""
        if self.n_sampled and self.known_ids[-1] == self.sampling.stop_token_id:
            return TurnStop.END_OF_TURN
        return None if self.n_left else TurnStop.LENGTH

    def receive(self, sampled: Sampled, row: int, version: PolicyVersion) -> None:
        """Takes this turn's samples out of a dispatch that ran under `version`."""
        n_new = int(np.count_nonzero(sampled.token_ids[:, row] >= 0))
        known = self.n_context + self.n_sampled
        new = slice(self.n_sampled, self.n_sampled + n_new)
        self.token_ids[known : known + n_new] = sampled.token_ids[:n_new, row]
        self.logp_raw[new] = sampled.logp_raw[:n_new, row]
        self.logp[new] = sampled.logp[:n_new, row]
        self.versions[new] = version
        self.n_sampled += n_new
        self.holding.n_tokens += n_new

    def result(self, stop: TurnStop) -> TurnResult:
        """The finished turn."""
        found_tokens = min(self.found_tokens, self.n_context - 1)
        return TurnResult(
            rollout=self.rollout,
            token_ids=self.known_ids[self.n_context :],
            logp_raw=self.logp_raw[: self.n_sampled],
            logp=self.logp[: self.n_sampled],
            versions=self.versions[: self.n_sampled],
            stop=stop,
            found_tokens=found_tokens,
            prefilled_tokens=self.n_context - found_tokens,
        )


class Chunk(NamedTuple):
    """Tokens of a turn whose KV is computed in one prefill row."""

    turn: Turn
    start: int
    n_tokens: int


def prefill_rows(
    chunks: Sequence[Chunk], n_rows: int, chunk_tokens: int, n_pages: int
) -> PrefillRows:
    """Rows for these chunks, padded to the given sizes."""
    rows = PrefillRows(
        token_ids=np.zeros((n_rows, chunk_tokens), np.int32),
        start=np.zeros(n_rows, np.int32),
        n_tokens=np.zeros(n_rows, np.int32),
        page_table=np.zeros((n_rows, n_pages), np.int32),
    )
    for row, (turn, start, n_tokens) in enumerate(chunks):
        rows.token_ids[row, :n_tokens] = turn.token_ids[start : start + n_tokens]
        rows.start[row] = start
        rows.n_tokens[row] = n_tokens
        _fill_pages(rows.page_table[row], turn.holding.pages)
    return rows


def decode_rows(turns: Sequence[Turn], n_rows: int, n_pages: int) -> DecodeRows:
    """Rows for these prefilled turns, padded to the given sizes."""
    rows = DecodeRows(
        token_ids=np.zeros(n_rows, np.int32),
        positions=np.zeros(n_rows, np.int32),
        n_left=np.zeros(n_rows, np.int32),
        index=np.zeros(n_rows, np.int32),
        key_words=np.zeros((n_rows, 2), np.uint32),
        temperature=np.zeros(n_rows, np.float32),
        stop_token_id=np.zeros(n_rows, np.int32),
        page_table=np.zeros((n_rows, n_pages), np.int32),
    )
    for row, turn in enumerate(turns):
        position = turn.holding.n_tokens
        rows.token_ids[row] = turn.token_ids[position]
        rows.positions[row] = position
        rows.n_left[row] = turn.n_left
        rows.index[row] = turn.n_sampled
        rows.key_words[row] = turn.sampling.key
        rows.temperature[row] = turn.sampling.temperature
        rows.stop_token_id[row] = turn.sampling.stop_token_id
        _fill_pages(rows.page_table[row], turn.holding.pages)
    return rows


def _fill_pages(row_W: np.ndarray, pages: list[int]) -> None:
    row_W[: len(pages)] = pages
