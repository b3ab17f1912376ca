"""The ordered set behind every queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiderl_jax.scheduler.ranking import Ranking

MOVES = st.lists(
    st.tuples(st.sampled_from(["put", "discard", "pop"]), st.integers(0, 9), st.integers(0, 5)),
    max_size=200,
)


@given(MOVES)
def test_the_first_is_always_the_member_with_the_smallest_present_key(
    moves: list[tuple[str, int, int]],
) -> None:
    ranking: Ranking[int] = Ranking()
    model: dict[int, tuple[float, ...]] = {}
    for move, item, key in moves:
        if move == "put":
            ranking.put(item, (key, item))
            model[item] = (key, item)
        elif move == "discard":
            ranking.discard(item)
            model.pop(item, None)
        elif model:
            first = min(model, key=lambda item: model[item])
            assert ranking.first() == first
            ranking.discard(first)
            del model[first]
        assert sorted(ranking) == sorted(model)
        assert len(ranking) == len(model)


def test_an_empty_ranking_has_no_first() -> None:
    with pytest.raises(IndexError):
        Ranking[int]().first()


def test_changing_keys_for_ever_does_not_grow_memory() -> None:
    ranking: Ranking[int] = Ranking()
    for n in range(10_000):
        ranking.put(n % 5, (n,))
    assert len(ranking._heap) < 100
