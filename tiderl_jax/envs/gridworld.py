"""The grid world: a multi-turn text environment that a small model learns in minutes on a laptop.

A turn shows six words: what lies up, down, left and right (`up-hole`, `left-free`), which way the
goal is (`goal-up-left`), and which way the key is (`key-down`, `key-held`, `key-none`). The action is
one of `up`, `down`, `left`, `right`. Reaching the goal is worth 1; a hole or any other word ends the
episode with 0. Only the nearest cells are seen, so a good player also remembers where it has been.
"""

from dataclasses import dataclass

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.identity import generator
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.gridworld_maps import Cell, Content, Direction, GridMap, MapRules, generate
from tiderl_jax.envs.gridworld_players import PLAYERS
from tiderl_jax.envs.protocol import Answer, Environment, ScriptedEpisode, Split

_VERTICAL = {-1: ("up",), 0: (), 1: ("down",)}
_HORIZONTAL = {-1: ("left",), 0: (), 1: ("right",)}
_BEARINGS = tuple(
    "-".join(vertical + horizontal)
    for vertical in _VERTICAL.values()
    for horizontal in _HORIZONTAL.values()
    if vertical + horizontal
)


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


def _bearing(here: Cell, there: Cell) -> str:
    vertical = _VERTICAL[_sign(there.row - here.row)]
    horizontal = _HORIZONTAL[_sign(there.column - here.column)]
    return "-".join(vertical + horizontal)


class GridEpisode:
    """One attempt at one map."""

    def __init__(self, grid_map: GridMap):
        self._map = grid_map
        self._player = grid_map.begin()
        self._over = False

    def observe(self) -> str:
        grid_map, (cell, has_key) = self._map, self._player
        around = [f"{d.value}-{grid_map.content(d.of(cell), has_key).value}" for d in Direction]
        if grid_map.key is None:
            key = "none"
        elif has_key:
            key = "held"
        else:
            key = _bearing(cell, grid_map.key)
        return " ".join([*around, f"goal-{_bearing(cell, grid_map.goal)}", f"key-{key}"])

    start = observe

    def step(self, action: str) -> Answer:
        try:
            d = Direction(action.strip())
        except ValueError:
            return Answer("", 0.0, True)
        self._player = self._map.move(self._player, d)
        if self._player.cell in self._map.holes:
            return Answer("", 0.0, True)
        if self._player.cell == self._map.goal:
            return Answer("", 1.0, True)
        return Answer(self.observe(), 0.0, False)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class GridworldOptions:
    size: int
    hole_share: float
    wall_share: float
    door_share: float
    min_moves: int
    max_moves: int
    max_turns: int


class Gridworld:
    def __init__(self, options: GridworldOptions):
        self.o = options
        self._cache = {}
        self.rules = MapRules(options.size, options.hole_share, options.wall_share, options.door_share, options.min_moves, options.max_moves)

    def task(self, split: Split, index: int) -> Task:
        return Task("gridworld", index * 3 + list(Split).index(split))

    def map(self, task):
        if task.seed not in self._cache:
            self._cache[task.seed] = generate(self.rules, generator(task.seed, "gridworld-map"), list(Split)[task.seed % 3])
        return self._cache[task.seed]

    def create(self, task: Task) -> Environment:
        return GridEpisode(self.map(task))

    def words(self):
        around = [f"{d.value}-{c.value}" for d in Direction for c in Content]
        return tuple([*around, *(f"goal-{b}" for b in _BEARINGS), *(f"key-{b}" for b in (*_BEARINGS, "held", "none")), *(d.value for d in Direction)])

    def play(self, task, player, share):
        m = self.map(task)
        rng = generator(task.seed, f"play-{player}")
        ep = GridEpisode(m)
        obs, acts, reward = [ep.start()], [], 0.
        for turn in range(self.o.max_turns):
            if rng.random() < share:
                d = list(Direction)[rng.integers(4)]
            else:
                d = PLAYERS[player](m, ep._player, rng)
            acts.append(d.value)
            a = ep.step(d.value)
            reward += a.reward
            if a.done:
                break
            obs.append(a.observation)
        return ScriptedEpisode(tuple(obs[:len(acts)]), tuple(acts), reward)
