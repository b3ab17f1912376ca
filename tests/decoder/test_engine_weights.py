"""New weights between dispatches: labels, stale KV, ownership of the arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_world import N_TOKENS, finish, occupy, rollout_id, run, turn

from tiderl_jax.core.errors import WeightsFault
from tiderl_jax.core.ids import PolicyVersion

A, B = rollout_id(0), rollout_id(1)
PROMPT = np.random.default_rng(6).integers(0, N_TOKENS, 13)
V1 = PolicyVersion(1)


@pytest.mark.parametrize("policy", ["drop", "keep_labelled"])
def test_a_prompt_cached_under_the_old_weights_is_computed_anew_under_the_new(world, policy):
    engine = world.engine(kv_after_update=policy)
    run(engine, turn(A, PROMPT))
    engine.release(A)
    engine.load_weights(world.params[1], V1)
    assert engine.capacity().cached == 0
    request = turn(B, PROMPT)
    (warm,), (cold,) = run(engine, request), run(world.engine(version=1), request)
    assert warm.found_tokens == 0
    np.testing.assert_array_equal(warm.token_ids, cold.token_ids)
    np.testing.assert_allclose(warm.logp, cold.logp, atol=1e-5)


def test_under_drop_a_running_turn_goes_on_as_if_its_past_had_the_new_weights(world):
    engine = world.engine()
    request = turn(A, PROMPT, max_tokens=8)
    engine.run_turn(request)
    while not (engine._turns[A].n_sampled):
        engine.step()
    engine.load_weights(world.params[1], V1)
    engine.check()
    (result,) = finish(engine, request)
    np.testing.assert_array_equal(result.versions, [0] * 3 + [1] * 5)
    assert result.found_tokens + result.prefilled_tokens == len(PROMPT)
    world.check_against_dense(request, result)


def test_under_drop_a_rollout_between_turns_loses_its_kv(world):
    engine = world.engine()
    (first,) = run(engine, turn(A, PROMPT))
    engine.load_weights(world.params[1], V1)
    assert engine.capacity().free == engine.capacity().total
    request = turn(A, np.concatenate([PROMPT, first.token_ids, [2]]))
    (second,) = run(engine, request)
    assert second.found_tokens == 0
    assert set(second.versions) == {1}
    world.check_against_dense(request, second)


def test_under_keep_every_token_says_which_weights_sampled_it_and_no_kv_is_lost(world):
    engine = world.engine(kv_after_update="keep_labelled")
    request = turn(A, PROMPT, max_tokens=8)
    engine.run_turn(request)
    while not (engine._turns[A].n_sampled):
        engine.step()
    owned = engine.capacity().owned
    engine.load_weights(world.params[1], V1)
    assert engine.capacity().owned == owned
    (first,) = finish(engine, request)
    np.testing.assert_array_equal(first.versions, [0] * 3 + [1] * 5)
    (second,) = run(engine, turn(A, np.concatenate([PROMPT, first.token_ids, [2, 2]])))
    assert second.found_tokens == len(PROMPT) + 7


def test_kv_of_mixed_versions_is_never_found_by_another_rollout(world):
    engine = world.engine(kv_after_update="keep_labelled")
    (first,) = run(engine, turn(A, PROMPT))
    engine.load_weights(world.params[1], V1)
    context = np.concatenate([PROMPT, first.token_ids, [2, 2, 2]])
    run(engine, turn(A, context))
    request = turn(B, context)
    (result,) = run(engine, request)
    assert result.found_tokens == 0
    world.check_against_dense(request, result)
    engine.cancel(A)
    engine.cancel(B)
    engine.load_weights(world.params[2], PolicyVersion(2))
    assert engine.capacity().free == engine.capacity().total


@pytest.mark.parametrize("policy", ["drop", "keep_labelled"])
def test_a_turn_not_yet_begun_runs_wholly_under_the_new_weights(world, policy):
    engine = world.engine(kv_after_update=policy)
    requests = [turn(A, PROMPT), turn(B, PROMPT)]
    for request in requests:
        engine.run_turn(request)
    engine.load_weights(world.params[1], V1)
    results = finish(engine, *requests)
    assert results[1].found_tokens == 12
    for request, result in zip(requests, results, strict=True):
        assert set(result.versions) == {1}
        world.check_against_dense(request, result)


def test_a_group_that_fits_only_by_sharing_survives_new_weights(world):
    prompt = np.arange(20) % N_TOKENS
    engine = world.engine()
    occupy(engine, 12)  # leaves 12: four common pages and two for each; alone each needs six
    requests = [turn(rollout_id(m), prompt, 5, 1.0, key=(m, m)) for m in range(4)]
    engine.run_turn(requests[0])
    engine.step()
    for request in requests[1:]:
        engine.run_turn(request)
    engine.load_weights(world.params[1], V1)
    for request, result in zip(requests, finish(engine, *requests), strict=True):
        world.check_against_dense(request, result)


def test_the_engine_keeps_its_weights_when_their_giver_deletes_them(world):
    given = jax.tree.map(jnp.copy, world.params[1])
    engine = world.engine()
    engine.load_weights(given, V1)
    for leaf in jax.tree.leaves(given):
        leaf.delete()
    request = turn(A, PROMPT)
    world.check_against_dense(request, run(engine, request)[0])


def test_weights_of_another_shape_or_dtype_are_refused(world):
    engine = world.engine()
    for change in (lambda x: x.astype(jnp.bfloat16), lambda x: jnp.stack([x, x])):
        with pytest.raises(WeightsFault):
            engine.load_weights(jax.tree.map(change, world.params[1]), V1)
    assert engine.version == 0
    request = turn(A, PROMPT)
    world.check_against_dense(request, run(engine, request)[0])
