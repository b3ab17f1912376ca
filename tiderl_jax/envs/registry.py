"""Worlds by name. A world's module is imported only when a config asks for it."""

from collections.abc import Mapping

from tiderl_jax.core.resolve import into, unknown_name
from tiderl_jax.envs.protocol import World


def _gridworld(options: Mapping[str, object]) -> World:
    from tiderl_jax.envs.gridworld import Gridworld, GridworldOptions

    return Gridworld(into(GridworldOptions, options, "environment.options"))


def _textworld(options: Mapping[str, object]) -> World:
    from tiderl_jax.envs.textworld import TextWorld, TextWorldOptions

    return TextWorld(into(TextWorldOptions, options, "environment.options"))


_WORLDS = {"gridworld": _gridworld, "textworld": _textworld}


def world(name: str, options: Mapping[str, object]) -> World:
    """The world of that name, built from its own options.

    Raises:
      ConfigError: no world has this name, or an option is unknown, missing or impossible.
    """
    if name not in _WORLDS:
        raise unknown_name(name, _WORLDS, "environment")
    return _WORLDS[name](options)
