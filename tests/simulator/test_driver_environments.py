"""The virtual driver: tasks and environments, what they answer and how they fail."""

import pytest
from driver_hand import DEADLINE_S, LEASE_S, R0, V0, A, B, G, Hand, playing

from tiderl_jax.core.commands import (
    Admit,
    EndRollout,
    Pause,
    PauseEnvironment,
    Probe,
    Release,
    RequestTasks,
    Resume,
    ResumeEnvironment,
    RunTurn,
    SetTimer,
    StepEnvironment,
)
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    ProbeFailed,
    ProbeMeasured,
    RolloutEnded,
    RolloutFailed,
    TasksArrived,
    TimerFired,
    TurnStop,
)
from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.snapshot import beginning
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.driver import VirtualDriver


def test_tasks_are_brought_in_order_with_spare_members_and_single_evaluations() -> None:
    hand = Hand(changes={"rollout.group.extra_members": 2})
    hand.say(RequestTasks(Purpose.TRAIN, 2), RequestTasks(Purpose.EVALUATE, 1))
    assert hand.hear(TasksArrived) == TasksArrived((G, GroupId(Purpose.TRAIN, 1)), 6)
    assert hand.hear(TasksArrived) == TasksArrived((GroupId(Purpose.EVALUATE, 0),), 1)
    hand.say(RequestTasks(Purpose.TRAIN, 1))
    assert hand.hear(TasksArrived).groups == (GroupId(Purpose.TRAIN, 2),)
    assert hand.tally.workload("fixed").asked_groups == 3


def test_a_resumed_run_is_brought_what_it_had_begun_before_anything_new() -> None:
    hand = Hand()
    saved = beginning() | {
        "unfinished_train_indices": [7, 4],
        "next_train_index": 9,
        "n_evaluations": 2,
    }
    hand.driver = VirtualDriver(
        hand.config, rank_specs(hand.config), hand.costs, hand.draws, saved, hand.facts.append
    )
    hand.say(RequestTasks(Purpose.TRAIN, 4), RequestTasks(Purpose.EVALUATE, 1))
    assert [group.number for group in hand.hear(TasksArrived).groups] == [4, 7, 9, 10]
    n_tasks = hand.config.evaluation.n_tasks
    assert hand.hear(TasksArrived).groups == (GroupId(Purpose.EVALUATE, 2 * n_tasks),)


def test_a_probe_opens_the_environment_of_the_first_member() -> None:
    hand = playing(probes=1)
    hand.say(Probe(G))
    assert hand.hear(ProbeFailed).group == G
    hand.say(Probe(G))
    assert hand.hear(ProbeMeasured) == ProbeMeasured(G, 40)
    probed_s = hand.now_s
    hand.say(Admit(A, R0))
    assert hand.hear(EnvironmentReady) == EnvironmentReady(A, 40)
    assert hand.now_s == probed_s
    hand.say(Admit(B, R0))
    hand.hear(EnvironmentReady)
    assert hand.now_s == pytest.approx(probed_s + 1.0)
    assert hand.tally.faults == {"probe": 1}


def test_an_episode_plays_its_plan_and_its_facts_are_told() -> None:
    hand = playing()
    hand.open(A)
    first = hand.turn(A)
    assert (first.stop, first.generated_tokens) == (TurnStop.END_OF_TURN, 10)
    assert (first.found_tokens, first.prefilled_tokens) == (0, 40)
    hand.say(StepEnvironment(A))
    asked_s = hand.now_s
    assert hand.hear(EnvironmentReady) == EnvironmentReady(A, 5)
    assert hand.now_s == pytest.approx(asked_s + 2.0)
    second = hand.turn(A)
    assert (second.generated_tokens, second.found_tokens, second.prefilled_tokens) == (20, 50, 5)
    hand.say(StepEnvironment(A))
    assert hand.hear(RolloutEnded) == RolloutEnded(A, Outcome.FINISHED)
    assert hand.facts == [RolloutFacts(A, 1.0, Outcome.FINISHED, 2, 30, 75, V0)]


def test_turns_beyond_the_limit_truncate_and_a_cut_turn_says_so() -> None:
    hand = playing(changes={"environment.max_turns": 1})
    hand.draws.plan = hand.draws.plan._replace(cut=[True] * 3)
    hand.open(A)
    assert hand.turn(A).stop is TurnStop.LENGTH
    hand.say(StepEnvironment(A))
    assert hand.hear(RolloutEnded).outcome is Outcome.TRUNCATED_TURNS


