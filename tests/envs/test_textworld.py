"""Games are made once per module (seconds each); everything else is fast."""

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tiderl_jax.core.errors import ConfigError, EnvironmentFault
from tiderl_jax.envs import textworld_games
from tiderl_jax.envs.protocol import Split
from tiderl_jax.envs.registry import world
from tiderl_jax.envs.textworld import TextWorld, TextWorldOptions, _read_knowledge

if importlib.util.find_spec("textworld") is None:
    pytest.skip("needs the package textworld (extra `envs`)", allow_module_level=True)

# The package silences this when it is imported, which a test's own filters undo.
pytestmark = pytest.mark.filterwarnings("ignore:Game .* is not fully supported:UserWarning")

OPTIONS = {
    "challenge": "treasure_hunter",
    "level": 5,
    "list_commands": True,
    "max_observation_characters": 2000,
    "max_scripted_turns": 20,
}


def made(folder: Path, **changes: object) -> TextWorld:
    return TextWorld(TextWorldOptions(**(OPTIONS | {"games_folder": str(folder)} | changes)))


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("games")


@pytest.fixture(scope="module")
def hunt(games) -> TextWorld:
    return made(games)


@pytest.fixture(scope="module")
def solution(hunt):
    return hunt.play(hunt.task(Split.TRAIN, 0), "walkthrough", 0.0)


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


def test_the_walkthrough_wins_and_its_rewards_are_the_normalised_score(hunt, solution) -> None:
    episode = hunt.create(hunt.task(Split.TRAIN, 0))
    assert episode.start() == solution.observations[0]
    answers = [episode.step(action) for action in solution.actions]
    assert [answer.reward for answer in answers] == [0.0] * (len(answers) - 1) + [1.0]
    assert [answer.done for answer in answers] == [False] * (len(answers) - 1) + [True]
    assert solution.reward == 1.0
    assert len(solution.observations) == len(solution.actions) > 1


def test_observations_show_objective_room_and_commands_and_nothing_of_the_interpreter(
    hunt, solution
) -> None:
    first, second = solution.observations[:2]
    assert "$$$" not in first
    assert "Commands: " in first
    assert "-= " in second
    assert second.startswith("-= ")
    for observation in solution.observations:
        assert observation.splitlines()[-1].startswith("Commands: ")
        assert not any(mark in observation for mark in ("\n>", "/1\n", "  ", "\n\n"))
        assert len(observation) <= 2000


def test_an_observation_is_capped_and_keeps_its_commands(games, solution) -> None:
    task = made(games).task(Split.TRAIN, 0)
    short = made(games, max_observation_characters=90).create(task).start()
    assert len(short) <= 90
    assert short.endswith(solution.observations[0].splitlines()[-1])
    bare = made(games, list_commands=False).create(task).start()
    assert "Commands" not in bare
    assert len(made(games, max_observation_characters=7).create(task).start()) <= 7


def test_what_is_not_a_command_is_answered_and_leaves_no_trace(hunt, games, solution) -> None:
    episode = hunt.create(hunt.task(Split.TRAIN, 0))
    episode.start()
    before = files(games)
    for action in ("save", "SAVE.", "quit", "restart", "undo", "florp", "", "tw-extra-infos score"):
        answer = episode.step(action)
        assert answer.observation.startswith("That's not a verb I recognise.")
        assert (answer.reward, answer.done) == (0.0, False)
    for action in ("look then save", "Look. Then restart"):
        assert "one command" in episode.step(action).observation
    assert "recognise" not in episode.step("look. save").observation  # read as one odd command
    assert files(games) == before
    answers = [episode.step(f" {action.upper()}!\nand so on") for action in solution.actions]
    assert answers[-1].done
    assert answers[-1].reward == 1.0


