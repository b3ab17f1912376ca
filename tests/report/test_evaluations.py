"""Evaluations count when they are complete, by the version that they pinned."""

import pytest
from report_runs import SMALL, V0, V1, V2, S, facts, updated

from tiderl_jax.core.commands import DropGroup, DropReason
from tiderl_jax.core.events import TasksArrived, TimerFired
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId
from tiderl_jax.report.ledger import Ledger


class Evaluator:
    """Feeds evaluations to a ledger, one second per turn of the loop."""

    def __init__(self) -> None:
        self.ledger = Ledger(SMALL)
        self._at_s = 0

    def arrive(self, purpose: Purpose, first: int, n: int, n_members: int = 1) -> list[GroupId]:
        groups = [GroupId(purpose, first + i) for i in range(n)]
        self._observe(TasksArrived(tuple(groups), n_members))
        return groups

    def score(self, groups: list[GroupId], rewards: list[float], version: PolicyVersion) -> None:
        for group, reward in zip(groups, rewards, strict=True):
            self.ledger.rollout(facts(RolloutId(group, 0), reward, 3, version=version))
        self._observe(TimerFired(0))

    def update(self, version: PolicyVersion) -> None:
        self._observe(updated(version, version, 0, 0))

    def drop(self, group: GroupId, reason: DropReason) -> None:
        self._observe(TimerFired(0), [DropGroup(group, reason)])

    def _observe(self, event, commands=()) -> None:
        self._at_s += 1
        self.ledger.observe(event, commands, self._at_s * S)

    def rows(self) -> list[dict]:
        return [row for row in self.ledger.rows() if "timing_s/step" not in row]


@pytest.fixture
def evaluator() -> Evaluator:
    return Evaluator()


def test_first_and_last_are_of_the_oldest_and_the_newest_version(evaluator):
    sampled, greedy = Purpose.EVALUATE, Purpose.EVALUATE_GREEDY
    before = evaluator.arrive(sampled, 0, 4)
    evaluator.score(before, [0.0, 0.5, 0.0, 1.0], V0)
    evaluator.score(evaluator.arrive(greedy, 0, 2), [1.0, 0.0], V0)
    evaluator.update(V1)
    evaluator.update(V2)
    evaluator.score(evaluator.arrive(sampled, 4, 4), [1.0, 0.5, 1.0, 1.0], V2)
    summary = evaluator.ledger.summary(0)
    assert summary["eval"] == {
        "success_first": 0.25,
        "success_last": 0.75,
        "return_first": 0.375,
        "return_last": 0.875,
        "episodes": 4,
    }
    assert summary["eval_greedy"] == {
        "success_first": 0.5,
        "success_last": 0.5,
        "return_first": 0.5,
        "return_last": 0.5,
        "episodes": 2,
    }


def test_a_late_evaluation_is_reported_at_the_step_of_its_version(evaluator):
    groups = evaluator.arrive(Purpose.EVALUATE, 0, 2)
    evaluator.update(V1)
    late = evaluator.arrive(Purpose.EVALUATE, 2, 2)
    evaluator.update(V2)
    evaluator.score(groups, [1.0, 0.0], V0)
    evaluator.score(late, [1.0, 1.0], V1)
    rows = evaluator.rows()
    assert [row["train/step"] for row in rows] == [0, 1]
    assert [row["eval/sampled_success"] for row in rows] == [0.5, 1.0]
    assert [row["wall_s"] for row in rows] == [5, 6]


def test_training_and_evaluation_never_share_a_row(evaluator):
    evaluator.score(evaluator.arrive(Purpose.EVALUATE, 0, 1), [1.0], V0)
    evaluator.update(V1)
    for row in evaluator.ledger.rows():
        kinds = {name.split("/")[0] == "eval" for name in row if name not in AXES}
        assert len(kinds) == 1


AXES = ("train/step", "rollout/episodes", "wall_s")


def test_an_evaluation_is_not_reported_before_its_last_episode(evaluator):
    groups = evaluator.arrive(Purpose.EVALUATE, 0, 2)
    evaluator.score(groups[:1], [1.0], V0)
    assert evaluator.rows() == []
    assert evaluator.ledger.summary(0)["eval"]["success_last"] is None


def test_every_member_of_a_task_is_an_episode(evaluator):
    (group,) = evaluator.arrive(Purpose.EVALUATE, 0, 1, n_members=2)
    evaluator.score([group], [1.0], V0)
    assert evaluator.rows() == []
    evaluator.score([group], [0.0], V0)
    (row,) = evaluator.rows()
    assert (row["eval/sampled_success"], row["eval/sampled_episodes"]) == (0.5, 2)


def test_a_task_that_failed_for_good_leaves_its_evaluation(evaluator):
    groups = evaluator.arrive(Purpose.EVALUATE, 0, 3)
    evaluator.score(groups[:2], [1.0, 0.0], V0)
    evaluator.drop(groups[2], DropReason.ENV_ERROR)
    (row,) = evaluator.rows()
    assert (row["eval/sampled_success"], row["eval/sampled_episodes"]) == (0.5, 2)


def test_an_evaluation_that_the_end_of_the_run_cuts_short_is_forgotten(evaluator):
    groups = evaluator.arrive(Purpose.EVALUATE, 0, 2)
    evaluator.score(groups[:1], [1.0], V0)
    evaluator.drop(groups[1], DropReason.UNFINISHED)
    assert evaluator.rows() == []


def test_tokens_and_facts_of_evaluations_never_enter_training_figures(evaluator):
    evaluator.score(evaluator.arrive(Purpose.EVALUATE, 0, 1), [1.0], V0)
    evaluator.update(V1)
    summary = evaluator.ledger.summary(0)
    assert summary["sampled_tokens"] == 0
    assert summary["reward"] == {"first": None, "last": None}


def test_a_row_never_changes_its_place_once_it_is_written(evaluator):
    """An evaluation and then a step, at the same instant of a virtual clock."""
    (group,) = evaluator.arrive(Purpose.EVALUATE, 0, 1)
    evaluator.score([group], [1.0], V0)
    written = evaluator.ledger.rows()
    evaluator.ledger.observe(updated(1, V1, 0, 0), [], evaluator.ledger.now_ns)
    assert evaluator.ledger.rows()[: len(written)] == written
    assert evaluator.ledger.n_rows == len(written) + 1


def test_evaluations_survive_a_restart(evaluator):
    evaluator.score(evaluator.arrive(Purpose.EVALUATE, 0, 1), [1.0], V0)
    resumed = Ledger(SMALL, snapshot=evaluator.ledger.snapshot())
    assert resumed.rows() == evaluator.ledger.rows()
    assert resumed.summary(0)["eval"]["success_first"] == 1


def test_tasks_that_arrive_twice_are_one_evaluation(evaluator):
    groups = evaluator.arrive(Purpose.EVALUATE, 0, 2)
    evaluator.arrive(Purpose.EVALUATE, 0, 2)
    evaluator.score(groups, [1.0, 0.0], V0)
    assert len(evaluator.rows()) == 1
