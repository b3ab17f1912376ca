"""The books of pages, without a device: conservation, sharing, promises, eviction."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiderl_jax.core.errors import EngineFault, InvariantError
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.decoder.kv_cache import Holding, KvCache
from tiderl_jax.decoder.pages import PagePool

PAGE = 2


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def grown(cache: KvCache, token_ids: np.ndarray) -> Holding:
    """A holding whose KV of `token_ids` is computed and shared, its turn over."""
    holding = Holding(cache.version)
    cache.promise(holding, token_ids, len(token_ids))
    cache.grow(holding, len(token_ids))
    holding.n_tokens = len(token_ids)
    cache.settle(holding, token_ids)
    return holding


@pytest.fixture
def cache() -> KvCache:
    return KvCache(n_pages=6, page_tokens=PAGE, version=PolicyVersion(0))


def counts(cache: KvCache) -> tuple[int, int, int]:
    cache.check()
    return cache.pool.n_free, cache.pool.n_owned, cache.pool.n_cached


def test_a_miscounted_pool_is_noticed():
    pool = PagePool(3)
    page = pool.take()
    pool.check(set())
    with pytest.raises(InvariantError):
        pool.check({page})
    pool.free(page)
    with pytest.raises(InvariantError):
        pool.check(set())


def test_a_lost_page_is_noticed():
    pool = PagePool(3)
    pool.drop(pool.take())
    with pytest.raises(InvariantError):
        pool.check(set())


def test_full_pages_are_shared_and_the_partial_page_is_own(cache):
    first = grown(cache, ids(1, 2, 3, 4, 5))
    second = grown(cache, ids(1, 2, 3, 4, 5))
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]
    assert counts(cache) == (2, 4, 0)


def test_a_prefix_is_found_only_after_the_same_past(cache):
    grown(cache, ids(1, 2, 3, 4, 5))
    assert grown(cache, ids(9, 9, 3, 4, 5)).nodes[1].page not in {0, 1}
    assert counts(cache) == (0, 6, 0)


def test_the_last_token_is_never_found(cache):
    grown(cache, ids(1, 2, 3, 4))
    holding = Holding(cache.version)
    cache.promise(holding, ids(1, 2, 3, 4), 4)
    assert holding.n_tokens == 2


def test_a_prefix_of_another_version_is_not_found(cache):
    grown(cache, ids(1, 2, 3))
    cache.version = PolicyVersion(1)
    assert cache.adopt(Holding(cache.version), ids(1, 2, 3)) == 0


def test_pages_of_an_old_version_are_not_shared_under_the_new_one(cache):
    holding = grown(cache, ids(1, 2, 3))
    cache.version = PolicyVersion(1)
    cache.promise(holding, ids(1, 2, 3, 4, 5), 5)
    cache.grow(holding, 5)
    holding.n_tokens = 5
    cache.settle(holding, ids(1, 2, 3, 4, 5))
    assert len(holding.nodes) == 1
    cache.release(holding)
    cache.tree.evict_all()
    assert counts(cache) == (6, 0, 0)


def test_a_twin_page_replaces_the_own_one_only_when_no_write_is_pending(cache):
    grown(cache, ids(1, 2, 3))
    twin = Holding(cache.version, n_tokens=2)
    twin.n_promised = cache._n_promised = 1
    cache.grow(twin, 2)
    cache.share(twin, ids(1, 2), settled=False)
    assert twin.nodes == []
    cache.share(twin, ids(1, 2), settled=True)
    assert len(twin.nodes) == 1
    assert counts(cache) == (4, 2, 0)


def test_the_page_that_was_idle_longest_is_evicted_first_and_leaves_before_their_parents(cache):
    old, new = grown(cache, ids(1, 2, 3, 4)), grown(cache, ids(5, 6))
    cache.release(old)
    cache.release(new)
    assert counts(cache) == (3, 0, 3)
    grown(cache, ids(7, 7, 7, 7, 7, 7, 7))  # 4 pages: 3 free, 1 reclaimed
    assert cache.adopt(Holding(cache.version), ids(1, 2, 3, 4, 0)) == PAGE
    assert cache.adopt(Holding(cache.version), ids(5, 6, 0)) == PAGE


def test_a_page_that_a_rollout_holds_is_never_evicted(cache):
    grown(cache, ids(1, 2, 3, 4))
    with pytest.raises(EngineFault, match="needs 5 more pages, but 4 of 6"):
        grown(cache, ids(*[7] * 10))
    assert counts(cache) == (4, 2, 0)


def test_found_pages_that_were_idle_are_not_counted_as_room(cache):
    cache.release(grown(cache, ids(1, 2, 3, 4, 5)))
    with pytest.raises(EngineFault, match="needs 5 more pages, but 4 of 6"):
        cache.promise(Holding(cache.version), ids(1, 2, 3, 4, 5), 14)
    cache.promise(Holding(cache.version), ids(1, 2, 3, 4, 5), 12)
    with pytest.raises(EngineFault):
        cache.promise(Holding(cache.version), ids(8), 1)


def test_what_is_promised_to_one_turn_is_not_given_to_another(cache):
    first = Holding(cache.version)
    cache.promise(first, ids(1), 8)
    with pytest.raises(EngineFault):
        cache.promise(Holding(cache.version), ids(2), 5)
    cache.settle(first, ids(1))
    cache.promise(Holding(cache.version), ids(2), 12)


def test_a_holding_cannot_grow_beyond_its_promise(cache):
    holding = Holding(cache.version)
    cache.promise(holding, ids(1), 2)
    with pytest.raises(InvariantError):
        cache.grow(holding, 3)


def test_the_pages_of_a_limit_that_was_not_reached_come_back(cache):
    holding = Holding(cache.version)
    cache.promise(holding, ids(1), 12)
    cache.grow(holding, 12)
    holding.n_tokens = 3
    cache.settle(holding, ids(1, 2, 3))
    assert counts(cache) == (4, 2, 0)


def test_nothing_of_a_version_outlives_its_last_page(cache):
    for version in range(20):
        cache.version = PolicyVersion(version)
        cache.tree.evict_all()
        cache.release(grown(cache, ids(1, 2, 3)))
    assert len(cache.tree._roots) == 1


prompts = st.sampled_from([(1, 1, 1, 1, 1), (1, 1, 2, 2, 2), (3, 3, 3)])
operations = st.lists(
    st.tuples(st.sampled_from(["begin", "settle", "release", "restart", "publish"]), prompts),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(operations)
def test_pages_are_conserved_whatever_happens(steps):
    cache = KvCache(n_pages=9, page_tokens=PAGE, version=PolicyVersion(0))
    holdings: dict[tuple[int, ...], Holding] = {}
    for operation, prompt in steps:
        token_ids = ids(*prompt)
        if operation == "begin" and prompt not in holdings:
            holding = Holding(cache.version)
            try:
                cache.promise(holding, token_ids, len(prompt) + 2)
            except EngineFault:
                continue
            holdings[prompt] = holding
            cache.grow(holding, len(prompt))
            holding.n_tokens = len(prompt)
            cache.share(holding, token_ids, settled=False)
        elif operation == "publish":
            cache.version = PolicyVersion(cache.version + 1)
            cache.tree.evict_all()
        elif prompt in holdings:
            holding = holdings[prompt]
            if operation == "settle":
                cache.settle(holding, token_ids)
            elif operation == "restart":
                cache.restart(holding, len(prompt))
            else:
                cache.release(holdings.pop(prompt))
        cache.check()
    for holding in holdings.values():
        cache.release(holding)
    cache.tree.evict_all()
    assert counts(cache) == (9, 0, 0)
    assert cache._n_promised == 0
