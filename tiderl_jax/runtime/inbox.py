"""The driver's event source in wall time: one queue for all workers, and the timers."""

import heapq
import queue
import time
from collections.abc import Callable

from tiderl_jax.core.events import Event, TimerFired

Report = Callable[[], Event | None]
"""What a worker found, as an action of the driver's thread: it notes the result, names the event.

So token records belong to one thread. None: the result is of no interest any more.
"""


class Inbox:
    """Events of all workers in order of arrival; a worker's death is raised in the driver thread.

    Its time is the run's: it goes on where an earlier process of the same run left off.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._offset_ns = start_ns - time.monotonic_ns()
        self._arrivals: queue.SimpleQueue[Event | Report | BaseException] = queue.SimpleQueue()
        self._timers: list[int] = []

    def now_ns(self) -> int:
        """The run's time in nanoseconds; monotonic."""
        return time.monotonic_ns() + self._offset_ns

    def post(self, event: Event) -> None:
        """Hands an event to the driver; called from any thread."""
        self._arrivals.put(event)

    def deliver(self, report: Report) -> None:
        """Has `report` run in the driver's thread; called from any thread."""
        self._arrivals.put(report)

    def fail(self, error: BaseException) -> None:
        """Ends the run with this error; called by a thread that cannot go on."""
        self._arrivals.put(error)

    def set_timer(self, at_ns: int) -> None:
        """Asks for `TimerFired` at a time of the run; called by the driver thread."""
        heapq.heappush(self._timers, at_ns)

    def next(self) -> tuple[Event, int]:
        """Waits for the next event or timer.

        Raises:
          BaseException: whatever ended a worker thread.
        """
        while True:
            wait_s = None
            if self._timers:
                wait_s = max(0.0, (self._timers[0] - self.now_ns()) / 1e9)
            try:
                arrival = self._arrivals.get(timeout=wait_s)
            except queue.Empty:
                return TimerFired(heapq.heappop(self._timers)), self.now_ns()
            if isinstance(arrival, BaseException):
                raise arrival
            event = arrival() if callable(arrival) else arrival
            if event is not None:
                return event, self.now_ns()
