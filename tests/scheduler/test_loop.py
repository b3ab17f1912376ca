"""The event loop that both drivers share, and what survives a commit."""

import json
from collections.abc import Sequence

import pytest
from hand import Hand, member, train_group

from tiderl_jax.core.commands import Command, Finish, Publish
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event, StopRequested, TasksArrived, WeightsLoaded
from tiderl_jax.core.ids import PolicyVersion, RankId
from tiderl_jax.scheduler.loop import run
from tiderl_jax.scheduler.snapshot import beginning

LOADED = WeightsLoaded(RankId(0), PolicyVersion(0), "weights-0")


class Script:
    """Events from a list; writes down what happens in which order."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.left = list(events)
        self.log: list[str] = []

    def next(self) -> tuple[Event, int]:
        return self.left.pop(0), 5

    def execute(self, command: Command, now_ns: int) -> None:
        self.log.append(f"execute {type(command).__name__} at {now_ns}")

    def journal(self, event: Event, now_ns: int) -> None:
        self.log.append(f"journal {type(event).__name__} at {now_ns}")

    def observe(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        kinds = [type(command).__name__ for command in commands]
        self.log.append(f"observe {type(event).__name__} -> {kinds}")


def test_an_event_is_journaled_before_and_observed_after_it_is_decided_on() -> None:
    script = Script([LOADED, StopRequested()])
    last = run(
        Hand(started=False).scheduler,
        script,
        script,
        start_ns=3,
        journal=script.journal,
        observers=[script.observe],
    )
    assert last == Finish(complete=False)
    assert script.log == [
        "observe NoneType -> ['Publish', 'RequestTasks']",
        "execute Publish at 3",
        "execute RequestTasks at 3",
        "journal WeightsLoaded at 5",
        "observe WeightsLoaded -> []",
        "journal StopRequested at 5",
        "observe StopRequested -> ['Finish']",
        "execute Finish at 5",
    ]


def test_invariants_are_checked_as_often_as_asked_for() -> None:
    for events_per_check, caught in ((1, True), (3, False)):
        script = Script([LOADED, StopRequested()])
        scheduler = Hand(started=False).scheduler

        def tamper(
            event: Event | None, commands: Sequence[Command], now_ns: int, state=scheduler.state
        ) -> None:
            if event == LOADED:
                state.n_environments = 1

        def go(script=script, scheduler=scheduler, tamper=tamper, n=events_per_check) -> None:
            run(
                scheduler,
                script,
                script,
                start_ns=0,
                journal=script.journal,
                observers=[tamper],
                events_per_check=n,
            )

        if caught:
            with pytest.raises(InvariantError, match="environments are counted"):
                go()
        else:
            go()


def test_a_snapshot_is_json_and_a_running_step_counts_as_not_done() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(0))  # trains
    saved = json.loads(json.dumps(hand.scheduler.snapshot()))
    assert saved["steps_done"] == 0
    assert saved["unfinished_train_indices"] == [0, 1]
    assert saved["next_train_index"] == 2


def test_a_resumed_scheduler_publishes_its_version_and_takes_unfinished_groups_only_once() -> None:
    hand = Hand(prompts=1, bound=1)
    hand.load_weights()
    hand.bring(0, 1)
    hand.play(member(0))
    hand.update()
    saved = json.loads(json.dumps(hand.scheduler.snapshot()))
    again = Hand(prompts=1, bound=1, saved=saved)
    assert again.said(Publish) == [Publish(PolicyVersion(1), (RankId(0),))]
    again.load_weights()
    again.bring(1)
    assert again.admitted() == [member(1)]
    ignored = again.state.counters.ignored_events
    again.tell(TasksArrived((train_group(0),), 1))  # it trained before the commit
    assert again.state.counters.ignored_events == ignored + 1


def test_the_fault_budget_counts_across_a_resume() -> None:
    hand = Hand()
    hand.state.counters.faults = 7
    assert Hand(saved=hand.scheduler.snapshot()).state.counters.faults == 7


def test_a_group_that_was_begun_before_a_resume_arrives_and_trains_only_once() -> None:
    saved = beginning() | {"unfinished_train_indices": [0], "next_train_index": 1}
    hand = Hand(saved=saved)
    hand.load_weights()
    hand.bring(0)
    hand.play(member(0))
    assert hand.state.learner.step is not None
    hand.update_and_load()
    ignored = hand.state.counters.ignored_events
    hand.tell(TasksArrived((train_group(0),), 1))
    assert (hand.commands, hand.state.counters.ignored_events) == ([], ignored + 1)
