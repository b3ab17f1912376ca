"""Whole runs in virtual time; invariants are checked after every event."""

from collections import Counter
from dataclasses import replace

import pytest
from setups import random_setup, small_setup

from tiderl_jax.core.commands import (
    Abort,
    DropReason,
    Finish,
    Pause,
    Publish,
    RequestTasks,
    Resume,
    StartStep,
)
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import Purpose
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.loop import replay
from tiderl_jax.simulator.profile import FaultRates, WorkloadProfile
from tiderl_jax.simulator.simulate import Setup, Simulated, simulate

PRESETS = ("sync", "tiderl")


class Record:
    """All commands of a run, with their times."""

    def __init__(self) -> None:
        self.commands: list[tuple[object, int]] = []

    def __call__(self, event: object, commands: object, now_ns: int) -> None:
        self.commands += [(command, now_ns) for command in commands]  # type: ignore[attr-defined]

    def of(self, kind: type) -> list:
        return [command for command, _ in self.commands if isinstance(command, kind)]


def trained_everything(setup: Setup, run: Simulated) -> None:
    assert run.last == Finish(complete=True)
    groups = run.tally.trained_groups
    assert len(groups) == len(set(groups)) == setup.steps * setup.rollout.prompts_per_step
    assert all(group.purpose is Purpose.TRAIN for group in groups)
    assert all(0 <= lag <= setup.scheduler.staleness_bound for lag in run.tally.lags)
    assert not run.scheduler.state.groups
    assert run.scheduler.state.n_environments == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_trains_all_its_steps_and_ends_with_nothing_in_flight(preset: str) -> None:
    setup = small_setup(preset)
    run = simulate(setup)
    trained_everything(setup, run)
    assert run.scheduler.state.counters.ignored_events == 0 or preset == "tiderl"


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_random_limits_policies_and_faults_drain_without_breaking_an_invariant(start: int) -> None:
    for seed in range(start, start + 50):
        setup = random_setup(seed)
        try:
            trained_everything(setup, simulate(setup))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_over_subscribed_kv_pauses_and_resumes_and_everything_still_ends() -> None:
    setup = small_setup("tiderl", pool=1.2)
    record = Record()
    run = simulate(setup, observers=[record])
    trained_everything(setup, run)
    paused, resumed = record.of(Pause), record.of(Resume)
    assert len(paused) > 10
    assert len(resumed) > 10
    rank_of = {command.rollout: command.rank for command in paused}
    assert all(rank_of[command.rollout] == command.rank for command in resumed)
    assert run.tally.outcomes.get(Outcome.TRUNCATED_TIME, 0) == 0  # nobody starves


def test_keeping_kv_between_turns_finds_more_of_it_than_giving_it_up() -> None:
    setup = small_setup("tiderl", pool=1.5)
    kept = simulate(setup, events_per_check=1000)
    given_up = simulate(
        replace(setup, scheduler=replace(setup.scheduler, batching="request")),
        events_per_check=1000,
    )
    assert kept.kv_hit_rate > given_up.kv_hit_rate


def test_asynchronous_training_has_the_higher_goodput() -> None:
    sync, tiderl = (simulate(small_setup(preset), events_per_check=1000) for preset in PRESETS)
    assert tiderl.goodput_tokens_per_s > sync.goodput_tokens_per_s


@pytest.mark.parametrize("preset", PRESETS)
def test_an_evaluation_samples_all_its_tasks_under_one_version(preset: str) -> None:
    setup = small_setup(preset, seed=3)
    run = simulate(setup)
    n_tasks = setup.evaluation.n_tasks
    versions = Counter(version for _, version in run.tally.evaluated)
    assert versions == {0: 2 * n_tasks, 2: 2 * n_tasks, 4: 2 * n_tasks}
    assert run.scheduler.state.n_evaluations == 3


def test_no_version_is_published_while_an_evaluation_runs() -> None:
    setup = small_setup("tiderl", seed=1)
    published: list[int] = []

    def observe(event: object, commands: list, now_ns: int) -> None:
        published.extend(c.version for c in commands if isinstance(c, Publish))

    run = simulate(setup, observers=[observe])
    assert published == sorted(set(published))
    assert published[-1] == setup.steps
    assert {version for _, version in run.tally.evaluated} <= set(published)