def test_an_ended_rollout_keeps_what_comes_before_its_last_model_token() -> None:
    hand = playing()
    hand.open(A)
    hand.turn(A)
    hand.say(StepEnvironment(A))
    hand.hear(EnvironmentReady)
    hand.say(EndRollout(A, Outcome.TRUNCATED_LENGTH))
    assert hand.hear(RolloutEnded).outcome is Outcome.TRUNCATED_LENGTH
    assert (hand.facts[0].model_tokens, hand.facts[0].context_tokens) == (10, 50)


def test_a_rollout_that_ends_without_a_token_has_failed() -> None:
    hand = playing()
    hand.open(A)
    hand.say(EndRollout(A, Outcome.TRUNCATED_TIME))
    assert hand.hear(RolloutFailed).rollout == A


def test_a_crash_comes_in_place_of_the_answer_and_a_hang_at_the_deadline() -> None:
    hand = playing(environment={(A, 1): "crash", (B, 1): "hang"})
    hand.open(A, B)
    hand.turn(A)
    hand.turn(B)
    hand.say(StepEnvironment(A), StepEnvironment(B))
    asked_s = hand.now_s
    assert hand.hear(EnvironmentFailed).rollout == A
    assert hand.now_s == pytest.approx(asked_s + 2.0)
    assert hand.hear(EnvironmentFailed).rollout == B
    assert hand.now_s == pytest.approx(asked_s + DEADLINE_S)
    assert hand.tally.faults == {"crash": 1, "hang": 1}


def test_no_deadline_passes_while_the_clocks_of_an_environment_stand_still() -> None:
    hand = playing(environment={(A, 1): "hang"})
    hand.open(A)
    hand.turn(A)
    hand.say(StepEnvironment(A))
    asked_s = hand.now_s
    hand.say(Pause(A, R0), PauseEnvironment(A), SetTimer(round((asked_s + 500) * NS_PER_S)))
    hand.hear(TimerFired)
    hand.say(Resume(A, R0), ResumeEnvironment(A))
    hand.hear(EnvironmentFailed)
    assert hand.now_s == pytest.approx(asked_s + 500 + DEADLINE_S)


def test_an_answer_that_comes_after_its_deadline_is_heard_of_after_the_failure() -> None:
    hand = playing()
    hand.draws.plan = hand.draws.plan._replace(delays_s=[1.0, DEADLINE_S + 5, 3.0])
    hand.open(A)
    hand.turn(A)
    hand.say(StepEnvironment(A))
    hand.hear(EnvironmentFailed)
    hand.say(Release(A, R0))
    assert hand.hear(EnvironmentReady).rollout == A
    hand.refuses(RunTurn(A, R0), "not under way")


def test_an_answer_may_come_a_second_time_but_never_in_place_of_another() -> None:
    hand = playing(environment={(A, 0): "late", (B, 0): "late"})
    hand.open(A, B)
    hand.turn(A)
    hand.turn(B)
    hand.draws.plan.delays_s[1] = DEADLINE_S - 1
    hand.say(StepEnvironment(A))  # is at work when the second answer comes
    assert hand.hear(EnvironmentReady) == EnvironmentReady(A, 5)
    assert hand.hear(EnvironmentReady).rollout == B
    assert hand.hear_all() == []


def test_a_session_that_was_idle_for_longer_than_its_lease_is_gone_unless_it_was_paused() -> None:
    hand = playing()
    for rollout, pauses in ((A, True), (B, False)):
        hand.open(rollout)
        hand.turn(rollout)
        hand.say(StepEnvironment(rollout))
        hand.hear(EnvironmentReady)
        if pauses:
            hand.say(Pause(rollout, R0), PauseEnvironment(rollout))
        hand.say(SetTimer(round((hand.now_s + LEASE_S + 1) * NS_PER_S)))
        hand.hear(TimerFired)
        if pauses:
            hand.say(Resume(rollout, R0), ResumeEnvironment(rollout))
        hand.turn(rollout)
        hand.say(StepEnvironment(rollout))
        hand.hear(RolloutEnded if pauses else EnvironmentFailed)
    assert hand.tally.faults == {"lease": 1}
