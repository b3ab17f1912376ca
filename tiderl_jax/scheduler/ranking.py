"""A set ordered by keys that may change: the queue of every decision that takes 'the first'."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = tuple[float, ...]

_SLACK = 32
"""Outdated heap entries that are tolerated beyond the number of members."""


@dataclass(slots=True)
class Ranking(Generic[Item]):
    """Members with their keys; the smallest key first, each operation O(log n).

    A changed or removed member leaves an outdated heap entry behind, which is skipped when it
    comes up and swept when outdated entries outnumber the members.
    """

    _keys: dict[Item, Key] = field(default_factory=dict[Item, Key])
    _heap: list[tuple[Key, Item]] = field(default_factory=list[tuple[Key, Item]])

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def members(self) -> list[Item]:
        """All members, in no particular order."""
        return list(self._keys)

    def put(self, item: Item, key: Key) -> None:
        """Adds a member, or changes its key."""
        if self._keys.get(item) == key:
            return
        self._keys[item] = key
        heappush(self._heap, (key, item))
        if len(self._heap) > 2 * len(self._keys) + _SLACK:
            self._heap = [(key, item) for item, key in self._keys.items()]
            heapify(self._heap)

    def file(self, item: Item, key: Key, belongs: bool) -> None:
        """Adds a member under its key, or removes it where it does not belong."""
        if belongs:
            self.put(item, key)
        else:
            self._keys.pop(item, None)

    def discard(self, item: Item) -> None:
        """Removes a member if it is one."""
        self._keys.pop(item, None)

    def first(self) -> Item:
        """The member with the smallest key.

        Raises:
          IndexError: there is none.
        """
        while True:
            key, item = self._heap[0]
            if self._keys.get(item) == key:
                return item
            heappop(self._heap)

    def key(self, item: Item) -> Key:
        """The key of a member."""
        return self._keys[item]
