"""The virtual driver under hand-made commands: what it answers, and what it refuses."""

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from setups import small_config

from tiderl_jax.core.commands import (
    Admit,
    Command,
    DropGroup,
    DropReason,
    DropRollout,
    EndRollout,
    Feed,
    Microbatch,
    Migrate,
    Pause,
    PauseEnvironment,
    Probe,
    Publish,
    Release,
    Repartition,
    RequestTasks,
    Resume,
    ResumeEnvironment,
    RunTurn,
    SetTimer,
    StartStep,
    StepEnvironment,
    StepMode,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    ProbeFailed,
    ProbeMeasured,
    RankLost,
    RankReady,
    RolloutEnded,
    RolloutFailed,
    StopRequested,
    TasksArrived,
    TimerFired,
    Trained,
    TurnEnded,
    TurnStop,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.snapshot import beginning
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.cluster import RESEND_S, RETURN_S
from tiderl_jax.simulator.costs import cost_model
from tiderl_jax.simulator.draws import EpisodePlan
from tiderl_jax.simulator.driver import VirtualDriver

Kind = TypeVar("Kind", bound=Event)
G = GroupId(Purpose.TRAIN, 0)
A, B = RolloutId(G, 0), RolloutId(G, 1)
R0, R1, T0, T1 = (RankId(rank) for rank in range(4))
V0 = PolicyVersion(0)
DEADLINE_S, LEASE_S = 30.0, 100.0


class Fixed:
    """Draws of a world in which nothing is left to chance."""

    def __init__(self, **faults: Any) -> None:
        self.faults = faults
        self.plan = EpisodePlan(2, [10, 20, 30], [False] * 3, [5] * 3, [1.0, 2.0, 3.0, 4.0], 1.0)
        self.losses: dict[RankId, list[float]] = faults.get("losses", {})

    def workload(self, group: GroupId) -> str:
        return "fixed"

    def prompt_tokens(self, group: GroupId) -> int:
        return 40

    def episode(self, rollout: RolloutId) -> EpisodePlan:
        return self.plan

    def probe_fails(self, group: GroupId, n: int) -> bool:
        return n <= self.faults.get("probes", 0)

    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        return self.faults.get("environment", {}).get((rollout, turn), "")

    def engine_fails(self, rollout: RolloutId, turn: int) -> bool:
        return (rollout, turn) in self.faults.get("engine", ())

    def is_duplicated(self, n_events: int) -> bool:
        return True

    def weights_delay_factor(self, rank: RankId, version: PolicyVersion) -> float:
        return self.faults.get("slow", {}).get((rank, version), 1.0)

    def acknowledgement_lost(self, rank: RankId, version: PolicyVersion, n: int) -> bool:
        return n <= self.faults.get("acknowledgements", 0)

    def rank_loss_times(self, rank: RankId) -> Iterator[float]:
        return iter(self.losses.get(rank, []))


class Hand:
    """Gives commands to a driver and reads its events."""

    def __init__(self, *, changes: dict[str, Any] | None = None, **faults: Any) -> None:
        limits = {"environment.step_deadline_s": DEADLINE_S, "environment.idle_lease_s": LEASE_S}
        self.config = small_config("tiderl", **{**limits, **(changes or {})})
        self.costs = cost_model(self.config)
        self.draws = Fixed(**faults)
        self.facts: list[RolloutFacts] = []
        self.driver = VirtualDriver(
            self.config,
            rank_specs(self.config),
            self.costs,
            self.draws,
            beginning(),
            self.facts.append,
        )
        self.now_s = 0.0

    @property
    def tally(self) -> Any:
        return self.driver.tally

    def say(self, *commands: Command) -> None:
        for command in commands:
            self.driver.execute(command, round(self.now_s * NS_PER_S))

    def hear(self, kind: type[Kind]) -> Kind:
        """The next event, which must be of this kind."""
        event, now_ns = self.driver.next()
        assert isinstance(event, kind), event
        assert now_ns / NS_PER_S >= self.now_s
        self.now_s = now_ns / NS_PER_S
        return event

    def hear_all(self) -> list[Event]:
        """Everything that is still to come."""
        heard: list[Event] = []
        with pytest.raises(InvariantError, match="stalled"):
            heard.extend(iter(lambda: self.hear(Event), None))
        return heard

    def load(self, version: int = 0, ranks: tuple[RankId, ...] = (R0, R1)) -> None:
        self.say(Publish(PolicyVersion(version), ranks))
        for _ in ranks:
            self.hear(WeightsLoaded)

    def open(self, *rollouts: RolloutId, rank: RankId = R0) -> None:
        """Admits rollouts; their first turns may run."""
        for rollout in rollouts:
            self.say(Admit(rollout, rank))
            self.hear(EnvironmentReady)

    def turn(self, rollout: RolloutId, rank: RankId = R0) -> TurnEnded:
        self.say(RunTurn(rollout, rank))
        return self.hear(TurnEnded)

    def play(self, *rollouts: RolloutId) -> None:
        """Whole episodes, one after the other."""
        for rollout in rollouts:
            self.open(rollout)
            self.turn(rollout)
            self.say(StepEnvironment(rollout))
            self.hear(EnvironmentReady)
            self.turn(rollout)
            self.say(StepEnvironment(rollout))
            self.hear(RolloutEnded)
            self.say(Release(rollout, R0))

    def refuses(self, command: Command, why: str) -> None:
        with pytest.raises(InvariantError, match=why):
            self.say(command)


def playing(**options: Any) -> Hand:
    hand = Hand(**options)
    hand.load()
    return hand


# Tasks and environments.


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


# Turns and ranks.


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


# The learner.


def feed(*rollouts: RolloutId, groups: tuple[GroupId, ...] = (G,), feed: int = 0) -> Feed:
    """The last feed of step 0, on one worker."""
    return Feed(0, feed, groups, (Microbatch(0, rollouts, 150),), True)


def start() -> StartStep:
    return StartStep(0, StepMode.COLOCATED, 0)


def test_a_step_trains_what_it_is_fed_and_mints_a_version() -> None:
    hand = playing()
    hand.play(A, B)
    began_s = hand.now_s
    hand.say(start(), feed(A, B))
    updated = hand.hear(Updated)
    assert updated == Updated(
        step=0,
        version=PolicyVersion(1),
        digest="weights-1",
        trained_tokens=60,
        context_tokens=150,
        untrained_tokens=(),
        n_microbatches=1,
        lags=(0, 0),
        tokens_at_lag=((0, 60),),
        reward_mean=1.0,
    )
    times = hand.costs.step.times(150)
    step_s = 2 * times.swap_s + times.score_s + times.train_s
    assert hand.now_s == pytest.approx(began_s + step_s + hand.costs.update_s(2))
    workload = hand.tally.workload("fixed")
    assert (workload.trained_groups, workload.trained.n, workload.trained.turns) == (1, 2, 4)
    assert workload.trained.context_tokens == workload.ended.context_tokens == 150
    assert workload.trained.duration_s == pytest.approx(workload.ended.duration_s)
    hand.load(1)


def test_tokens_are_trained_by_their_own_version() -> None:
    hand = playing()
    hand.play(A)
    other = RolloutId(GroupId(Purpose.TRAIN, 1), 0)
    hand.open(other)
    hand.turn(other)
    hand.say(start(), feed(A))
    hand.hear(Updated)
    hand.load(1)
    hand.say(StepEnvironment(other))
    hand.hear(EnvironmentReady)
    assert hand.turn(other).oldest_version == 1
    hand.say(StepEnvironment(other))
    hand.hear(RolloutEnded)
    microbatch = Microbatch(0, (other,), 75)
    hand.say(StartStep(1, StepMode.COLOCATED, 0), Feed(1, 0, (other.group,), (microbatch,), True))
    updated = hand.hear(Updated)
    assert updated.lags == (1,)
    assert updated.tokens_at_lag == ((0, 20), (1, 10))
    assert hand.facts[-1].start_version == 0


def test_a_group_may_be_fed_in_parts() -> None:
    hand = playing()
    hand.play(A, B)
    hand.say(StartStep(0, StepMode.DECOUPLED, 1))
    hand.say(Feed(0, 0, (G,), (Microbatch(0, (A,), 75),), False))
    assert hand.hear(Trained) == Trained(0, 0)
    hand.say(Feed(0, 1, (), (Microbatch(0, (B,), 75),), True))
    updated = hand.hear(Updated)
    assert (updated.trained_tokens, updated.n_microbatches) == (60, 2)


def test_what_is_not_there_or_trains_already_is_not_trained() -> None:
    hand = playing()
    hand.play(A, B)
    hand.say(start())
    hand.refuses(feed(A, B, RolloutId(G, 2)), "trained twice, or was never taken")

    hand = playing()
    hand.play(A, B)
    hand.say(start())
    hand.refuses(feed(A), f"ends without {B}")

    hand = playing()
    hand.play(A)
    hand.open(B)
    hand.say(start())
    hand.refuses(feed(A), "not complete")
    hand.refuses(feed(A, groups=(GroupId(Purpose.TRAIN, 5),)), "not complete")
    hand.refuses(feed(A, groups=(GroupId(Purpose.EVALUATE, 0),)), "is an evaluation")


def test_a_group_trains_once() -> None:
    hand = playing()
    hand.play(A)
    hand.say(start(), feed(A))
    hand.hear(Updated)
    hand.say(StartStep(1, StepMode.COLOCATED, 0))
    hand.refuses(Feed(1, 0, (G,), (), True), "not complete")


def test_only_the_weights_that_the_learner_has_are_published() -> None:
    hand = playing()
    hand.refuses(Publish(PolicyVersion(1), (R0,)), "Version 1 is published; the learner has 0")
    hand.refuses(Publish(V0, (T0,)), "Rank 2 does not roll out")


def test_ranks_stay_while_a_step_is_open() -> None:
    hand = playing()
    hand.play(A)
    hand.say(start())
    hand.refuses(Repartition(T1, Role.ROLLOUT), "while a step is open")
    hand.say(feed(A))
    hand.hear(Updated)
    hand.say(Repartition(T1, Role.ROLLOUT))
    hand.hear(RankReady)
    hand.load(1, (T1,))
    hand.open(B, rank=T1)
    assert hand.turn(B, T1).oldest_version == 1


def test_ranks_that_share_their_devices_with_the_trainer_stand_still_while_it_works() -> None:
    shared = {
        "partition.share_devices": True,
        "partition.n_rollout_ranks": 3,
        "partition.actor_devices": 2,
    }
    hand = playing(changes=shared)
    hand.load(ranks=())
    hand.say(Publish(V0, (RankId(2),)))
    hand.hear(WeightsLoaded)
    hand.play(A)
    others = [RolloutId(GroupId(Purpose.TRAIN, number), 0) for number in (1, 2)]
    hand.open(others[0], rank=R0)
    hand.open(others[1], rank=RankId(2))
    hand.say(RunTurn(others[0], R0), RunTurn(others[1], RankId(2)), start(), feed(A))
    assert hand.hear(TurnEnded).rollout == others[1]
    hand.hear(Updated)
    trained_s = hand.now_s
    assert hand.hear(TurnEnded).rollout == others[0]
    assert hand.now_s > trained_s


# Drops.


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


# Other contradictions.


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
