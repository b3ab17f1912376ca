"""Runs for the report's tests: one small enough for figures by hand, and random ones."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tiderl_jax.core.commands import (
    Admit,
    Command,
    DropGroup,
    DropReason,
    DropRollout,
    Feed,
    Finish,
    Migrate,
    Pause,
    Publish,
    Repartition,
    RequestTasks,
    Resume,
    RunTurn,
    StartStep,
    StepEnvironment,
    StepMode,
)
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    RankLost,
    RankReady,
    RolloutEnded,
    RolloutFailed,
    TasksArrived,
    TimerFired,
    Trained,
    TurnEnded,
    TurnStop,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report import run_files
from tiderl_jax.report.facts import RolloutFacts, RunFacts
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.run_files import write_json, write_metrics, write_timeline

S = 10**9
V0, V1, V2 = (PolicyVersion(i) for i in range(3))
RANK_0, RANK_1 = RANKS = (RankId(0), RankId(1))
RANK_2 = RankId(2)  # the trainer
ROLES = {RANK_0: Role.ROLLOUT, RANK_1: Role.ROLLOUT, RANK_2: Role.TRAINER}
SMALL = RunFacts("sync", ROLES, n_devices=3, n_shared=0, groups_per_step=1, staleness_bound=0)
SHARED = RunFacts(
    "sync", dict.fromkeys(RANKS, Role.ROLLOUT), 2, n_shared=2, groups_per_step=1, staleness_bound=0
)

Turn = tuple[float, Event | None, list[Command], list[RolloutFacts]]


def train(index: int, member: int = 0, attempt: int = 0) -> RolloutId:
    """A training rollout."""
    return RolloutId(GroupId(Purpose.TRAIN, index), member, attempt)


def turn_ended(
    rollout: RolloutId,
    rank: RankId,
    generated: int,
    found: int,
    prefilled: int,
    stop: TurnStop = TurnStop.END_OF_TURN,
) -> TurnEnded:
    """A turn's end."""
    return TurnEnded(rollout, rank, stop, generated, found, prefilled, V0)


def facts(
    rollout: RolloutId,
    reward: float,
    n_tokens: int = 0,
    outcome: Outcome = Outcome.FINISHED,
    version: PolicyVersion = V0,
) -> RolloutFacts:
    """A finished rollout of one turn whose context is twice what the model said."""
    return RolloutFacts(rollout, reward, outcome, 1, n_tokens, 2 * n_tokens, version)


def updated(step: int, version: PolicyVersion, trained: int, context: int, **fields) -> Updated:
    """An update."""
    defaults = {
        "untrained_tokens": (),
        "n_microbatches": 1,
        "lags": (),
        "tokens_at_lag": ((0, trained),),
        "reward_mean": 0.0,
    }
    return Updated(step, version, "digest", trained, context, **defaults | fields)


def step_of(step: int, *groups: GroupId) -> list[Command]:
    """A step that takes these groups at once."""
    return [
        StartStep(step, StepMode.COLOCATED, n_scorers=0),
        Feed(step, feed=0, groups=groups, microbatches=(), last=True),
    ]


