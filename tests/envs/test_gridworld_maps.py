"""Maps are held against brute force: every walk of bounded length, written without the package."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.identity import generator
from tiderl_jax.envs.gridworld_maps import Cell, Direction, GridMap, MapRules, Position, generate
from tiderl_jax.envs.protocol import Split

OPEN = MapRules(size=4, hole_share=0.25, wall_share=0.0, door_share=0.0, min_moves=3, max_moves=7)
LOCKED = replace(OPEN, door_share=1.0)


def drawn(rules: MapRules, seed: int, split: Split = Split.TRAIN) -> GridMap:
    return generate(rules, generator(seed, "test"), split)


def shortest(grid_map: GridMap, size: int, key_opens: bool = True) -> int | None:
    """Breadth first over (row, column, key), by coordinates alone."""
    front = {(*grid_map.start, False)}
    seen = set(front)
    for n_moves in itertools.count():
        if any((row, column) == grid_map.goal for row, column, _ in front):
            return n_moves
        reached = set()
        for row, column, key in front:
            for there in (
                (row - 1, column),
                (row + 1, column),
                (row, column - 1),
                (row, column + 1),
            ):
                inside = 0 <= there[0] < size and 0 <= there[1] < size
                if not inside or there in grid_map.holes or there in grid_map.walls:
                    continue
                if there == grid_map.door and not key:
                    continue
                reached.add((*there, key or (key_opens and there == grid_map.key)))
        front = reached - seen
        seen |= front
        if not front:
            return None
    return None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), locked=st.booleans(), walls=st.sampled_from([0.0, 0.15]))
def test_every_map_can_be_solved_within_the_allowed_moves(seed: int, locked: bool, walls: float):
    grid_map = drawn(replace(LOCKED if locked else OPEN, wall_share=walls), seed)
    n_moves = shortest(grid_map, size=4)
    assert n_moves is not None
    assert 3 <= n_moves <= 7
    way = grid_map.way(grid_map.begin())
    assert way is not None
    assert len(way) == n_moves


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_way_leads_around_a_door_without_its_key(seed: int):
    grid_map = drawn(LOCKED, seed)
    assert grid_map.door is not None
    assert grid_map.key is not None
    assert shortest(grid_map, size=4, key_opens=False) is None
    assert grid_map.goal not in grid_map.reachable()
    assert grid_map.key in grid_map.reachable()


def test_a_way_leads_to_the_goal_around_holes_and_by_the_key():
    for seed in range(20):
        grid_map = drawn(LOCKED, seed)
        position = grid_map.begin()
        for direction in grid_map.way(position) or []:
            position = grid_map.move(position, direction)
            assert position.cell not in grid_map.holes
        assert position == Position(grid_map.goal, has_key=True)


def test_doors_and_keys_are_on_the_asked_share_of_maps():
    maps = [drawn(replace(OPEN, door_share=0.3), seed) for seed in range(200)]
    n_locked = sum(grid_map.door is not None for grid_map in maps)
    assert all((grid_map.door is None) == (grid_map.key is None) for grid_map in maps)
    assert abs(n_locked - 60) < 4 * (200 * 0.3 * 0.7) ** 0.5


def test_walls_and_holes_are_drawn_apart_and_never_under_start_goal_key_or_door():
    rules = replace(LOCKED, wall_share=0.2)
    maps = [drawn(rules, seed) for seed in range(40)]
    for grid_map in maps:
        kept_free = {grid_map.start, grid_map.goal, grid_map.key, grid_map.door}
        assert len(kept_free) == 4
        assert not kept_free & (grid_map.holes | grid_map.walls)
        assert not grid_map.holes & grid_map.walls
    assert any(grid_map.walls for grid_map in maps)


def test_maps_of_different_splits_differ_in_goal_holes_or_walls():
    layouts = {
        split: {(m.goal, m.holes, m.walls) for m in (drawn(OPEN, s, split) for s in range(300))}
        for split in Split
    }
    assert all(len(maps) > 100 for maps in layouts.values())
    for one, other in itertools.combinations(Split, 2):
        assert not layouts[one] & layouts[other]


def test_walls_edges_and_a_locked_door_stop_a_step_and_a_key_opens_the_door():
    grid_map = GridMap(
        size=3,
        start=Cell(0, 0),
        goal=Cell(2, 2),
        holes=frozenset(),
        walls=frozenset({Cell(1, 0)}),
        key=Cell(0, 1),
        door=Cell(0, 2),
    )
    begin = grid_map.begin()
    for direction in (Direction.UP, Direction.LEFT, Direction.DOWN):
        assert grid_map.move(begin, direction) == begin
    locked = Position(Cell(1, 2), has_key=False)
    assert grid_map.move(locked, Direction.UP) == locked
    with_key = grid_map.move(begin, Direction.RIGHT)
    assert with_key == Position(Cell(0, 1), has_key=True)
    assert grid_map.move(with_key, Direction.RIGHT) == Position(Cell(0, 2), has_key=True)


def test_rules_that_allow_no_map_are_refused():
    with pytest.raises(ConfigError, match="Hardly any"):
        drawn(replace(OPEN, size=2, min_moves=6), seed=0)
