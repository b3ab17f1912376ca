"""Supervised threads: a dead one ends the run with its traceback."""

import threading
from collections.abc import Callable

from tiderl_jax.runtime.inbox import Inbox


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
