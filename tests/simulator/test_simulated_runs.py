"""Whole runs in virtual time; invariants are checked after every event where it says so."""

import gc
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from setups import random_config, small_config

from tiderl_jax.core.commands import (
    Abort,
    Command,
    DropReason,
    DropRollout,
    Finish,
    Pause,
    Publish,
    Repartition,
    RequestTasks,
    Resume,
    StartStep,
    StepMode,
)
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event, Updated
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.loop import replay
from tiderl_jax.scheduler.presets import PRESETS
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.simulator.costs import cost_model
from tiderl_jax.simulator.simulate import Simulated, simulate
from tiderl_jax.simulator.swarm import flaws

Changes = dict[str, Any]
SHARED: Changes = {
    "partition.share_devices": True,
    "partition.n_rollout_ranks": 4,
    "partition.actor_devices": 4,
}
ELASTIC: Changes = {
    "steps": 12,
    "partition.n_rollout_ranks": 2,
    "partition.actor_devices": 3,
    "partition.min_rollout_ranks": 1,
    "partition.max_rollout_ranks": 4,
    "scheduler.elastic.trial_steps": 1,
    "scheduler.elastic.confirm_steps": 1,
    "evaluation.n_tasks": 0,
}


class Record:
    """All events and commands of a run, with their times."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.events: list[Event] = []
        self.commands: list[Command] = []

    def __call__(self, event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        self.times_ns.append(now_ns)
        self.events += [] if event is None else [event]
        self.commands += commands

    def of(self, kind: type) -> list[Any]:
        return [said for said in (*self.commands, *self.events) if isinstance(said, kind)]


def checked(config: ExperimentConfig, **options: Any) -> Simulated:
    """A run whose invariants are checked after every event."""
    return simulate(config, events_per_check=1, **options)


def trained_everything(config: ExperimentConfig, run: Simulated) -> None:
    """The run came to its end, each group was used once, and nothing is in flight."""
    assert flaws(config, run) == []


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("machine", [{}, SHARED], ids=["divided", "shared"])
def test_a_run_trains_all_its_steps_and_ends_with_nothing_in_flight(
    preset: str, machine: Changes
) -> None:
    config = small_config(preset, **machine)
    run = checked(config)
    trained_everything(config, run)
    n_groups = config.steps * config.rollout.prompts_per_step
    assert len(run.tally.trained_groups) == n_groups
    assert run.tally.faults == {}


def test_time_never_runs_backwards_and_the_same_seed_gives_the_same_run() -> None:
    first, second = Record(), Record()
    config = random_config(11)
    for record in (first, second):
        simulate(config, observers=[record], timeline=False)
    assert first.times_ns == sorted(first.times_ns)
    assert (first.times_ns, first.commands) == (second.times_ns, second.commands)
    other = Record()
    simulate(small_config("tiderl", seed=1), observers=[other], timeline=False)
    assert other.times_ns != first.times_ns


def test_nothing_has_to_be_collected_during_a_run_so_nothing_is_looked_for() -> None:
    found, enabled = list[int](), list[bool]()

    def look(event: Event | None, commands: Sequence[Command], now_ns: int) -> None:
        enabled.append(gc.isenabled())
        if event is None or any(isinstance(command, Finish) for command in commands):
            found.append(gc.collect())

    assert gc.isenabled()
    simulate(random_config(11), observers=[look])
    assert gc.isenabled()
    assert not any(enabled)
    assert len(found) == 2
    assert found[-1] == 0


def test_over_subscribed_kv_pauses_and_resumes_and_everything_still_ends() -> None:
    config = small_config("tiderl_paper", pool=1.2)
    record = Record()
    run = checked(config, observers=[record])
    trained_everything(config, run)
    paused, resumed = record.of(Pause), record.of(Resume)
    assert len(paused) > 10
    assert len(resumed) > 10
    assert run.tally.outcomes[Outcome.TRUNCATED_TIME] == 0  # nobody starves


def test_keeping_kv_between_turns_finds_more_of_it_than_giving_it_up() -> None:
    kept = simulate(small_config("tiderl", pool=1.5))
    given_up = simulate(small_config("tiderl", pool=1.5, scheduler__batching="request"))
    assert kept.summary["kv_hit_rate"] > given_up.summary["kv_hit_rate"]


def test_turns_that_follow_their_kv_find_more_of_it_than_turns_that_do_not() -> None:
    sticky, other = (
        simulate(small_config(preset)).summary for preset in ("async", "async_nonsticky")
    )
    assert sticky["kv_hit_rate"] > other["kv_hit_rate"]


def test_asynchronous_training_has_the_higher_goodput_and_lock_step_the_lowest() -> None:
    lockstep, sync, tiderl = (
        simulate(small_config(preset)).summary["goodput_tokens_per_s"]
        for preset in ("sync_lockstep", "sync", "tiderl")
    )
    assert lockstep < sync < tiderl


def test_what_trains_is_what_the_seed_says_whatever_the_policy() -> None:
    mixes = [
        simulate(small_config(preset, simulation__profile="mixed")).tally.workloads
        for preset in ("sync", "async")
    ]
    for workload in ("fast", "slow"):
        first, second = (mix[workload] for mix in mixes)
        assert first.trained_groups == second.trained_groups > 0
        assert first.trained.turns == second.trained.turns
    fast, slow = (mixes[0][workload].trained for workload in ("fast", "slow"))
    assert slow.turns / slow.n > fast.turns / fast.n
    assert slow.duration_s / slow.n > 2 * fast.duration_s / fast.n


@pytest.mark.parametrize("preset", ["sync", "tiderl"])
def test_an_evaluation_samples_all_its_tasks_under_one_version(preset: str) -> None:
    config = small_config(preset, seed=3)
    run = checked(config)
    versions = Counter(version for _, version in run.tally.evaluated)
    n_tasks = config.evaluation.n_tasks
    assert versions == {0: 2 * n_tasks, 2: 2 * n_tasks, 4: 2 * n_tasks}
    assert run.scheduler.state.n_evaluations == 3


def test_no_version_is_published_while_an_evaluation_runs() -> None:
    record = Record()
    config = small_config("tiderl", seed=1)
    run = checked(config, observers=[record])
    published = [command.version for command in record.of(Publish)]
    assert published == sorted(set(published))
    assert published[-1] == config.steps
    assert {version for _, version in run.tally.evaluated} <= set(published)


@pytest.mark.parametrize("mode", StepMode)
def test_both_modes_of_a_step_train_everything(mode: StepMode) -> None:
    config = small_config("async", scheduler__pipelining=mode.value)
    record = Record()
    trained_everything(config, checked(config, observers=[record]))
    assert {command.mode for command in record.of(StartStep)} == {mode}


@pytest.mark.parametrize("preset", ["tiderl_paper", "tiderl"])
def test_ranks_move_between_the_pools_and_no_sample_is_lost_or_doubled(preset: str) -> None:
    config = small_config(preset, **ELASTIC)
    record = Record()
    run = checked(config, observers=[record])
    trained_everything(config, run)
    assert len(record.of(Repartition)) >= 2
    assert run.summary["repartitions"] == len(record.of(Repartition))


def test_tokens_are_trained_at_their_own_lag_and_within_the_bound() -> None:
    config = small_config("tiderl", steps=8)
    record = Record()
    run = checked(config, observers=[record])
    for event in record.of(Updated):
        assert sum(n_tokens for _, n_tokens in event.tokens_at_lag) == event.trained_tokens
        assert all(0 <= lag <= config.scheduler.staleness_bound for lag, _ in event.tokens_at_lag)
    assert run.tally.tokens_at_lag[1] > 0
    assert run.tally.tokens_at_lag.total() == run.tally.trained_tokens


def test_spare_members_are_dropped_as_soon_as_the_others_have_ended() -> None:
    config = small_config("async", rollout__group__extra_members=2)
    record = Record()
    run = checked(config, observers=[record])
    trained_everything(config, run)
    assert len(record.of(DropRollout)) > 0
    n_trained = config.steps * config.rollout.prompts_per_step * config.rollout.samples_per_prompt
    assert sum(workload.trained.n for workload in run.tally.workloads.values()) == n_trained


@pytest.mark.parametrize(
    ("fault", "rate"),
    [
        ("probe", 0.2),
        ("crash", 0.05),
        ("hang", 0.05),
        ("late", 0.3),
        ("engine", 0.05),
        ("duplicate", 0.3),
        ("rank_loss_per_hour", 200.0),
        ("slow_weights", 0.5),
        ("lost_acknowledgement", 0.5),
    ],
)
def test_every_kind_of_fault_is_survived_alone(fault: str, rate: float) -> None:
    config = small_config("tiderl_paper", **{f"simulation.faults.{fault}": rate})
    run = checked(config)
    trained_everything(config, run)
    assert sum(run.tally.faults.values()) > 0


def test_an_environment_that_never_answers_costs_its_deadline_and_not_the_step() -> None:
    config = small_config("sync", seed=5, simulation__faults__hang=0.05)
    run = checked(config)
    trained_everything(config, run)
    counters = run.scheduler.state.counters
    assert counters.faults == run.tally.faults["hang"] > 0
    assert counters.retries + sum(counters.dropped_groups.values()) >= counters.faults / 2


def test_dropped_groups_are_replaced_until_every_batch_is_full() -> None:
    """H2 of the users' cases; `flaws` holds where the loader stands against what arrived."""
    faults: Changes = {
        "environment.max_attempts": 1,
        "simulation.faults.crash": 0.05,
        "simulation.faults.probe": 0.1,
    }
    config = small_config("tiderl_paper", seed=2, **faults)
    run = checked(config)
    trained_everything(config, run)
    assert DropReason.ENV_ERROR in run.tally.dropped_groups.values()


