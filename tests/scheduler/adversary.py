"""A driver without costs: whatever is owed may come next, in any order, may fail or come twice."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hand import PAGE_TOKENS, Hand, S, updated

from tiderl_jax.core import commands, events
from tiderl_jax.core.commands import Command
from tiderl_jax.core.events import Event, TurnStop
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId, lag
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.limits import GroupLimits
from tiderl_jax.scheduler.presets import (
    ADMISSION,
    BATCHING,
    PIPELINING,
    PRESETS,
    SCALING,
    STALENESS,
)

MAX_EVENTS = 20_000


def random_hand(draw: random.Random) -> Hand:
    """Two to four steps of one to three groups, under any of the choices that there are."""
    members, n_ranks, n_trainers = draw.randint(1, 3), draw.randint(1, 2), draw.randint(1, 2)
    prompts, deadline_s = draw.randint(1, 3), draw.choice([0, 0, 30, 300])
    return Hand(
        draw.choice(list(PRESETS)),
        admission=draw.choice(["", *ADMISSION]),
        batching=draw.choice(["", *BATCHING]),
        staleness=draw.choice(["", *STALENESS]),
        pipelining=draw.choice(["", *PIPELINING]),
        scaling=draw.choice(["", *SCALING]),
        steps=draw.randint(2, 4),
        bound=draw.randint(0, 2),
        prompts=prompts,
        min_prompts=draw.randint(1, prompts),
        members=members,
        group=GroupLimits(
            members,
            draw.choice([0, 0, 1]),
            deadline_s * S,
            draw.randint(1, members),
            draw.random() < 0.5,
        ),
        max_rollouts=draw.choice([0, 1, 4]),
        max_groups=draw.randint(1, 6),
        max_environments=draw.randint(1, 8),
        n_evaluation_tasks=draw.choice([0, 1]),
        every_steps=draw.choice([0, 1]),
        n_ranks=n_ranks,
        n_trainers=n_trainers,
        min_rollout=1,
        max_rollout=n_ranks + n_trainers - 1,
        has_scorer=draw.random() < 0.5,
        n_slots=draw.randint(1, 3),
        budget_tokens=draw.choice([10, 13, 30]) * PAGE_TOKENS,
        deadline_s=draw.choice([20, 1000]),
        max_attempts=draw.randint(1, 3),
        max_faults=10_000,
        started=False,
    )


class Adversary:
    """Answers a scheduler in a random order, and keeps its own account of what is owed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.hand = random_hand(self._draw)
        self._fault_rate = self._draw.choice([0.0, 0.05, 0.2])
        self._n_stragglers = self._draw.choice([0, 1, 3])  # the first groups are slow
        self._owed: dict[tuple[str, Any], Callable[[], Event]] = {}
        self._timers: list[int] = []
        self._feeds: list[commands.Feed] = []
        self._arrived = Counter[Purpose]()
        self._on_rank: dict[RolloutId, RankId] = {}
        self._served: dict[RankId, PolicyVersion] = {}
        self._oldest: dict[RolloutId, PolicyVersion] = {}
        self._version = PolicyVersion(0)
        self.trained: list[GroupId] = []
        self.dropped: list[GroupId] = []
        self.lags: list[int] = []  # of every trained rollout
        self.last: Command | None = None
        self.n_events = 0

    def play(self) -> None:
        """Until the scheduler ends the run. Something must be owed to it until then."""
        self._hear(self.hand.scheduler.start(0))
        while self.last is None:
            assert self._owed or self._feeds, "nothing will ever happen again"
            event = self._next()
            self.hand.now_ns += self._draw.randint(0, 2 * S)
            self._hear(self.hand.tell(event))
            if self.last is None and self._draw.random() < self._fault_rate:
                self._hear(self.hand.tell(event))  # it arrives twice
            self.n_events += 1
            assert self.n_events < MAX_EVENTS, "the run does not end"

    @property
    def n_arrived(self) -> int:
        """Training groups that were brought."""
        return self._arrived[Purpose.TRAIN]

    # What happens.

    def _next(self) -> Event:
        if self._timers and self._draw.random() < 0.1:
            at_ns = self._timers.pop(self._timers.index(min(self._timers)))
            self.hand.now_ns = max(self.hand.now_ns, at_ns)
            return events.TimerFired(at_ns)
        if self._draw.random() < self._fault_rate / 10 and (lost := self._lose_rank()):
            return lost
        choices = [*self._owed, *([("feed", None)] if self._feeds else [])]
        quick = [choice for choice in choices if not self._is_slow(choice[1])]
        choice = self._draw.choice(quick if quick and self._draw.random() < 0.98 else choices)
        return self._trained() if choice[0] == "feed" else self._owed.pop(choice)()

    def _is_slow(self, who: Any) -> bool:
        if not isinstance(who, RolloutId):
            return False
        return who.group.purpose is Purpose.TRAIN and who.group.number < self._n_stragglers

    def _lose_rank(self) -> Event | None:
        ranks = self.hand.state.with_role(Role.ROLLOUT)
        if not ranks:
            return None
        rank = self._draw.choice(ranks).spec.rank
        self._served.pop(rank, None)
        self._owed.pop(("weights", rank), None)
        for rollout in [r for r, on in self._on_rank.items() if on == rank]:
            self._owed.pop(("turn", rollout), None)
        returns = len(ranks) == 1 or self._draw.random() < 0.7
        if returns:
            self._owe("role", rank, lambda: events.RankReady(rank, Role.ROLLOUT))
        return events.RankLost(rank, returns)

    def _trained(self) -> Event:
        """Feeds are trained in order; all that came by the last one makes the step."""
        feed = self._feeds.pop(0)
        self.trained += feed.groups
        for microbatch in feed.microbatches:
            self.lags += [lag(self._version, self._oldest[r]) for r in microbatch.rollouts]
        if not feed.last:
            return events.Trained(feed.step, feed.feed)
        self._version = PolicyVersion(self._version + 1)
        return updated(feed.step, self._version)

    def _fails(self) -> bool:
        return self._draw.random() < self._fault_rate

    def _owe(self, kind: str, who: Any, answer: Callable[[], Event]) -> None:
        self._owed[kind, who] = answer

    # What is asked for.

    def _hear(self, said: Sequence[Command]) -> None:
        for command in said:
            match command:
                case commands.RequestTasks():
                    self._bring(command)
                case commands.Probe(group):
                    self._owe("probe", group, lambda group=group: self._probed(group))
                case commands.Admit(rollout, rank):
                    self._on_rank[rollout] = rank
                    self._owe("environment", rollout, lambda r=rollout: self._opened(r))
                case commands.StepEnvironment(rollout):
                    self._owe("environment", rollout, lambda r=rollout: self._answered(r))
                case commands.RunTurn(rollout, rank):
                    self._run_turn(rollout, rank)
                case commands.Migrate(rollout, rank):
                    self._on_rank[rollout] = rank
                    self._owed.pop(("turn", rollout), None)
                case commands.EndRollout(rollout, outcome):
                    self._forget(rollout)
                    ended = events.RolloutEnded(rollout, outcome)
                    self._owe("end", rollout, lambda ended=ended: ended)
                case commands.DropRollout(rollout):
                    self._forget(rollout)
                case commands.DropGroup(group):
                    self._drop(group)
                case commands.Feed():
                    self._feeds.append(command)
                case commands.Repartition(rank, role):
                    self._served.pop(rank, None)
                    self._owed.pop(("weights", rank), None)
                    ready = events.RankReady(rank, role)
                    self._owe("role", rank, lambda ready=ready: ready)
                case commands.Publish(version, ranks):
                    assert version == self._version
                    for rank in ranks:
                        self._owe("weights", rank, lambda r=rank, v=version: self._loaded(r, v))
                case commands.SetTimer(at_ns):
                    self._timers.append(at_ns)
                case commands.Finish() | commands.Abort():
                    self.last = command
                case _:
                    pass  # where KV stays is of no interest here

    def _bring(self, command: commands.RequestTasks) -> None:
        purpose = command.purpose
        first = self._arrived[purpose]
        self._arrived[purpose] += command.n_groups
        numbers = range(first, self._arrived[purpose])
        n_members = 1 if purpose.is_evaluation else self.hand.n_members
        arrived = events.TasksArrived(tuple(GroupId(purpose, n) for n in numbers), n_members)
        self._owe("tasks", purpose, lambda: arrived)

    def _probed(self, group: GroupId) -> Event:
        if self._fails():
            return events.ProbeFailed(group, "no answer")
        return events.ProbeMeasured(group, self._draw.randint(1, 40))

    def _opened(self, rollout: RolloutId) -> Event:
        if self._fails():
            return events.EnvironmentFailed(rollout, "it did not open")
        return events.EnvironmentReady(rollout, self._draw.randint(1, 40))

    def _answered(self, rollout: RolloutId) -> Event:
        if self._fails():
            return events.EnvironmentFailed(rollout, "it crashed")
        if self._draw.random() < 0.4:
            return events.RolloutEnded(rollout, Outcome.FINISHED)
        return events.EnvironmentReady(rollout, self._draw.randint(0, 20))

    def _run_turn(self, rollout: RolloutId, rank: RankId) -> None:
        assert self._on_rank[rollout] == rank
        began_under = self._served[rank]
        self._owe("turn", rollout, lambda: self._turn_ended(rollout, rank, began_under))
        running = [1 for kind, r in self._owed if kind == "turn" and self._on_rank[r] == rank]
        assert len(running) <= self.hand.state.ranks[rank].spec.n_slots

    def _turn_ended(self, rollout: RolloutId, rank: RankId, version: PolicyVersion) -> Event:
        if self._fails():
            return events.RolloutFailed(rollout, "the engine lost it")
        self._oldest[rollout] = min(self._oldest.get(rollout, version), version)
        stop = TurnStop.LENGTH if self._draw.random() < 0.1 else TurnStop.END_OF_TURN
        n_tokens = self._draw.randint(1, 10)
        return events.TurnEnded(rollout, rank, stop, n_tokens, 0, 0, version)

    def _loaded(self, rank: RankId, version: PolicyVersion) -> Event:
        self._served[rank] = version
        return events.WeightsLoaded(rank, version, f"weights-{version}")

    def _drop(self, group: GroupId) -> None:
        if not group.purpose.is_evaluation:
            self.dropped.append(group)
        self._owed.pop(("probe", group), None)
        for rollout in [r for r in self._on_rank if r.group == group]:
            self._forget(rollout)

    def _forget(self, rollout: RolloutId) -> None:
        for kind in ("environment", "turn", "end"):
            self._owed.pop((kind, rollout), None)
