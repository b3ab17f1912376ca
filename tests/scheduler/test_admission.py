"""Which task starts, on which rank, when."""

from hand import Hand, member, train_group

from tiderl_jax.core.commands import Admit, Probe, RequestTasks
from tiderl_jax.core.events import EnvironmentFailed, ProbeMeasured, TasksArrived, WeightsLoaded
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId
from tiderl_jax.scheduler.state import GroupPhase, Phase


def test_nothing_starts_before_the_weights_are_proved() -> None:
    hand = Hand()
    hand.bring(0)
    assert hand.admitted() == []
    hand.load_weights()
    assert hand.admitted() == [member(0)]


def test_ctb_admits_while_the_pool_holds_the_expected_first_turn() -> None:
    hand = Hand(prompts=8, budget_tokens=100)
    hand.load_weights()
    hand.bring(*range(8), prompt_tokens=20)  # each is expected to need 20 + 10
    assert hand.admitted() == [member(0), member(1), member(2)]


def test_real_usage_replaces_the_estimate_after_every_turn() -> None:
    hand = Hand(prompts=8, budget_tokens=100)
    hand.load_weights()
    hand.bring(*range(8), prompt_tokens=20)
    hand.ready(member(0), 20)
    hand.turn(member(0), tokens=1)
    hand.end(member(0))
    assert hand.admitted() == [member(3)]
    for _ in range(40):  # turns of one token: the expected growth falls towards it
        hand.ready(member(1), 0)
        hand.turn(member(1), tokens=1)
    assert hand.state.growth_tokens < 3


def test_request_admission_keeps_to_its_cap_and_ctb_does_not_know_it() -> None:
    for admission, n_admitted in (("request", 2), ("ctb", 6)):
        hand = Hand(admission=admission, prompts=6, max_rollouts=2)
        hand.load_weights()
        hand.bring(*range(6))
        assert len(hand.admitted()) == n_admitted


def test_a_group_stays_on_one_rank_and_groups_go_to_the_emptiest() -> None:
    hand = Hand(prompts=3, members=2, n_ranks=3)
    hand.load_weights()
    hand.bring(0, 1, 2)
    ranks = {}
    for command in hand.said(Admit):
        ranks.setdefault(command.rollout.group, set()).add(command.rank)
    assert [len(on) for on in ranks.values()] == [1, 1, 1]
    assert set.union(*ranks.values()) == {0, 1, 2}


def test_nothing_new_starts_beside_a_paused_rollout() -> None:
    hand = Hand(prompts=6, budget_tokens=200)
    hand.load_weights()
    hand.bring(0, 1, 2)
    for group in (0, 1):
        hand.ready(member(group), 70)
        hand.turn(member(group))  # each keeps 80
    hand.ready(member(2), 20)  # reserves 30
    hand.ready(member(0), 5)  # reserves 100: rollout 1 is paused
    assert hand.state.ranks[RankId(0)].n_parked == 1
    assert hand.state.ranks[RankId(0)].expected_tokens == 130
    hand.bring(3)  # is expected to need 20
    assert hand.admitted() == []
    hand.turn(member(0))
    hand.end(member(0))
    assert hand.started_turns() == []
    assert hand.state.ranks[RankId(0)].n_parked == 0
    assert hand.admitted() == [member(3)]


def test_open_environments_stay_below_their_limit_and_a_group_begins_only_whole() -> None:
    hand = Hand(prompts=4, members=3, max_environments=7, budget_tokens=1000)
    hand.load_weights()
    hand.bring(0, 1, 2, 3)
    assert {rollout.group.number for rollout in hand.admitted()} == {0, 1}
    hand.play(member(0, 0))
    assert hand.said(Probe) == []
    hand.play(member(0, 1))
    assert hand.said(Probe) == [Probe(train_group(2))]


