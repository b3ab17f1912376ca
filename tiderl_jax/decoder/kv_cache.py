"""Which rollout holds which pages: found, promised, taken, shared, given back. Ints, no device."""

from dataclasses import dataclass, field

import numpy as np

from tiderl_jax.core.errors import EngineFault, InvariantError
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.decoder.pages import PagePool
from tiderl_jax.decoder.prefix_tree import Node, PrefixTree


@dataclass(eq=False, slots=True)
class Holding:
    """The KV of one rollout. The first `len(nodes)` of its pages are shared through the tree."""

    version: PolicyVersion  # that its first token was computed under
    n_tokens: int = 0  # positions with KV, computed or planned for the coming dispatch
    pages: list[int] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    n_promised: int = 0  # pages that its turn may still take


class KvCache:
    """Page accounts of one decoder.

    A turn is promised every page that it can need before it starts, and takes them one by one as
    its tokens come, so a running turn never waits for a page.
    """

    def __init__(self, n_pages: int, page_tokens: int, version: PolicyVersion):
        self.version = version
        self.page_tokens = page_tokens
        self.pool = PagePool(n_pages)
        self.tree = PrefixTree(self.pool)
        self._n_promised = 0

    def n_pages(self, n_tokens: int) -> int:
        """Pages that this many tokens occupy."""
        return -(-n_tokens // self.page_tokens)

    def promise(self, holding: Holding, token_ids: np.ndarray, n_tokens: int) -> None:
        """Assures that `holding` can grow to `n_tokens`, of which `token_ids` are known.

        Raises:
          EngineFault: the pages are not there; nothing has changed.
        """
        found = self._match(holding, token_ids)
        needed = self.n_pages(n_tokens) - len(holding.pages) - len(found)
        n_idle_found = sum(self.tree.is_idle(node) for node in found)
        available = self.pool.n_free + self.pool.n_cached - n_idle_found - self._n_promised
        if needed > available:
            raise EngineFault(
                f"A turn needs {needed} more pages, but {max(available, 0)} of "
                f"{self.pool.n_total} are free or can be reclaimed."
            )
        holding.n_promised = needed + len(found)
        self._n_promised += holding.n_promised
        self._adopt(holding, found)

    def adopt(self, holding: Holding, token_ids: np.ndarray) -> int:
        """Takes over the pages that others computed for the next of `token_ids`.

        Returns how many tokens that covers. At least one token is never covered: the last is fed
        to the model to sample its successor.
        """
        found = self._match(holding, token_ids)
        self._adopt(holding, found)
        return len(found) * self.page_tokens

    def grow(self, holding: Holding, n_tokens: int) -> None:
        """Takes promised pages until the holding can store `n_tokens`."""
        while len(holding.pages) * self.page_tokens < n_tokens:
            if holding.n_promised == 0:
                raise InvariantError("a turn grows beyond the pages it was promised")
            if not self.pool.n_free:
                self.tree.evict_oldest()
            holding.pages.append(self.pool.take())
            self._redeem(holding, 1)

    def share(self, holding: Holding, token_ids: np.ndarray, settled: bool) -> None:
        """Puts the holding's full pages into the tree, where its siblings find them.

        Where the tree has a twin of a page, the twin is used and the own page freed; but only when
        `settled`, that is when no write to the own page is still to be dispatched.
        """
        while self._one_version(holding):
            index = len(holding.nodes)
            end = (index + 1) * self.page_tokens
            if end > holding.n_tokens:
                return
            own = holding.pages[index]
            key = token_ids[end - self.page_tokens : end].tobytes()
            node = self.tree.add(self._last_node(holding), key, own)
            if node.page != own:
                if not settled:
                    return
                self.tree.hold(node)
                self._drop_own(own)
                holding.pages[index] = node.page
            holding.nodes.append(node)

    def settle(self, holding: Holding, token_ids: np.ndarray) -> None:
        """A turn is over: gives back what it was promised or took too early, shares the rest."""
        self._redeem(holding, holding.n_promised)
        while len(holding.pages) > self.n_pages(holding.n_tokens):
            self._drop_own(holding.pages.pop())
        self.share(holding, token_ids, settled=True)

    def release(self, holding: Holding) -> None:
        """Holds nothing any more: shared pages stay cached, the others are freed."""
        self._redeem(holding, holding.n_promised)
        for page in holding.pages[len(holding.nodes) :]:
            self._drop_own(page)
        for node in reversed(holding.nodes):
            self.tree.drop(node)
        holding.pages, holding.nodes, holding.n_tokens = [], [], 0

    def restart(self, holding: Holding, n_tokens: int) -> None:
        """Forgets the KV of a running turn, which will compute up to `n_tokens` again.

        Its promise may exceed the pool for a moment where pages were shared; siblings share them
        again as the first of them computes them.
        """
        self.release(holding)
        holding.version = self.version
        holding.n_promised = self.n_pages(n_tokens)
        self._n_promised += holding.n_promised

    def check(self) -> None:
        """Raises InvariantError unless free + owned + cached pages are exactly the pool."""
        self.pool.check(self.tree.idle_pages)

    def _one_version(self, holding: Holding) -> bool:
        return holding.version == self.version

    def _last_node(self, holding: Holding) -> Node:
        return holding.nodes[-1] if holding.nodes else self.tree.root(holding.version)

    def _match(self, holding: Holding, token_ids: np.ndarray) -> list[Node]:
        """The nodes that continue a holding which ends exactly at its last shared page."""
        found: list[Node] = []
        aligned = len(holding.nodes) * self.page_tokens == holding.n_tokens
        if not aligned or not self._one_version(holding):
            return found
        node: Node | None = self._last_node(holding)
        end = holding.n_tokens + self.page_tokens
        while end < len(token_ids):
            node = node.children.get(token_ids[end - self.page_tokens : end].tobytes())
            if node is None:
                break
            found.append(node)
            end += self.page_tokens
        return found

    def _adopt(self, holding: Holding, found: list[Node]) -> None:
        for node in found:
            self.tree.hold(node)
            holding.nodes.append(node)
            holding.pages.append(node.page)
        holding.n_tokens += len(found) * self.page_tokens
        self._redeem(holding, len(found))

    def _redeem(self, holding: Holding, n_pages: int) -> None:
        holding.n_promised -= n_pages
        self._n_promised -= n_pages

    def _drop_own(self, page: int) -> None:
        if self.pool.drop(page):
            self.pool.free(page)
