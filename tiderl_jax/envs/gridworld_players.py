"""Scripted players of the grid world, for imitation: each is a function from a map to a move."""

from collections.abc import Callable

import numpy as np

from tiderl_jax.envs.gridworld_maps import Cell, Direction, GridMap, Player

Choose = Callable[[GridMap, Player, np.random.Generator], Direction]


def _towards(here: Cell, there: Cell) -> list[Direction]:
    def distance(cell: Cell) -> int:
        return abs(cell.row - there.row) + abs(cell.column - there.column)

    return [d for d in Direction if distance(d.of(here)) < distance(here)]


def straight(grid_map: GridMap, player: Player, rng: np.random.Generator) -> Direction:
    """Walks toward the goal and heeds nothing else: no hole, no wall, no key."""
    moves = _towards(player.cell, grid_map.goal)
    return moves[rng.integers(len(moves))]


def fetcher(grid_map: GridMap, player: Player, rng: np.random.Generator) -> Direction:
    """Walks toward the key, then toward the goal, and heeds nothing else."""
    wants_key = grid_map.key is not None and not player.has_key
    target = grid_map.key if wants_key else grid_map.goal
    moves = _towards(player.cell, target)
    return moves[rng.integers(len(moves))]


def expert(grid_map: GridMap, player: Player, rng: np.random.Generator) -> Direction:
    """Walks a shortest way to the goal, seeing the whole map."""
    moves = []
    for d in Direction:
        after = grid_map.move(player, d)
        if after.cell in grid_map.holes or after == player:
            continue
        n = grid_map.n_moves(after)
        if n is not None:
            moves.append((n, d))
    best = min(n for n, _ in moves)
    moves = [d for n, d in moves if n == best]
    return moves[rng.integers(len(moves))]


def _novice(p):
    def novice(grid_map, player, rng):
        return (expert if rng.random() < p else fetcher)(grid_map, player, rng)

    return novice


PLAYERS: dict[str, Choose] = {"straight": straight, "fetcher": fetcher, "expert": expert, **{f"novice{k}": _novice(k / 10) for k in range(1, 10)}}
