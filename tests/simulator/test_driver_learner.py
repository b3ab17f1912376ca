"""The virtual driver: what its learner trains, and under which version."""

import pytest
from driver_hand import R0, T0, T1, V0, A, B, G, feed, playing, start

from tiderl_jax.core.commands import (
    Feed,
    Microbatch,
    Publish,
    Repartition,
    RunTurn,
    StartStep,
    StepEnvironment,
    StepMode,
)
from tiderl_jax.core.events import (
    EnvironmentReady,
    RankReady,
    RolloutEnded,
    Trained,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId


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