def small_run() -> list[Turn]:
    """Two steps on two ranks, as (time in s, event, commands, facts known by then)."""
    a, b, c = train(0, 0), train(0, 1), train(1, 0)
    d, retry, late = train(1, 1), train(1, 1, 1), train(2)
    first, second, third = (rollout.group for rollout in (a, c, late))
    ended = RolloutEnded
    return [
        (0, None, [RequestTasks(Purpose.TRAIN, 1)], []),
        (1, TasksArrived((first,), 2), [Admit(a, RANK_0), Admit(b, RANK_1)], []),
        (2, EnvironmentReady(a, 20), [RunTurn(a, RANK_0)], []),
        (3, EnvironmentReady(b, 20), [RunTurn(b, RANK_1)], []),
        (4, turn_ended(b, RANK_1, 10, 0, 20), [StepEnvironment(b)], []),
        (5, turn_ended(a, RANK_0, 12, 16, 4), [StepEnvironment(a)], []),
        (6, ended(a, Outcome.FINISHED), [], [facts(a, 1.0, 12)]),
        (8, ended(b, Outcome.FINISHED), step_of(1, first), [facts(b, 0.0, 10)]),
        (10, updated(1, V1, 22, 60, lags=(0, 0)), [Publish(V1, RANKS)], []),
        (11, WeightsLoaded(RANK_0, V1, "digest"), [], []),
        (11, TasksArrived((second,), 2), [Admit(c, RANK_0), Admit(d, RANK_0)], []),
        (13, WeightsLoaded(RANK_1, V1, "digest"), [], []),
        (13, EnvironmentReady(c, 10), [RunTurn(c, RANK_0)], []),
        (13, EnvironmentReady(d, 10), [RunTurn(d, RANK_0)], []),
        (14, turn_ended(c, RANK_0, 8, 0, 10, TurnStop.LENGTH), [], []),
        (14, turn_ended(d, RANK_0, 3, 0, 10), [StepEnvironment(d)], []),
        (
            15,
            ended(c, Outcome.TRUNCATED_LENGTH),
            [],
            [facts(c, 0.25, 8, Outcome.TRUNCATED_LENGTH, V1)],
        ),
        (16, EnvironmentFailed(d, "crashed"), [Admit(retry, RANK_0)], []),
        (17, EnvironmentReady(retry, 10), [RunTurn(retry, RANK_0)], []),
        (19, turn_ended(retry, RANK_0, 6, 10, 10), [StepEnvironment(retry)], []),
        (
            20,
            ended(retry, Outcome.FINISHED),
            step_of(2, second),
            [facts(retry, 1.0, 6, version=V1)],
        ),
        (24, updated(2, V2, 6, 30, untrained_tokens=(("zero_advantage", 8),), lags=(1,)), [], []),
        (25, TasksArrived((third,), 2), [Admit(late, RANK_1)], []),
        (26, EnvironmentReady(late, 10), [RunTurn(late, RANK_1)], []),
        (28, turn_ended(late, RANK_1, 5, 4, 6), [], []),
        (30, TimerFired(30 * S), [Finish(complete=True)], []),
    ]


def play(ledger: Ledger, turns: list[Turn]) -> Ledger:
    """Feeds turns of the event loop to a ledger."""
    for at_s, event, commands, known in turns:
        for one in known:
            ledger.rollout(one)
        ledger.observe(event, commands, round(at_s * S))
    return ledger


