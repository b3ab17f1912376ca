"""A scheduler driven by hand: events in, commands out, invariants checked after each."""

from typing import TypeVar

from tiderl_jax.core.commands import Admit, Command, Publish, RunTurn
from tiderl_jax.core.config import (
    EnvironmentConfig,
    EvaluationConfig,
    LatencyConfig,
    PriorityWeights,
    RolloutConfig,
    SchedulerConfig,
)
from tiderl_jax.core.events import (
    EnvironmentReady,
    Event,
    ProbeMeasured,
    RolloutEnded,
    TasksArrived,
    TurnEnded,
    TurnStop,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.invariants import check
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.scheduler.state import GroupPhase, RankSpec

Said = TypeVar("Said")

PAGE_TOKENS, MAX_TURN_TOKENS, MAX_CONTEXT_TOKENS = 10, 10, 100
S = 1_000_000_000


def train_group(index: int) -> GroupId:
    return GroupId(Purpose.TRAIN, index)


def member(index: int, position: int = 0, attempt: int = 0) -> RolloutId:
    return RolloutId(train_group(index), position, attempt)


class Hand:
    """Keeps the scheduler, the time, and the commands of the last event."""

    def __init__(
        self,
        preset: str = "tiderl",
        *,
        admission: str = "",
        batching: str = "",
        bound: int = 1,
        prompts: int = 1,
        members: int = 1,
        max_groups: int = 8,
        max_environments: int = 32,
        n_evaluation_tasks: int = 0,
        every_steps: int = 0,
        steps: int = 4,
        n_ranks: int = 1,
        n_slots: int = 4,
        budget_tokens: int = 400,
        deadline_s: float = 100.0,
        max_attempts: int = 2,
        max_faults: int = 10,
        saved: dict[str, object] | None = None,
        started: bool = True,
    ) -> None:
        weights = PriorityWeights(8.0, 4.0, 2.0, 1.0)
        self.scheduler = Scheduler(
            SchedulerConfig(
                preset,
                admission,
                batching,
                "",
                "",
                "",
                bound,
                max_groups,
                max_environments,
                weights,
            ),
            RolloutConfig(prompts, members, MAX_TURN_TOKENS, MAX_CONTEXT_TOKENS, 1.0, deadline_s),
            EvaluationConfig(n_evaluation_tasks, every_steps, "held_out"),
            EnvironmentConfig(
                "none", {}, 9, LatencyConfig(0.0, 0.0, 1.0), 1.0, 1.0, max_attempts, max_faults
            ),
            steps,
            tuple(
                RankSpec(RankId(rank), n_slots, budget_tokens, PAGE_TOKENS)
                for rank in range(n_ranks)
            ),
            saved,
        )
        self.state = self.scheduler.state
        self.n_members = members
        self.now_ns = 0
        self.commands: list[Command] = self.scheduler.start(0) if started else []

    def tell(self, event: Event, at_s: float | None = None) -> list[Command]:
        """One event; afterwards all invariants hold."""
        if at_s is not None:
            self.now_ns = round(at_s * S)
        self.commands = self.scheduler.handle(event, self.now_ns)
        check(self.state)
        return self.commands

    def said(self, kind: type[Said]) -> list[Said]:
        """The commands of one kind."""
        return [command for command in self.commands if isinstance(command, kind)]

    def load_weights(self) -> list[Command]:
        """Every rank proves the version that was published last."""
        said: list[Command] = []
        version = self.state.published
        assert version is not None
        for rank in self.state.ranks:
            said += self.tell(WeightsLoaded(rank, version, f"weights-{version}"))
        self.commands = said
        return said

    def bring(self, *groups: int, prompt_tokens: int = 10) -> list[Command]:
        """Training groups arrive and are probed where the policy probes."""
        return self.bring_each(dict.fromkeys(groups, prompt_tokens))

    def bring_each(self, prompt_tokens: dict[int, int]) -> list[Command]:
        """As `bring`, with the tokens of each group's prompt."""
        ids = tuple(map(train_group, prompt_tokens))
        said = list(self.tell(TasksArrived(ids, self.n_members)))
        for group in ids:
            if self.state.groups[group].phase is GroupPhase.PROBING:
                said += self.tell(ProbeMeasured(group, prompt_tokens[group.number]))
        self.commands = said
        return said

    def bring_evaluation(self, index: int = 0, prompt_tokens: int = 10) -> list[RolloutId]:
        """One sampled and one greedy task of an evaluation arrive and are probed."""
        groups = [GroupId(p, index) for p in (Purpose.EVALUATE, Purpose.EVALUATE_GREEDY)]
        for group in groups:
            self.tell(TasksArrived((group,), 1))
            if self.scheduler.policies.admission.probes:
                self.tell(ProbeMeasured(group, prompt_tokens))
        return [RolloutId(group, 0) for group in groups]

    def ready(self, rollout: RolloutId, tokens: int = 10) -> list[Command]:
        return self.tell(EnvironmentReady(rollout, tokens))

    def turn(
        self,
        rollout: RolloutId,
        tokens: int = 10,
        version: int | None = None,
        stop: TurnStop = TurnStop.END_OF_TURN,
        rank: int = 0,
    ) -> list[Command]:
        if version is None:
            served = self.state.ranks[RankId(rank)].version
            assert served is not None
            version = served
        return self.tell(
            TurnEnded(rollout, RankId(rank), stop, tokens, 0, 0, PolicyVersion(version))
        )

    def end(self, rollout: RolloutId) -> list[Command]:
        return self.tell(RolloutEnded(rollout, Outcome.FINISHED))

    def play(self, rollout: RolloutId, rank: int = 0) -> list[Command]:
        """A whole episode of one turn, of a rollout that was admitted."""
        said = self.ready(rollout) + self.turn(rollout, rank=rank) + self.end(rollout)
        self.commands = said
        return said

    def update(self) -> list[Command]:
        """The running step ends."""
        learner = self.state.learner
        version = PolicyVersion(learner.version + 1)
        return self.tell(
            Updated(learner.steps_done, version, f"weights-{version}", 1, 1, (), 1, (), 0.0)
        )

    def update_and_load(self) -> list[Command]:
        """The running step ends and its version reaches all ranks."""
        said = self.update()
        if any(isinstance(command, Publish) for command in said):
            said = said + self.load_weights()
        self.commands = said
        return said

    def admitted(self) -> list[RolloutId]:
        return [command.rollout for command in self.said(Admit)]

    def started_turns(self) -> list[RolloutId]:
        return [command.rollout for command in self.said(RunTurn)]
