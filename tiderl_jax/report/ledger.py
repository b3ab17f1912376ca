"""The ledger: an observer of the event loop, in a real run and in a simulated one alike.

It is told every event with the commands that answered it, and from nothing else it makes the rows
of `metrics.jsonl`, the figures of `summary.json` and the timeline. It decides nothing and reads no
clock. Its memory is bounded by what is in flight, plus one small record per training step.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiderl_jax.core.commands import Command
from tiderl_jax.core.events import Event, Updated
from tiderl_jax.core.ids import PolicyVersion, Role
from tiderl_jax.report.evaluations import Evaluations, Round
from tiderl_jax.report.facts import RolloutFacts, RunFacts
from tiderl_jax.report.group_times import GroupTimes
from tiderl_jax.report.metrics import WALL_S, Row, evaluation_row, step_row
from tiderl_jax.report.occupancy import Occupancy, starting_in
from tiderl_jax.report.summary import summarise
from tiderl_jax.report.sums import (
    NS_PER_S,
    EvaluationResult,
    Loss,
    Sum,
    Sums,
    Training,
    Window,
    lost_tokens,
    total,
)
from tiderl_jax.report.timeline import Timeline
from tiderl_jax.report.tokens import TokenAccount
from tiderl_jax.report.tracks import Tracks
from tiderl_jax.report.trainer_time import TrainerTime
from tiderl_jax.report.trajectories import TrajectoryAccount


class Ledger:
    """What happened in a run. Time is the driver's, in ns, and never goes backwards.

    `rollout` and `learner` may be called from any thread, before the event that tells of the same
    thing (`RolloutEnded`, `Updated`) is observed; all else belongs to the event loop's thread.
    """

    def __init__(
        self,
        run: RunFacts,
        start_ns: int = 0,
        snapshot: Mapping[str, Any] | None = None,
        *,
        timeline: bool = True,
    ) -> None:
        """Starts at `start_ns`, or goes on from `snapshot` (whose time the driver's continues).

        Without a timeline it is faster, and all else is the same.
        """
        self._run = run
        self._windows: list[Window] = []
        self._evaluations: list[EvaluationResult] = []
        self._rows: list[Row] = []
        self._sums: Sums = Counter()  # since the last update
        self._start_ns = self._begin_ns = self._now_ns = start_ns
        if snapshot is not None:
            self._restore(snapshot)
        self._first_ns = self._now_ns  # of the timeline
        self._facts: deque[RolloutFacts] = deque()  # not looked at yet
        self._learner: deque[Mapping[str, float]] = deque()
        self._rounds = Evaluations()
        self._trajectories = TrajectoryAccount(self._sums)
        self._group_times = GroupTimes()
        self._tokens = TokenAccount(self._sums, run.staleness_bound)
        self._tracks = _tracks(run, self._now_ns) if timeline else None
        n_trainers = run.n_devices - sum(role is Role.ROLLOUT for role in run.roles.values())
        self._trainer = TrainerTime(self._sums, self._tracks, n_trainers, self._now_ns)
        self._occupancy = Occupancy(
            run,
            self._sums,
            self._tracks,
            self._trainer,
            self._now_ns,
            n_updates=self.n_updates,
        )
        self._handlers = self._all_handlers()

    @property
    def n_updates(self) -> int:
        """Training steps that are done."""
        return len(self._windows)

    @property
    def n_rows(self) -> int:
        """How many rows there are so far."""
        return len(self._rows)

    @property
    def now_ns(self) -> int:
        """The driver's time at the last event."""
        return self._now_ns

    def rollout(self, facts: RolloutFacts) -> None:
        """Takes the facts of a finished rollout."""
        self._facts.append(facts)

    def learner(self, figures: Mapping[str, float]) -> None:
        """Takes the learner's own figures of a step, by name (a bare name joins `train/`)."""
        self._learner.append(dict(figures))

    def observe(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        """Takes one turn of the event loop; the event is None when the scheduler starts.

        Raises:
          InvariantError: an update does not account for every token that its step took.
        """
        self._now_ns = now_ns
        if self._facts:
            self._take_facts()
        handlers = self._handlers
        for handle in handlers.get(type(event), ()):
            handle(event, now_ns)
        for command in commands:
            for handle in handlers.get(type(command), ()):
                handle(command, now_ns)
        self._occupancy.settle(now_ns)
        if self._rounds.changed:
            for one in self._rounds.take_complete():
                self._evaluations.append(self._evaluated(one))
                self._rows.append(evaluation_row(self._evaluations[-1], self._start_ns))

    def rows(self) -> list[Row]:
        """Every row of `metrics.jsonl` so far, in the order in which they came to be."""
        return list(self._rows)

    def summary(self, compiles_after_warmup: int | None) -> dict[str, Any]:
        """The figures of `summary.json`, as of the last event (see `summary.py`)."""
        return summarise(
            self._run,
            self._windows,
            self._tail(),
            self._evaluations,
            wall_ns=self._now_ns - self._start_ns,
            compiles_after_warmup=compiles_after_warmup,
        )

    def timeline(self) -> dict[str, Any]:
        """The document of `timeline.json`, up to the last event; without spans if none is kept."""
        drawn = Timeline()
        if self._tracks is not None:
            drawn = self._tracks.timeline(self._now_ns, self._trainer.step)
        return drawn.chrome_trace(
            {
                "policy": self._run.policy,
                "begins_after_s": (self._first_ns - self._start_ns) / NS_PER_S,
            }
        )

    def snapshot(self) -> dict[str, Any]:
        """What a resumed run needs, as plain JSON values.

        Tokens and evaluations in flight are not in it: they are lost with the process, and the
        tokens are counted as unfinished.
        """
        return {
            "start_ns": self._start_ns,
            "begin_ns": self._begin_ns,
            "now_ns": self._now_ns,
            "sums": dict(self._tail()),
            "windows": [_plain(window) for window in self._windows],
            "evaluations": [_plain(one) for one in self._evaluations],
        }

    def _all_handlers(self) -> dict[type, tuple[Callable[[Any, int], None], ...]]:
        """Who follows which kind of event or command; looked up for each one of millions."""
        accounts = (
            self._rounds,
            self._trajectories,
            self._group_times,
            self._tokens,
            self._trainer,
            self._occupancy,
        )
        handlers: dict[type, list[Callable[[Any, int], None]]] = {}
        for account in accounts:
            for kind, handle in account.handlers.items():
                handlers.setdefault(kind, []).append(handle)
        updated = (*handlers[Updated], self._close_window)
        handlers[Updated] = [lambda event, now_ns: self._updated(updated, event, now_ns)]
        return {kind: tuple(of_kind) for kind, of_kind in handlers.items()}

    def _updated(
        self, handlers: Sequence[Callable[[Any, int], None]], event: Updated, now_ns: int
    ) -> None:
        """Versions are monotone for ever, so an update that is not new arrives a second time."""
        if self._windows and event.version <= self._windows[-1].version:
            return
        for handle in handlers:
            handle(event, now_ns)

    def _restore(self, snapshot: Mapping[str, Any]) -> None:
        self._start_ns = snapshot["start_ns"]
        self._begin_ns = snapshot["begin_ns"]
        self._now_ns = snapshot["now_ns"]
        self._sums.update(snapshot["sums"])
        for fields in snapshot["windows"]:
            self._windows.append(Window(**fields | {"sums": Counter(fields["sums"])}))
        for fields in snapshot["evaluations"]:
            self._evaluations.append(EvaluationResult(**fields | {"sums": Counter(fields["sums"])}))
        self._rows += [step_row(window, self._start_ns) for window in self._windows]
        self._rows += [evaluation_row(one, self._start_ns) for one in self._evaluations]
        self._rows.sort(key=lambda row: row[WALL_S] or 0.0)

    def _tail(self) -> Sums:
        """The sums since the last update, with open tokens as unfinished."""
        unfinished = Counter({lost_tokens(Loss.UNFINISHED): self._tokens.n_open_tokens})
        return total([self._sums, unfinished])

    def _take_facts(self) -> None:
        while self._facts:
            facts = self._facts.popleft()
            if facts.outcome.may_train:
                evaluation = facts.purpose.is_evaluation
                (self._rounds if evaluation else self._trajectories).finished(facts)

    def _close_window(self, event: Updated, now_ns: int) -> None:
        elapsed_ns = now_ns - self._begin_ns
        self._sums[Sum.WINDOW_NS] += elapsed_ns
        self._sums[Sum.DEVICE_NS] += elapsed_ns * self._run.n_devices
        self._windows.append(
            Window(
                step=self.n_updates + 1,
                version=event.version,
                end_ns=now_ns,
                n_episodes=self._n_episodes(),
                sums=Counter(self._sums),
                learner=dict(self._learner.popleft()) if self._learner else {},
                group_ns=self._group_times.take(),
            )
        )
        self._rows.append(step_row(self._windows[-1], self._start_ns))
        self._sums.clear()
        self._begin_ns = now_ns

    def _n_episodes(self) -> int:
        before = self._windows[-1].n_episodes if self._windows else 0
        return before + self._sums[Sum.EPISODES]

    def _evaluated(self, one: Round) -> EvaluationResult:
        version = one.version if one.version is not None else PolicyVersion(0)
        steps = (window.step for window in reversed(self._windows) if window.version == version)
        return EvaluationResult(
            purpose=next(iter(one.missing)).purpose,
            version=version,
            step=next(steps, 0),
            end_ns=self._now_ns,
            n_episodes=self._n_episodes(),
            sums=one.sums,
        )


def _tracks(run: RunFacts, now_ns: int) -> Tracks:
    labels = {rank: starting_in(role) for rank, role in run.roles.items()}
    return Tracks(labels, Training.WAITING, now_ns)


def _plain(record: Window | EvaluationResult) -> dict[str, Any]:
    fields = {name: getattr(record, name) for name in record.__slots__}
    return fields | {"sums": dict(fields["sums"])}
