"""Suites of claims, each made small: what they measure, and that they measure it."""

import json
from math import inf
from pathlib import Path

import pytest

from experiments.suites import ctb, ers, ra2p, selection, side_by_side
from experiments.suites.ra2p import COLOCATED, Execution
from experiments.suites.scheduler import text_setting
from tiderl_jax.core import commands, events
from tiderl_jax.core.commands import StepMode
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.core.events import TurnStop
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.policies import StepPlan
from tiderl_jax.scheduler.step_costs import (
    Arrivals,
    StepCosts,
    colocated_s,
    simulated_decoupled_s,
    swap_per_microbatch_s,
)

COSTS = StepCosts(3e-5, 4e-5, 8e-5, swap_s=0.4, microbatch_s=0.02)
TIMES = COSTS.times(ra2p.TOKENS)


def ready_s(arrivals: Arrivals) -> list[float]:
    return [arrivals.at_s(i) for i in range(arrivals.n_total)]


@pytest.mark.parametrize(
    "arrivals", [Arrivals(8, inf, 8), Arrivals(3, 0.7, 16), Arrivals(0, 2.5, 9)]
)
def test_steps_are_carried_out_as_the_cost_models_say(arrivals: Arrivals) -> None:
    decoupled = Execution(COSTS, 4, StepPlan(StepMode.DECOUPLED, 1))
    assert decoupled.step_s(ready_s(arrivals)) == pytest.approx(
        simulated_decoupled_s(arrivals, TIMES, 4, 1)
    )
    colocated = Execution(COSTS, 4, COLOCATED)
    assert colocated.step_s(ready_s(arrivals)) == pytest.approx(colocated_s(arrivals, TIMES, 4))
    streamed = Execution(COSTS, 4, COLOCATED, n_at_once=4)
    assert streamed.step_s(ready_s(arrivals)) == pytest.approx(
        swap_per_microbatch_s(arrivals, TIMES, 4)
    )


def test_a_saturating_feed_waits_for_every_rank_or_the_last_microbatch() -> None:
    step = Execution(COSTS, 2, COLOCATED, saturating=True)
    wave_s = 2 * TIMES.swap_s + TIMES.score_s + TIMES.train_s
    assert step.step_s([0.0, 5.0, 20.0]) == pytest.approx(20 + wave_s)
    assert step.step_s([0.0, 0.5, 20.0, 20.0]) == pytest.approx(20 + wave_s)
    assert step.step_s([0.0, 0.5]) == pytest.approx(0.5 + wave_s)


def test_a_picker_is_held_against_what_the_steps_then_took(monkeypatch) -> None:
    monkeypatch.setattr(ra2p, "N_TOTAL", (16,))
    outcome = ra2p.outcomes(COSTS, 4, None)
    assert outcome["ra2p_planned"] == 1
    assert outcome["decoupled"] > outcome["colocated"] > 0
    monkeypatch.setattr(ra2p, "picked", lambda *_: "colocated")
    assert ra2p.outcomes(COSTS, 4, None)["ra2p_planned"] < 0.5


def test_ra2p_states_its_grid_and_its_micro_benchmark(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ra2p, "N_TOTAL", (8,))
    monkeypatch.setattr(ra2p, "SEEDS", (0, 1))
    results = {claim["name"]: claim for claim in ra2p.run(tmp_path)}
    assert results["ra2p, 4 ranks: picks within 2 %, random arrivals"]["n"] == 2
    micro = json.loads((tmp_path / "micro_benchmark.json").read_text())["7b"]
    saved = results["step time of 7b, 8 microbatches ready on 4 H100"]
    assert saved["value"] == micro["picked"] / micro["streamed with swaps"]
    assert micro["picked"] <= 1.02 * min(micro["decoupled"], micro["colocated"])


def small(**changes: object) -> ExperimentConfig:
    """The text setting with steps of two groups of two."""
    sizes = {"prompts_per_step": 2, "min_prompts_per_step": 2, "samples_per_prompt": 2}
    sized = {f"rollout.{name}": size for name, size in sizes.items()}
    return text_setting(**{"steps": 2, "evaluation.n_tasks": 0, **sized, **changes})


GROUPS = tuple(GroupId(Purpose.TRAIN, number) for number in range(5))
RANK, VERSION = RankId(0), PolicyVersion(0)


