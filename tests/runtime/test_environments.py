"""The environment pool under a virtual clock: delays, deadlines, pauses, faults."""

import heapq
from collections.abc import Callable
from concurrent.futures import Executor, Future

import pytest

from tiderl_jax.core.config import EnvironmentConfig, LatencyConfig
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.protocol import Answer
from tiderl_jax.runtime.alarms import Alarm
from tiderl_jax.runtime.environments import EnvironmentPool

ROLLOUT = RolloutId(GroupId(Purpose.TRAIN, 0), 0)
TASK = Task("fake", 0)


class VirtualAlarms:
    """Alarms that ring when the test says so."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._pending: list[tuple[int, int, Alarm]] = []

    def now_ns(self) -> int:
        return self._now_ns

    def after(self, delay_s: float, action: Callable[[], None]) -> Alarm:
        alarm = Alarm(self._now_ns + int(delay_s * 1e9), action)
        heapq.heappush(self._pending, (alarm.at_ns, len(self._pending), alarm))
        return alarm

    def advance(self, seconds: float) -> None:
        until_ns = self._now_ns + int(seconds * 1e9)
        while self._pending and self._pending[0][0] <= until_ns:
            self._now_ns, _, alarm = heapq.heappop(self._pending)
            if alarm.action is not None:
                alarm.action()
        self._now_ns = until_ns


class Inline(Executor):
    """Runs work at once, in the caller's thread."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class FakeEnvironment:
    def __init__(self, answer: object = None, start: object = "hello") -> None:
        self._answer = answer or Answer("seen", 0.0, False)
        self._start = start
        self.actions: list[str] = []
        self.closed = 0

    def start(self):
        if isinstance(self._start, Exception):
            raise self._start
        return self._start

    def step(self, action: str):
        self.actions.append(action)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def close(self) -> None:
        self.closed += 1


class Scene:
    """A pool over one fake environment, and all that it reported."""

    def __init__(self, environment: FakeEnvironment, median_s: float = 0.5) -> None:
        self.environment = environment
        self.alarms = VirtualAlarms()
        self.reports: list[tuple] = []
        config = EnvironmentConfig(
            name="fake",
            options={},
            max_turns=5,
            latency=LatencyConfig(median_s=median_s, sigma=0.0, cap_s=100.0),
            step_deadline_s=2.0,
            idle_lease_s=10.0,
            max_attempts=1,
            max_faults=1,
        )
        self.pool = EnvironmentPool(
            world=self,
            config=config,
            seed=0,
            threads=Inline(),
            alarms=self.alarms,
            on_started=lambda rollout, task, text: self.reports.append(("started", text)),
            on_answer=lambda rollout, answer: self.reports.append(("answer", answer.observation)),
            on_failed=lambda rollout, reason: self.reports.append(("failed", reason)),
        )

    def create(self, task: Task) -> FakeEnvironment:
        return self.environment


def opened(environment: FakeEnvironment, median_s: float = 0.5) -> Scene:
    scene = Scene(environment, median_s)
    scene.pool.open(ROLLOUT, TASK)
    return scene


def test_an_answer_comes_after_its_delay_and_not_before() -> None:
    scene = opened(FakeEnvironment())
    scene.alarms.advance(0.49)
    assert scene.reports == []
    scene.alarms.advance(0.02)
    assert scene.reports == [("started", "hello")]
    scene.pool.step(ROLLOUT, "go")
    scene.alarms.advance(0.51)
    assert scene.reports[-1] == ("answer", "seen")
    assert scene.environment.actions == ["go"]


def test_an_environment_slower_than_its_deadline_fails_and_its_late_answer_is_lost() -> None:
    scene = opened(FakeEnvironment(), median_s=3.0)
    scene.alarms.advance(10.0)
    assert scene.reports == [("failed", "no answer within 2 s")]
    assert scene.environment.closed == 1


def test_a_paused_clock_does_not_expire_and_runs_on_where_it_stopped() -> None:
    scene = opened(FakeEnvironment())
    scene.alarms.advance(1.0)  # started at .5, so .5 of the idle lease of 10 is used
    scene.pool.pause(ROLLOUT)
    scene.alarms.advance(1000.0)
    assert scene.reports == [("started", "hello")]
    scene.pool.resume(ROLLOUT)
    scene.alarms.advance(9.4)
    assert len(scene.reports) == 1
    scene.alarms.advance(0.2)
    assert scene.reports[-1] == ("failed", "no traffic for 10 s")


def test_a_step_of_a_paused_session_still_answers() -> None:
    scene = opened(FakeEnvironment())
    scene.alarms.advance(1.0)
    scene.pool.step(ROLLOUT, "go")
    scene.pool.pause(ROLLOUT)
    scene.alarms.advance(100.0)
    assert scene.reports[-1] == ("answer", "seen")


def test_a_closed_session_reports_nothing_any_more() -> None:
    scene = opened(FakeEnvironment())
    scene.pool.close(ROLLOUT)
    scene.alarms.advance(100.0)
    assert scene.reports == []
    assert scene.environment.closed == 1


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (FakeEnvironment(start=RuntimeError("no disk")), "RuntimeError: no disk"),
        (FakeEnvironment(start=b"bytes"), "an observation must be text, not bytes"),
        (FakeEnvironment(start="x" * 200_000), "is too long"),
    ],
)
def test_a_start_that_raises_or_answers_garbage_is_the_environments_fault(
    environment: FakeEnvironment, reason: str
) -> None:
    scene = opened(environment)
    scene.alarms.advance(1.0)
    assert len(scene.reports) == 1
    assert scene.reports[0][0] == "failed"
    assert reason in scene.reports[0][1]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "1e999"])
def test_a_reward_that_is_no_finite_number_is_a_fault_and_never_trains(reward: object) -> None:
    scene = opened(FakeEnvironment(answer=Answer("seen", reward, True)))
    scene.alarms.advance(1.0)
    scene.pool.step(ROLLOUT, "go")
    scene.alarms.advance(1.0)
    assert scene.reports[-1][0] == "failed"
    assert "finite" in scene.reports[-1][1]
