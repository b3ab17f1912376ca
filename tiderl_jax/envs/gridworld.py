"""The grid world: a multi-turn text environment that a small model learns in minutes on a laptop.

A turn shows seven words: what lies up, down, left and right (`up-hole`, `left-free`), the bearing
of the goal (`goal-up-left`), that of the key (`key-down`, `key-held`, `key-none`), and where the
player came from (`back-up`, `back-none`). The action is one of `up`, `down`, `left`, `right`.
Reaching the goal is worth 1; a hole, or any other text, ends the episode with 0. Only the nearest
cells are seen, so a good player also remembers.
"""

from dataclasses import dataclass
from functools import lru_cache

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.identity import generator
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.gridworld_maps import (
    Cell,
    Content,
    Direction,
    GridMap,
    MapRules,
    generate,
)
from tiderl_jax.envs.gridworld_players import PLAYERS
from tiderl_jax.envs.protocol import Answer, ScriptedEpisode, Split

_SPLITS = tuple(Split)
_VERTICAL = {-1: ["up"], 0: [], 1: ["down"]}
_HORIZONTAL = {-1: ["left"], 0: [], 1: ["right"]}
_BEARINGS = tuple(
    "-".join(vertical + horizontal)
    for vertical in _VERTICAL.values()
    for horizontal in _HORIZONTAL.values()
    if vertical + horizontal
)


@dataclass(frozen=True, slots=True)
class GridworldOptions:
    """Which maps are generated. `max_turns` is for scripted players: nobody else stops them."""

    size: int  # cells in a row and in a column
    hole_share: float  # of the cells
    wall_share: float  # of the cells
    door_share: float  # of the maps: these have a locked door on the only way, and its key
    min_moves: int  # of the shortest way to the goal, key included
    max_moves: int
    max_turns: int

    def __post_init__(self) -> None:
        for holds, sentence in (
            (self.size >= 2, "size must be at least 2."),
            (
                min(self.hole_share, self.wall_share) >= 0
                and self.hole_share + self.wall_share < 1,
                "hole_share and wall_share must not be negative, and together below 1.",
            ),
            (0 <= self.door_share <= 1, "door_share must be between 0 and 1."),
            (1 <= self.min_moves <= self.max_moves, "min_moves must be in [1, max_moves]."),
            (self.max_moves <= self.max_turns, "max_moves must not be above max_turns."),
        ):
            if not holds:
                raise ConfigError(f"environment.options.{sentence}")


class GridEpisode:
    """One attempt at one map (an `Environment`)."""

    def __init__(self, grid_map: GridMap):
        self._map = grid_map
        self.position = grid_map.begin()
        self._came_from: Cell | None = None

    def start(self) -> str:
        """Returns the first observation."""
        return self._observe()

    def step(self, action: str) -> Answer:
        """Moves, and says what is seen from there; nothing is said once the episode is done."""
        try:
            direction = Direction(action.strip())
        except ValueError:
            return Answer("", reward=0.0, done=True)
        before, self.position = self.position, self._map.move(self.position, direction)
        if self.position.cell != before.cell:
            self._came_from = before.cell
        if self.position.cell in self._map.holes:
            return Answer("", reward=0.0, done=True)
        if self.position.cell == self._map.goal:
            return Answer("", reward=1.0, done=True)
        return Answer(self._observe(), reward=0.0, done=False)

    def close(self) -> None:
        """Holds nothing to free."""

    def _observe(self) -> str:
        cell, has_key = self.position
        content = self._map.content
        around = [f"{d.value}-{content(d.of(cell), has_key).value}" for d in Direction]
        key = "held" if has_key else _bearing(cell, self._map.key)
        goal, back = _bearing(cell, self._map.goal), _bearing(cell, self._came_from)
        return " ".join([*around, f"goal-{goal}", f"key-{key}", f"back-{back}"])


def _bearing(here: Cell, there: Cell | None) -> str:
    if there is None:
        return "none"
    vertical = _VERTICAL[_sign(there.row - here.row)]
    horizontal = _HORIZONTAL[_sign(there.column - here.column)]
    return "-".join(vertical + horizontal)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


class Gridworld:
    """All maps that follow the options (a `World`)."""

    def __init__(self, options: GridworldOptions):
        self._max_turns = options.max_turns
        self._rules = MapRules(
            options.size,
            options.hole_share,
            options.wall_share,
            options.door_share,
            options.min_moves,
            options.max_moves,
        )
        self.grid_map = lru_cache(maxsize=4096)(self._grid_map)  # a group asks for its map often

    def task(self, split: Split, index: int) -> Task:
        """The index-th task of a split; its seed carries both."""
        return Task("gridworld", len(_SPLITS) * index + _SPLITS.index(split))

    def _grid_map(self, task: Task) -> GridMap:
        split = _SPLITS[task.seed % len(_SPLITS)]
        return generate(self._rules, generator(task.seed, "gridworld-map"), split)

    def create(self, task: Task) -> GridEpisode:
        """A fresh episode on the task's map."""
        return GridEpisode(self.grid_map(task))

    def words(self) -> tuple[str, ...]:
        """The closed vocabulary: surroundings, bearings, actions."""
        around = [f"{direction.value}-{c.value}" for direction in Direction for c in Content]
        goal = [f"goal-{bearing}" for bearing in _BEARINGS]
        key = [f"key-{status}" for status in (*_BEARINGS, "held", "none")]
        actions = [direction.value for direction in Direction]
        back = [f"back-{origin}" for origin in (*actions, "none")]
        return (*around, *goal, *key, *back, *actions)

    def play(self, task: Task, player: str, random_action_share: float) -> ScriptedEpisode:
        """An episode by a scripted player whose moves are now and then replaced by random ones."""
        if player not in PLAYERS:
            raise unknown_name(player, PLAYERS, "player of the grid world")
        rng = generator(task.seed, f"gridworld-{player}")
        grid_map = self.grid_map(task)
        episode = GridEpisode(grid_map)
        observations, actions = [], []
        answer = Answer(episode.start(), reward=0.0, done=False)
        while not answer.done and len(actions) < self._max_turns:
            if rng.random() < random_action_share:
                direction = tuple(Direction)[rng.integers(len(Direction))]
            else:
                direction = PLAYERS[player](grid_map, episode.position, rng)
            observations.append(answer.observation)
            actions.append(direction.value)
            answer = episode.step(direction.value)
        return ScriptedEpisode(tuple(observations), tuple(actions), answer.reward)