def test_a_broken_world_ends_after_the_fault_budget() -> None:
    broken: Changes = {"environment.max_faults": 20, "simulation.faults.crash": 1.0}
    run = checked(small_config("tiderl", **broken))
    assert isinstance(run.last, Abort)
    assert run.scheduler.state.counters.faults == 21


def test_no_rollout_starves_when_slots_and_kv_are_scarce() -> None:
    scarce: Changes = {
        "partition.n_rollout_ranks": 1,
        "decoder.n_slots": 1,
        "rollout.deadline_s": 1e6,
        "environment.idle_lease_s": 1e6,
    }
    config = small_config("tiderl_paper", pool=1.2, **scarce)
    trained_everything(config, checked(config))


@pytest.mark.parametrize("preset", ["sync", "tiderl"])
def test_replaying_the_journal_gives_the_same_state(preset: str) -> None:
    faults = {"crash": 0.02, "hang": 0.01, "engine": 0.02, "duplicate": 0.1}
    changes = {f"simulation.faults.{kind}": rate for kind, rate in faults.items()}
    config = small_config(preset, seed=7, **changes)
    run = simulate(config, journal=True)
    again = Scheduler.of(config, rank_specs(config), cost_model(config).step)
    replay(again, 0, run.journal)
    assert again.state == run.scheduler.state


