"""Which turn runs, who is paused, and what the pool holds."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hand import Hand, member, train_group

from tiderl_jax.core.commands import (
    Migrate,
    Pause,
    PauseEnvironment,
    Release,
    Resume,
    ResumeEnvironment,
    RunTurn,
    StepEnvironment,
)
from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.state import Phase

RANK = RankId(0)


def acting(hand: Hand, *groups: int, tokens: int = 10) -> None:
    """Groups of one member each have played one turn and hold KV of `tokens + 10`."""
    for group in groups:
        hand.ready(member(group), tokens)
        hand.turn(member(group))


def opened(**options: object) -> Hand:
    """Six one-member groups are admitted on one rank of 200 tokens (pages of 10, turns of 10)."""
    settings = {"budget_tokens": 200, "prompts": 6, "max_groups": 6, "steps": 2, **options}
    hand = Hand(**settings)  # type: ignore[arg-type]
    hand.load_weights()
    hand.bring(*range(6), prompt_tokens=10)
    return hand


def test_ctb_keeps_kv_while_the_environment_works_and_request_batching_gives_it_up() -> None:
    for batching, released in (("ctb", 0), ("request", 1)):
        hand = opened(batching=batching)
        hand.ready(member(0))
        commands = hand.turn(member(0))
        assert StepEnvironment(member(0)) in commands
        assert len(hand.said(Release)) == released
        assert hand.state.ranks[RANK].used_tokens == (20 if batching == "ctb" else 0)


def test_a_turn_that_lacks_room_pauses_the_lowest_rollout_that_does_not_decode() -> None:
    hand = opened()
    acting(hand, 0, 1, 2)  # 3 x 20 kept
    hand.ready(member(0), 60)  # decodes with 90 of the pool reserved
    acting(hand, 3)  # 20 more: 150 used
    commands = hand.ready(member(3), 60)  # needs 90, 70 more than it keeps: 20 are missing
    assert commands == [
        Pause(member(2), RANK),  # the youngest of the lowest priority
        PauseEnvironment(member(2)),
        RunTurn(member(3), RANK),
    ]
    assert hand.state.ranks[RANK].used_tokens == 200


def test_nobody_is_paused_for_a_rollout_of_lower_priority() -> None:
    hand = opened(budget_tokens=100)
    acting(hand, 0, tokens=70)  # keeps 80; with a longer context its priority is higher
    hand.ready(member(1), 20)
    assert hand.commands == []
    assert hand.state.rollout(member(0)).phase is Phase.ACTING  # type: ignore[union-attr]


def test_a_paused_rollout_comes_back_on_its_rank_when_there_is_room() -> None:
    hand = opened()
    acting(hand, 0, 1, 2)
    hand.ready(member(0), 60)
    acting(hand, 3)
    hand.ready(member(3), 60)  # pauses 2
    hand.ready(member(2))  # its environment has answered meanwhile: no room
    assert hand.commands == []
    hand.turn(member(0))  # 90 of 200 are kept, 90 reserved by 3, 20 by 1: still no room
    assert hand.said(Resume) == []
    hand.end(member(0))
    assert hand.commands[1:4] == [
        Resume(member(2), RANK),
        ResumeEnvironment(member(2)),
        RunTurn(member(2), RANK),
    ]


def test_a_paused_environment_works_on_as_soon_as_its_next_turn_would_fit() -> None:
    hand = opened()
    acting(hand, 0, 1, 2)
    hand.ready(member(0), 60)
    acting(hand, 3)
    hand.ready(member(3), 60)  # pauses 2, whose environment has not answered
    hand.turn(member(0))
    hand.end(member(0))
    assert hand.said(ResumeEnvironment) == [ResumeEnvironment(member(2))]
    assert hand.state.rollout(member(2)).phase is Phase.ACTING  # type: ignore[union-attr]


def test_a_turn_that_waits_only_for_running_turns_of_lower_priority_is_not_overtaken() -> None:
    hand = opened(budget_tokens=100)
    acting(hand, 0, tokens=20)  # keeps 30
    hand.ready(member(1), 40)  # decodes, reserves 50: 80 used
    hand.ready(member(0), 40)  # needs 80, 50 more: waits for rollout 1, which has not played yet
    assert hand.commands == []
    hand.ready(member(2), 10)  # would fit into the 20 that are free
    assert hand.commands == []
    hand.turn(member(1))
    assert hand.started_turns()[0] == member(0)


def test_a_turn_behind_rollouts_of_higher_priority_lets_others_use_the_room() -> None:
    hand = opened(budget_tokens=100)
    acting(hand, 0, tokens=50)  # keeps 60 and has played
    hand.ready(member(1), 40)  # needs 50: blocked by the kept 60
    assert hand.commands == []
    hand.ready(member(2), 10)
    assert hand.started_turns() == [member(2)]


def test_slots_limit_the_turns_that_run_at_once() -> None:
    hand = opened(n_slots=2)
    for group in (0, 1, 2):
        hand.ready(member(group))
    assert len(hand.state.ranks[RANK].decoding) == 2
    hand.turn(member(1))
    assert hand.started_turns() == [member(2)]


def test_request_batching_serves_the_first_that_became_ready() -> None:
    hand = opened(batching="request", n_slots=1)
    for group in (4, 3, 5):
        hand.ready(member(group))
    hand.turn(member(4))
    assert hand.started_turns() == [member(3)]


def test_members_of_a_nearly_complete_group_run_first() -> None:
    hand = Hand(prompts=2, members=2, n_slots=1, max_groups=2, steps=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(1, 0))  # half of the younger group has ended
    hand.ready(member(0, 0))  # takes the only slot
    hand.ready(member(0, 1))
    hand.ready(member(1, 1))
    hand.turn(member(0, 0))
    assert hand.started_turns() == [member(1, 1)]


def test_completion_raises_the_priority_of_those_that_wait_already() -> None:
    hand = Hand(prompts=2, members=2, n_slots=1, max_groups=2, steps=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(1, 0))
    hand.ready(member(0, 0))
    hand.ready(member(1, 1))  # waits behind the older group
    hand.turn(member(1, 0))  # which takes the slot
    assert hand.started_turns() == [member(0, 0)]
    hand.ready(member(0, 1))
    hand.end(member(1, 0))
    hand.turn(member(0, 0))
    assert hand.started_turns() == [member(1, 1)]


def test_evaluation_runs_before_training_that_has_waited_longer() -> None:
    hand = Hand(n_evaluation_tasks=1, n_slots=1, prompts=2)
    hand.load_weights()
    rollouts = hand.bring_evaluation()
    hand.bring(0, 1)
    hand.ready(member(1))
    hand.turn(member(1))
    hand.ready(member(0))  # takes the slot
    hand.ready(member(1), 30)  # in execution, and with a longer context
    hand.ready(rollouts[0])
    hand.turn(member(0))
    assert hand.started_turns() == [rollouts[0]]


def test_a_task_in_execution_runs_before_an_older_one_that_has_not_begun() -> None:
    hand = opened(n_slots=1)
    hand.ready(member(3))
    hand.turn(member(3), tokens=1)
    hand.ready(member(5))  # takes the slot
    hand.ready(member(0), 60)  # older, and with the longer context
    hand.ready(member(3))
    hand.turn(member(5))
    assert hand.started_turns() == [member(3)]


def test_without_sticky_routing_a_turn_goes_to_the_rank_with_the_fewest_rollouts() -> None:
    moved = {"request_nonsticky": [Migrate(member(1), RankId(0))], "request": []}
    for batching, expected in moved.items():
        hand = Hand("async", batching=batching, n_ranks=2, prompts=2, max_rollouts=0)
        hand.load_weights()
        hand.bring(0, 1, 2, 3)
        ranks = [hand.state.groups[train_group(index)].rank for index in range(4)]
        assert ranks == [0, 1, 0, 1]
        hand.ready(member(3))
        assert hand.said(Migrate) == []  # nowhere are there fewer
        for index in (0, 2):
            hand.play(member(index), rank=0)  # rank 0 is empty now
        hand.ready(member(1))
        assert hand.said(Migrate) == expected
        assert hand.started_turns() == [member(1)]


def test_in_lockstep_the_next_turns_run_when_the_last_environment_has_answered() -> None:
    hand = Hand("sync_lockstep", members=3, max_rollouts=0)
    hand.load_weights()
    hand.bring(0)
    first, second, third = (member(0, position) for position in range(3))
    hand.ready(first)
    hand.ready(second)
    assert hand.started_turns() == []
    hand.ready(third)
    assert hand.started_turns() == [first, second, third]
    for rollout in (first, second, third):
        hand.turn(rollout)
    hand.ready(second)
    hand.end(third)  # one that has ended is waited for no longer
    assert hand.started_turns() == []
    hand.ready(first)
    assert hand.started_turns() == [second, first]


def test_a_paused_rollout_without_room_goes_on_where_it_can_run_at_once() -> None:
    hand = opened(n_ranks=2, bound=1)
    for index in range(6):
        hand.ready(member(index), 40)
    ranks = {index: hand.state.live(member(index)).rank for index in range(6)}
    full = [index for index, rank in ranks.items() if rank == 0]
    empty = [index for index, rank in ranks.items() if rank == 1]
    assert len(full) == len(empty) == 3
    for index in full:
        hand.turn(member(index), rank=0)
    for index in full:
        hand.ready(member(index), 20)
    parked = [one for one in full if hand.state.live(member(one)).phase is Phase.PARKED_READY]
    assert parked
    for index in empty:
        hand.turn(member(index), rank=1)
        hand.end(member(index))
    running = next(i for i in full if hand.state.live(member(i)).phase is Phase.DECODING)
    hand.turn(member(running), rank=0)
    assert hand.said(Migrate) == [Migrate(member(parked[0]), RankId(1))]
    assert hand.started_turns() == [member(parked[0])]
    assert hand.state.counters.escapes == 1


def test_a_round_of_turns_in_lockstep_starts_on_all_ranks() -> None:
    hand = Hand("sync_lockstep", prompts=2, n_ranks=2, max_rollouts=0)
    hand.load_weights()
    hand.bring(0, 1)
    hand.ready(member(0))
    assert hand.started_turns() == []
    hand.ready(member(1))
    assert hand.said(RunTurn) == [RunTurn(member(0), RANK), RunTurn(member(1), RankId(1))]


def cornered(prepare: Callable[[Hand], None]) -> Hand:
    """Rollout 2 is paused on rank 0 of 100 tokens, and must wait there for 0, which runs.

    Even groups are on rank 0 and odd ones on rank 1, where `prepare` does what it likes.
    """
    hand = Hand(
        admission="request",
        n_ranks=2,
        n_slots=8,
        budget_tokens=100,
        max_rollouts=0,
        prompts=16,
        max_groups=16,
        steps=1,
    )
    hand.load_weights()
    hand.state.growth_tokens = 0.0
    hand.bring(*range(16))
    acting(hand, 0, tokens=50)
    acting(hand, 2, tokens=20)
    hand.ready(member(0), 10)
    assert hand.said(Pause) == [Pause(member(2), RANK)]
    hand.state.growth_tokens = 0.0
    prepare(hand)
    hand.ready(member(2), 10)  # needs 50 of the pool for its turn
    return hand


def small_turns(hand: Hand, n: int) -> None:
    """On rank 1; each may need 10 of the pool, and is not expected to."""
    for index in range(5, 5 + 2 * n, 2):
        hand.ready(member(index), 0)


def _fill_the_slots(hand: Hand) -> None:
    hand.state.ranks[RankId(1)].spec = replace(hand.state.ranks[RankId(1)].spec, n_slots=2)
    small_turns(hand, 2)


def _fill_the_pool(hand: Hand) -> None:
    small_turns(hand, 6)


def _expect_growth(hand: Hand) -> None:
    hand.state.growth_tokens = 60.0
    small_turns(hand, 1)


def _let_a_turn_wait(hand: Hand) -> None:
    small_turns(hand, 4)
    hand.ready(member(1), 60)  # needs 70 where 60 are free
    assert hand.started_turns() == []


def _pause_another(hand: Hand) -> None:
    """Rollout 1, for 3; when that has ended, small turns have taken the room that 1 needs."""
    for index, tokens in ((1, 50), (3, 20)):
        hand.ready(member(index), tokens)
        hand.turn(member(index), rank=1)
    hand.ready(member(3), 40)
    assert hand.said(Pause) == [Pause(member(1), RankId(1))]
    small_turns(hand, 4)
    hand.turn(member(3), rank=1)
    hand.end(member(3))
    assert hand.state.ranks[RankId(1)].n_parked == 1


def test_a_paused_rollout_escapes_to_an_empty_rank() -> None:
    hand = cornered(lambda hand: None)
    assert hand.commands[0] == Migrate(member(2), RankId(1))
    assert hand.commands[-1] == RunTurn(member(2), RankId(1))


@pytest.mark.parametrize(
    "prepare", [_fill_the_slots, _fill_the_pool, _expect_growth, _let_a_turn_wait, _pause_another]
)
def test_a_paused_rollout_does_not_escape_to_a_rank_that_has_no_room_to_spare(
    prepare: Callable[[Hand], None],
) -> None:
    hand = cornered(prepare)
    assert hand.commands == []
    assert hand.state.rank_of(hand.state.live(member(2))).spec.rank == RANK


def test_a_rollout_that_is_not_paused_waits_where_it_is() -> None:
    def wait(hand: Hand) -> None:
        hand.ready(member(4), 40)  # needs 50; rank 1 is empty
        assert hand.commands == []

    cornered(wait)
