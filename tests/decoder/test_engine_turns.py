"""One engine: multi-turn decoding, sharing, pauses, pressure, refusals."""

import jax
import jax.monitoring
import numpy as np
import pytest
from decoder_world import CONFIG, MAX_CONTEXT, N_TOKENS, finish, occupy, rollout_id, run, turn

from tiderl_jax.core.errors import EngineFault
from tiderl_jax.core.events import TurnStop
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.decoder.engine import Capacity
from tiderl_jax.decoder.programs import programs

A, B, C, D = (rollout_id(member) for member in range(4))
PROMPT = np.random.default_rng(5).integers(0, N_TOKENS, 13)


def joined(*parts) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


def same_result(one, other) -> None:
    np.testing.assert_array_equal(one.token_ids, other.token_ids)
    np.testing.assert_allclose(one.logp, other.logp, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_rollout_of_several_turns_equals_the_dense_model(world, temperature):
    engine = world.engine()
    context = PROMPT
    for n in range(3):
        request = turn(A, context, max_tokens=3, temperature=temperature, key=(n, 9))
        (result,) = run(engine, request)
        world.check_against_dense(request, result)
        context = joined(context, result.token_ids, [n, 4])
    assert result.stop is TurnStop.LENGTH
    assert len(result.token_ids) == 3


@pytest.mark.parametrize("n_tokens", [1, 2, 3, 5])  # a dispatch has three steps
def test_the_stop_token_ends_a_turn_and_belongs_to_it(world, n_tokens):
    (unstopped,) = run(world.engine(), turn(A, PROMPT, max_tokens=6))
    expected = unstopped.token_ids[:n_tokens]
    assert expected[-1] not in expected[:-1]
    (stopped,) = run(world.engine(), turn(A, PROMPT, 6, stop_token_id=int(expected[-1])))
    assert stopped.stop is TurnStop.END_OF_TURN
    np.testing.assert_array_equal(stopped.token_ids, expected)


def test_samples_do_not_depend_on_the_steps_of_a_dispatch(world):
    request = turn(A, PROMPT, max_tokens=8, temperature=2.0)
    (three_by_three,) = run(world.engine(), request)
    (one_by_one,) = run(world.engine(decode_steps_per_dispatch=1), request)
    same_result(three_by_three, one_by_one)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 8, 9, 27])
def test_contexts_of_every_length_around_a_page_and_a_chunk_are_right(world, length):
    request = turn(A, np.arange(length) % N_TOKENS, max_tokens=5)
    (result,) = run(world.engine(), request)
    world.check_against_dense(request, result)


def test_outputs_do_not_depend_on_neighbours_order_or_slot(world):
    requests = [
        turn(rollout_id(i), PROMPT[: 4 + 2 * i], max_tokens=3 + i, temperature=1.0, key=(i, i))
        for i in range(4)
    ]
    together = run(world.engine(), *requests)
    backwards = run(world.engine(), *reversed(requests))[::-1]
    for request, one, two in zip(requests, together, backwards, strict=True):
        (alone,) = run(world.engine(), request)
        same_result(one, alone)
        same_result(two, alone)


def test_a_turn_admitted_while_others_decode_changes_nothing_for_them(world):
    early = turn(A, PROMPT, max_tokens=9)
    late = turn(B, PROMPT[:6], max_tokens=7)
    engine = world.engine()
    engine.run_turn(early)
    assert engine.step() == []
    engine.run_turn(late)
    for request, result in zip((early, late), finish(engine, early, late), strict=True):
        world.check_against_dense(request, result)


def test_a_group_shares_the_full_pages_of_its_prompt_in_its_first_dispatch(world):
    engine = world.engine()
    requests = [turn(rollout, PROMPT, max_tokens=3) for rollout in (A, B, C, D)]
    results = run(engine, *requests)
    # 13 tokens: three full pages are common, the 13th token is fed by decoding.
    assert [result.found_tokens for result in results[1:]] == [12, 12, 12]
    assert results[0].found_tokens < 12
    assert all(result.found_tokens + result.prefilled_tokens == 13 for result in results)
    for request, result in zip(requests, results, strict=True):
        world.check_against_dense(request, result)
    # Greedy siblings are the same up to the end: 15 tokens with KV, of which 12 are in full pages.
    assert engine.capacity() == Capacity(free=24 - 3 - 4, owned=3 + 4, cached=0, total=24)


def test_a_sibling_that_comes_later_finds_the_prompt(world):
    engine = world.engine()
    run(engine, turn(A, PROMPT))
    request = turn(B, joined(PROMPT[:8], [1, 1, 1]))
    (result,) = run(engine, request)
    assert (result.found_tokens, result.prefilled_tokens) == (8, 3)
    world.check_against_dense(request, result)


def test_rollouts_that_generate_the_same_tokens_share_those_pages_too(world):
    engine = world.engine()
    run(engine, turn(A, PROMPT, max_tokens=6), turn(B, PROMPT, max_tokens=6))
    assert engine.capacity().owned == 4 + 2  # 18 tokens with KV: four full pages, two partial ones


