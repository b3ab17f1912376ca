"""Environments as tools: they answer late, they may hang or crash, and their clocks can be paused.

A step waits out its seeded delay, then runs in a small pool of threads. Every session has one
deadline at a time: for an answer while its environment works, for traffic while it does not.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Executor

from tiderl_jax.core.config import EnvironmentConfig
from tiderl_jax.core.errors import EnvironmentFault
from tiderl_jax.core.ids import RolloutId
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.latency import delay_s
from tiderl_jax.envs.protocol import Answer, Environment, World
from tiderl_jax.runtime.alarms import Alarm, AlarmClock

MAX_OBSERVATION_CHARACTERS = 100_000


class Deadline:
    """A deadline whose clock can be stopped: time spent paused does not count."""

    def __init__(self, alarms: AlarmClock) -> None:
        self._alarms = alarms
        self._alarm: Alarm | None = None
        self._left_s = 0.0
        self._action: Callable[[], None] | None = None
        self._paused = False

    def set(self, seconds: float, action: Callable[[], None]) -> None:
        """Replaces the deadline; a paused clock stays paused."""
        self.clear()
        self._left_s, self._action = seconds, action
        if not self._paused:
            self._run()

    def clear(self) -> None:
        """There is no deadline any more."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._action = None

    def pause(self) -> None:
        """Stops the clock."""
        if not self._paused and self._alarm is not None:
            self._left_s = max(0.0, (self._alarm.at_ns - self._alarms.now_ns()) / 1e9)
            self._alarm.cancel()
            self._alarm = None
        self._paused = True

    def resume(self) -> None:
        """Lets the clock run on."""
        if self._paused:
            self._paused = False
            if self._action is not None:
                self._run()

    def _run(self) -> None:
        assert self._action is not None
        self._alarm = self._alarms.after(self._left_s, self._action)


class Session:
    """One environment under way. `turn` counts what was asked of it; -1 once it is over."""

    def __init__(self, environment: Environment, alarms: AlarmClock) -> None:
        self.environment = environment
        self.deadline = Deadline(alarms)
        self.turn = 0
        self.lock = threading.Lock()

    def over(self) -> bool:
        """Ends the session once; False if it was over already."""
        with self.lock:
            self.deadline.clear()
            was_open, self.turn = self.turn >= 0, -1
        return was_open


class EnvironmentPool:
    """Opens, steps and closes sessions. Reports through the three callbacks, from pool threads."""

    def __init__(
        self,
        world: World,
        config: EnvironmentConfig,
        seed: int,
        threads: Executor,
        alarms: AlarmClock,
        on_started: Callable[[RolloutId, Task, str], None],
        on_answer: Callable[[RolloutId, Answer], None],
        on_failed: Callable[[RolloutId, str], None],
    ) -> None:
        self._world = world
        self._config = config
        self._seed = seed
        self._alarms = alarms
        self._on_started = on_started
        self._on_answer = on_answer
        self._on_failed = on_failed
        self._sessions: dict[RolloutId, Session] = {}
        self._threads = threads

    def open(self, rollout: RolloutId, task: Task) -> None:
        """Creates and starts an environment; `on_started` gets its first observation."""
        session = Session(self._world.create(task), self._alarms)
        self._sessions[rollout] = session

        def start() -> None:
            observation = session.environment.start()
            _check_text(observation)
            self._answered(
                session, 0, lambda: self._on_started(rollout, task, observation), rollout
            )

        self._work(rollout, session, start)

    def step(self, rollout: RolloutId, action: str) -> None:
        """Plays an action; `on_answer` gets the answer."""
        session = self._sessions.get(rollout)
        if session is None:
            return  # it failed while its turn was decoded; the failure has been reported
        session.turn += 1
        turn = session.turn

        def play() -> None:
            answer = session.environment.step(action)
            _check_answer(answer)
            self._answered(session, turn, lambda: self._on_answer(rollout, answer), rollout)

        self._work(rollout, session, play)

    def pause(self, rollout: RolloutId) -> None:
        """No time-out fires for this session until `resume`."""
        if session := self._sessions.get(rollout):
            with session.lock:
                session.deadline.pause()

    def resume(self, rollout: RolloutId) -> None:
        """The session's clock runs on."""
        if session := self._sessions.get(rollout):
            with session.lock:
                session.deadline.resume()

    def is_open(self, rollout: RolloutId) -> bool:
        """Whether the session exists."""
        return rollout in self._sessions

    def close(self, rollout: RolloutId) -> None:
        """Ends a session at any time, also while its environment works."""
        session = self._sessions.pop(rollout, None)
        if session is not None:
            session.over()
            self._threads.submit(session.environment.close)

    def close_all(self) -> None:
        """Ends every session."""
        for rollout in list(self._sessions):
            self.close(rollout)

    def _work(self, rollout: RolloutId, session: Session, work: Callable[[], None]) -> None:
        """Runs `work` after this turn's seeded delay, under the step deadline."""
        group, turn = rollout.group, session.turn
        wait_s = delay_s(
            self._config.latency,
            self._seed,
            group.purpose,
            group.number,
            rollout.member,
            rollout.attempt,
            turn,
        )
        limit_s = self._config.step_deadline_s

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                # The boundary to other people's code: any error is this environment's fault.
                self._fail(rollout, session, f"{type(error).__name__}: {error}")

        with session.lock:
            session.deadline.set(
                limit_s, lambda: self._fail(rollout, session, f"no answer within {limit_s:g} s")
            )
        self._alarms.after(wait_s, lambda: self._threads.submit(guarded))

    def _answered(
        self, session: Session, turn: int, deliver: Callable[[], None], rollout: RolloutId
    ) -> None:
        """Delivers an answer unless the session is over; starts the idle lease."""
        lease_s = self._config.idle_lease_s
        with session.lock:
            if session.turn != turn:
                return
            session.deadline.set(
                lease_s, lambda: self._fail(rollout, session, f"no traffic for {lease_s:g} s")
            )
        deliver()

    def _fail(self, rollout: RolloutId, session: Session, reason: str) -> None:
        if session.over():
            self._sessions.pop(rollout, None)
            self._threads.submit(session.environment.close)
            self._on_failed(rollout, reason)


def _check_text(observation: object) -> None:
    if not isinstance(observation, str):
        raise EnvironmentFault(f"an observation must be text, not {type(observation).__name__}")
    if len(observation) > MAX_OBSERVATION_CHARACTERS:
        raise EnvironmentFault(f"an observation of {len(observation)} characters is too long")


def _check_answer(answer: Answer) -> None:
    _check_text(answer.observation)
    if not isinstance(answer.reward, (int, float)) or not math.isfinite(answer.reward):
        raise EnvironmentFault(f"a reward must be a finite number, not {answer.reward!r}")
