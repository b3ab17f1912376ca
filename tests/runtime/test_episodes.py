import numpy as np

from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.segments import Owner, Segment, given
from tiderl_jax.core.trajectories import Outcome, Task
from tiderl_jax.runtime.episodes import Episode, Episodes

GROUP = GroupId(Purpose.TRAIN, 0)
ROLLOUT = RolloutId(GROUP, 0)
TASK = Task("toy", 0)


def sampled(*token_ids: int, version: int = 0) -> Segment:
    zeros = np.zeros(len(token_ids))
    return Segment(Owner.MODEL, np.array(token_ids), zeros, zeros, zeros + version)


def begun(rollout: RolloutId = ROLLOUT, max_context_tokens: int = 100) -> tuple[Episodes, Episode]:
    episodes, episode = Episodes(), Episode(rollout, TASK, max_context_tokens)
    episodes.begin(episode)
    return episodes, episode


def test_the_context_of_a_turn_still_holds_the_ids_that_were_sampled() -> None:
    """Case C8: `[he, llo]` was sampled; re-encoding its text would give `[hello]`."""
    he, llo = 5, 6
    _, episode = begun()
    episode.append([given(Owner.TEMPLATE, [1])])
    first = episode.context_ids
    episode.append([sampled(he, llo), given(Owner.ENV, [7])])
    assert first.tolist() == [1]
    assert episode.context_ids.tolist() == [1, he, llo, 7]


def test_every_prompt_begins_with_the_prompt_and_completion_of_the_turn_before() -> None:
    for seed in range(200):
        rng = np.random.default_rng(seed)
        _, episode = begun(max_context_tokens=1000)
        before: list[int] = []
        for _ in range(rng.integers(1, 8)):
            given_ids = rng.integers(0, 50, rng.integers(1, 9)).tolist()
            episode.append([given(Owner.ENV, given_ids)])
            prompt = episode.context_ids.tolist()
            assert prompt[: len(before)] == before
            completion = rng.integers(0, 50, rng.integers(1, 9)).tolist()
            episode.append([sampled(*completion)])
            before = prompt + completion


def test_tokens_that_nothing_answers_are_cut_from_the_record() -> None:
    _, episode = begun()
    episode.append([given(Owner.TEMPLATE, [1]), sampled(2, 3), given(Owner.ENV, [4])])
    trajectory = episode.finish(Outcome.TRUNCATED_LENGTH)
    assert trajectory.token_ids.tolist() == [1, 2, 3]


def test_appending_beyond_the_context_limit_loses_no_record_and_breaks_no_context() -> None:
    _, episode = begun(max_context_tokens=3)
    assert episode.append([sampled(1, 2), given(Owner.ENV, [3, 4, 5])]) == 5
    assert episode.context_ids.tolist() == [1, 2, 3]


def test_a_group_is_handed_on_once_with_its_members_in_order() -> None:
    episodes = Episodes()
    for member in (2, 0, 1):
        episode = Episode(RolloutId(GROUP, member), TASK, 10)
        episode.append([sampled(member)])
        episodes.keep(episode.finish(Outcome.FINISHED))
    assert [t.rollout.member for t in episodes.take(GROUP)] == [0, 1, 2]
    assert episodes.n_kept == 0


def test_a_dropped_group_is_forgotten_whole() -> None:
    episodes, episode = begun()
    episode.append([sampled(1)])
    episodes.keep(Episode(RolloutId(GROUP, 1), TASK, 10).finish(Outcome.FINISHED))
    assert episodes.drop(GROUP) == [ROLLOUT]
    assert episodes.find(ROLLOUT) is None
    assert episodes.n_kept == 0


def test_an_episode_is_ended_by_one_party_only() -> None:
    episodes, episode = begun()
    assert episodes.pop(ROLLOUT) is episode
    assert episodes.pop(ROLLOUT) is None
