"""Draws are functions of identity: the same for every policy, in every order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from configs import base
from tiderl_jax.core.config import FaultConfig, RolloutConfig, SimulationConfig
from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.resolve import into
from tiderl_jax.simulator import draws as module
from tiderl_jax.simulator.draws import ENDLESS_TURNS, Draws, EpisodePlan
from tiderl_jax.simulator.profiles import PROFILES, Profile

DOCUMENT = base.get_config().to_dict()
SIMULATION = into(SimulationConfig, DOCUMENT["simulation"])
ROLLOUT = replace(
    into(RolloutConfig, DOCUMENT["rollout"]), max_tokens_per_turn=512, max_context_tokens=8192
)
NO_FAULTS = SIMULATION.faults
FAULTS = tuple(FaultConfig.__slots__)
MAX_TURNS = 20


def draws(profile: str = "webshop", seed: int = 0, **changes: object) -> Draws:
    simulation = replace(SIMULATION, profile=profile, **changes)
    return Draws(seed, simulation, ROLLOUT, MAX_TURNS)


def faulty(**rates: float) -> Draws:
    return draws(faults=replace(NO_FAULTS, **rates))


def group(number: int, purpose: Purpose = Purpose.TRAIN) -> GroupId:
    return GroupId(purpose, number)


def rollout(number: int, member: int = 0, attempt: int = 0) -> RolloutId:
    return RolloutId(group(number), member, attempt)


def plans(world: Draws, n: int = 400) -> list[EpisodePlan]:
    return [world.episode(rollout(number)) for number in range(n)]


def use(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """`webshop` with other workload fields."""
    (workload,) = PROFILES["webshop"].workloads
    changed = Profile((replace(workload, **changes),))
    monkeypatch.setattr(module, "PROFILES", {"webshop": changed})


@pytest.mark.parametrize("profile", PROFILES)
def test_order_of_asking_changes_nothing(profile: str) -> None:
    ids = [rollout(number, member) for number in range(20) for member in range(3)]
    forward, backward = draws(profile), draws(profile)
    expected = {i: (forward.episode(i), forward.prompt_tokens(i.group)) for i in ids}
    found = {i: (backward.prompt_tokens(i.group), backward.episode(i)) for i in reversed(ids)}
    assert {i: pair[::-1] for i, pair in found.items()} == expected


def test_every_part_of_an_identity_counts() -> None:
    ids = [
        rollout(1),
        rollout(2),
        rollout(1, member=1),
        rollout(1, attempt=1),
        RolloutId(group(1, Purpose.EVALUATE), 0),
    ]
    found = [draws().episode(i).delays_s[0] for i in ids]
    found.append(draws(seed=1).episode(rollout(1)).delays_s[0])
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plan_lists_every_turn_up_to_the_limit(profile: str) -> None:
    for plan in plans(draws(profile), 100):
        n = min(plan.n_turns, MAX_TURNS)
        assert n >= 1
        assert len(plan.generated_tokens) == len(plan.cut) == len(plan.observation_tokens) == n
        assert len(plan.delays_s) == n + 1
        assert all(1 <= tokens <= 512 for tokens in plan.generated_tokens)
        assert all(tokens >= 1 for tokens in plan.observation_tokens)
        assert all(delay > 0 for delay in plan.delays_s)
        assert plan.reward in (0.0, 1.0)
        kinds = {type(value) for values in plan if isinstance(values, list) for value in values}
        assert kinds == {int, bool, float}


def test_members_of_a_group_share_prompt_and_kind_but_not_their_fate() -> None:
    world = draws("mixed")
    names = [world.workload(group(number)) for number in range(400)]
    assert names.count("fast") == pytest.approx(200, abs=40)
    assert set(names) == {"fast", "slow"}
    assert len({world.prompt_tokens(group(number)) for number in range(50)}) > 30
    assert world.episode(rollout(1)) != world.episode(rollout(1, member=1))


def test_a_prompt_leaves_room_for_a_turn() -> None:
    tight = Draws(0, SIMULATION, replace(ROLLOUT, max_context_tokens=600), MAX_TURNS)
    assert max(tight.prompt_tokens(group(number)) for number in range(50)) <= 600 - 512


def test_success_and_endless_episodes_come_as_often_as_the_profile_says() -> None:
    found = plans(draws("terminal"), 3000)
    assert np.mean([plan.reward for plan in found]) == pytest.approx(0.4, abs=0.03)
    endless = [plan for plan in found if plan.n_turns == ENDLESS_TURNS]
    assert len(endless) / len(found) == pytest.approx(0.02, abs=0.008)
    assert all(len(plan.cut) == MAX_TURNS for plan in endless)


def test_cut_turns_take_their_whole_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, cut_turn=0.2)
    turns = [turn for plan in plans(draws()) for turn in zip(*plan[1:3], strict=True)]
    assert all(tokens == 512 for tokens, cut in turns if cut)
    assert np.mean([cut for _, cut in turns]) == pytest.approx(0.2, abs=0.03)


def test_delays_scale_and_their_tail_widens_around_the_median() -> None:
    def answers(**changes: object) -> np.ndarray:
        return np.array([s for plan in plans(draws(**changes)) for s in plan.delays_s[1:]])

    usual, scaled, wider = answers(), answers(delay_scale=3.0), answers(delay_tail=2.0)
    assert scaled == pytest.approx(3 * usual)
    assert np.median(wider) == pytest.approx(np.median(usual), rel=0.02)
    is_uncapped = wider < 30
    assert np.log(wider / 0.5)[is_uncapped] == pytest.approx(2 * np.log(usual / 0.5)[is_uncapped])


def test_turns_scale_and_never_fall_below_one() -> None:
    usual, more, few = (
        [plan.n_turns for plan in plans(draws(turns_scale=scale))] for scale in (1.0, 2.0, 0.01)
    )
    assert all(abs(m - 2 * u) <= 1 for u, m in zip(usual, more, strict=True))
    assert set(few) == {1}


def test_slow_and_fast_groups_alternate_in_blocks() -> None:
    world, steady = draws("alternating"), draws("webshop")
    size = PROFILES["alternating"].alternate_groups
    numbers = (0, size - 1, size, 2 * size - 1, 2 * size)
    factors = []
    for number in numbers:
        slow, usual = (w.episode(rollout(number)).delays_s for w in (world, steady))
        assert slow[0] == usual[0]  # starting is not slower
        factors.append(round(slow[1] / usual[1], 6))
    assert factors == [10, 10, 1, 1, 10]


def test_a_world_without_faults_draws_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = draws()

    def refuse(*_: object) -> None:
        raise AssertionError("drew")

    for name in ("key_words", "generator"):
        monkeypatch.setattr(module, name, refuse)
    rank, version = RankId(0), PolicyVersion(1)
    assert not world.probe_fails(group(0), 0)
    assert world.environment_fault(rollout(0), 1) == ""
    assert not world.engine_fails(rollout(0), 1)
    assert not world.is_duplicated(7)
    assert world.weights_delay_factor(rank, version) == 1
    assert not world.acknowledgement_lost(rank, version, 0)
    assert list(world.rank_loss_times(rank)) == []


def test_faults_come_as_often_as_configured() -> None:
    world = faulty(**dict.fromkeys(FAULTS, 0.1))
    ids, rank = range(4000), RankId(3)
    kinds = [world.environment_fault(rollout(0), turn) for turn in ids]
    shares = {
        **{kind: kinds.count(kind) / len(ids) for kind in ("crash", "hang", "late")},
        "probe": np.mean([world.probe_fails(group(1), n) for n in ids]),
        "engine": np.mean([world.engine_fails(rollout(1), turn) for turn in ids]),
        "duplicate": np.mean([world.is_duplicated(n) for n in ids]),
        "slow": np.mean([world.weights_delay_factor(rank, PolicyVersion(v)) == 10 for v in ids]),
        "lost": np.mean([world.acknowledgement_lost(rank, PolicyVersion(1), n) for n in ids]),
    }
    assert shares == pytest.approx(dict.fromkeys(shares, 0.1), abs=0.015)


def test_faults_of_one_kind_say_nothing_about_another() -> None:
    world = faulty(probe=0.5, engine=0.5)
    both = [
        (world.probe_fails(group(n), 0), world.engine_fails(rollout(n), 0)) for n in range(1000)
    ]
    assert np.mean([probe == engine for probe, engine in both]) == pytest.approx(0.5, abs=0.06)


def test_ranks_are_lost_at_their_rate_at_rising_times_of_their_own() -> None:
    world = faulty(rank_loss_per_hour=2.0)
    first, again, other = (
        list(itertools.islice(world.rank_loss_times(RankId(rank)), 1000)) for rank in (0, 0, 1)
    )
    assert first == again != other
    assert all(b > a for a, b in itertools.pairwise(first))
    assert first[-1] / 1000 == pytest.approx(1800, rel=0.1)


def test_an_unknown_profile_is_named_with_its_nearest() -> None:
    with pytest.raises(ConfigError, match="'webshoop': did you mean 'webshop'"):
        draws("webshoop")
