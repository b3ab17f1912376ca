"""Maps of the grid world: what they hold, how one moves on them, how they are generated.

A map is a frozen lake that is not slippery. Holes end an episode, walls stop a step, and on some maps
the only way to the goal leads through a door that opens to who has walked over the key.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tiderl_jax.envs.protocol import Split


class Cell(NamedTuple):
    """A place on the grid, counted from the upper left."""

    row: int
    column: int


class Direction(Enum):
    """The four actions; the value is the word."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"

    def of(self, cell: Cell) -> Cell:
        """The neighbour in this direction, on the grid or not."""
        rows, columns = _STEPS[self]
        return Cell(cell.row + rows, cell.column + columns)


_STEPS = {
    Direction.UP: (-1, 0),
    Direction.DOWN: (1, 0),
    Direction.LEFT: (0, -1),
    Direction.RIGHT: (0, 1),
}


class Content(Enum):
    """What a cell shows to someone beside it; the value is the word."""

    FREE = "free"
    HOLE = "hole"
    WALL = "wall"  # the edge of the grid looks the same
    GOAL = "goal"
    KEY = "key"
    DOOR = "door"  # locked; an open door is free


_STOPS = (Content.HOLE, Content.WALL, Content.DOOR)


class Player(NamedTuple):
    """Where someone is on a map, and with what."""

    cell: Cell
    has_key: bool


@dataclass(frozen=True, slots=True)
class GridMap:
    """One generated map. A map without a door has no key."""

    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]
    walls: frozenset[Cell]
    key: Cell | None
    door: Cell | None

    def content(self, cell: Cell, has_key: bool) -> Content:
        """What `cell` shows to a player with or without the key."""
        on_grid = 0 <= cell.row < self.size and 0 <= cell.column < self.size
        if not on_grid or cell in self.walls:
            return Content.WALL
        if cell in self.holes:
            return Content.HOLE
        if cell == self.goal:
            return Content.GOAL
        if cell == self.key and not has_key:
            return Content.KEY
        if cell == self.door and not has_key:
            return Content.DOOR
        return Content.FREE

    def begin(self) -> Player:
        """The player before the first move."""
        return Player(self.start, has_key=False)

    def move(self, player: Player, direction: Direction) -> Player:
        """The player after one step; walls and a locked door stop it where it is."""
        target = direction.of(player.cell)
        content = self.content(target, player.has_key)
        if content in (Content.WALL, Content.DOOR):
            return player
        return Player(target, player.has_key or content is Content.KEY)

    def n_moves(self, player: Player) -> int | None:
        """Length of the shortest way to the goal; None where there is none."""
        distance = {player: 0}
        frontier = deque([player])
        while frontier:
            here = frontier.popleft()
            if here.cell == self.goal:
                return distance[here]
            for direction in Direction:
                there = self.move(here, direction)
                if there not in distance and there.cell not in self.holes:
                    distance[there] = distance[here] + 1
                    frontier.append(there)
        return None

    def layout_split(self) -> Split:
        """The split that owns this layout, wherever the player starts: 6 of 8 train."""
        layout = (self.size, self.goal, sorted(self.holes), sorted(self.walls), self.key, self.door)
        digest = blake2b(repr(layout).encode(), digest_size=1).digest()[0] % 8
        return {6: Split.TUNE, 7: Split.HELD_OUT}.get(digest, Split.TRAIN)


@dataclass(frozen=True, slots=True)
class MapRules:
    """What the generator may draw."""

    size: int
    hole_share: float  # of all cells
    wall_share: float  # of all cells
    door_share: float  # of all maps: these have a key, and a door that no way leads around
    min_moves: int  # of the shortest solution
    max_moves: int


def generate(rules: MapRules, rng: np.random.Generator, split: Split) -> GridMap:
    """The first map of this split that the generator draws and the rules allow."""
    locked = rng.random() < rules.door_share
    while True:
        grid_map = _draw(rules, rng)
        if locked:
            grid_map = _lock(grid_map, rng)
        if grid_map is not None and grid_map.layout_split() is split:
            n_moves = grid_map.n_moves(grid_map.begin())
            if n_moves is not None and rules.min_moves <= n_moves <= rules.max_moves:
                return grid_map


def _draw(rules: MapRules, rng: np.random.Generator) -> GridMap:
    cells = [Cell(row, column) for row in range(rules.size) for column in range(rules.size)]
    start, goal, *rest = (cells[index] for index in rng.permutation(len(cells)))
    kinds = rng.random(len(rest))
    holes = frozenset(c for c, x in zip(rest, kinds, strict=True) if x < rules.hole_share)
    walls = frozenset(c for c, x in zip(rest, kinds, strict=True) if x > 1 - rules.wall_share)
    return GridMap(rules.size, start, goal, holes, walls, key=None, door=None)


def _lock(grid_map: GridMap, rng: np.random.Generator) -> GridMap | None:
    """The map with a door that no way leads around and a key before it; None if it has no place."""
    way = _way(grid_map)
    doors = []
    for door in way[:-1]:
        before = _reachable(replace(grid_map, door=door))
        if grid_map.goal not in before and len(before) > 1:
            doors.append((door, sorted(before - {grid_map.start})))
    if not doors:
        return None
    door, keys = doors[rng.integers(len(doors))]
    return replace(grid_map, key=keys[rng.integers(len(keys))], door=door)


def _way(grid_map: GridMap) -> list[Cell]:
    came = {grid_map.start: grid_map.start}
    frontier = deque([grid_map.start])
    while frontier:
        here = frontier.popleft()
        if here == grid_map.goal:
            way = []
            while here != grid_map.start:
                way.append(here)
                here = came[here]
            return way[::-1]
        for there in (d.of(here) for d in Direction):
            if there not in came and grid_map.content(there, has_key=False) not in _STOPS:
                came[there] = here
                frontier.append(there)
    return []


def _reachable(grid_map: GridMap) -> set[Cell]:
    """All cells that one can walk to from the start without a key, the start included."""
    seen = {grid_map.start}
    frontier = [grid_map.start]
    while frontier:
        here = frontier.pop()
        for direction in Direction:
            there = direction.of(here)
            if there not in seen and grid_map.content(there, has_key=False) not in _STOPS:
                seen.add(there)
                frontier.append(there)
    return seen
