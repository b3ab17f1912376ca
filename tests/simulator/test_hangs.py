"""What users of such systems see hang (H1 to H8 of the users' cases), in virtual time."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from setups import small_config

from tiderl_jax.core import commands, events
from tiderl_jax.core.commands import Command, Feed, Finish, Publish
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.events import Event, TasksArrived, Updated, WeightsLoaded
from tiderl_jax.core.ids import GroupId, Purpose, RankId, RolloutId
from tiderl_jax.report.metrics import Row
from tiderl_jax.scheduler.snapshot import beginning
from tiderl_jax.simulator import simulate as simulation
from tiderl_jax.simulator.draws import Draws, EpisodePlan
from tiderl_jax.simulator.simulate import Simulated
from tiderl_jax.simulator.swarm import flaws

Happened = tuple[Event | None, list[Command], int]
Small = Callable[..., Simulated]
FIRST = GroupId(Purpose.TRAIN, 0)
ENDLESS_S = 1e6


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Small:
    """Simulates with other draws than chance would make; invariants are checked at every event."""

    def run(config: ExperimentConfig, draws: type[Draws] = Draws, **options: Any) -> Simulated:
        monkeypatch.setattr(simulation, "Draws", draws)
        return simulation.simulate(config, events_per_check=1, timeline=False, **options)

    return run


class Record:
    """What happened, in order."""

    def __init__(self) -> None:
        self.moves: list[Happened] = []

    def __call__(self, event: Event | None, said: Sequence[Command], now_ns: int) -> None:
        self.moves.append((event, list(said), now_ns))

    def said(self, kind: type) -> list[Any]:
        return [one for _, said, _ in self.moves for one in said if isinstance(one, kind)]

    def heard(self, kind: type) -> list[tuple[Any, float]]:
        """Events of a kind with their times in seconds."""
        return [(event, ns / 1e9) for event, _, ns in self.moves if isinstance(event, kind)]


def step_rows(run: Simulated) -> list[Row]:
    return [row for row in run.ledger.rows() if "rollout/trajectories" in row]


class OneNeverEnds(Draws):
    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        return "hang" if rollout == RolloutId(FIRST, 3) else ""


@pytest.mark.parametrize("preset", ["sync", "tiderl"])
def test_h1_a_rollout_that_never_ends_holds_its_group_up_to_the_deadline(
    preset: str, small: Small
) -> None:
    """The step takes the three of four that ended, and its metrics say how many trained."""
    config = small_config(
        preset,
        steps=2,
        rollout__prompts_per_step=1,
        rollout__deadline_s=ENDLESS_S,
        rollout__group__deadline_s=100.0,
        rollout__group__min_members=3,
        environment__step_deadline_s=ENDLESS_S,
        evaluation__n_tasks=0,
        scheduler__staleness_bound=0,
    )
    record = Record()
    run = small(config, OneNeverEnds, observers=[record])
    assert flaws(config, run) == []
    (feed, *_), ((_, updated_s), *_) = record.said(Feed), record.heard(Updated)
    members = {rollout.member for mb in feed.microbatches for rollout in mb.rollouts}
    assert (feed.groups, members) == ((FIRST,), {0, 1, 2})
    assert 100.0 < updated_s < 110.0
    assert [row["rollout/trajectories"] for row in step_rows(run)] == [3, 4]


class HalfOfTheGroupsFail(Draws):
    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        spoils = rollout.group.number % 2 == 0 and (rollout.member, turn) == (0, 1)
        return "crash" if spoils else ""


@pytest.mark.parametrize("preset", ["sync", "one_step_off", "async", "tiderl"])
def test_h2_when_half_of_the_groups_is_dropped_every_batch_is_full_all_the_same(
    preset: str, small: Small
) -> None:
    """Refill is counted from need, and the position in the tasks counts what was dropped.

    Groups are dropped for faults, age and lateness. One whose rewards are all equal is no drop: it
    takes a place in its batch and the learner leaves it out (reason `zero_advantage`).
    """
    config = small_config(preset, environment__max_attempts=1, evaluation__n_tasks=0)
    record = Record()
    run = small(config, HalfOfTheGroupsFail, observers=[record])
    assert flaws(config, run) == []
    n_needed = config.rollout.prompts_per_step
    n_taken = Counter[int]()
    for feed in record.said(Feed):
        n_taken[feed.step] += len(feed.groups)
    assert n_taken == dict.fromkeys(range(config.steps), n_needed)
    assert {group.number % 2 for group in run.tally.trained_groups} == {1}
    n_arrived = sum(len(event.groups) for event, _ in record.heard(TasksArrived))
    assert run.scheduler.snapshot()["next_train_index"] == n_arrived
    assert len(run.tally.dropped_groups) >= config.steps * n_needed - 1


class ThreePrompts(Draws):
    def workload(self, group: GroupId) -> str:
        return super().workload(_as_one_of_three(group))

    def prompt_tokens(self, group: GroupId) -> int:
        return super().prompt_tokens(_as_one_of_three(group))

    def episode(self, rollout: RolloutId) -> EpisodePlan:
        return super().episode(rollout._replace(group=_as_one_of_three(rollout.group)))


def _as_one_of_three(group: GroupId) -> GroupId:
    return group._replace(number=group.number % 3)


def test_h3_ten_steps_go_through_three_prompts_again_and_again(small: Small) -> None:
    config = small_config("tiderl", steps=10, rollout__prompts_per_step=2, evaluation__n_tasks=0)
    run = small(config, ThreePrompts)
    assert flaws(config, run) == []
    assert {group.number % 3 for group in run.tally.trained_groups} == {0, 1, 2}
    assert len(set(run.tally.trained_groups)) == 20


EVALUATION_S = 660.0


class LongEvaluation(Draws):
    def episode(self, rollout: RolloutId) -> EpisodePlan:
        plan = super().episode(rollout)
        if rollout.group.purpose.is_evaluation:
            delays_s = [1.0, EVALUATION_S, *plan.delays_s[2:]]
            return plan._replace(n_turns=1, cut=[False] * len(plan.cut), delays_s=delays_s)
        return plan


def test_h5_versions_that_are_minted_while_a_long_evaluation_runs_are_waited_for_by_nobody(
    small: Small,
) -> None:
    """The learner works on within its bound; what reaches the ranks is the newest, in order."""
    config = small_config(
        "tiderl_paper",
        steps=588,
        scheduler__staleness_bound=3,
        scheduler__max_open_groups=16,
        environment__step_deadline_s=ENDLESS_S,
        rollout__deadline_s=ENDLESS_S,
        evaluation__every_steps=584,
    )
    done = {"version": 584, "steps_done": 584, "groups_trained": 3 * 584, "next_train_index": 1752}
    record = Record()
    run = small(config, LongEvaluation, saved=beginning() | done, observers=[record])
    assert run.last == Finish(complete=True)
    minted = [(event.version, now_s) for event, now_s in record.heard(Updated)]
    assert [version for version, _ in minted] == [585, 586, 587, 588]
    assert minted[2][1] < EVALUATION_S < minted[3][1]
    assert [command.version for command in record.said(Publish)] == [584, 587, 588]
    for rank in map(RankId, range(2)):
        proved = [event.version for event, _ in record.heard(WeightsLoaded) if event.rank == rank]
        assert proved == [584, 587, 588]
    evaluated = {version for rollout, version in run.tally.evaluated if rollout.group.number < 3}
    assert evaluated == {584}


# H8: something is cancelled at each point where somebody waits.

Member = tuple[GroupId, int]


class Account:
    """What was submitted is queued, in a slot, or done; kept from events and commands alone."""

    def __init__(self, n_slots: int) -> None:
        self._n_slots = n_slots
        self.submitted: set[Member] = set()
        self.in_slot: dict[Member, RankId] = {}
        self.done: set[Member] = set()

    def __call__(self, event: Event | None, said: Sequence[Command], now_ns: int) -> None:
        match event:
            case events.TasksArrived(groups, n_members):
                self.submitted |= {(group, m) for group in groups for m in range(n_members)}
            case events.TurnEnded(rollout) | events.RolloutFailed(rollout):
                del self.in_slot[rollout.group, rollout.member]
            case events.RankLost(rank):
                self.in_slot = {m: on for m, on in self.in_slot.items() if on != rank}
            case events.RolloutEnded(rollout):
                self._end({(rollout.group, rollout.member)})
        for command in said:
            self._obey(command)

    def _obey(self, command: Command) -> None:
        match command:
            case commands.RunTurn(rollout, rank):
                member = rollout.group, rollout.member
                assert member in self.submitted - self.done - self.in_slot.keys()
                self.in_slot[member] = rank
                assert list(self.in_slot.values()).count(rank) <= self._n_slots
            case commands.Migrate(rollout):
                self.in_slot.pop((rollout.group, rollout.member), None)
            case commands.DropGroup(group):
                self._end({member for member in self.submitted if member[0] == group})

    def _end(self, members: set[Member]) -> None:
        self.done |= members
        self.in_slot = {m: rank for m, rank in self.in_slot.items() if m not in members}


def cancelled_at(point: int) -> type[Draws]:
    """A world in which nothing fails but the n-th thing that somebody waits for."""

    class Cancelled(Draws):
        n_awaited = 0

        def _is_now(self) -> bool:
            self.n_awaited += 1
            return self.n_awaited == point + 1

        def probe_fails(self, group: GroupId, n: int) -> bool:
            return self._is_now()

        def environment_fault(self, rollout: RolloutId, turn: int) -> str:
            return "crash" if self._is_now() else ""

        def engine_fails(self, rollout: RolloutId, turn: int) -> bool:
            return self._is_now()

    return Cancelled


def rank_lost_at(at_s: float) -> type[Draws]:
    """A world in which nothing fails but one rank, at one moment."""

    class RankLost(Draws):
        def rank_loss_times(self, rank: RankId) -> Iterator[float]:
            return iter([at_s] if rank == 0 else [])

    return RankLost


def tight_config(**changes: object) -> ExperimentConfig:
    """A slot or KV that is lost would end the run: there is one slot, and KV for little more."""
    tight = {
        "steps": 5,
        "rollout.prompts_per_step": 2,
        "rollout.samples_per_prompt": 2,
        "rollout.deadline_s": ENDLESS_S,
        "decoder.n_slots": 1,
        "evaluation.n_tasks": 1,
    }
    return small_config("tiderl_paper", pool=1.5, **{**tight, **changes})


N_POINTS = 200
some_of = pytest.mark.parametrize(
    "points", [range(0, N_POINTS, 10), pytest.param(range(N_POINTS), marks=pytest.mark.long)]
)


def check_cancelled(
    config: ExperimentConfig, draws: type[Draws], small: Small, point: int
) -> Simulated:
    account = Account(config.decoder.n_slots)
    run = small(config, draws, observers=[account])
    assert flaws(config, run) == [], f"point {point}"
    assert not account.in_slot, f"point {point}"
    assert account.done == account.submitted, f"point {point}"
    return run


@some_of
def test_h8_whatever_wait_is_cancelled_no_slot_is_lost_and_all_that_was_submitted_is_done(
    points: range, small: Small
) -> None:
    config = tight_config(partition__n_rollout_ranks=1)
    for point in points:
        run = check_cancelled(config, cancelled_at(point), small, point)
        assert run.tally.faults.total() == 1, f"point {point}"


@some_of
def test_h8_at_whatever_event_a_rank_is_lost_no_slot_is_lost_and_all_that_was_submitted_is_done(
    points: range, small: Small
) -> None:
    config = tight_config()
    journal = small(config, journal=True).journal
    for point in points:
        now_ns = journal[point * len(journal) // N_POINTS][1]
        run = check_cancelled(config, rank_lost_at(now_ns / 1e9), small, point)
        assert run.tally.faults == {"rank_loss": 1}, f"point {point}"
