import re

import pytest

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.envs.gridworld import GridEpisode, Gridworld, GridworldOptions
from tiderl_jax.envs.gridworld_maps import Cell, GridMap
from tiderl_jax.envs.protocol import Split

LOCKED_ROOM = GridMap(
    size=3,
    start=Cell(0, 0),
    goal=Cell(2, 2),
    holes=frozenset({Cell(1, 1)}),
    walls=frozenset({Cell(2, 0)}),
    key=Cell(1, 0),
    door=Cell(0, 2),
)
OPEN_ROOM = GridMap(
    size=3,
    start=Cell(0, 0),
    goal=Cell(0, 1),
    holes=frozenset({Cell(1, 0)}),
    walls=frozenset(),
    key=None,
    door=None,
)


def options(**changes: float) -> GridworldOptions:
    values = {
        "size": 4,
        "hole_share": 0.22,
        "wall_share": 0.05,
        "door_share": 0.4,
        "min_moves": 3,
        "max_moves": 7,
        "max_turns": 10,
    }
    return GridworldOptions(**(values | changes))  # type: ignore[arg-type]


def test_a_turn_shows_what_is_around_and_where_goal_and_key_are():
    episode = GridEpisode(LOCKED_ROOM)
    assert (
        episode.start()
        == "up-wall down-key left-wall right-free goal-down-right key-down back-none"
    )
    assert (
        episode.step("right").observation
        == "up-wall down-hole left-free right-door goal-down-right key-down-left back-left"
    )


def test_a_held_key_is_shown_and_opens_the_door():
    episode = GridEpisode(LOCKED_ROOM)
    episode.start()
    assert (
        episode.step("down").observation
        == "up-free down-wall left-wall right-hole goal-down-right key-held back-up"
    )
    observations = [episode.step(action).observation for action in ("up", "right", "right")]
    assert "right-free" in observations[1]
    assert observations[2] == "up-wall down-free left-free right-wall goal-down key-held back-left"


def test_reaching_the_goal_ends_the_episode_with_reward_one():
    episode = GridEpisode(OPEN_ROOM)
    assert episode.start() == "up-wall down-hole left-wall right-goal goal-right key-none back-none"
    answer = episode.step(" right ")
    assert (answer.reward, answer.done) == (1.0, True)


@pytest.mark.parametrize("action", ["down", "", "jump", "right right", "RIGHT", "right-goal"])
def test_a_hole_or_a_malformed_action_ends_the_episode_with_reward_zero(action: str):
    episode = GridEpisode(OPEN_ROOM)
    episode.start()
    answer = episode.step(action)
    assert (answer.reward, answer.done) == (0.0, True)


def test_a_bump_costs_a_turn_and_nothing_else():
    episode = GridEpisode(OPEN_ROOM)
    first = episode.start()
    answer = episode.step("up")
    assert (answer.observation, answer.reward, answer.done) == (first, 0.0, False)


def test_tasks_are_the_same_for_ever_and_differ_between_indices_and_splits():
    one, other = Gridworld(options()), Gridworld(options())
    tasks = [one.task(split, index) for split in Split for index in range(20)]
    assert tasks == [other.task(split, index) for split in Split for index in range(20)]
    assert len({task.seed for task in tasks}) == 60
    assert [one.grid_map(task) for task in tasks] == [other.grid_map(task) for task in tasks]
    assert len({one.grid_map(task) for task in tasks}) > 50


def test_no_layout_of_one_split_occurs_in_another():
    gridworld = Gridworld(options())
    layouts = [
        {
            (grid_map.goal, grid_map.holes, grid_map.walls)
            for index in range(150)
            for grid_map in [gridworld.grid_map(gridworld.task(split, index))]
        }
        for split in Split
    ]
    assert len(set.union(*layouts)) == sum(map(len, layouts))


def test_the_vocabulary_is_closed_and_without_repeats():
    gridworld = Gridworld(options())
    words = gridworld.words()
    assert len(set(words)) == len(words)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", word) for word in words)
    said = set()
    for index in range(60):
        episode = gridworld.play(gridworld.task(Split.TRAIN, index), "novice", 0.5)
        said.update(word for text in episode.observations for word in text.split())
        said.update(episode.actions)
        assert all(len(text.split()) == 7 for text in episode.observations)
    assert said <= set(words)
    assert len(said) > 0.9 * len(words)


@pytest.mark.parametrize("player", ["expert", "fetcher", "novice"])
def test_a_scripted_episode_is_deterministic_and_can_be_played_again(player: str):
    gridworld = Gridworld(options())
    for index in range(20):
        task = gridworld.task(Split.TRAIN, index)
        played = gridworld.play(task, player, 0.4)
        assert played == Gridworld(options()).play(task, player, 0.4)
        episode = gridworld.create(task)
        assert episode.start() == played.observations[0]
        answers = [episode.step(action) for action in played.actions]
        assert tuple(a.observation for a in answers[:-1]) == played.observations[1:]
        assert sum(answer.reward for answer in answers) == played.reward
        assert answers[-1].done or len(answers) == 10


def success(gridworld: Gridworld, player: str, random_action_share: float) -> float:
    tasks = [gridworld.task(Split.TRAIN, index) for index in range(200)]
    return sum(gridworld.play(t, player, random_action_share).reward for t in tasks) / len(tasks)


def test_the_expert_always_wins_and_weaker_players_leave_something_to_learn():
    gridworld = Gridworld(options())
    expert, novice, fetcher = (success(gridworld, p, 0.0) for p in ("expert", "novice", "fetcher"))
    assert expert == 1.0
    assert expert - 0.15 > novice > fetcher + 0.1
    assert success(gridworld, "expert", 0.5) < 0.65
    assert success(gridworld, "expert", 1.0) < 0.25


def test_an_unknown_player_is_refused_with_the_nearest_name():
    gridworld = Gridworld(options())
    with pytest.raises(ConfigError, match="did you mean 'expert'"):
        gridworld.play(gridworld.task(Split.TRAIN, 0), "exprt", 0.0)
