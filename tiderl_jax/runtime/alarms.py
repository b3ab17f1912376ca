"""Things that happen at a time: delayed answers and deadlines, all in one thread."""

import heapq
import itertools
import queue
import time
from collections.abc import Callable


class Alarm:
    """Identity of something that will happen at a time, unless it is cancelled first."""

    __slots__ = ("action", "at_ns")

    def __init__(self, at_ns: int, action: Callable[[], None]) -> None:
        self.at_ns = at_ns
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """From now on the alarm does nothing (and holds nothing alive)."""
        self.action = None


class AlarmClock:
    """Runs small actions at their time, in the thread that calls `run`."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Alarm | None] = queue.SimpleQueue()
        self._count = itertools.count()

    def now_ns(self) -> int:
        """The time that alarms are set by."""
        return time.monotonic_ns()

    def after(self, delay_s: float, action: Callable[[], None]) -> Alarm:
        """Runs `action()` after a delay; called from any thread."""
        alarm = Alarm(self.now_ns() + int(delay_s * 1e9), action)
        self._requests.put(alarm)
        return alarm

    def stop(self) -> None:
        """Ends `run`; alarms that have not rung are forgotten."""
        self._requests.put(None)

    def run(self) -> None:
        """Rings alarms in order of their time until `stop`."""
        pending: list[tuple[int, int, Alarm]] = []
        while True:
            wait_s = None
            if pending:
                wait_s = max(0.0, (pending[0][0] - self.now_ns()) / 1e9)
            try:
                alarm = self._requests.get(timeout=wait_s)
            except queue.Empty:
                action = heapq.heappop(pending)[2].action
                if action is not None:
                    action()
                continue
            if alarm is None:
                return
            heapq.heappush(pending, (alarm.at_ns, next(self._count), alarm))
