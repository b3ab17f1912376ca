import subprocess
import sys

import pytest

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.envs.gridworld import Gridworld
from tiderl_jax.envs.registry import world

OPTIONS = {
    "size": 4,
    "hole_share": 0.22,
    "wall_share": 0.0,
    "door_share": 0.33,
    "min_moves": 3,
    "max_moves": 7,
    "max_turns": 10,
}


def test_a_world_is_built_by_name_from_its_own_options():
    assert isinstance(world("gridworld", OPTIONS), Gridworld)


def test_an_unknown_world_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'gridworld'"):
        world("grid_world", OPTIONS)


def test_an_unknown_option_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean 'hole_share'"):
        world("gridworld", {**OPTIONS, "holes_share": 0.2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 1),
        ("hole_share", 1.0),
        ("wall_share", -0.1),
        ("door_share", 1.5),
        ("min_moves", 8),
        ("max_turns", 6),
    ],
)
def test_an_impossible_option_is_refused_by_its_name(name: str, value: float):
    with pytest.raises(ConfigError, match=name):
        world("gridworld", {**OPTIONS, name: value})


def test_asking_for_worlds_imports_none_of_them():
    code = (
        "import sys, tiderl_jax.envs.registry; "
        "sys.exit(any('world' in name for name in sys.modules if 'tiderl_jax' in name))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
