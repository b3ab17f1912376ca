"""A simulated decoder rank: which KV it holds, and how long a turn takes.

It keeps its own account of the pool, so that a scheduler that overfills it is found out here.
"""

from collections import OrderedDict

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import PolicyVersion, RolloutId
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.profile import CostModel


class VirtualRank:
    """KV of a rollout is reserved (decoding), kept (between turns) or cached (evicted LRU)."""

    def __init__(self, spec: RankSpec, costs: CostModel, max_tokens_per_turn: int) -> None:
        self._spec = spec
        self._costs = costs
        self._max_tokens_per_turn = max_tokens_per_turn
        self._reserved: dict[RolloutId, int] = {}
        self._kept: dict[RolloutId, int] = {}
        self._cached: OrderedDict[RolloutId, int] = OrderedDict()
        self.version: PolicyVersion | None = None
        self.paused: set[RolloutId] = set()

    @property
    def n_decoding(self) -> int:
        """Turns that run now."""
        return len(self._reserved)

    def begin_turn(self, rollout: RolloutId, context_tokens: int) -> int:
        """Reserves what the turn may need; returns the tokens of its context found in KV."""
        if rollout in self._reserved:
            raise InvariantError(f"Rollout {rollout} was told to decode twice at once.")
        if rollout in self.paused:
            raise InvariantError(f"Rollout {rollout} runs a turn while it is paused.")
        found = self._kept.pop(rollout, 0) or self._cached.pop(rollout, 0)
        self._reserved[rollout] = context_tokens + self._max_tokens_per_turn
        if len(self._reserved) > self._spec.n_slots:
            raise InvariantError(f"Rank {self._spec.rank} has no slot for {rollout}.")
        self._fit()
        return found

    def turn_s(self, prefilled_tokens: int, generated_tokens: int) -> float:
        """Seconds that a turn takes beside those that decode now."""
        costs = self._costs
        step_s = costs.decode_step_s + costs.decode_step_s_per_turn * (self.n_decoding - 1)
        return prefilled_tokens * costs.prefill_s_per_token + generated_tokens * step_s

    def end_turn(self, rollout: RolloutId, context_tokens: int) -> bool:
        """Keeps the rollout's KV; False if the turn was cancelled meanwhile."""
        if self._reserved.pop(rollout, None) is None:
            return False
        self._kept[rollout] = context_tokens
        return True

    def release(self, rollout: RolloutId) -> None:
        """What the rollout holds stays cached until it is needed; a running turn is cancelled."""
        self._reserved.pop(rollout, None)
        self.paused.discard(rollout)
        tokens = self._kept.pop(rollout, None)
        if tokens is not None:
            self._cached[rollout] = tokens

    def pause(self, rollout: RolloutId) -> None:
        """Parks a rollout; its KV may be reclaimed."""
        if rollout in self._reserved or rollout in self.paused:
            raise InvariantError(f"Rollout {rollout} cannot be paused.")
        self.release(rollout)
        self.paused.add(rollout)

    def resume(self, rollout: RolloutId) -> None:
        """Takes a parked rollout back."""
        if rollout not in self.paused:
            raise InvariantError(f"Rollout {rollout} is resumed on another rank or not paused.")
        self.paused.discard(rollout)

    def forget(self, rollout: RolloutId) -> None:
        """Cancels a rollout at once, with all it holds."""
        self.release(rollout)
        self._cached.pop(rollout, None)

    def load(self, version: PolicyVersion) -> None:
        """Swaps weights; KV of the old ones must be computed again, its room stays taken."""
        self.version = version
        self._cached.clear()
        for rollout in self._kept:
            self._kept[rollout] = 0

    def _fit(self) -> None:
        page_tokens = self._spec.page_tokens
        budget_pages = self._spec.budget_tokens // page_tokens

        def pages(tokens: dict[RolloutId, int]) -> int:
            return sum(-(-count // page_tokens) for count in tokens.values())

        needed = pages(self._reserved) + pages(self._kept)
        if needed > budget_pages:
            raise InvariantError(
                f"Rank {self._spec.rank} needs {needed} pages of {budget_pages}: KV overflow."
            )
        while needed + pages(self._cached) > budget_pages:
            self._cached.popitem(last=False)
