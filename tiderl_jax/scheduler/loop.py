"""The event loop that the real and the virtual driver share.

Take an event, append it to the journal, ask the scheduler, show observers, carry out the
commands, check invariants, repeat.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from tiderl_jax.core.commands import Abort, Command, Finish
from tiderl_jax.core.events import Event
from tiderl_jax.scheduler.invariants import check
from tiderl_jax.scheduler.scheduler import Scheduler


class EventSource(Protocol):
    """Where events come from."""

    def next(self) -> tuple[Event, int]:
        """The next event and the time in ns; waits for one. Time never runs backwards."""
        ...


class Executor(Protocol):
    """Who carries commands out."""

    def execute(self, command: Command, now_ns: int) -> None:
        """Starts what the command asks for and returns; its answer comes as an event."""
        ...


Journal = Callable[[Event, int], None]
"""Appends an event before it is acted on."""

Observer = Callable[[Event | None, Sequence[Command], int], None]
"""Sees an event (None at the start), the commands it led to, and the time in ns."""


def run(
    scheduler: Scheduler,
    source: EventSource,
    executor: Executor,
    *,
    start_ns: int,
    journal: Journal,
    observers: Sequence[Observer] = (),
    events_per_check: int = 1,
) -> Finish | Abort:
    """Runs until the scheduler finishes or aborts; returns that last command.

    Observers see commands before they are carried out. `events_per_check`: invariants are checked
    after every so many events; the check costs O(rollouts in flight).
    """
    event: Event | None = None
    now_ns, n_events = start_ns, 0
    commands = scheduler.start(start_ns)
    while True:
        for observe in observers:
            observe(event, commands, now_ns)
        for command in commands:
            executor.execute(command, now_ns)
            if isinstance(command, (Finish, Abort)):  # in half the time of a union
                return command
        if n_events % events_per_check == 0:
            check(scheduler.state, drops=scheduler.policies.staleness.drops)
        event, now_ns = source.next()
        journal(event, now_ns)
        commands = scheduler.handle(event, now_ns)
        n_events += 1


def replay(scheduler: Scheduler, start_ns: int, records: Iterable[tuple[Event, int]]) -> None:
    """Brings a fresh scheduler to the state that a journal describes, without acting."""
    scheduler.start(start_ns)
    for event, now_ns in records:
        scheduler.handle(event, now_ns)