def test_a_group_larger_than_the_environment_limit_runs_alone_in_turns() -> None:
    hand = Hand(prompts=1, members=5, max_environments=2)
    hand.load_weights()
    hand.bring(0)
    assert hand.admitted() == [member(0, 0), member(0, 1)]
    hand.play(member(0, 0))
    assert hand.admitted() == [member(0, 2)]


def test_the_environment_of_a_probe_counts_until_its_member_starts() -> None:
    hand = Hand(max_environments=1)
    hand.load_weights()
    hand.tell(TasksArrived((train_group(0),), 1))
    assert hand.said(Probe) == [Probe(train_group(0))]
    assert hand.state.n_environments == 1
    hand.tell(ProbeMeasured(train_group(0), 10))
    assert hand.admitted() == [member(0)]
    assert hand.state.n_environments == 1


def test_evaluation_is_probed_and_admitted_before_training() -> None:
    hand = Hand(n_evaluation_tasks=1, members=4, max_environments=4)
    hand.load_weights()
    hand.tell(TasksArrived((train_group(0),), 4))
    assert hand.said(Probe) == []  # evaluation tasks are on their way
    hand.tell(TasksArrived((GroupId(Purpose.EVALUATE, 0),), 1))
    hand.tell(TasksArrived((GroupId(Purpose.EVALUATE_GREEDY, 0),), 1))
    assert hand.said(Probe) == [Probe(GroupId(Purpose.EVALUATE_GREEDY, 0))]


def test_a_retried_member_is_admitted_before_a_new_group() -> None:
    hand = Hand(prompts=3, budget_tokens=100)
    hand.load_weights()
    hand.bring(0, 1, 2, prompt_tokens=30)  # two fit
    hand.tell(EnvironmentFailed(member(0), "crash"))
    assert hand.admitted() == [member(0, attempt=1)]


def test_batch_admission_starts_the_groups_of_a_step_together_and_of_the_next_after_it() -> None:
    hand = Hand("sync", prompts=2, members=2)
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 2)]
    hand.load_weights()
    hand.bring(0, 1)
    assert hand.said(Probe) == []
    assert len(hand.admitted()) == 4
    for rollout in list(hand.admitted()):
        hand.play(rollout)
    assert hand.said(RequestTasks) == []  # the step runs
    hand.update()
    hand.bring(2, 3)
    assert hand.admitted() == []  # the new version has not arrived
    hand.load_weights()
    assert len(hand.admitted()) == 4


def test_demand_is_counted_from_need_and_capped_by_the_bound_and_the_run() -> None:
    hand = Hand(prompts=2, bound=1, steps=3, max_groups=16)
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 4)]  # (k + 0 + 1) * B
    hand = Hand(prompts=2, bound=9, steps=3, max_groups=16)
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 6)]  # steps * B
    hand = Hand(prompts=2, bound=9, steps=3, max_groups=5)
    assert hand.said(RequestTasks) == [RequestTasks(Purpose.TRAIN, 5)]  # max_open


def test_evaluation_is_admitted_beside_training_that_fills_the_pool() -> None:
    hand = Hand(n_evaluation_tasks=1, every_steps=1, prompts=4, bound=3, budget_tokens=100)
    hand.load_weights()
    for rollout in hand.bring_evaluation():
        hand.play(rollout)
    hand.bring(*range(4))
    for group in range(4):
        hand.play(member(group))
    hand.bring(*range(4, 12), prompt_tokens=30)  # two of them fill the pool
    hand.update_and_load()
    assert hand.state.ranks[RankId(0)].expected_tokens == 80
    rollouts = hand.bring_evaluation(1, prompt_tokens=80)
    assert hand.state.rollout(rollouts[0]).phase is Phase.STARTING


def test_a_group_goes_to_the_emptiest_rank_among_those_that_serve_the_newest_version() -> None:
    hand = Hand(n_ranks=2, bound=0)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    hand.update()
    hand.tell(WeightsLoaded(RankId(1), PolicyVersion(1), "weights-1"))
    hand.bring(1)
    assert hand.said(Admit) == [Admit(member(1), RankId(1))]


