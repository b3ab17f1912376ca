"""A simulated rank against one that decodes step by step, and its account of KV."""

from dataclasses import dataclass

import numpy as np
import pytest

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import NS_PER_S, VirtualClock
from tiderl_jax.simulator.engine import Turn, VirtualRank
from tiderl_jax.simulator.kv_pool import KvPool

PAGE_TOKENS = 10
MAX_TURN_TOKENS = 100


@dataclass(frozen=True)
class Costs:
    prefill_s_per_token: float = 1e-4
    step_s: float = 1e-3
    step_s_per_turn: float = 1e-4
    step_s_per_token: float = 1e-7

    def decode_step_s(self, n_turns: int, context_tokens: int) -> float:
        batch_s = self.step_s_per_turn * n_turns + self.step_s_per_token * context_tokens
        return self.step_s + batch_s


EVEN = Costs(prefill_s_per_token=0.1, step_s=1.0, step_s_per_turn=0.0, step_s_per_token=0.0)
"""A prefilled token costs 0.1 s, a step 1 s, whoever is in it."""


def rollout(number: int, group: int = 0) -> RolloutId:
    return RolloutId(GroupId(Purpose.TRAIN, group), number)


def alone(number: int) -> RolloutId:
    """The only member of its group."""
    return rollout(0, number)


def spec(budget_tokens: int = 1_000_000, n_slots: int = 100) -> RankSpec:
    return RankSpec(RankId(0), Role.ROLLOUT, n_slots, budget_tokens, PAGE_TOKENS)


class World:
    """Ranks on one clock; when their turns ended."""

    def __init__(self, costs: Costs = EVEN, n_ranks: int = 1, **options: object) -> None:
        self.clock = VirtualClock()
        self.ended: dict[RolloutId, float] = {}
        self.turns: dict[RolloutId, Turn] = {}
        self.ranks = [
            VirtualRank(
                spec(), costs, self.clock, self._end, max_tokens_per_turn=MAX_TURN_TOKENS, **options
            )
            for _ in range(n_ranks)
        ]
        for rank in self.ranks:
            rank.load(PolicyVersion(0))

    def _end(self, turn: Turn) -> Event | None:
        self.ended[turn.rollout] = self.clock.now_ns / NS_PER_S
        return None

    def begin(
        self, name: RolloutId, context: int, n_tokens: int, rank: int = 0, prompt: int = 0
    ) -> Turn:
        turn = self.turns[name] = Turn(name, prompt, context, n_tokens)
        self.ranks[rank].begin(turn)
        return turn

    def at(self, at_s: float, action: object, *arguments: object) -> None:
        def happening() -> None:
            action(*arguments)

        self.clock.at(round(at_s * NS_PER_S), happening)

    def run(self) -> dict[RolloutId, float]:
        """To the end; seconds at which turns ended."""
        with pytest.raises(InvariantError, match="stalled"):
            self.clock.next()
        return self.ended


