"""TextWorld: text adventures generated offline by seed (package `textworld`, extra `envs`).

The first observation is the objective and the first room; then each is the game's answer. Winning
is worth 1 (scores are divided by the game's maximum); winning or losing ends the episode. A command
that the game does not understand is answered by the game and costs a turn, no more.

Many episodes run at once from many threads. Each has an interpreter of its own (a private copy of a
C library). The one shared thing that is not re-entrant, the package's parser, is used once, when
the world is made, and never again (see `_read_knowledge`).
"""

import functools
import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiderl_jax.core.errors import ConfigError, EnvironmentFault
from tiderl_jax.core.identity import generator
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.core.trajectories import Task
from tiderl_jax.envs.protocol import Answer, Environment, ScriptedEpisode, Split
from tiderl_jax.envs.textworld_games import game_file

_HIGHEST_LEVEL = {"treasure_hunter": 30, "coin_collector": 100}

_VERBS = frozenset([
    "close", "drop", "eat", "examine", "get", "go", "goal", "i", "insert", "inventory", "l", "lock",
    "look", "open", "pick", "put", "take", "unlock", "x",
    "n", "s", "e", "w", "north", "south", "east", "west",
])  # fmt: skip
"""What a command may begin with. Others (save, restart, undo, ...) would leave the world: they
write files, or rewind the interpreter behind the back of the state that is tracked here."""

_NOT_A_VERB = "That's not a verb I recognise."  # the game's own words
_NO_SINGLE_COMMAND = "Please type one command at a time."
_MAX_COMMAND_CHARACTERS = 100  # the interpreter's buffer holds 198 bytes


@dataclass(frozen=True, slots=True)
class TextWorldOptions:
    """Which games, and how much of them is shown."""

    challenge: str  # treasure_hunter or coin_collector
    level: int  # of difficulty, from 1; more rooms, longer quests, later doors and keys
    games_folder: str  # games are kept here once made
    list_commands: bool  # end every observation with the commands that are possible now
    max_observation_characters: int
    max_scripted_turns: int


class TextWorld:
    """All games of one challenge and level. Tasks of different splits have different seeds."""

    def __init__(self, options: TextWorldOptions):
        """Reads the challenge's rules, about two seconds.

        Raises:
          ConfigError: an option is impossible, or the package is not installed.
        """
        highest = _HIGHEST_LEVEL.get(options.challenge)
        if highest is None:
            raise unknown_name(options.challenge, _HIGHEST_LEVEL, "TextWorld challenge")
        if not 1 <= options.level <= highest:
            raise ConfigError(f"environment.options.level must be from 1 to {highest}.")
        if options.max_observation_characters < 1 or options.max_scripted_turns < 1:
            raise ConfigError(
                "environment.options.max_observation_characters and max_scripted_turns "
                "must be at least 1."
            )
        if importlib.util.find_spec("textworld") is None:
            raise ConfigError("The package textworld is missing: pip install 'tiderl-jax[envs]'.")
        self._options = options
        rules = hashlib.blake2b(_read_knowledge(options.challenge).encode(), digest_size=4)
        # games made by other rules would have to be parsed anew, so they live elsewhere
        self._folder = Path(options.games_folder) / f"{options.challenge}-{rules.hexdigest()}"

    def task(self, split: Split, index: int) -> Task:
        """The index-th game of a split."""
        return Task("textworld", index * len(Split) + list(Split).index(split))

    def create(self, task: Task) -> Environment:
        """A game that is loaded, and made if need be (seconds), by its `start`."""
        return self._episode(task, with_walkthrough=False)

    def words(self) -> tuple[str, ...]:
        """Open text."""
        return ()

    def play(self, task: Task, player: str, random_action_share: float) -> ScriptedEpisode:
        """Plays a game through; the only player is `walkthrough`, which knows the solution."""
        if player != "walkthrough":
            raise unknown_name(player, ["walkthrough"], "player of textworld")
        rng = generator(task.seed, "textworld-play")
        episode = self._episode(task, with_walkthrough=True)
        observations, actions, reward = [episode.start()], list[str](), 0.0
        while len(actions) < self._options.max_scripted_turns:
            if episode.walkthrough and rng.random() >= random_action_share:
                actions.append(episode.walkthrough[0])
            else:
                actions.append(episode.commands[rng.integers(len(episode.commands))])
            answer = episode.step(actions[-1])
            reward += answer.reward
            if answer.done:
                break
            observations.append(answer.observation)
        episode.close()
        return ScriptedEpisode(tuple(observations[: len(actions)]), tuple(actions), reward)

    def _episode(self, task: Task, with_walkthrough: bool) -> "TextWorldEpisode":
        return TextWorldEpisode(self._options, self._folder, task.seed, with_walkthrough)


