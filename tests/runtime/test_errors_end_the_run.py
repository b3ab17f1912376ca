"""H7 of the users' cases: whatever breaks, the run ends at once, with that error and no thread."""

import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from rich.console import Console

from experiments import cli
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.core.events import TurnStop
from tiderl_jax.core.ids import PolicyVersion, RankId, RolloutId
from tiderl_jax.core.trajectories import Task, Trajectory
from tiderl_jax.decoder.turns import TurnRequest, TurnResult
from tiderl_jax.envs.protocol import Answer, Split
from tiderl_jax.learner.step_report import StepReport
from tiderl_jax.models.chat import ChatRenderer
from tiderl_jax.models.tokenizer import Tokenizer
from tiderl_jax.runtime import reinforcement
from tiderl_jax.runtime.progress import ProgressDisplay
from tiderl_jax.runtime.stop import StopFlag
from tiderl_jax.runtime.weights import publish

RENDERER = ChatRenderer(Tokenizer.from_words(["left", "wall"]))
AT_MOST_S = 1.0


class OneTurn:
    """An environment that any action ends; also its world."""

    def task(self, split: Split, index: int) -> Task:
        return Task(split.value, index)

    def create(self, task: Task) -> "OneTurn":
        return self

    def start(self) -> str:
        return "wall"

    def step(self, action: str) -> Answer:
        return Answer("", 1.0, done=True)

    def close(self) -> None:
        """There is nothing to free."""


class Engine:
    """Says the same at every turn."""

    def __init__(self) -> None:
        self._requests: list[TurnRequest] = []
        self._version = PolicyVersion(0)

    @property
    def n_active(self) -> int:
        return len(self._requests)

    def warm_up(self) -> None:
        """Nothing is compiled."""

    def run_turn(self, request: TurnRequest) -> None:
        self._requests.append(request)

    def cancel(self, rollout: RolloutId) -> None:
        self._requests = [one for one in self._requests if one.rollout != rollout]

    def load_weights(self, params: Any, version: PolicyVersion) -> None:
        self._version = version

    def step(self) -> list[TurnResult]:
        token_ids = np.array(RENDERER.turn("left"), np.int32)
        logp, versions = np.zeros(len(token_ids)), np.full(len(token_ids), self._version)
        stop, requests, self._requests = TurnStop.END_OF_TURN, self._requests, []
        return [
            TurnResult(one.rollout, token_ids, logp, logp, versions, stop, 0, len(one.context_ids))
            for one in requests
        ]


class Learner:
    """Learns nothing."""

    state = SimpleNamespace()

    def weights(self) -> dict[str, jax.Array]:
        return {"w": jnp.ones(2)}

    def step(self, groups: list[list[Trajectory]], version: PolicyVersion) -> StepReport:
        n_tokens = sum(trajectory.n_model_tokens for group in groups for trajectory in group)
        return StepReport(n_tokens, n_tokens, (), 1, (), ((0, n_tokens),), 1.0, {})


class Folder:
    """Keeps nothing; also its own store of commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits = self
        self._saved: set[int] = set()

    def begin(self, rows: object) -> None:
        """The run begins."""

    def add(self, row: object) -> None:
        """A row of metrics."""

    def finish(self, ledger: object, compiles: object) -> str:
        return "report.html"

    def has_arrays(self, step: int) -> bool:
        return step in self._saved

    def save_arrays(self, step: int, state: object) -> None:
        self._saved.add(step)

    def commit(self, step: int, *parts: object) -> None:
        """The arrays count."""


class Scene:
    """A real run, with real threads, of parts that cost nothing."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.engine, self.learner = OneTurn(), Engine(), Learner()
        self.folder = Folder(folder)
        monkeypatch.setattr(reinforcement, "build_engines", lambda *parts: {RankId(0): self.engine})
        changes = {
            "steps": 3,
            "evaluation.n_tasks": 0,
            "environment.max_faults": 0,
            "partition.n_rollout_ranks": 1,
        }
        overrides = [f"--config.{key}={value}" for key, value in changes.items()]
        config = cli.experiment(cli.parse(["test", f"--config={tiny.__file__}", *overrides]))
        parts = SimpleNamespace(
            world=self.world,
            renderer=RENDERER,
            partition=SimpleNamespace(rollout={RankId(0): jax.devices()[0]}),
            learner=self.learner,
        )
        compiles = SimpleNamespace(warm=lambda: None, after_warm_up=0)
        display = ProgressDisplay(Console(file=io.StringIO()))
        self.run = reinforcement.Reinforcement(
            config, parts, self.folder, display, compiles, manifest=None
        )

    @property
    def batching(self) -> Any:
        return self.run._scheduler.policies.batching


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """What proves the digest of weights is compiled before anything is timed."""
    publish(PolicyVersion(0), Learner().weights())


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_such_a_run_comes_to_its_end_when_nothing_breaks(scene: Scene) -> None:
    assert scene.run.to_end(StopFlag())


def broken(*args: object) -> Any:
    raise RuntimeError("broken on purpose")


def broken_after_the_start(step: int, *args: object) -> Any:
    if step > 0:
        broken()


BREAK: dict[str, Callable[[Scene], None]] = {
    "environment": lambda scene: setattr(scene.world, "step", broken),
    "world": lambda scene: setattr(scene.world, "create", broken),
    "router": lambda scene: setattr(scene.batching, "run", broken),
    "decoder": lambda scene: setattr(scene.engine, "step", broken),
    "sync": lambda scene: setattr(scene.engine, "load_weights", broken),
    "learner": lambda scene: setattr(scene.learner, "step", broken),
    "saver": lambda scene: setattr(scene.folder, "save_arrays", broken_after_the_start),
    "commit": lambda scene: setattr(scene.folder, "commit", broken_after_the_start),
    "metrics": lambda scene: setattr(scene.folder, "add", broken),
}


def ends_with(scene: Scene, error: type[Exception], words: str) -> None:
    """Within the time, and with no thread left behind."""
    before, began_s = set(threading.enumerate()), time.monotonic()
    with pytest.raises(error, match=words):
        scene.run.to_end(StopFlag())
    assert time.monotonic() - began_s < AT_MOST_S
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("part", BREAK)
def test_an_error_in_any_part_ends_the_run_with_that_error(part: str, scene: Scene) -> None:
    BREAK[part](scene)
    ends_with(scene, TiderlError if part == "environment" else RuntimeError, "broken on purpose")


def test_a_reward_that_is_no_number_ends_the_run_when_no_fault_is_allowed(scene: Scene) -> None:
    scene.world.step = lambda action: Answer("", float("nan"), done=True)
    ends_with(scene, TiderlError, "a reward must be a finite number, not nan")


def test_an_environment_that_never_answers_does_not_keep_a_run_from_ending(scene: Scene) -> None:
    answers, released = iter([True, False]), threading.Event()

    def step(action: str) -> Answer:
        return released.wait() if next(answers) else broken()

    scene.world.step = step
    began_s = time.monotonic()
    try:
        with pytest.raises(TiderlError, match="broken on purpose"):
            scene.run.to_end(StopFlag())
        assert time.monotonic() - began_s < AT_MOST_S
    finally:
        released.set()
