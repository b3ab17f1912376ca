"""Virtual time: what happens next is the top of a heap; nothing waits."""

import heapq
from collections.abc import Callable

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event

NS_PER_S = 1_000_000_000

Happening = Callable[[], Event | None]
"""Changes the simulated world; may tell the scheduler about it."""


class VirtualClock:
    """Happenings in order of time; those of one time in the order they were scheduled."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._n_scheduled = 0
        self._heap: list[tuple[int, int, Happening]] = []
        self._last_words: list[Callable[[], None]] = []

    def after(self, delay_s: float, happening: Happening) -> None:
        """Schedules a happening `delay_s` from now."""
        self.at(self.now_ns + round(delay_s * NS_PER_S), happening)

    def at(self, at_ns: int, happening: Happening) -> None:
        """Schedules a happening; one in the past happens at once."""
        self._n_scheduled += 1
        if at_ns < self.now_ns:
            at_ns = self.now_ns
        heapq.heappush(self._heap, (at_ns, self._n_scheduled, happening))

    def before_it_moves(self, action: Callable[[], None]) -> None:
        """Calls `action` once, when all commands of this moment have been carried out."""
        self._last_words.append(action)

    def next(self) -> tuple[Event, int]:
        """Moves time to the next event.

        Raises:
          InvariantError: nothing will ever happen again.
        """
        heap, last_words = self._heap, self._last_words
        while True:
            if last_words:
                for action in last_words:
                    action()
                last_words.clear()
            if not heap:
                raise InvariantError("Nothing is scheduled in virtual time: the run has stalled.")
            self.now_ns, _, happening = heapq.heappop(heap)
            event = happening()
            if event is not None:
                return event, self.now_ns