def step_by_step(arrivals: list[tuple[float, int, int]], costs: Costs) -> list[float]:
    """End of each (arrival_s, context, tokens): prefill first, then whole steps for everyone."""
    waiting, decoding, now_s = list(enumerate(arrivals)), {}, 0.0
    ends_s = [0.0] * len(arrivals)
    while waiting or decoding:
        here = [(i, work) for i, work in waiting if work[0] <= now_s]
        if here:
            i, (_, context, n_tokens) = here[0]
            waiting.remove(here[0])
            now_s += context * costs.prefill_s_per_token
            decoding[i] = n_tokens
        elif decoding:
            contexts = (arrivals[i][1] + arrivals[i][2] // 2 for i in decoding)
            now_s += costs.decode_step_s(len(decoding), sum(contexts))
            for i in list(decoding):
                decoding[i] -= 1
                if decoding[i] == 0:
                    del decoding[i]
                    ends_s[i] = now_s
        else:
            now_s = waiting[0][1][0]
    return ends_s


@pytest.mark.parametrize("seed", range(5))
def test_turns_end_when_they_would_if_every_step_were_decoded(seed: int) -> None:
    draw, costs = np.random.default_rng(seed), Costs()
    arrivals = sorted(
        (float(draw.uniform(0, 20)), int(draw.integers(10, 2000)), int(draw.integers(1, 1000)))
        for _ in range(80)
    )
    world = World(costs)
    for i, (at_s, context, n_tokens) in enumerate(arrivals):
        world.at(at_s, world.begin, alone(i), context, n_tokens)
    ended = world.run()
    late_s = [ended[alone(i)] - end_s for i, end_s in enumerate(step_by_step(arrivals, costs))]
    longest_step_s = costs.decode_step_s(80, 80 * 1500)  # 21 ms, of a run of half a minute
    assert np.mean(late_s) == pytest.approx(0.0, abs=longest_step_s)
    assert np.percentile(np.abs(late_s), 90) < 2 * longest_step_s
    assert np.abs(late_s).max() < 1.0  # one that ends just before others prefill, or just after


def test_prefill_stalls_decoding_and_is_first_come_first_served() -> None:
    world = World()
    world.begin(alone(0), 10, 4)  # prefilled at 1, would end at 5
    world.at(3, world.begin, alone(1), 20, 5)
    assert world.run() == {alone(0): 7.0, alone(1): 10.0}


def test_turns_that_end_in_the_same_step_end_together_although_others_begin_then() -> None:
    world = World()
    world.begin(alone(0), 10, 4)
    world.begin(alone(1), 10, 4)
    first = world._end

    def end(turn: Turn) -> None:
        first(turn)
        if turn.rollout == alone(0):
            world.begin(alone(2), 100, 1)

    world.ranks[0]._ended = end
    assert world.run() == {alone(0): 6.0, alone(1): 6.0, alone(2): 17.0}


def test_the_next_turn_of_a_rollout_prefills_what_it_has_not_kept() -> None:
    world = World()
    world.begin(alone(0), 10, 4)
    world.at(8, world.begin, alone(0), 20, 2)
    world.run()
    turn = world.turns[alone(0)]
    assert (turn.found_tokens, turn.prefilled_tokens) == (14, 6)
    assert world.ended == {alone(0): pytest.approx(8 + 0.6 + 2)}


def test_new_weights_interrupt_turns_and_what_they_sampled_keeps_its_version() -> None:
    world = World()
    turn = world.begin(alone(0), 10, 5)
    world.at(3.5, world.ranks[0].load, PolicyVersion(1))
    assert world.run() == {alone(0): pytest.approx(3.5 + 1.2 + 2.5)}
    assert turn.sampled == [(0, 2), (1, 3)]
    assert turn.prefilled_tokens == 10 + 12


def test_labelled_kv_outlives_new_weights() -> None:
    world = World(drops_kv=False)
    turn = world.begin(alone(0), 10, 5)
    world.at(3.5, world.ranks[0].load, PolicyVersion(1))
    assert world.run() == {alone(0): 6.0}
    assert turn.sampled == [(0, 2), (1, 3)]
    assert turn.prefilled_tokens == 10


@pytest.mark.parametrize(("released", "n_found"), [(False, 12), (True, 0)])
def test_of_labelled_kv_only_what_is_kept_is_found_after_new_weights(
    released: bool, n_found: int
) -> None:
    world = World(drops_kv=False)
    world.begin(alone(0), 10, 2)
    world.run()
    if released:
        world.ranks[0].release(alone(0))
    world.ranks[0].load(PolicyVersion(1))
    assert world.begin(alone(0), 20, 2).found_tokens == n_found


def test_new_weights_call_off_prefill_for_the_old_ones() -> None:
    world = World()
    turn = world.begin(alone(0), 100, 2)
    world.at(4, world.ranks[0].load, PolicyVersion(1))
    assert world.run() == {alone(0): pytest.approx(4 + 10 + 2)}
    assert turn.sampled == [(1, 2)]


def test_members_of_a_group_share_the_prefill_of_their_prompt_when_weights_change() -> None:
    world = World()
    for member in range(2):
        world.begin(rollout(member), 20, 5, prompt=20)
    world.at(3.1, world.ranks[0].load, PolicyVersion(1))
    world.run()
    first, second = world.turns.values()
    assert (first.found_tokens, first.prefilled_tokens) == (0, 20 + 21)
    assert (second.found_tokens, second.prefilled_tokens) == (19 + 20, 1 + 1)


def test_a_turn_goes_on_elsewhere_with_what_it_had_sampled() -> None:
    world = World(n_ranks=2)
    turn = world.begin(alone(0), 10, 5)

    def move() -> None:
        assert world.ranks[0].interrupt(alone(0)) is turn
        assert turn.n_sampled == 2
        world.ranks[1].load(PolicyVersion(1))
        world.ranks[1].begin(turn)

    world.at(3.5, move)
    assert world.run() == {alone(0): pytest.approx(3.5 + 1.2 + 3)}
    assert turn.sampled == [(0, 2), (1, 3)]
    assert turn.prefilled_tokens == 10 + 12
    assert world.ranks[0].n_running == world.ranks[1].n_running == 0
    assert world.ranks[0].pool.n_used_pages == 0


def test_a_turn_that_comes_back_ends_when_all_its_tokens_are_sampled() -> None:
    world = World(n_ranks=2)
    turn = world.begin(alone(0), 10, 5)

    def move(source: int, target: int) -> None:
        world.ranks[source].interrupt(alone(0))
        world.ranks[target].begin(turn)

    world.at(3.5, move, 0, 1)
    world.at(4.0, move, 1, 0)
    assert world.run() == {alone(0): pytest.approx(4.0 + 1.2 + 3)}
    assert turn.sampled == [(0, 2), (0, 3)]


def test_a_turn_that_is_interrupted_at_its_very_end_has_a_token_left_to_sample() -> None:
    world = World(n_ranks=2)
    turn = world.begin(alone(0), 10, 5)
    world.at(6.0, world.ranks[0].interrupt, alone(0))
    assert world.run() == {}
    assert turn.n_sampled == 4


def test_a_rank_that_is_emptied_loses_its_turns_and_they_begin_again() -> None:
    world = World()
    turn = world.begin(alone(0), 10, 5)

    def lose() -> None:
        world.ranks[0].empty()
        world.ranks[0].load(PolicyVersion(3))
        world.ranks[0].begin(turn)

    world.at(3.5, lose)
    assert world.run() == {alone(0): 9.5}
    assert turn.sampled == [(3, 5)]
    assert turn.prefilled_tokens == 10


def test_a_rank_that_stands_still_neither_decodes_nor_prefills() -> None:
    world = World()
    rank = world.ranks[0]
    world.begin(alone(0), 10, 4)
    world.at(0.5, rank.stand_still)
    world.at(2.0, world.begin, alone(1), 10, 1)
    world.at(10.0, rank.go_on)
    world.at(13.0, rank.stand_still)
    world.at(20.0, rank.go_on)
    assert world.run() == {alone(1): pytest.approx(12.5), alone(0): pytest.approx(22.5)}


def test_an_interrupted_turn_makes_room_in_the_step_of_the_others() -> None:
    costs = Costs(0.0, step_s=0.0, step_s_per_turn=1.0, step_s_per_token=0.0)
    world = World(costs)
    world.begin(alone(0), 10, 4)
    world.begin(alone(1), 10, 9)
    world.at(4, world.ranks[0].interrupt, alone(1))
    assert world.run() == {alone(0): pytest.approx(6.0)}


def test_a_rank_decodes_neither_without_weights_nor_beyond_its_slots_nor_back_in_versions() -> None:
    world = World()
    rank = world.ranks[0]
    with pytest.raises(InvariantError, match="loads 0 after 0"):
        rank.load(PolicyVersion(0))
    for i in range(100):
        world.begin(alone(i), 1, 1)
    with pytest.raises(InvariantError, match="no slot"):
        world.begin(alone(100), 1, 1)
    with pytest.raises(InvariantError, match="while it decodes"):
        rank.release(alone(0))
    rank.empty()
    with pytest.raises(InvariantError, match="without weights"):
        world.begin(alone(0), 1, 1)


def filled_pool() -> KvPool:
    """10 pages: three rollouts of 20, 30 and 20 tokens, in this order."""
    pool = KvPool(spec(budget_tokens=105))
    for number, tokens in enumerate((20, 30, 20)):
        assert pool.reserve(alone(number), tokens, tokens, 0) == 0
        pool.keep(alone(number), tokens)
    return pool


def test_what_is_reserved_and_not_needed_is_free_again() -> None:
    pool = KvPool(spec(budget_tokens=100))
    pool.reserve(alone(0), 25, 95, 0)
    assert pool.n_used_pages == 10
    pool.keep(alone(0), 31)
    assert pool.n_used_pages == 4


def test_kept_kv_is_never_evicted_and_an_overfull_pool_is_refused() -> None:
    pool = filled_pool()
    pool.reserve(alone(3), 10, 30, 0)
    with pytest.raises(InvariantError, match="needs 11 pages of 10"):
        pool.reserve(alone(4), 10, 10, 0)


def test_cached_kv_is_found_until_its_room_is_needed_least_recently_used_first() -> None:
    pool = filled_pool()
    for number in range(3):
        pool.release(alone(number))
    assert (pool.n_used_pages, pool.n_cached_pages) == (0, 7)
    assert pool.reserve(alone(0), 25, 30, 0) == 20
    pool.keep(alone(0), 30)
    pool.release(alone(0))
    assert pool.reserve(alone(3), 10, 30, 0) == 0  # evicts 1, the oldest by now
    assert pool.n_cached_pages == 5
    assert pool.reserve(alone(2), 25, 20, 0) == 20
    assert pool.reserve(alone(1), 35, 30, 0) == 0


def test_members_find_the_prompt_of_their_group_in_whole_pages_while_one_holds_it() -> None:
    pool = KvPool(spec())
    assert pool.reserve(rollout(0), 25, 35, 25) == 0
    assert pool.reserve(rollout(1), 25, 35, 25) == 20
    pool.keep(rollout(0), 30)
    pool.forget(rollout(0))
    assert pool.reserve(rollout(2), 25, 35, 25) == 20
    assert pool.reserve(rollout(0, group=1), 25, 35, 25) == 0
    for number in (1, 2):
        pool.forget(rollout(number))
    assert pool.reserve(rollout(3), 25, 35, 25) == 0


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    pool = KvPool(spec())
    pool.reserve(rollout(0), 20, 30, 20)
    assert pool.reserve(rollout(1), 20, 30, 20) == 19


def test_after_new_weights_kept_room_stays_taken_and_nothing_is_found() -> None:
    pool = filled_pool()
    pool.release(alone(2))
    pool.void()
    assert (pool.n_used_pages, pool.n_cached_pages) == (5, 0)
    assert pool.reserve(alone(0), 25, 30, 0) == 0
    pool.release(alone(1))
    assert (pool.n_used_pages, pool.n_cached_pages) == (3, 0)


def test_random_use_of_a_pool_neither_loses_nor_invents_a_page() -> None:
    draw, pool = np.random.default_rng(0), KvPool(spec(budget_tokens=200))
    reserved: dict[RolloutId, int] = {}
    kept: dict[RolloutId, int] = {}
    for _ in range(3000):
        name = rollout(int(draw.integers(4)), int(draw.integers(3)))
        match draw.integers(6):
            case 0 | 1 if name not in reserved:
                room = int(draw.integers(1, 8))
                n_others = sum(reserved.values()) + sum(kept.values()) - kept.get(name, 0)
                if n_others + room <= 20:
                    pool.reserve(name, 10, 10 * room, 10)
                    kept.pop(name, None)
                    reserved[name] = room
            case 2 if name in reserved:
                kept[name] = int(draw.integers(1, reserved.pop(name) + 1))
                pool.keep(name, 10 * kept[name])
            case 3 if name not in reserved:
                pool.release(name)
                kept.pop(name, None)
            case 4:
                pool.forget(name)
                reserved.pop(name, None)
                kept.pop(name, None)
            case 5 if draw.random() < 0.1:
                pool.void()
        assert pool.n_used_pages == sum(reserved.values()) + sum(kept.values())
        assert 0 <= pool.n_cached_pages <= 20 - pool.n_used_pages
    for name in {rollout(member, group) for member in range(4) for group in range(3)}:
        pool.forget(name)
    assert (pool.n_used_pages, pool.n_cached_pages) == (0, 0)
    assert all(pool.shared_tokens(rollout(0, group).group, 10) == 0 for group in range(3))