def test_a_journal_and_a_timeline_are_kept_only_when_they_are_asked_for() -> None:
    config = small_config("sync", steps=1)
    bare, whole = simulate(config, timeline=False), simulate(config, journal=True)
    assert bare.journal == []
    assert bare.summary == whole.summary
    assert len(whole.journal) > 100
    json.dumps(whole.summary)


@pytest.mark.parametrize("preset", ["sync", "stream", "tiderl"])
@pytest.mark.parametrize("stop_s", [0.0, 0.5, 5.0, 20.0])
def test_a_stopped_run_goes_on_from_its_snapshot_and_trains_each_group_once(
    preset: str, stop_s: float
) -> None:
    config = small_config(preset, seed=4, steps=6)
    first = checked(config, stop_s=stop_s)
    saved = json.loads(json.dumps(first.scheduler.snapshot()))
    assert first.last == Finish(complete=False)
    second = checked(config, saved=saved)
    assert second.last == Finish(complete=True)
    n_kept = saved["steps_done"] * config.rollout.prompts_per_step
    trained = first.tally.trained_groups[:n_kept] + second.tally.trained_groups
    n_groups = config.steps * config.rollout.prompts_per_step
    assert len(trained) == len(set(trained)) == n_groups


def test_a_run_can_be_stopped_at_any_event_and_loses_nothing() -> None:
    """H8 of the users' cases: what was asked for has trained, was dropped, or comes again."""
    small: Changes = {"rollout.prompts_per_step": 2, "rollout.samples_per_prompt": 2}
    config = small_config("tiderl", steps=3, evaluation__n_tasks=1, **small)
    times_ns = [now_ns for _, now_ns in simulate(config, journal=True, timeline=False).journal]
    for now_ns in times_ns[:: -(-len(times_ns) // 200)]:
        run = checked(config, stop_s=now_ns / 1e9, timeline=False)
        state, tally = run.scheduler.state, run.tally
        assert state.n_environments == 0
        assert not state.groups
        assert all(not rank.decoding and rank.used_tokens == 0 for rank in state.ranks.values())
        trained, dropped = set(tally.trained_groups), set(tally.dropped_groups)
        assert not trained & dropped
        assert len(trained | dropped) == state.next_train_index
        step = state.learner.step  # fed in part; what it had is trained again, whole
        again = dropped | (set(step.groups) if step else set())
        unfinished = run.scheduler.snapshot()["unfinished_train_indices"]
        assert unfinished == sorted(group.number for group in again)


def test_a_resumed_run_hands_out_again_what_was_in_flight() -> None:
    first = simulate(small_config("sync", seed=4, steps=8), stop_s=20.0)
    saved = first.scheduler.snapshot()
    arrived = set(range(saved["next_train_index"]))
    trained = {group.number for group in first.tally.trained_groups}
    stopped = {
        group.number
        for group, reason in first.tally.dropped_groups.items()
        if reason is DropReason.UNFINISHED
    }
    assert set(saved["unfinished_train_indices"]) == stopped
    assert stopped
    assert trained | stopped == arrived


def test_work_without_an_event_to_come_is_called_a_stall() -> None:
    def forget_requests(event: object, commands: list[Command], now_ns: int) -> None:
        commands[:] = [command for command in commands if not isinstance(command, RequestTasks)]

    with pytest.raises(InvariantError, match="stalled"):
        simulate(small_config("tiderl"), observers=[forget_requests])
