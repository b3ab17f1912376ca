"""A radix tree over whole pages: which page already holds the KV of these tokens?

A node is one page; its path from the root spells all the tokens before it, because KV depends on
them. A root belongs to one policy version, because KV depends on the weights too.
"""

from dataclasses import dataclass, field

from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.decoder.pages import PagePool


@dataclass(eq=False, slots=True)
class Node:
    """One page of KV; a root has no parent and page -1."""

    page: int
    parent: "Node | None"
    key: bytes  # the page's token ids
    children: "dict[bytes, Node]" = field(default_factory=dict)


class PrefixTree:
    """Whoever holds a node holds its ancestors too, and drops the deepest first.

    So a node is held by nobody only if its descendants are held by nobody, and it became idle after
    them: the order of becoming idle is both least recently used first and leaves first.
    """

    def __init__(self, pool: PagePool):
        self._pool = pool
        self._roots: dict[PolicyVersion, Node] = {}
        self._idle: dict[int, Node] = {}  # by page, in the order of becoming idle

    @property
    def idle_pages(self) -> set[int]:
        """The pages that are cached for nobody in particular."""
        return set(self._idle)

    def is_idle(self, node: Node) -> bool:
        """True if no rollout holds this node."""
        return node.page in self._idle

    def root(self, version: PolicyVersion) -> Node:
        """Where the prefixes computed under `version` begin."""
        return self._roots.setdefault(version, Node(-1, None, b""))

    def add(self, parent: Node, key: bytes, page: int) -> Node:
        """The node for these tokens after `parent`: the one that exists, else a new one.

        A new node takes over the caller's hold of `page`; one that exists gets no holder by this.
        """
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(page, parent, key)
        return node

    def hold(self, node: Node) -> None:
        """One more rollout uses this page."""
        self._idle.pop(node.page, None)
        self._pool.hold(node.page)

    def drop(self, node: Node) -> None:
        """One rollout less; a page without any stays cached, evicted when room is needed."""
        if self._pool.drop(node.page):
            self._idle[node.page] = node

    def evict_oldest(self) -> None:
        """Frees the page that has been idle longest. The caller knows that there is one."""
        page = next(iter(self._idle))
        node = self._idle.pop(page)
        self._pool.free(page)
        assert node.parent is not None
        del node.parent.children[node.key]

    def evict_all(self) -> None:
        """Frees every idle page, and forgets the versions of which nothing is left."""
        while self._idle:
            self.evict_oldest()
        self._roots = {version: root for version, root in self._roots.items() if root.children}
