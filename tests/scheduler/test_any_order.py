"""H9 of the users' cases: whatever order things happen in, there is always something to happen.

What a driver owes is kept as a set, and a random one of it happens next: a turn may outlast
ten updates. `Hand.tell` checks every invariant after every event; that no group trains beyond the
lag bound (S4) and that the run is alive are two of them.
"""

import random

import pytest
from hand import Hand, updated

from tiderl_jax.core.commands import (
    Admit,
    Command,
    DropGroup,
    DropRollout,
    EndRollout,
    Feed,
    Finish,
    Migrate,
    Probe,
    Publish,
    Repartition,
    RequestTasks,
    RunTurn,
    StepEnvironment,
)
from tiderl_jax.core.events import (
    EnvironmentReady,
    Event,
    ProbeMeasured,
    RankReady,
    RolloutEnded,
    TasksArrived,
    Trained,
    TurnEnded,
    TurnStop,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, Purpose, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.presets import PRESETS

MAX_EVENTS = 3000


class AnyOrder:
    """A driver in which time is up to chance."""

    def __init__(self, hand: Hand, draw: random.Random) -> None:
        self.hand = hand
        self.draw = draw
        self.rollouts: dict[RolloutId, Event] = {}  # the one event that each is owed
        self.others: list[Event] = []
        self.feeds: list[Event] = []  # in this order only
        self.turns: dict[RolloutId, int] = {}
        self.n_tasks = dict.fromkeys(Purpose, 0)
        self.trained: list[GroupId] = []
        self.finished = False

    def run(self) -> None:
        """Until the scheduler finishes."""
        self._carry_out(self.hand.commands)
        for _ in range(MAX_EVENTS):
            if self.finished:
                return
            self._carry_out(self.hand.tell(self._next()))
        raise AssertionError(f"not done after {MAX_EVENTS} events")

    def _next(self) -> Event:
        n_owed = [len(self.rollouts), len(self.others), min(1, len(self.feeds))]
        kind = self.draw.choices(("rollout", "other", "feed"), n_owed)[0]
        if kind == "rollout":
            return self.rollouts.pop(self.draw.choice([*self.rollouts]))
        if kind == "other":
            return self.others.pop(self.draw.randrange(len(self.others)))
        return self.feeds.pop(0)

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case RequestTasks(purpose, n_groups):
                    first = self.n_tasks[purpose]
                    self.n_tasks[purpose] += n_groups
                    groups = tuple(GroupId(purpose, first + i) for i in range(n_groups))
                    n_members = 1 if purpose.is_evaluation else self.hand.n_members
                    self.others.append(TasksArrived(groups, n_members))
                case Probe(group):
                    self.others.append(ProbeMeasured(group, 10))
                case Admit(rollout, _):
                    self.turns[rollout] = 0
                    self.rollouts[rollout] = EnvironmentReady(rollout, 10)
                case RunTurn(rollout, rank):
                    version = self.hand.state.ranks[rank].version
                    assert version is not None
                    stop = TurnStop.END_OF_TURN
                    self.rollouts[rollout] = TurnEnded(rollout, rank, stop, 5, 0, 0, version)
                case StepEnvironment(rollout):
                    self.turns[rollout] += 1
                    self.rollouts[rollout] = self._answer(rollout)
                case EndRollout(rollout, outcome):
                    self.rollouts[rollout] = RolloutEnded(rollout, outcome)
                case Migrate(rollout, _):
                    if isinstance(self.rollouts.get(rollout), TurnEnded):
                        del self.rollouts[rollout]  # the `RunTurn` that follows goes on
                case DropRollout(rollout, _):
                    self.rollouts.pop(rollout, None)
                case DropGroup(group, _):
                    for rollout in [one for one in self.rollouts if one.group == group]:
                        del self.rollouts[rollout]
                case Publish(version, ranks):
                    for rank in ranks:
                        self.others.append(WeightsLoaded(rank, version, f"weights-{version}"))
                case Repartition(rank, role):
                    self.others.append(RankReady(rank, role))
                case Feed(step, feed, groups, _, last):
                    self.trained += groups
                    done = updated(step, step + 1) if last else Trained(step, feed)
                    self.feeds.append(done)
                case Finish():
                    self.finished = True
                case _:
                    pass

    def _answer(self, rollout: RolloutId) -> Event:
        if self.turns[rollout] >= self.draw.randint(1, 4):
            return RolloutEnded(rollout, Outcome.FINISHED)
        return EnvironmentReady(rollout, 5)


@pytest.mark.parametrize("preset", PRESETS)
def test_in_any_order_of_events_a_run_stays_alive_and_ends(preset: str) -> None:
    for seed in range(40):
        draw = random.Random(f"{preset} {seed}")
        elastic = draw.random() < 0.5
        hand = Hand(
            preset,
            pipelining="",
            scaling="",
            bound=draw.randint(0, 2),
            prompts=draw.randint(1, 3),
            members=draw.randint(1, 3),
            max_rollouts=draw.choice([0, 2]),
            max_environments=draw.randint(1, 12),
            n_evaluation_tasks=draw.randint(0, 2),
            every_steps=draw.randint(0, 2),
            steps=3,
            n_ranks=2,
            n_trainers=2,
            min_rollout=1 if elastic else 0,
            max_rollout=3 if elastic else 0,
            n_slots=draw.randint(1, 3),
            budget_tokens=draw.choice([100, 150, 400]),
            deadline_s=1e6,
            max_faults=0,
        )
        world = AnyOrder(hand, draw)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        assert len(world.trained) == len(set(world.trained)), f"seed {seed}"
        assert hand.state.learner.steps_done == 3
        assert not hand.state.groups