def test_kv_is_kept_while_the_environment_works(world):
    engine = world.engine()
    (first,) = run(engine, turn(A, PROMPT, max_tokens=4))
    run(engine, turn(B, PROMPT[::-1]))
    request = turn(A, joined(PROMPT, first.token_ids, [3, 3]))
    (second,) = run(engine, request)
    assert (second.found_tokens, second.prefilled_tokens) == (13 + 3, 3)
    world.check_against_dense(request, second)


def test_released_kv_is_found_again_in_whole_pages_while_there_is_room(world):
    engine = world.engine()
    (first,) = run(engine, turn(A, PROMPT, max_tokens=4))
    engine.release(A)
    assert engine.capacity() == Capacity(free=20, owned=0, cached=4, total=24)
    request = turn(A, joined(PROMPT, first.token_ids, [3, 3]))
    (second,) = run(engine, request)
    assert second.found_tokens == 16
    world.check_against_dense(request, second)


def test_kv_freed_under_pressure_is_computed_again_with_the_same_result(world):
    roomy, tight = world.engine(), world.engine()
    occupy(tight, 16)
    results = []
    for engine in (roomy, tight):
        (first,) = run(engine, turn(A, PROMPT, max_tokens=4))
        engine.release(A)
        run(engine, turn(B, PROMPT[::-1], max_tokens=19))
        engine.release(B)
        results += run(engine, turn(A, joined(PROMPT, first.token_ids, [3, 3])))
    assert results[0].found_tokens == 16
    assert results[1].found_tokens == 0
    same_result(*results)


def test_a_context_that_does_not_go_on_from_the_kv_is_decoded_as_it_is(world):
    engine = world.engine()
    run(engine, turn(A, PROMPT, max_tokens=4))
    for context in (joined(PROMPT[:9], [0, 0, 0, 0, 0, 0, 0, 0, 0]), PROMPT[:9]):
        request = turn(A, context)
        (result,) = run(engine, request)
        assert result.found_tokens == 8
        world.check_against_dense(request, result)


def test_a_cancelled_turn_frees_its_slot_and_its_pages(world):
    engine = world.engine()
    engine.run_turn(turn(A, np.arange(28) % N_TOKENS))  # more than one dispatch can prefill
    engine.run_turn(turn(B, PROMPT[::-1]))
    assert engine.step() == []
    engine.cancel(A)
    engine.check()
    engine.cancel(B)
    engine.cancel(C)
    assert engine.n_active == 0
    assert engine.capacity().owned == 0
    assert engine.step() == []
    request = turn(A, PROMPT, max_tokens=19)
    world.check_against_dense(request, run(engine, request)[0])


def test_a_cancelled_rollout_between_turns_holds_nothing(world):
    engine = world.engine()
    run(engine, turn(A, PROMPT))
    engine.cancel(A)
    assert engine.capacity().owned == 0


def test_a_turn_that_has_no_room_is_refused_and_disturbs_nobody(world):
    engine = world.engine()
    occupy(engine, 16)
    engine.run_turn(turn(A, PROMPT, max_tokens=10))
    with pytest.raises(EngineFault, match="needs 6 more pages, but 2 of 24"):
        engine.run_turn(turn(B, PROMPT, max_tokens=10))
    finish(engine, turn(A, PROMPT, max_tokens=10))
    engine.release(A)
    request = turn(B, PROMPT, max_tokens=10)
    world.check_against_dense(request, run(engine, request)[0])


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (turn(B, PROMPT, max_tokens=MAX_CONTEXT), "may reach 45 tokens; a context holds 32"),
        (turn(B, []), "no context"),
        (turn(B, PROMPT, max_tokens=0), "may sample no token"),
        (turn(A, PROMPT), "decoding already"),
    ],
)
def test_an_impossible_turn_is_refused(world, request_, message):
    engine = world.engine()
    engine.run_turn(turn(A, PROMPT))
    with pytest.raises(EngineFault, match=message):
        engine.run_turn(request_)


def test_a_turn_without_a_slot_is_refused(world):
    engine = world.engine()
    for member in range(CONFIG.n_slots):
        engine.run_turn(turn(rollout_id(member), [1, 2]))
    with pytest.raises(EngineFault, match="All 4 slots"):
        engine.run_turn(turn(rollout_id(9), [1, 2]))


def test_a_decoding_rollout_cannot_be_released(world):
    engine = world.engine()
    engine.run_turn(turn(A, PROMPT))
    with pytest.raises(EngineFault, match="is decoding"):
        engine.release(A)


def test_nothing_compiles_after_warm_up(world):
    programs.cache_clear()  # other tests have compiled the shapes of this one, or will
    engine = world.engine(n_slots=2, page_tokens=16)
    engine.warm_up()
    compiled: list[str] = []

    def listen(event: str, _: float, **__: object) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        mixed_run(engine, world)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []


def mixed_run(engine, world) -> None:
    """Turns of all lengths and temperatures, alone and together, with weights coming in."""
    rng = np.random.default_rng(0)
    for n in range(40):
        for member in range(rng.integers(0, 3 - engine.n_active)):
            context = rng.integers(0, N_TOKENS, rng.integers(1, 28))
            engine.run_turn(turn(rollout_id(member, n), context, 4, float(n % 2)))
        for result in engine.step():
            engine.release(result.rollout)
        if n % 10 == 5:
            engine.load_weights(world.params[n % 3], PolicyVersion(n))
