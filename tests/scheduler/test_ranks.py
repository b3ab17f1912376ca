"""Ranks leave, join and are lost; their rollouts go on elsewhere."""

from hand import Hand, member, train_group

from tiderl_jax.core.commands import Abort, Migrate, Publish, RunTurn
from tiderl_jax.core.events import RankLost, RankReady
from tiderl_jax.core.ids import PolicyVersion, RankId, Role
from tiderl_jax.scheduler.state import Phase


def two_ranks(**changes: object) -> Hand:
    """Two groups of two on two rollout ranks, one member of each decoding."""
    hand = Hand(n_ranks=2, prompts=2, members=2, **changes)
    hand.load_weights()
    hand.bring(0, 1)
    for group in (0, 1):
        hand.ready(member(group, 0))
    return hand


def rank_of(hand: Hand, group: int, position: int = 0) -> int | None:
    return hand.state.live(member(group, position)).rank


def test_what_a_lost_rank_rolled_out_goes_on_elsewhere_from_its_last_turn() -> None:
    hand = two_ranks()
    lost = rank_of(hand, 0)
    assert lost is not None
    other = RankId(1 - lost)
    hand.tell(RankLost(RankId(lost), returns=True))
    moved = {command.rollout for command in hand.said(Migrate)}
    assert moved == {member(0, 0), member(0, 1)}
    assert hand.said(RunTurn) == [RunTurn(member(0, 0), other)]
    assert hand.state.live(member(0, 1)).phase is Phase.STARTING
    assert hand.state.groups[train_group(0)].rank == other


def test_a_rank_that_comes_back_serves_nothing_before_it_has_the_published_weights() -> None:
    hand = two_ranks()
    hand.tell(RankLost(RankId(0), returns=True))
    hand.tell(RankReady(RankId(0), Role.ROLLOUT))
    assert hand.said(Publish) == [Publish(PolicyVersion(0), (RankId(0),))]
    assert hand.said(RunTurn) == []
    hand.load_weights()
    assert hand.state.ranks[RankId(0)].version == 0


def test_groups_move_to_a_rank_that_joins_until_the_loads_are_even() -> None:
    hand = two_ranks()
    hand.tell(RankLost(RankId(0), returns=True))
    for group in (0, 1):
        hand.turn(member(group, 0), rank=1)
    hand.tell(RankReady(RankId(0), Role.ROLLOUT))
    hand.load_weights()
    assert {rank_of(hand, 0), rank_of(hand, 1)} == {0, 1}
    assert 0 not in {rank.n_open for rank in hand.state.with_role(Role.ROLLOUT)}


def test_while_no_rank_rolls_out_the_rollouts_wait_for_the_one_that_returns() -> None:
    hand = Hand(members=1)
    hand.load_weights()
    hand.bring(0)
    hand.ready(member(0))
    hand.tell(RankLost(RankId(0), returns=True))
    assert hand.said(Abort) == []
    hand.tell(RankReady(RankId(0), Role.ROLLOUT))
    hand.load_weights()
    assert hand.said(RunTurn) == [RunTurn(member(0), RankId(0))]


def test_without_any_rank_left_the_run_ends_with_a_sentence() -> None:
    hand = Hand()
    hand.load_weights()
    hand.tell(RankLost(RankId(0), returns=False))
    assert "no rank is left" in hand.said(Abort)[0].reason


def test_a_loss_in_the_middle_of_loading_does_not_hold_up_the_others() -> None:
    hand = Hand(n_ranks=2, n_evaluation_tasks=1)
    hand.tell(RankLost(RankId(1), returns=True))
    assert hand.state.n_loading == 1
    hand.load_weights()
    assert hand.state.evaluation is not None
