"""A simulated decoder rank: continuous batching as processor sharing, without an event per token.

Every running turn advances by one token in every decode step. `service` counts these steps, with
fractions, since the rank began; a turn ends when the service reaches a number that is known when
the turn begins, whoever else comes and goes. So each change costs O(log n).

Prefill is first come, first served, and no step is decoded meanwhile. That is the work-conserving
model of chunked prefill: chunks that share a dispatch with decode steps delay them by as much. It
follows that all turns whose prefill waits begin to decode at the same moment.

The context of a turn counts, in the time of a step, as it is when half of the turn is decoded.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import PolicyVersion, RolloutId
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import NS_PER_S, VirtualClock
from tiderl_jax.simulator.kv_pool import KvPool

_DONE_STEPS = 1e-6
"""A turn this near to its end has ended: the clock counts whole nanoseconds."""


class EngineCosts(Protocol):
    """What a rank takes its times from (see `costs.CostModel`)."""

    @property
    def prefill_s_per_token(self) -> float:
        """Of a token that is not found in KV."""
        ...

    def decode_step_s(self, n_turns: int, context_tokens: int) -> float:
        """One token for each of so many turns."""
        ...


@dataclass(slots=True, eq=False)
class Turn:
    """The model's part of a turn: it runs on a rank, or waits to go on after an interruption."""

    rollout: RolloutId
    prompt_tokens: int  # of the rollout's first turn, which its group shares
    context_tokens: int  # before the turn
    n_tokens: int  # that it will have sampled at its end
    found_tokens: int = 0
    prefilled_tokens: int = 0
    sampled: list[tuple[PolicyVersion, int]] = field(
        default_factory=list
    )  # tokens, by the version they were sampled under
    n_sampled: int = 0  # the sum of these
    began: float = 0.0  # the rank's service then, had it sampled everything there
    number: int = 0  # on its rank; names its place in the heap

    def sample(self, version: PolicyVersion, n_sampled: int) -> None:
        """So many tokens are sampled by now, the new ones under this version."""
        if n_sampled > self.n_sampled:
            self.sampled.append((version, n_sampled - self.n_sampled))
            self.n_sampled = n_sampled

    def begin_again(self) -> None:
        """It was lost, with all that it had sampled."""
        self.sampled.clear()
        self.n_sampled = self.found_tokens = self.prefilled_tokens = 0


