"""Games on disk: made by seed when first asked for, then kept.

Making a game takes seconds, runs a compiler and uses module-wide state of the `textworld` package,
so it happens in a process of its own: `python -m tiderl_jax.envs.textworld_games`.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tiderl_jax.core.errors import EnvironmentFault
from tiderl_jax.core.identity import key_words

MAX_ATTEMPTS = 20
"""Some seeds have no map with a quest of the wanted length; the next derived seed is taken."""

_AT_ONCE = 4
_LIMIT_S = 600


def game_file(folder: Path, challenge: str, level: int, seed: int) -> Path:
    """The compiled game of this challenge, level and seed; safe to ask for from everywhere at once.

    Raises:
      EnvironmentFault: the game cannot be made.
    """
    finished = folder / f"level-{level}-seed-{seed}.z8"
    if finished.is_file():
        return finished
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".lock-{seed % _AT_ONCE}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # between threads and between processes
        if not finished.is_file():
            _make(finished, challenge, level, seed)
    return finished


def _make(finished: Path, challenge: str, level: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=finished.parent, prefix=".making-") as scratch:
        made = Path(scratch) / finished.name
        arguments = [challenge, str(level), str(seed), str(made)]
        process = subprocess.run(
            [sys.executable, "-m", __name__, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if process.returncode != 0 or not made.is_file():
            last_line = (process.stderr.strip().splitlines() or ["no message"])[-1]
            raise EnvironmentFault(f"The game {finished.name} could not be made: {last_line}")
        # the game appears last, so whoever sees it also finds what describes it
        for path in (made.with_suffix(".json"), made):
            path.replace(finished.parent / path.name)


def main() -> None:
    """Makes one game: challenge, level, seed, path of the .z8 file to write."""
    challenge, level, seed, path = sys.argv[1:]
    import textworld
    from textworld.challenges import CHALLENGES
    from textworld.generator import QuestGenerationError, compile_game

    make = CHALLENGES[f"tw-{challenge}"][1]
    for attempt in range(MAX_ATTEMPTS):
        options = textworld.GameOptions()
        options.seeds = key_words(int(seed), "textworld", attempt)[0]
        options.path = path
        try:
            game = make({"level": int(level)}, options)
        except QuestGenerationError:
            continue
        compile_game(game, options)
        return
    raise SystemExit(f"no quest was found in {MAX_ATTEMPTS} attempts")


if __name__ == "__main__":
    main()