def test_retried_members_of_the_most_complete_group_start_first() -> None:
    hand = Hand(prompts=1, bound=2, members=2)
    hand.load_weights()
    hand.bring(0, 1, 2)
    hand.play(member(0, 0))
    hand.play(member(0, 1))
    hand.update()  # while the new version loads, nothing starts
    hand.ready(member(2, 1))
    hand.turn(member(2, 1))
    hand.tell(EnvironmentFailed(member(1, 0), "crash"))
    hand.tell(EnvironmentFailed(member(2, 0), "crash"))
    hand.end(member(2, 1))
    hand.load_weights()
    assert hand.admitted() == [member(2, 0, attempt=1), member(1, 0, attempt=1)]


def test_an_empty_rank_admits_whatever_can_run_at_all() -> None:
    hand = Hand(budget_tokens=100)
    hand.load_weights()
    hand.state.growth_tokens = 70.0  # turns bring long observations
    hand.bring(0, prompt_tokens=80)
    assert hand.admitted() == [member(0)]


def test_a_new_group_does_not_join_a_rank_where_members_of_another_wait_for_room() -> None:
    hand = Hand(prompts=3, members=2, n_ranks=2, budget_tokens=100, bound=0)
    hand.load_weights()
    hand.bring_each({0: 55, 1: 30, 2: 0})
    assert hand.said(Admit) == [
        Admit(member(0, 0), RankId(0)),  # 70 of 100: the other member waits
        Admit(member(1, 0), RankId(1)),
        Admit(member(1, 1), RankId(1)),  # 80 of 100
        Admit(member(2, 0), RankId(1)),
        Admit(member(2, 1), RankId(1)),
    ]


def test_eager_admission_probes_only_what_the_pool_might_not_hold_at_its_largest() -> None:
    for budget_tokens, probed in ((200, []), (190, [Probe(train_group(1))])):
        hand = Hand("tiderl", bound=1, budget_tokens=budget_tokens, prompts=1)
        hand.load_weights()
        hand.tell(TasksArrived((train_group(0), train_group(1)), 1))  # of 100 tokens at most
        assert hand.said(Probe) == probed
        assert len(hand.admitted()) == 2 - len(probed)


def test_a_probed_group_goes_on_although_an_evaluation_waits_for_its_environments() -> None:
    hand = Hand(
        "tiderl",
        n_evaluation_tasks=1,
        every_steps=1,
        members=2,
        max_environments=2,
        budget_tokens=350,
        bound=2,
    )
    hand.load_weights()
    for rollout in hand.bring_evaluation():
        hand.play(rollout)
    hand.bring(0)
    for position in (0, 1):
        hand.play(member(0, position))
    hand.tell(TasksArrived((train_group(1), train_group(2)), 2))
    for position in (0, 1):
        hand.play(member(1, position))
    assert hand.state.groups[train_group(2)].phase is GroupPhase.PROBING
    hand.update_and_load()
    for purpose in (Purpose.EVALUATE, Purpose.EVALUATE_GREEDY):
        hand.tell(TasksArrived((GroupId(purpose, 1),), 1))
    assert hand.admitted() == []  # one of the evaluation is not probed, and is the first in line
    hand.tell(ProbeMeasured(train_group(2), 10))
    assert hand.admitted() == [member(2, 0), member(2, 1)]


def test_ranks_that_still_load_weights_get_their_share_of_the_groups() -> None:
    hand = Hand(n_ranks=2, prompts=4, bound=0)
    hand.tell(WeightsLoaded(RankId(0), PolicyVersion(0), "weights-0"))
    hand.bring(0, 1, 2, 3)
    assert hand.said(Admit) == [Admit(member(index), RankId(0)) for index in (0, 1)]
    hand.load_weights()
    assert [hand.state.ranks[RankId(rank)].n_open for rank in (0, 1)] == [2, 2]