def test_an_environment_that_never_answers_costs_its_deadline_and_not_the_step() -> None:
    setup = replace(small_setup("sync", seed=5), faults=FaultRates(hang=0.05))
    run = simulate(setup)
    trained_everything(setup, run)
    counters = run.scheduler.state.counters
    assert counters.faults > 0
    assert counters.retries + sum(counters.dropped_groups.values()) >= counters.faults / 2


def test_dropped_groups_are_replaced_until_every_batch_is_full() -> None:
    setup = small_setup("tiderl", seed=2)
    setup = replace(
        setup,
        environment=replace(setup.environment, max_attempts=1),
        faults=FaultRates(crash=0.05, probe=0.1),
    )
    run = simulate(setup)
    trained_everything(setup, run)
    assert DropReason.ENV_ERROR in run.tally.dropped_groups.values()


def test_a_broken_world_ends_after_the_fault_budget() -> None:
    setup = small_setup("tiderl")
    setup = replace(
        setup,
        environment=replace(setup.environment, max_faults=20),
        faults=FaultRates(crash=1.0),
    )
    run = simulate(setup)
    assert isinstance(run.last, Abort)
    assert run.scheduler.state.counters.faults == 21


def test_no_rollout_starves_when_slots_and_kv_are_scarce() -> None:
    setup = small_setup("tiderl", n_ranks=1, pool=1.2)
    setup = replace(
        setup,
        ranks=tuple(replace(spec, n_slots=1) for spec in setup.ranks),
        rollout=replace(setup.rollout, deadline_s=1e6),
        profile=WorkloadProfile(mean_turns=3.0, delay_sigma=0.3),
    )
    trained_everything(setup, simulate(setup))


@pytest.mark.parametrize("preset", PRESETS)
def test_replaying_the_journal_gives_the_same_state(preset: str) -> None:
    setup = replace(small_setup(preset, seed=7), faults=FaultRates(0.05, 0.02, 0.01, 0.02, 0.1))
    run = simulate(setup)
    again = setup.new_scheduler()
    replay(again, 0, run.journal)
    assert again.state == run.scheduler.state


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("stop_s", [0.0, 0.5, 2.0, 6.0])
def test_a_stopped_run_goes_on_from_its_snapshot_and_trains_each_group_once(
    preset: str, stop_s: float
) -> None:
    setup = small_setup(preset, seed=4)
    record = Record()
    first = simulate(setup, stop_s=stop_s, observers=[record])
    saved = first.scheduler.snapshot()
    assert first.last == Finish(complete=False)
    second = simulate(setup, saved=saved)
    assert second.last == Finish(complete=True)
    trained = first.tally.trained_groups + second.tally.trained_groups
    assert len(trained) == len(set(trained)) == setup.steps * setup.rollout.prompts_per_step
    assert len(record.of(StartStep)) == saved["steps_done"]


def test_a_resumed_run_hands_out_again_what_was_in_flight() -> None:
    setup = small_setup("tiderl", seed=4)
    first = simulate(setup, stop_s=2.0)
    saved = first.scheduler.snapshot()
    arrived = set(range(saved["next_train_index"]))
    trained = {group.number for group in first.tally.trained_groups}
    stopped = {
        group.number
        for group, reason in first.tally.dropped_groups.items()
        if reason is DropReason.UNFINISHED and group.purpose is Purpose.TRAIN
    }
    assert set(saved["unfinished_train_indices"]) == stopped
    assert stopped
    assert trained | stopped == arrived


def test_work_without_an_event_to_come_is_called_a_stall() -> None:
    setup = small_setup("tiderl")

    def forget_requests(event: object, commands: list, now_ns: int) -> None:
        commands[:] = [command for command in commands if not isinstance(command, RequestTasks)]

    with pytest.raises(InvariantError, match="stalled"):
        simulate(setup, observers=[forget_requests])
