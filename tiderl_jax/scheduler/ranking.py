"""A set ordered by keys that may change: the queue of every decision that takes 'the first'."""

from heapq import heapify, heappop, heappush
from typing import TypeVar

Item = TypeVar("Item")
Key = tuple[float, ...]

_SLACK = 32
"""Outdated heap entries that are tolerated beyond the number of members."""


class Ranking(dict[Item, Key]):
    """Members with their keys; the smallest key first, each operation O(log n).

    It is the dictionary of its keys, so that asking what is in it costs nothing; only `put` adds.
    A changed or removed member leaves an outdated heap entry behind, which is skipped when it
    comes up and swept when outdated entries outnumber the members.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[Key, Item]] = []

    def put(self, item: Item, key: Key) -> None:
        """Adds a member, or changes its key."""
        if self.get(item) == key:
            return
        self[item] = key
        heap = self._heap
        heappush(heap, (key, item))
        if len(heap) > 2 * len(self) + _SLACK:
            heap[:] = [(key, item) for item, key in self.items()]
            heapify(heap)

    def discard(self, item: Item) -> None:
        """Removes a member if it is one."""
        self.pop(item, None)

    def first(self) -> Item:
        """The member with the smallest key.

        Raises:
          IndexError: there is none.
        """
        heap = self._heap
        while True:
            key, item = heap[0]
            if self.get(item) == key:
                return item
            heappop(heap)
