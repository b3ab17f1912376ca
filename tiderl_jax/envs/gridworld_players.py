"""Scripted players of the grid world, for imitation: each is a function from a position to a move.

Only `expert` is good. `fetcher` and `novice` leave something for reinforcement to learn: they know
what to want, but do not, or not always, look where they step.
"""

from collections.abc import Callable

import numpy as np

from tiderl_jax.envs.gridworld_maps import Cell, Direction, GridMap, Position

Player = Callable[[GridMap, Position, np.random.Generator], Direction]

_NOVICE_LOOKS = 0.5  # share of its moves


def expert(grid_map: GridMap, position: Position, rng: np.random.Generator) -> Direction:
    """Walks a shortest way to the goal: it sees the whole map."""
    moves_left = {}
    for direction in Direction:
        after = grid_map.move(position, direction)
        way = None if after.cell in grid_map.holes else grid_map.way(after)
        if way is not None:
            moves_left[direction] = len(way)
    fewest = min(moves_left.values())
    return _any([d for d, n_moves in moves_left.items() if n_moves == fewest], rng)


def fetcher(grid_map: GridMap, position: Position, rng: np.random.Generator) -> Direction:
    """Walks straight toward the key, then straight toward the goal, through whatever lies there."""
    target = grid_map.goal if grid_map.key is None or position.has_key else grid_map.key
    now = _distance(position.cell, target)
    return _any([d for d in Direction if _distance(d.of(position.cell), target) < now], rng)


def novice(grid_map: GridMap, position: Position, rng: np.random.Generator) -> Direction:
    """Moves like the expert when it looks, like the fetcher when it does not."""
    looks = rng.random() < _NOVICE_LOOKS
    return (expert if looks else fetcher)(grid_map, position, rng)


PLAYERS: dict[str, Player] = {"expert": expert, "fetcher": fetcher, "novice": novice}


def _distance(here: Cell, there: Cell) -> int:
    return abs(here.row - there.row) + abs(here.column - there.column)


def _any(directions: list[Direction], rng: np.random.Generator) -> Direction:
    return directions[rng.integers(len(directions))]
