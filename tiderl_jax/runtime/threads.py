"""Threads: a supervised one that dies ends the run, and one that is stuck does not hold it up."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from tiderl_jax.runtime.inbox import Inbox

GRACE_S = 0.5
"""How long work that has been handed in may take when its pool is shut down."""


def supervised(name: str, work: Callable[[], None], inbox: Inbox) -> threading.Thread:
    """Starts a daemon thread whose failure is raised in the driver thread."""

    def run() -> None:
        try:
            work()
        except BaseException as error:
            # Whatever it is, the driver must hear of it: a silent dead thread is a hang.
            error.add_note(f"in the thread {name!r}")
            inbox.fail(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class DaemonPool(Executor):
    """Threads for other people's code, which may never return.

    `ThreadPoolExecutor` waits for its threads at shutdown and again when the process ends; this
    one gives them `GRACE_S`, then leaves those that are stuck to end with the process.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name} {i}", daemon=True)
            for i in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Runs `fn` in one of the threads."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                # As in every executor: it belongs to whoever asks for the result.
                future.set_exception(error)

        self._work.put(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads when what was handed in is done, or after `GRACE_S`."""
        for _ in self._threads:
            self._work.put(None)
        until_s = time.monotonic() + GRACE_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
