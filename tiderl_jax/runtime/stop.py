"""A clean stop on Ctrl-C or SIGTERM; a second one ends the process at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopFlag:
    """Whether a person or the platform has asked for a clean stop."""

    def __init__(self) -> None:
        self.requested = False
        self._actions: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        return self.requested

    def then(self, action: Callable[[], None]) -> None:
        """Runs `action` when the stop is requested; at once if it has been already."""
        self._actions.append(action)
        if self.requested:
            action()

    def request(self) -> None:
        """Asks for the stop."""
        self.requested = True
        for action in self._actions:
            action()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hears the signals while the block runs."""
        signals = (signal.SIGINT, signal.SIGTERM)

        def on_signal(number: int, frame: object) -> None:
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            self.request()

        before = [signal.signal(each, on_signal) for each in signals]
        try:
            yield
        finally:
            for each, handler in zip(signals, before, strict=True):
                signal.signal(each, handler)
