"""The decoder: turns come and go, their tokens are computed together, their KV lives in pages.

Prefill computes the KV of a context except its last token; decoding feeds that one and samples.
"""

from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from tiderl_jax.core.config import DecoderConfig
from tiderl_jax.core.errors import EngineFault, WeightsFault
from tiderl_jax.core.ids import PolicyVersion, RolloutId
from tiderl_jax.decoder.dispatch import Chunk, Turn, decode_rows, prefill_rows
from tiderl_jax.decoder.kv_cache import Holding, KvCache
from tiderl_jax.decoder.programs import Sampled, bucket, empty_pages, programs, sizes, unpack
from tiderl_jax.decoder.turns import TurnRequest, TurnResult
from tiderl_jax.models.transformer import ModelSpec


class Capacity(NamedTuple):
    """Pages by what they are: free + owned + cached = total."""

    free: int
    owned: int  # held by rollouts, running or idle
    cached: int  # held by nobody, reclaimed when needed
    total: int


class _Idle(NamedTuple):
    """A rollout between turns, with the tokens whose KV it holds."""

    holding: Holding
    token_ids: np.ndarray  # int32 [holding.n_tokens]


class Engine:
    """One decoder replica on one device, used by one thread.

    A rollout keeps its pages after a turn until `release`. KV of n tokens occupies
    ceil(n / page_tokens) pages, fewer where a prefix is shared; the last token sampled in a turn
    has none until the next turn feeds it.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        params: nnx.State,
        spec: ModelSpec,
        config: DecoderConfig,
        max_context_tokens: int,
        version: PolicyVersion,
        device: jax.Device,
    ):
        self._config = config
        self._max_context_tokens = max_context_tokens
        self._device = device
        self._layout = _layout(params)
        self._leaves = self._own_copy(params)
        self._programs = programs(
            graphdef, jax.tree.structure(params), config.decode_steps_per_dispatch
        )
        self._pages = empty_pages(spec, config.n_pages, config.page_tokens, device)
        self._cache = KvCache(config.n_pages, config.page_tokens, version)
        self._row_sizes = sizes(config.n_slots, n=3)
        self._width_sizes = sizes(self._cache.n_pages(max_context_tokens), n=2)
        self._turns: dict[RolloutId, Turn] = {}  # in the order they came
        self._idle: dict[RolloutId, _Idle] = {}

    @property
    def version(self) -> PolicyVersion:
        """The policy version that the next token is sampled under."""
        return self._cache.version

    @property
    def n_active(self) -> int:
        """Turns in progress."""
        return len(self._turns)

    def capacity(self) -> Capacity:
        """What the pages are used for now."""
        pool = self._cache.pool
        return Capacity(pool.n_free, pool.n_owned, pool.n_cached, pool.n_total)

    def check(self) -> None:
        """Raises InvariantError unless free + owned + cached pages are exactly the pool."""
        self._cache.check()

    def run_turn(self, request: TurnRequest) -> None:
        """Starts a turn, which takes a slot until `step` returns its result.

        Raises:
          EngineFault: the turn can never run here, or there is no room for it now.
        """
        context_ids = np.ascontiguousarray(request.context_ids, np.int32)
        n_tokens = len(context_ids) + request.sampling.max_tokens
        self._refuse_impossible(request, n_tokens)
        holding = self._continued(request.rollout, context_ids)
        self._cache.promise(holding, context_ids, n_tokens - 1)
        self._idle.pop(request.rollout, None)
        token_ids = np.zeros(n_tokens, np.int32)
        token_ids[: len(context_ids)] = context_ids
        self._turns[request.rollout] = Turn(
            request.rollout,
            request.sampling,
            holding,
            token_ids,
            n_context=len(context_ids),
            found_tokens=holding.n_tokens,
        )

    def step(self) -> list[TurnResult]:
        """One dispatch: prefill chunks, then decode steps of every prefilled turn.

        Returns the turns that ended. Without turns it does nothing.
        """
        chunks = self._plan()
        if chunks:
            self._run_prefill(chunks, bucket(len(chunks), self._row_sizes))
        turns = [turn for turn in self._turns.values() if turn.n_to_prefill == 0]
        if not turns:
            return []
        self._decode(turns)
        return [result for turn in turns if (result := self._ended(turn)) is not None]

    def release(self, rollout: RolloutId) -> None:
        """A rollout between turns holds no KV any more; full pages stay cached until needed."""
        if rollout in self._turns:
            raise EngineFault(f"Rollout {rollout} is decoding and cannot be released.")
        idle = self._idle.pop(rollout, None)
        if idle is not None:
            self._cache.release(idle.holding)

    def cancel(self, rollout: RolloutId) -> None:
        """Forgets the rollout at any moment: its turn, its samples, its hold on pages."""
        turn = self._turns.pop(rollout, None)
        if turn is not None:
            self._cache.release(turn.holding)
        self.release(rollout)

    def load_weights(self, params: nnx.State, version: PolicyVersion) -> None:
        """Decodes with a copy of `params` from the next dispatch on.

        Under "drop" idle rollouts lose their KV and running turns compute theirs again with the new
        weights; under "keep_labelled" all keep it. No prefix of an old version is found any more.

        Raises:
          WeightsFault: `params` are not of this model; nothing has changed.
        """
        if _layout(params) != self._layout:
            raise WeightsFault("The weights do not have the names, shapes and dtypes of the model.")
        self._leaves = self._own_copy(params)
        self._cache.version = version
        drops = self._config.kv_after_update == "drop"
        for rollout in list(self._idle) if drops else []:
            self.release(rollout)
        for turn in self._turns.values():
            if drops or turn.holding.n_tokens == 0:
                self._cache.restart(turn.holding, len(turn.token_ids) - 1)
                turn.found_tokens = 0
        self._cache.tree.evict_all()

    def warm_up(self) -> None:
        """Compiles every program for every size; nothing compiles later."""
        for n_rows in self._row_sizes:
            self._run_prefill([], n_rows)
            for n_pages in self._width_sizes:
                self._run_decode([], n_rows, n_pages)

    def _refuse_impossible(self, request: TurnRequest, n_tokens: int) -> None:
        rollout, max_tokens = request.rollout, request.sampling.max_tokens
        if max_tokens < 1 or n_tokens == max_tokens:
            raise EngineFault(f"The turn of {rollout} has no context or may sample no token.")
        if n_tokens > self._max_context_tokens:
            raise EngineFault(
                f"The turn of {rollout} may reach {n_tokens} tokens; "
                f"a context holds {self._max_context_tokens}."
            )
        if rollout in self._turns:
            raise EngineFault(f"Rollout {rollout} is decoding already.")
        if len(self._turns) == self._config.n_slots:
            raise EngineFault(f"All {self._config.n_slots} slots are taken.")

    def _continued(self, rollout: RolloutId, context_ids: np.ndarray) -> Holding:
        """The rollout's KV if its context goes on from there, else an empty holding."""
        idle = self._idle.get(rollout)
        if idle is not None:
            n_tokens = len(idle.token_ids)
            if n_tokens < len(context_ids) and np.array_equal(
                idle.token_ids, context_ids[:n_tokens]
            ):
                return idle.holding
            self.release(rollout)
        return Holding(self._cache.version)

    def _plan(self) -> list[Chunk]:
        """Chunks for the coming dispatch, first come first served.

        Pages are shared as soon as they are planned: the members of a group find their common
        prompt in the same dispatch in which the first of them computes it.
        """
        chunks: list[Chunk] = []
        for turn in self._turns.values():
            while turn.n_to_prefill and len(chunks) < self._config.n_slots:
                turn.found_tokens += self._cache.adopt(turn.holding, turn.known_ids)
                n_tokens = min(turn.n_to_prefill, self._config.prefill_chunk_tokens)
                if n_tokens:
                    chunks.append(self._chunk(turn, n_tokens))
        return chunks

    def _chunk(self, turn: Turn, n_tokens: int) -> Chunk:
        start = turn.holding.n_tokens
        self._cache.grow(turn.holding, start + n_tokens)
        turn.holding.n_tokens += n_tokens
        self._cache.share(turn.holding, turn.known_ids, settled=False)
        return Chunk(turn, start, n_tokens)

    def _decode(self, turns: list[Turn]) -> None:
        for turn in turns:
            n_new = min(turn.n_left, self._config.decode_steps_per_dispatch)
            self._cache.grow(turn.holding, turn.holding.n_tokens + n_new)
        n_pages = max(len(turn.holding.pages) for turn in turns)
        n_rows = bucket(len(turns), self._row_sizes)
        sampled = self._run_decode(turns, n_rows, bucket(n_pages, self._width_sizes))
        for row, turn in enumerate(turns):
            turn.receive(sampled, row, self._cache.version)

    def _run_prefill(self, chunks: list[Chunk], n_rows: int) -> None:
        # Matrix products dominate a prefill, so its page tables have only one width.
        rows = prefill_rows(
            chunks, n_rows, self._config.prefill_chunk_tokens, self._width_sizes[-1]
        )
        self._pages = self._programs.prefill(self._leaves, self._pages, rows)

    def _run_decode(self, turns: list[Turn], n_rows: int, n_pages: int) -> Sampled:
        rows = decode_rows(turns, n_rows, n_pages)
        self._pages, packed = self._programs.decode(self._leaves, self._pages, rows)
        return unpack(packed)

    def _ended(self, turn: Turn) -> TurnResult | None:
        """The result of a turn that is over; its slot is free and its KV stays."""
        stop = turn.stop
        if stop is None:
            return None
        del self._turns[turn.rollout]
        self._cache.settle(turn.holding, turn.known_ids)
        kv_ids = turn.token_ids[: turn.holding.n_tokens].copy()
        self._idle[turn.rollout] = _Idle(turn.holding, kv_ids)
        return turn.result(stop)

    def _own_copy(self, params: nnx.State) -> list[jax.Array]:
        """The learner may donate its arrays at its next update; these stay."""
        return jax.device_put(jax.tree.leaves(params), self._device, may_alias=False)


def _layout(params: nnx.State) -> tuple:
    leaves, structure = jax.tree.flatten(params)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
