"""The page pool's books: which pages are free, and how many rollouts hold each of the others."""

from tiderl_jax.core.errors import InvariantError


class PagePool:
    """Counts pages; their contents live on the device.

    A page is free, owned (held by one rollout or more), or cached (held by nobody, but kept in the
    prefix tree). Free + owned + cached is always the total.
    """

    def __init__(self, n_pages: int):
        self._free = list(reversed(range(n_pages)))  # a stack: pages used last are used first
        self._holders = [0] * n_pages
        self._n_owned = 0

    @property
    def n_total(self) -> int:
        """Pages in the pool."""
        return len(self._holders)

    @property
    def n_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def n_owned(self) -> int:
        """Pages that at least one rollout holds."""
        return self._n_owned

    @property
    def n_cached(self) -> int:
        """Pages that no rollout holds and that are not free."""
        return self.n_total - self.n_free - self._n_owned

    def take(self) -> int:
        """A free page, now with one holder. The caller knows that there is one."""
        page = self._free.pop()
        self._holders[page] = 1
        self._n_owned += 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of an owned or cached page."""
        self._n_owned += self._holders[page] == 0
        self._holders[page] += 1

    def drop(self, page: int) -> bool:
        """One holder less. True if that was the last: the page must now be cached or freed."""
        self._holders[page] -= 1
        self._n_owned -= self._holders[page] == 0
        return self._holders[page] == 0

    def free(self, page: int) -> None:
        """Gives back a page that nobody holds."""
        self._free.append(page)

    def check(self, cached: set[int]) -> None:
        """Recounts everything; `cached` are the pages that the prefix tree keeps for nobody.

        Raises:
          InvariantError: a page is lost, counted twice, or free while held.
        """
        owned = {page for page, n_holders in enumerate(self._holders) if n_holders > 0}
        free = set(self._free)
        parts = len(self._free) + len(owned) + len(cached)
        if min(self._holders, default=0) < 0 or len(owned) != self._n_owned:
            raise InvariantError("page holders were miscounted")
        if parts != self.n_total or len(free | owned | cached) != self.n_total:
            raise InvariantError(
                f"pages free {len(self._free)} + owned {len(owned)} + cached {len(cached)} "
                f"are not the {self.n_total} of the pool"
            )