def test_tasks_are_let_in_by_the_capacity_rule_and_turns_wait_from_the_answer() -> None:
    waits, rollout = ctb.Waits(small()), RolloutId(GROUPS[0], 0)
    turn = commands.RunTurn(rollout, RANK)
    ended = events.TurnEnded(rollout, RANK, TurnStop.END_OF_TURN, 50, 0, 100, VERSION)
    waits.observe(None, [commands.Publish(VERSION, (RANK,))], 0)
    waits.observe(events.TasksArrived(GROUPS, 2), [], 10)
    waits.observe(events.EnvironmentReady(rollout, 100), [turn], 20)
    waits.observe(ended, [], 30)
    waits.observe(events.EnvironmentReady(rollout, 10), [], 40)
    waits.observe(None, [turn], 47)
    waits.observe(ended, [], 50)
    waits.observe(events.RolloutEnded(rollout, Outcome.FINISHED), [], 60)
    assert waits.turns_ns == [7]
    assert waits.complete_ns == {GROUPS[0]: 60}
    assert waits.let_in_ns == dict.fromkeys(GROUPS[:4], 10)  # two steps of two
    waits.observe(None, [commands.Feed(0, 0, GROUPS[:2], (), True)], 70)
    waits.observe(None, [commands.Publish(PolicyVersion(1), (RANK,))], 80)
    assert waits.let_in_ns[GROUPS[4]] == 80
    assert waits.mean_context_tokens * 80 == 10 * 100 + 10 * 150 + 10 * 160 + 10 * 210
    assert waits.trained == {*GROUPS[:2]}


def test_ctb_keeps_kv_where_rollouts_need_more_than_the_pools_hold(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(ctb, "SEEDS", (0,))
    monkeypatch.setattr(ctb, "BASE", {**ctb.BASE, "steps": 2})
    monkeypatch.setattr(ctb, "POLICIES", {name: ctb.POLICIES[name] for name in ("lru", "ctb")})
    results = {claim["name"]: claim for claim in ctb.run(tmp_path)}
    assert results["KV hit of ctb"]["met"]
    assert results["KV hit of ctb"]["baseline"] == "lru"
    assert results["KV hit of ctb over the best cap"]["value"] is None  # no cap was measured
    rows = (tmp_path / "policies.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| lru", "| ctb"]
    assert 1.4 < float(rows[2].split(" | ")[-1].strip("| ")) < 2.5


def test_a_run_that_cannot_go_on_is_an_error() -> None:
    broken = small(**{"simulation.faults.crash": 1.0, "environment.max_faults": 3})
    with pytest.raises(TiderlError, match="More than 3 faults"):
        side_by_side.finished(broken)


def test_every_static_split_is_held_against_every_elastic_policy(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(ers, "SEEDS", (0,))
    monkeypatch.setattr(ers, "BASE", {**ers.BASE, "steps": 2, "rollout.samples_per_prompt": 1})
    results = ers.run(tmp_path)
    rows = (tmp_path / "policies.md").read_text().splitlines()[2:]
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in rows}
    assert [*cells] == [*(f"static@{n}" for n in range(1, 8)), "ers", "ers_1_to_4", "ers_guarded"]
    waited = {name: float(row[5]) for name, row in cells.items()}
    least = min((name for name in waited if "static" in name), key=waited.__getitem__)
    assert results[0]["baseline"] == least
    assert results[0]["value"] == pytest.approx(waited["ers"] / waited[least], rel=1e-2)
    moved = {name for name, row in cells.items() if float(row[8]) > 0}
    assert moved == {"ers", "ers_1_to_4"}  # two steps are too few for a guarded move


def fed(step: int, *groups: GroupId) -> commands.Feed:
    rollouts = tuple(RolloutId(group, 0) for group in groups)
    microbatch = commands.Microbatch(0, rollouts, 100)
    return commands.Feed(step, 0, groups, (microbatch,), True)


def test_tokens_are_fresh_by_the_version_that_their_turn_began_under() -> None:
    mix = selection.Mix(staleness_bound=1)
    mix.observe(events.TasksArrived(GROUPS[:2], 1), [], 0)
    for group, version, n_tokens in ((0, 0, 1), (0, 1, 10), (1, 1, 100), (1, 2, 1000)):
        rollout = RolloutId(GROUPS[group], 0)
        stop, oldest = TurnStop.END_OF_TURN, PolicyVersion(version)
        ended = events.TurnEnded(rollout, RANK, stop, n_tokens, 0, 0, oldest)
        mix.observe(ended, [], 0)
    mix.observe(None, [fed(2, GROUPS[1], GROUPS[0])], 0)
    updated = events.Updated(2, PolicyVersion(3), "", 1111, 2000, (), 1, (1, 2), (), 0.0)
    mix.observe(updated, [], 0)
    assert mix.fresh_tokens == {GROUPS[0]: 10, GROUPS[1]: 1100}  # trained at version 2
    assert (mix.asked, mix.trained) == ([*GROUPS[:2]], [GROUPS[1], GROUPS[0]])
    assert mix.step_of == dict.fromkeys(GROUPS[:2], 2)


def test_a_synchronous_run_trains_the_mix_that_was_asked(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(selection, "SEEDS", (0,))
    monkeypatch.setattr(selection, "BASE", {**selection.BASE, "steps": 4})
    for name in ("one_step_off", "async", "stream", "tiderl"):
        monkeypatch.delitem(selection.POLICIES, name)
    results = {claim["name"]: claim["value"] for claim in selection.run(tmp_path)}
    sync = [value for name, value in results.items() if name.startswith("sync: mix")]
    assert sync == [0, 0, 0]
    assert results["sync: turns trained over turns sampled"] == 1
    late = results["async, bounded: mix of groups, first half, distance from the mix asked"]
    assert late > 0.1
