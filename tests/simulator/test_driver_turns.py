"""The virtual driver: turns, ranks, and what is dropped or refused."""

import pytest
from driver_hand import R0, R1, T0, V0, A, B, G, Hand, feed, playing, start

from tiderl_jax.core.commands import (
    Admit,
    DropGroup,
    DropReason,
    DropRollout,
    EndRollout,
    Migrate,
    Pause,
    PauseEnvironment,
    Publish,
    Release,
    Repartition,
    Resume,
    ResumeEnvironment,
    RunTurn,
    SetTimer,
    StepEnvironment,
)
from tiderl_jax.core.events import (
    EnvironmentReady,
    RankLost,
    RankReady,
    RolloutFailed,
    StopRequested,
    TimerFired,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import Role, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.cluster import RESEND_S, RETURN_S


def test_the_engine_may_lose_a_turn_and_all_that_its_rollout_held() -> None:
    hand = playing(engine={(A, 0)})
    hand.open(A)
    hand.say(RunTurn(A, R0))
    assert hand.hear(RolloutFailed).rollout == A
    hand.say(Release(A, R0))
    again = A._replace(attempt=1)
    hand.open(again)
    assert hand.turn(again).found_tokens == 0


def test_members_of_a_group_find_its_prompt_on_their_rank_only() -> None:
    hand = playing()
    hand.open(A, B)
    hand.turn(A)
    assert hand.turn(B).found_tokens == 32  # two pages of 16
    c = RolloutId(G, 2)
    hand.open(c, rank=R1)
    assert hand.turn(c, R1).found_tokens == 0


def test_a_paused_rollout_keeps_its_cached_kv_until_it_is_needed() -> None:
    hand = playing()
    hand.open(A)
    hand.turn(A)
    hand.say(Pause(A, R0), PauseEnvironment(A))
    hand.refuses(RunTurn(A, R0), "is paused")
    hand.refuses(Pause(A, R0), "paused twice")
    hand.refuses(PauseEnvironment(A), "paused twice")
    hand.refuses(Resume(A, R1), "on rank 0, not on 1")
    hand.say(Resume(A, R0), ResumeEnvironment(A))
    hand.refuses(Resume(A, R0), "not paused")
    hand.refuses(ResumeEnvironment(A), "not paused")
    hand.say(StepEnvironment(A))
    hand.hear(EnvironmentReady)
    assert hand.turn(A).found_tokens == 50


def test_a_turn_that_migrates_goes_on_and_reports_both_its_parts() -> None:
    hand = playing()
    hand.draws.plan.generated_tokens[0] = 100
    hand.open(A)
    hand.say(RunTurn(A, R0), SetTimer(round((hand.now_s + 0.1) * NS_PER_S)))
    hand.hear(TimerFired)
    hand.say(Migrate(A, R1))
    hand.refuses(RunTurn(A, R0), "it is on rank 1")
    ended = hand.turn(A, R1)
    n_first = ended.prefilled_tokens - 2 * 40
    assert 10 < n_first < 100
    assert (ended.rank, ended.generated_tokens, ended.found_tokens) == (R1, 100, 0)
    hand.open(B)
    assert hand.turn(B).found_tokens == 0  # nothing of the group is left on the old rank


def test_a_parked_rollout_that_migrates_stays_parked() -> None:
    hand = playing()
    hand.open(A)
    hand.turn(A)
    hand.say(Pause(A, R0), PauseEnvironment(A), Migrate(A, R1))
    hand.refuses(Resume(A, R0), "on rank 1")
    hand.say(Resume(A, R1), ResumeEnvironment(A), StepEnvironment(A))
    hand.hear(EnvironmentReady)
    ended = hand.turn(A, R1)
    assert (ended.found_tokens, ended.prefilled_tokens) == (0, 55)


def test_a_lost_rank_takes_its_turns_along_and_comes_back_without_weights() -> None:
    hand = playing(losses={R0: [2.0]})
    hand.draws.plan.generated_tokens[0] = 120
    hand.open(A)
    hand.say(SetTimer(round(1.8 * NS_PER_S)))
    hand.hear(TimerFired)
    hand.say(RunTurn(A, R0))
    assert hand.hear(RankLost) == RankLost(R0, True)
    hand.refuses(RunTurn(A, R0), "Rank 0 does not roll out")
    hand.refuses(Publish(V0, (R0,)), "Rank 0 does not roll out")
    hand.refuses(Admit(B, R0), "Rank 0 does not roll out")
    hand.say(Migrate(A, R1))
    ended = hand.turn(A, R1)
    assert (ended.generated_tokens, ended.prefilled_tokens) == (120, 40)
    assert hand.hear(RankReady) == RankReady(R0, Role.ROLLOUT)
    assert hand.now_s == pytest.approx(2.0 + RETURN_S)
    hand.open(B)
    hand.refuses(RunTurn(B, R0), "without weights")


def test_ranks_are_lost_for_good_but_never_the_last_one() -> None:
    hand = playing(losses={R0: [2.0, 200.0, 500.0], R1: [400.0, 600.0], T0: [3.0]})
    heard = hand.hear_all()
    lost = [event for event in heard if isinstance(event, RankLost)]
    assert lost == [RankLost(R0, True), RankLost(R0, False), RankLost(R1, True), RankLost(R1, True)]
    assert sum(isinstance(event, RankReady) for event in heard) == 3
    assert hand.tally.faults == {"rank_loss": 3, "rank_loss_for_good": 1}


def test_slow_weights_that_are_overtaken_are_called_off() -> None:
    hand = Hand(slow={(R0, 0): 10.0})
    hand.say(Publish(V0, (R0, R1)))
    assert hand.hear(WeightsLoaded).rank == R1
    hand.say(Publish(V0, (R0,)))
    assert hand.hear(WeightsLoaded).rank == R0
    assert hand.hear_all() == []


def test_a_lost_acknowledgement_is_sent_again() -> None:
    hand = Hand(acknowledgements=2)
    hand.say(Publish(V0, (R0,)))
    hand.hear(WeightsLoaded)
    assert hand.now_s == pytest.approx(hand.costs.publish_s + 2 * RESEND_S)
    assert hand.tally.faults == {"lost_acknowledgement": 2}


def test_a_rank_that_has_lost_its_weights_acknowledges_them_no_more() -> None:
    hand = Hand(acknowledgements=1, losses={R0: [2.0]})
    hand.say(Publish(V0, (R0,)))
    hand.hear(RankLost)
    hand.hear(RankReady)
    assert hand.hear_all() == []


def test_an_event_may_arrive_twice() -> None:
    hand = Hand(changes={"simulation.faults.duplicate": 0.5})
    hand.say(SetTimer(5 * NS_PER_S))
    assert hand.hear(TimerFired) == hand.hear(TimerFired)
    assert hand.hear_all() == []


def test_a_timer_for_a_time_that_has_passed_fires_at_once() -> None:
    hand = playing()
    loaded_s = hand.now_s
    hand.say(SetTimer(1))
    assert hand.hear(TimerFired) == TimerFired(1)
    assert hand.now_s == loaded_s > 0


def test_a_stop_is_heard_at_its_time() -> None:
    hand = Hand()
    hand.driver.stop_at(3 * NS_PER_S)
    hand.hear(StopRequested)
    assert hand.now_s == 3.0


def test_a_rank_changes_its_role_in_its_time_and_only_when_nothing_runs_on_it() -> None:
    hand = playing()
    hand.open(A)
    hand.say(RunTurn(A, R0))
    hand.refuses(Repartition(R0, Role.TRAINER), "runs 1 turns")
    hand.hear(TurnEnded)
    asked_s = hand.now_s
    hand.say(Migrate(A, R1), Repartition(R0, Role.TRAINER))
    hand.refuses(Repartition(R0, Role.ROLLOUT), "cannot become rollout")
    hand.refuses(Admit(B, R0), "its role is None")
    assert hand.hear(RankReady) == RankReady(R0, Role.TRAINER)
    assert hand.now_s == pytest.approx(asked_s + hand.costs.to_trainer_s)
    hand.refuses(Repartition(R0, Role.TRAINER), "cannot become trainer")


def test_a_dropped_group_leaves_nothing_behind() -> None:
    hand = playing()
    c = RolloutId(G, 2)
    hand.play(A)
    hand.open(B, c)
    hand.turn(c)
    hand.say(StepEnvironment(c), RunTurn(B, R0), DropGroup(G, DropReason.STALE))
    assert hand.hear_all() == []
    for command in (RunTurn(B, R0), StepEnvironment(c), EndRollout(c, Outcome.TRUNCATED_TIME)):
        hand.refuses(command, "not under way")
    assert hand.tally.dropped_groups == {G: DropReason.STALE}
    again = A._replace(attempt=1)
    hand.open(again)
    assert hand.turn(again).found_tokens == 0


def test_a_dropped_member_is_not_trained_and_the_others_are() -> None:
    hand = playing()
    hand.play(A)
    hand.open(B)
    hand.say(RunTurn(B, R0), DropRollout(B, DropReason.REDUNDANT))
    hand.say(start(), feed(A))
    assert hand.hear(Updated).trained_tokens == 30
    assert hand.tally.dropped_rollouts == {DropReason.REDUNDANT: 1}


def test_a_rollout_that_is_dropped_while_it_is_closed_does_not_end() -> None:
    hand = playing()
    hand.open(A)
    hand.turn(A)
    hand.say(EndRollout(A, Outcome.TRUNCATED_TIME), DropGroup(G, DropReason.LATE))
    assert hand.hear_all() == []


def test_commands_that_contradict_the_state_of_a_rollout_are_refused() -> None:
    hand = Hand()
    hand.say(Admit(A, R0))
    hand.refuses(Admit(A, R0), "admitted twice")
    hand.refuses(RunTurn(A, R0), "lacks an observation")
    hand.hear(EnvironmentReady)
    hand.refuses(StepEnvironment(A), "no turn to answer")
    hand.refuses(RunTurn(A, R0), "without weights")
    hand.load()
    hand.say(RunTurn(A, R0))
    hand.refuses(RunTurn(A, R0), "decode twice")
    hand.refuses(Pause(A, R0), "while it decodes")
    hand.refuses(Release(A, R0), "while it decodes")
    hand.refuses(StepEnvironment(A), "no turn to answer")
    hand.hear(TurnEnded)
    hand.say(StepEnvironment(A))
    hand.refuses(StepEnvironment(A), "asked twice")
