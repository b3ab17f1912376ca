"""What an environment is, for everyone who writes one.

An environment is single-use: it is created for one task, started once, stepped until it is done,
and closed. A world is a family of tasks: it generates them by seed, creates their environments, and
may offer scripted players for a supervised warm start.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tiderl_jax.core.trajectories import Task


class Split(Enum):
    """Tasks of different splits never coincide. Only `HELD_OUT` is reported, and never tuned on."""

    TRAIN = "train"
    TUNE = "tune"
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an environment says to an action."""

    observation: str
    reward: float  # of this step; a rollout's reward is the sum
    done: bool


@dataclass(frozen=True, slots=True)
class ScriptedEpisode:
    """A played episode: `actions[t]` answers `observations[t]`."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    reward: float


class Environment(Protocol):
    """One episode of one task. May block or raise; the runtime gives it a deadline."""

    def start(self) -> str:
        """Returns the first observation."""
        ...

    def step(self, action: str) -> Answer:
        """Plays the model's text. A malformed action ends the episode with reward 0."""
        ...

    def close(self) -> None:
        """Frees what the environment holds; may be called at any time, more than once."""
        ...


class World(Protocol):
    """A family of tasks."""

    def task(self, split: Split, index: int) -> Task:
        """The index-th task of a split; the same for ever, without end."""
        ...

    def create(self, task: Task) -> Environment:
        """A fresh environment for one attempt at a task."""
        ...

    def words(self) -> tuple[str, ...]:
        """Every word that observations and actions are made of; empty for open text."""
        ...

    def play(self, task: Task, player: str, random_action_share: float) -> ScriptedEpisode:
        """A whole episode by a scripted player, for imitation; deterministic in its arguments.

        Raises:
          ConfigError: this world has no player of that name.
        """
        ...