class RandomRun:
    """A driver that does anything the protocol of events and commands allows, at random.

    Now and then an event arrives twice, and the second one leads to nothing.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.run = RunFacts("random", ROLES, 3, n_shared=0, groups_per_step=2, staleness_bound=1)
        self._phase: dict[RolloutId, str] = {}
        self._rank: dict[RolloutId, RankId] = {}
        self._tokens: dict[RolloutId, int] = {}
        self._late: list[RolloutId] = []  # dropped while they decoded
        self._in_step: tuple[GroupId, ...] = ()  # that its feeds have taken
        self._feeds: list[int] = []  # that are not trained
        self._n_feeds: int | None = None  # of the open step; None: no step is open
        self._loading: list[tuple[RankId, PolicyVersion]] = []
        self._moving: dict[RankId, Role] = {}
        self._n_groups = self._step = 0

    def turns(self, n: int) -> Iterator[Turn]:
        """At least n turns of the event loop."""
        at_s = 0.0
        yield at_s, None, [], []
        for _ in range(n):
            at_s += self._random.choice([0.0, 0.1, self._random.expovariate(1)])
            action = self._random.choice(self._possible())
            event, commands, known = action()
            yield at_s, event, commands, known
            if self._random.random() < 0.1:
                yield at_s, event, [], []

    def _possible(self) -> list:
        actions = [self._new_group] * (len(self._groups()) < 4)
        for rollout, phase in self._phase.items():
            possible = {
                "environment": (*[self._ready, self._ended] * 4, self._environment_failed),
                "ready": (self._run_turn, self._park, self._migrate),
                "parked": (self._run_turn, self._migrate),
                "decoding": (*[self._turn_ended] * 4, self._engine_failed),
                "ended": (),
            }[phase]
            actions += [partial(action, rollout) for action in possible]
        droppable = [one for one in self._phase if one.group not in self._in_step]
        actions += [partial(self._drop_group, one.group) for one in droppable[:1]]
        actions += [partial(self._drop_rollout, one) for one in droppable[:1]]
        actions += [partial(self._late_turn, rollout) for rollout in self._late]
        if self._n_feeds is not None:
            actions += [self._feed] * (3 if self._complete() and self._n_feeds < 2 else 0)
            actions += [self._trained] * (len(self._feeds) > 0 and self._n_feeds < 2)
            actions += [self._updated] * (3 if self._n_feeds == 2 else 0)
        else:
            actions += [self._start_step]
        actions += [self._loaded] * bool(self._loading)
        actions += [partial(self._rank_ready, rank) for rank in self._moving]
        actions += [self._repartition, self._rank_lost] * (not self._moving)
        return actions

    def _groups(self) -> dict[GroupId, list[RolloutId]]:
        groups: dict[GroupId, list[RolloutId]] = {}
        for rollout in self._phase:
            groups.setdefault(rollout.group, []).append(rollout)
        return groups

    def _complete(self) -> list[GroupId]:
        return [
            group
            for group, rollouts in self._groups().items()
            if group.purpose is Purpose.TRAIN
            and group not in self._in_step
            and {self._phase[one] for one in rollouts} == {"ended"}
        ]

    def _admit(self, rollout: RolloutId) -> Admit:
        self._phase[rollout] = "environment"
        self._rank[rollout] = self._random.choice(RANKS)
        self._tokens[rollout] = 0
        return Admit(rollout, self._rank[rollout])

    def _new_group(self):
        purpose = self._random.choice([Purpose.TRAIN, Purpose.TRAIN, Purpose.EVALUATE])
        group = GroupId(purpose, self._n_groups)
        self._n_groups += 1
        return TasksArrived((group,), 2), [self._admit(RolloutId(group, i)) for i in range(2)], []

    def _ready(self, rollout):
        commands = self._run_turn(rollout)[1] if self._random.random() < 0.7 else []
        if not commands:
            self._phase[rollout] = "ready"
        return EnvironmentReady(rollout, 5), commands, []

    def _run_turn(self, rollout):
        rank = self._rank[rollout]
        resumed = [Resume(rollout, rank)] if self._phase[rollout] == "parked" else []
        self._phase[rollout] = "decoding"
        return TimerFired(0), [*resumed, RunTurn(rollout, rank)], []

    def _park(self, rollout):
        self._phase[rollout] = "parked"
        return TimerFired(0), [Pause(rollout, self._rank[rollout])], []

    def _migrate(self, rollout):
        self._rank[rollout] = self._random.choice(RANKS)
        return TimerFired(0), [Migrate(rollout, self._rank[rollout])], []

    def _sampled(self, rollout: RolloutId) -> TurnEnded:
        n_tokens = self._random.randrange(1, 9)
        self._tokens[rollout] = self._tokens.get(rollout, 0) + n_tokens
        return turn_ended(rollout, self._rank[rollout], n_tokens, 3, 4)

    def _turn_ended(self, rollout):
        self._phase[rollout] = "environment"
        return self._sampled(rollout), [StepEnvironment(rollout)], []

    def _late_turn(self, rollout):
        self._late.remove(rollout)
        return self._sampled(rollout), [], []

    def _ended(self, rollout):
        self._phase[rollout] = "ended"
        known = facts(rollout, self._random.choice([-1.0, 0.0, 1.0]), self._tokens[rollout])
        return RolloutEnded(rollout, Outcome.FINISHED), [], [known]

    def _retry(self, rollout: RolloutId) -> list[Command]:
        del self._phase[rollout]
        return [self._admit(rollout._replace(attempt=rollout.attempt + 1))]

    def _environment_failed(self, rollout):
        return EnvironmentFailed(rollout, "crashed"), self._retry(rollout), []

    def _engine_failed(self, rollout):
        return RolloutFailed(rollout, "lost"), self._retry(rollout), []

    def _forget(self, rollout: RolloutId) -> None:
        if self._phase.pop(rollout) == "decoding":
            self._late.append(rollout)

    def _drop_group(self, group):
        for rollout in self._groups()[group]:
            self._forget(rollout)
        return TimerFired(0), [DropGroup(group, self._random.choice(list(DropReason)))], []

    def _drop_rollout(self, rollout):
        self._forget(rollout)
        return TimerFired(0), [DropRollout(rollout, self._random.choice(list(DropReason)))], []

    def _start_step(self):
        self._step += 1
        self._n_feeds = 0
        return TimerFired(0), [StartStep(self._step, StepMode.DECOUPLED, n_scorers=1)], []

    def _feed(self):
        feed, group = self._n_feeds, self._complete()[0]
        self._n_feeds += 1
        self._feeds.append(feed)
        self._in_step += (group,)
        return TimerFired(0), [Feed(self._step, feed, (group,), (), last=feed == 1)], []

    def _trained(self):
        return Trained(self._step, self._feeds.pop(0)), [], []

    def _updated(self):
        used = [rollout for rollout in self._phase if rollout.group in self._in_step]
        n_tokens = sum(self._tokens[rollout] for rollout in used)
        for rollout in used:
            del self._phase[rollout]
        untrained = self._random.randrange(n_tokens + 1)
        old = self._random.randrange(n_tokens - untrained + 1)
        event = updated(
            self._step,
            PolicyVersion(self._step),
            n_tokens - untrained,
            2 * (n_tokens - untrained),
            untrained_tokens=(("zero_advantage", untrained),),
            lags=tuple(self._random.randrange(3) for _ in used),
            tokens_at_lag=((1, n_tokens - untrained - old), (2, old)),
        )
        self._in_step, self._feeds, self._n_feeds = (), [], None
        self._loading = [(rank, PolicyVersion(self._step)) for rank in RANKS]
        return event, [Publish(PolicyVersion(self._step), RANKS)], []

    def _loaded(self):
        rank, version = self._loading.pop()
        return WeightsLoaded(rank, version, "digest"), [], []

    def _repartition(self):
        rank, role = self._random.choice(list(ROLES)), self._random.choice(list(Role))
        self._moving[rank] = role
        return TimerFired(0), [Repartition(rank, role)], []

    def _rank_lost(self):
        rank = self._random.choice(RANKS)
        self._moving[rank] = Role.ROLLOUT
        for rollout, phase in self._phase.items():
            if self._rank[rollout] == rank and phase == "decoding":
                self._phase[rollout] = "ready"
        return RankLost(rank, returns=True), [], []

    def _rank_ready(self, rank):
        return RankReady(rank, self._moving.pop(rank)), [], []


def write_run(
    folder: Path, ledger: Ledger, name: str = "small", *, simulated: bool = False
) -> None:
    """A run directory as a driver leaves it."""
    write_json(
        folder / run_files.CONFIG,
        {
            "name": name,
            "config_hash": "0123456789abcdef",
            "simulated": simulated,
            "seed": 7,
            "config": {"name": name, "steps": 2},
        },
    )
    write_json(folder / run_files.SUMMARY, ledger.summary(0))
    write_metrics(folder, ledger.rows())
    write_timeline(folder, ledger.timeline())
