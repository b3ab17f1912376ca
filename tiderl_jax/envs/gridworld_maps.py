"""Maps of the grid world: what they hold, how one moves on them, how they are generated.

A map is a frozen lake that is not slippery. Holes end an episode, walls stop a step, and on some
maps the only way to the goal leads through a door that opens to who has walked over the key.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.envs.protocol import Split

_MAX_DRAWS = 10_000  # a hundred times what the quickstart needs; more means impossible rules


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


class Position(NamedTuple):
    """Where someone is on a map, and whether they hold the key."""

    cell: Cell
    has_key: bool


@dataclass(frozen=True, slots=True)
class GridMap:
    """One generated map. Key and door come together or not at all."""

    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]
    walls: frozenset[Cell]
    key: Cell | None
    door: Cell | None

    def content(self, cell: Cell, has_key: bool) -> Content:
        """What `cell` shows to someone with or without the key."""
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

    def begin(self) -> Position:
        """The position before the first move."""
        return Position(self.start, has_key=False)

    def move(self, position: Position, direction: Direction) -> Position:
        """The position after one step; walls and a locked door stop it where it is."""
        target = direction.of(position.cell)
        content = self.content(target, position.has_key)
        if content in (Content.WALL, Content.DOOR):
            return position
        return Position(target, position.has_key or content is Content.KEY)

    def way(self, position: Position) -> list[Direction] | None:
        """The moves of a shortest way to the goal; None where there is none."""
        came: dict[Position, tuple[Position, Direction] | None] = {position: None}
        frontier = deque([position])
        while frontier:
            here = frontier.popleft()
            if here.cell == self.goal:
                return _retrace(came, here)
            for direction in Direction:
                there = self.move(here, direction)
                if there not in came and there.cell not in self.holes:
                    came[there] = (here, direction)
                    frontier.append(there)
        return None

    def reachable(self) -> set[Cell]:
        """All cells that one can stand on without ever holding the key, the start included."""
        seen = {self.start}
        frontier = [self.start]
        while frontier:
            here = frontier.pop()
            for direction in Direction:
                there = self.move(Position(here, has_key=False), direction).cell
                if there not in seen and there not in self.holes:
                    seen.add(there)
                    frontier.append(there)
        return seen

    def split(self) -> Split:
        """The one split that owns this layout of goal, holes and walls: 6 of 8 layouts train.

        Start, key and door have no say, so maps of two splits differ in more than these.
        """
        layout = (self.size, self.goal, sorted(self.holes), sorted(self.walls))
        digest = blake2b(repr(layout).encode(), digest_size=8).digest()
        return {6: Split.TUNE, 7: Split.HELD_OUT}.get(digest[0] % 8, Split.TRAIN)


def _retrace(
    came: dict[Position, tuple[Position, Direction] | None], here: Position
) -> list[Direction]:
    moves = []
    while (step := came[here]) is not None:
        here, direction = step
        moves.append(direction)
    return moves[::-1]


@dataclass(frozen=True, slots=True)
class MapRules:
    """What the generator may draw."""

    size: int  # cells in a row and in a column
    hole_share: float  # of the cells
    wall_share: float  # of the cells
    door_share: float  # of the maps: these have a door that no way leads around, and its key
    min_moves: int  # of the shortest way to the goal, key included
    max_moves: int


def generate(rules: MapRules, rng: np.random.Generator, split: Split) -> GridMap:
    """The first map of this split that the generator draws and the rules allow.

    Raises:
      ConfigError: hardly any map follows these rules.
    """
    locked = rng.random() < rules.door_share
    for _ in range(_MAX_DRAWS):
        grid_map = _draw(rules, rng)
        if grid_map.split() is not split:
            continue
        if locked:
            grid_map = _lock(grid_map, rng)
        way = grid_map and grid_map.way(grid_map.begin())
        if way and rules.min_moves <= len(way) <= rules.max_moves:
            return grid_map
    raise ConfigError(f"Hardly any grid world map follows {rules}: relax its shares or moves.")


def _draw(rules: MapRules, rng: np.random.Generator) -> GridMap:
    cells = [Cell(row, column) for row in range(rules.size) for column in range(rules.size)]
    start, goal, *rest = (cells[index] for index in rng.permutation(len(cells)))
    kinds = list(zip(rest, rng.random(len(rest)), strict=True))
    holes = frozenset(cell for cell, kind in kinds if kind < rules.hole_share)
    walls = frozenset(cell for cell, kind in kinds if kind >= 1 - rules.wall_share)
    return GridMap(rules.size, start, goal, holes, walls, key=None, door=None)


def _lock(grid_map: GridMap, rng: np.random.Generator) -> GridMap | None:
    """The map with a door that no way leads around and a key before it; None if it has no place."""
    position = grid_map.begin()
    choices = []
    for direction in grid_map.way(position) or []:
        position = grid_map.move(position, direction)
        before = replace(grid_map, door=position.cell).reachable()
        if position.cell != grid_map.goal and grid_map.goal not in before and len(before) > 1:
            choices.append((position.cell, sorted(before - {grid_map.start})))
    if not choices:
        return None
    door, key_cells = choices[rng.integers(len(choices))]
    return replace(grid_map, door=door, key=key_cells[rng.integers(len(key_cells))])