class VirtualRank:
    """One rank while it rolls out. Its weights, its KV pool, and the turns that run."""

    def __init__(
        self,
        spec: RankSpec,
        costs: EngineCosts,
        clock: VirtualClock,
        ended: Callable[[Turn], Event | None],
        *,
        max_tokens_per_turn: int,
        drops_kv: bool = True,
    ) -> None:
        """`ended` is told of every turn that ends. `drops_kv`: kept KV of old weights is void."""
        self.spec = spec
        self.pool = KvPool(spec)
        self.version: PolicyVersion | None = None
        self._costs = costs
        self._clock = clock
        self._ended = ended
        self._max_tokens_per_turn = max_tokens_per_turn
        self._drops_kv = drops_kv
        self._prefill_ns_per_token = costs.prefill_s_per_token * NS_PER_S
        self._running: dict[RolloutId, Turn] = {}
        self._ends: list[tuple[float, int, Turn]] = []  # a heap by service; some were interrupted
        self._n_begun = 0
        self._context_tokens = 0  # of running turns, each when half of it is decoded
        self._service = 0.0
        self._served_ns = 0.0  # when `service` was so much
        self._step_ns = 0.0  # of a decode step of the turns that run
        self._prefill_until_ns = 0.0
        self._stands_since_ns: int | None = None
        self._wakes_ns: int | None = None
        self._restless = False

    @property
    def n_running(self) -> int:
        """Turns that run now."""
        return len(self._running)

    def begin(self, turn: Turn) -> None:
        """Starts a turn, or goes on with one that was interrupted elsewhere.

        Raises:
          InvariantError: there are no weights, no slot or no room for it.
        """
        if self.version is None:
            raise InvariantError(f"Rank {self.spec.rank} decodes {turn.rollout} without weights.")
        if len(self._running) == self.spec.n_slots:
            raise InvariantError(f"Rank {self.spec.rank} has no slot for {turn.rollout}.")
        context = turn.context_tokens + turn.n_sampled
        room = turn.context_tokens + self._max_tokens_per_turn
        found = self.pool.reserve(turn.rollout, context, room, turn.prompt_tokens)
        self._serve()
        self._prefill(turn, context, found)
        self._n_begun += 1
        turn.number = self._n_begun
        turn.began = self._service - turn.n_sampled
        self._running[turn.rollout] = turn
        self._context_tokens += turn.context_tokens + turn.n_tokens // 2
        self._count_step()
        end = (turn.began + turn.n_tokens, turn.number, turn)
        heapq.heappush(self._ends, end)
        if self._wakes_ns is None or self._ends[0] is end:
            self._stir()

    def interrupt(self, rollout: RolloutId) -> Turn | None:
        """Takes a turn out if it runs here; it has sampled what it has. All its KV is gone."""
        turn = self._running.get(rollout)
        if turn is not None:
            self._serve()
            self._sample(turn)
            self._remove(turn)
            self._stir()
        self.pool.forget(rollout)
        return turn

    def release(self, rollout: RolloutId) -> None:
        """The rollout's KV may be reclaimed from now on.

        Raises:
          InvariantError: its turn runs.
        """
        if rollout in self._running:
            raise InvariantError(f"Rollout {rollout} gives its KV up while it decodes.")
        self.pool.release(rollout)

    def load(self, version: PolicyVersion) -> None:
        """Swaps weights; turns that run go on under the new ones, after their context is prefilled.

        Raises:
          InvariantError: the weights are not newer.
        """
        if self.version is not None and version <= self.version:
            raise InvariantError(f"Rank {self.spec.rank} loads {version} after {self.version}.")
        self._serve()
        for turn in self._running.values():
            self._sample(turn)
        self.version = version
        self.pool.uncache()
        if self._drops_kv:
            self._prefill_all_again()

    def empty(self) -> None:
        """The rank is lost or does something else: turns, KV and weights are gone."""
        self.version = None
        self.pool.begin_again()
        for turn in self._running.values():
            turn.begin_again()
        self._running.clear()
        self._ends.clear()
        self._context_tokens = 0
        self._prefill_until_ns = 0.0

    def stand_still(self) -> None:
        """The device works for someone else."""
        if self._stands_since_ns is None:
            self._serve()
            self._stands_since_ns = self._clock.now_ns

    def go_on(self) -> None:
        """The device is this rank's again."""
        if self._stands_since_ns is None:
            return
        now_ns = self._clock.now_ns
        if self._prefill_until_ns > self._stands_since_ns:
            self._prefill_until_ns += now_ns - self._stands_since_ns
        self._served_ns, self._stands_since_ns = now_ns, None
        self._stir()

    def _prefill(self, turn: Turn, context_tokens: int, found_tokens: int) -> None:
        n_tokens = context_tokens - found_tokens
        turn.found_tokens += found_tokens
        turn.prefilled_tokens += n_tokens
        begins_ns = self._prefill_until_ns
        if begins_ns < self._served_ns:
            begins_ns = self._served_ns
        self._prefill_until_ns = begins_ns + n_tokens * self._prefill_ns_per_token

    def _prefill_all_again(self) -> None:
        self.pool.void()
        self._prefill_until_ns = self._served_ns
        done = set[object]()
        for turn in self._running.values():
            group, found = turn.rollout.group, 0
            if group in done:
                found = self.pool.shared_tokens(group, turn.prompt_tokens)
            done.add(group)
            context = turn.context_tokens + turn.n_sampled
            self._prefill(turn, context, min(found, context - 1))

    def _sample(self, turn: Turn) -> None:
        """Counts what a running turn has sampled under the present version; never all of it."""
        n_sampled = min(int(self._service - turn.began + _DONE_STEPS), turn.n_tokens - 1)
        turn.sample(self._present_version, n_sampled)

    @property
    def _present_version(self) -> PolicyVersion:
        if self.version is None:
            raise InvariantError(f"Rank {self.spec.rank} has no weights.")
        return self.version

    def _remove(self, turn: Turn) -> None:
        del self._running[turn.rollout]
        self._context_tokens -= turn.context_tokens + turn.n_tokens // 2
        self._count_step()

    def _count_step(self) -> None:
        n_turns = len(self._running)
        self._step_ns = NS_PER_S * self._costs.decode_step_s(n_turns, self._context_tokens)

    def _serve(self) -> None:
        """Brings `service` up to now; precedes every change."""
        now_ns, served_ns = self._clock.now_ns, self._served_ns
        if now_ns <= served_ns or self._stands_since_ns is not None:
            return
        if self._running:
            if self._prefill_until_ns > served_ns:
                served_ns = self._prefill_until_ns
            if now_ns > served_ns:
                self._service += (now_ns - served_ns) / self._step_ns
        self._served_ns = now_ns

    def _stir(self) -> None:
        """An end may have come nearer: when the scheduler has said all, a wake is scheduled."""
        if not self._restless:
            self._restless = True
            self._clock.before_it_moves(self._settle)

    def _settle(self) -> None:
        """Wakes the rank at its next end, or before: then it looks again."""
        self._restless = False
        if not self._running or self._stands_since_ns is not None:
            return
        at_ns, n_steps = self._clock.now_ns, self._next_end() - self._service
        if n_steps > _DONE_STEPS:
            begins_ns = self._prefill_until_ns if self._prefill_until_ns > at_ns else at_ns
            at_ns = math.ceil(begins_ns + n_steps * self._step_ns)
        if self._wakes_ns is None or at_ns < self._wakes_ns:
            self._wakes_ns = at_ns
            self._clock.at(at_ns, self._wake)

    def _next_end(self) -> float:
        ends, running = self._ends, self._running
        while True:
            end, number, turn = ends[0]
            if turn.number == number and running.get(turn.rollout) is turn:
                return end
            heapq.heappop(ends)

    def _wake(self) -> Event | None:
        """Ends one turn, if one is due."""
        if self._wakes_ns != self._clock.now_ns:
            return None  # it was woken before
        self._wakes_ns = None
        if not self._running or self._stands_since_ns is not None:
            return None
        self._serve()
        if self._next_end() - self._service > _DONE_STEPS:
            self._settle()
            return None
        turn = heapq.heappop(self._ends)[2]
        self._remove(turn)
        self._stir()
        turn.sample(self._present_version, turn.n_tokens)
        self.pool.keep(turn.rollout, turn.context_tokens + turn.n_tokens)
        return self._ended(turn)