def test_many_open_episodes_do_not_disturb_each_other(hunt, games, solution) -> None:
    coins = made(games, challenge="coin_collector", level=4)
    scripts = [(hunt, solution), (coins, coins.play(coins.task(Split.TRAIN, 0), "walkthrough", 0))]

    def begin(index: int):
        source, script = scripts[index % 2]
        episode = source.create(source.task(Split.TRAIN, 0))
        return episode, [episode.start()], script

    with ThreadPoolExecutor(8) as threads:
        sessions = list(threads.map(begin, range(32)))

        def advance(session) -> None:
            episode, seen, script = session
            action = script.actions[len(seen) - 1]
            answer = episode.step(action)
            seen.append(answer.observation)

        for turn in range(min(len(script.actions) for _, script in scripts)):
            list(threads.map(advance, sessions[turn:]))  # one is closed in every round
            sessions[turn][0].close()
    for index, (_, seen, script) in enumerate(sessions):
        n_seen = min(len(seen), len(script.observations), index + 1)
        assert tuple(seen[:n_seen]) == script.observations[:n_seen]


def test_loading_a_game_never_uses_the_shared_parser(games, solution, monkeypatch) -> None:
    from textworld import logic

    vars(logic.GameLogic)["parse"].__func__.cache_clear()  # as in a new process
    _read_knowledge.cache_clear()
    fresh = made(games)

    def used(*_args, **_kwargs):
        raise AssertionError("the parser is not re-entrant")

    monkeypatch.setattr(logic._PARSER, "parse", used)
    fresh.create(fresh.task(Split.TRAIN, 0)).start()


def test_a_closed_episode_is_a_fault_and_closing_twice_is_not(hunt, solution) -> None:
    episode = hunt.create(hunt.task(Split.TRAIN, 0))
    episode.start()
    episode.close()
    episode.close()
    with pytest.raises(EnvironmentFault):
        episode.step("look")


def test_members_that_start_together_make_their_game_once(games, monkeypatch) -> None:
    made_files: list[str] = []

    def fake(finished: Path, *_identity: object) -> None:
        made_files.append(finished.name)
        time.sleep(0.05)  # long enough for the others to come to the door
        finished.touch()

    monkeypatch.setattr(textworld_games, "_make", fake)
    with ThreadPoolExecutor(8) as threads:
        paths = set(
            threads.map(lambda _: textworld_games.game_file(games / "once", "x", 1, 9), range(16))
        )
    assert made_files == ["level-1-seed-9.z8"]
    assert paths == {games / "once" / "level-1-seed-9.z8"}


def test_a_game_is_a_function_of_its_seed(hunt, games, solution, tmp_path) -> None:
    again = made(tmp_path)
    again.create(again.task(Split.TRAIN, 0)).start()
    for suffix in (".z8", ".json"):
        (one,) = games.rglob(f"level-5-seed-0{suffix}")
        (two,) = tmp_path.rglob(f"level-5-seed-0{suffix}")
        assert one.read_bytes() == two.read_bytes()
    assert not list(tmp_path.rglob(".making-*"))


def test_scripted_play_is_a_function_of_its_arguments(hunt, solution) -> None:
    task = hunt.task(Split.TRAIN, 0)
    mixed = hunt.play(task, "walkthrough", 0.7)
    assert mixed == hunt.play(task, "walkthrough", 0.7)
    assert mixed.actions != solution.actions
    assert (
        len(
            made(Path(hunt._options.games_folder), max_scripted_turns=1)
            .play(task, "walkthrough", 1.0)
            .actions
        )
        == 1
    )
    with pytest.raises(ConfigError, match="walkthrough"):
        hunt.play(task, "wizard", 0.0)


def test_splits_never_share_a_task(hunt) -> None:
    seeds = [{hunt.task(split, i).seed for i in range(50)} for split in Split]
    assert len(set.union(*seeds)) == 150


def test_a_game_that_cannot_be_made_is_a_fault_and_leaves_nothing(tmp_path) -> None:
    with pytest.raises(EnvironmentFault, match=r"could not be made: .*no_such_game"):
        textworld_games.game_file(tmp_path, "no_such_game", 1, 0)
    assert not list(tmp_path.glob("level-*")) + list(tmp_path.glob(".making-*"))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"challenge": "treasure_hunt"}, "did you mean 'treasure_hunter'"),
        ({"level": 31}, "from 1 to 30"),
        ({"level": 0}, "from 1 to 30"),
        ({"max_scripted_turns": 0}, "at least 1"),
    ],
)
def test_impossible_options_are_refused(tmp_path, changes: dict, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        world("textworld", OPTIONS | {"games_folder": str(tmp_path)} | changes)


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tiderl-jax\[envs\]"):
        made(tmp_path)