class TextWorldEpisode:
    """One attempt at one game."""

    def __init__(self, options: TextWorldOptions, folder: Path, seed: int, with_walkthrough: bool):
        self._options = options
        self._folder = folder
        self._seed = seed
        self._with_walkthrough = with_walkthrough
        self._game: Any = None  # textworld.Environment
        self._score = 0.0
        self.commands: tuple[str, ...] = ()  # possible now
        self.walkthrough: tuple[str, ...] = ()  # what would win from here; empty if lost or unasked

    def start(self) -> str:
        """The objective and the first room."""
        import textworld

        o = self._options
        path = game_file(self._folder, o.challenge, o.level, self._seed)
        infos = textworld.EnvInfos(
            objective=True,
            admissible_commands=True,
            score=True,
            max_score=True,
            won=True,
            lost=True,
            policy_commands=self._with_walkthrough,
        )
        game = textworld.start(str(path), infos)
        game.seed(1)  # the interpreter's own chance; 0 would mean the time of day
        state = game.reset()
        self._game = game
        self._remember(state)
        _, objective, rooms = state["feedback"].partition(state["objective"])
        return self._shown(objective + rooms)  # without the banner before it

    def step(self, action: str) -> Answer:
        """Types one command."""
        game = self._game
        if game is None:
            raise EnvironmentFault("the game is not running")
        command = _plain(action)
        words = command.split()
        if not words or words[0] not in _VERBS:
            return Answer(self._shown(_NOT_A_VERB), 0.0, False)
        if "then" in words:
            return Answer(self._shown(_NO_SINGLE_COMMAND), 0.0, False)
        state, _, done = game.step(command)
        gained = self._remember(state)
        return Answer(self._shown(state["feedback"]), gained, bool(done))

    def close(self) -> None:
        """Lets go of the interpreter, which frees itself when no step uses it any more."""
        self._game = None

    def _remember(self, state: Any) -> float:
        """Keeps what the next turn needs; returns the share of the score gained since."""
        self.commands = tuple(state["admissible_commands"])
        self.walkthrough = tuple(state.get("policy_commands") or ())
        score = (state["score"] or 0) / (state["max_score"] or 1)
        gained, self._score = score - self._score, score
        return gained

    def _shown(self, feedback: str) -> str:
        commands = f"\nCommands: {', '.join(self.commands)}" if self._options.list_commands else ""
        limit = self._options.max_observation_characters
        return (_clean(feedback)[: max(limit - len(commands), 0)] + commands)[:limit].strip()


def _plain(action: str) -> str:
    """The first line, lower case, without punctuation: a full stop would begin a second command."""
    first_line = action.strip().partition("\n")[0].lower()
    return " ".join(re.sub(r"[^a-z0-9' -]", " ", first_line).split())[:_MAX_COMMAND_CHARACTERS]


def _clean(feedback: str) -> str:
    """Without the status line after the prompt, the end menu, and empty lines."""
    text = re.sub(r"\n>[^\n]*\Z", "", feedback)
    text = re.split(r"\*\*\* (?:The End|You lost!) \*\*\*", text)[0]
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@functools.cache
def _read_knowledge(challenge: str) -> str:
    """Parses the rules of a challenge; returns the document that its games carry a copy of.

    The package parses a game's copy whenever it loads one, with one parser for the whole process,
    but remembers the last documents that it parsed. After this call loading a game parses nothing.
    """
    import textworld.challenges
    from textworld.generator.data import KnowledgeBase
    from textworld.logic import GameLogic

    module = getattr(getattr(textworld.challenges, f"tw_{challenge}"), challenge)
    document = KnowledgeBase.load(module.KB_PATH).logic.serialize()
    GameLogic.parse(document)
    return document
