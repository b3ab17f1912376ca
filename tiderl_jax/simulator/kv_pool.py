"""The KV of a simulated rank, counted in pages.

It keeps its own account, so that a scheduler that overfills a rank is found out here.
"""

from collections import Counter

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import GroupId, RolloutId
from tiderl_jax.scheduler.state import RankSpec

_Kv = tuple[int, int]
"""Tokens that can be found, pages that are taken."""


class KvPool:
    """KV of a rollout is reserved (decoding), kept (between turns) or cached (evicted LRU).

    Members of a group share the pages of their prompt: where one holds any KV, the others find the
    prompt. They are counted for each member all the same, as the scheduler does.
    """

    def __init__(self, spec: RankSpec) -> None:
        self._rank = spec.rank
        self._page_tokens = spec.page_tokens
        self._n_pages = spec.budget_tokens // spec.page_tokens
        self._reserved: dict[RolloutId, int] = {}
        self._kept: dict[RolloutId, _Kv] = {}
        self._cached: dict[RolloutId, _Kv] = {}  # least recently used first
        self._holders: dict[GroupId, int] = {}  # members with KV that can be found
        self.n_used_pages = 0  # reserved or kept
        self.n_cached_pages = 0

    def reserve(
        self, rollout: RolloutId, context_tokens: int, room_tokens: int, prompt_tokens: int
    ) -> int:
        """Makes room for a turn; returns the tokens of its context that are found.

        Raises:
          InvariantError: the rollout decodes already, or the pool has no room.
        """
        if rollout in self._reserved:
            raise InvariantError(f"Rollout {rollout} was told to decode twice at once.")
        own = self._take(rollout)
        found = max(own, self.shared_tokens(rollout.group, prompt_tokens))
        if own == 0:
            self._holders[rollout.group] = self._holders.get(rollout.group, 0) + 1
        pages = self._reserved[rollout] = -(-room_tokens // self._page_tokens)
        self.n_used_pages += pages
        if self.n_used_pages > self._n_pages:
            raise InvariantError(
                f"Rank {self._rank} needs {self.n_used_pages} pages of {self._n_pages}: "
                f"KV overflow."
            )
        while self.n_used_pages + self.n_cached_pages > self._n_pages:
            self.forget(next(iter(self._cached)))  # the least recently used
        return min(found, context_tokens - 1)  # the last token is computed for its logits

    def shared_tokens(self, group: GroupId, prompt_tokens: int) -> int:
        """Tokens of the group's prompt that every member finds here: whole pages."""
        if not self._holders.get(group):
            return 0
        return prompt_tokens - prompt_tokens % self._page_tokens

    def keep(self, rollout: RolloutId, context_tokens: int) -> None:
        """A turn has ended: what it reserved and did not need is free again."""
        pages = -(-context_tokens // self._page_tokens)
        self.n_used_pages += pages - self._reserved.pop(rollout)
        self._kept[rollout] = (context_tokens, pages)

    def release(self, rollout: RolloutId) -> None:
        """What the rollout keeps stays cached until its room is needed."""
        kept = self._kept.pop(rollout, None)
        if kept is None:
            return
        tokens, pages = kept
        self.n_used_pages -= pages
        if tokens:
            self._cached[rollout] = kept
            self.n_cached_pages += pages

    def forget(self, rollout: RolloutId) -> None:
        """Gives up all that the rollout has, wherever."""
        if self._take(rollout) or rollout in self._reserved:
            self._leave(rollout.group)
        self.n_used_pages -= self._reserved.pop(rollout, 0)

    def uncache(self) -> None:
        """Gives up all that is cached."""
        for rollout in list(self._cached):
            self.forget(rollout)

    def void(self) -> None:
        """No KV is found any more, but room that is kept stays taken.

        What is reserved counts as computed again.
        """
        self.uncache()
        self._kept = {rollout: (0, pages) for rollout, (_, pages) in self._kept.items()}
        self._holders = dict(Counter(rollout.group for rollout in self._reserved))

    def begin_again(self) -> None:
        """Everything is gone."""
        for held in (self._reserved, self._kept, self._cached, self._holders):
            held.clear()
        self.n_used_pages = self.n_cached_pages = 0

    def _take(self, rollout: RolloutId) -> int:
        """Takes what is kept or cached out; returns the tokens that could be found."""
        kv = self._kept.pop(rollout, None)
        if kv is not None:
            self.n_used_pages -= kv[1]
            return kv[0]
        kv = self._cached.pop(rollout, None)
        if kv is not None:
            self.n_cached_pages -= kv[1]
            return kv[0]
        return 0

    def _leave(self, group: GroupId) -> None:
        n_left = self._holders[group] - 1
        if n_left:
            self._holders[group] = n_left
        else:
            del self._holders[group]
