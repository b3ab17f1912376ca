"""A scheduler driven by hand: events in, commands out, invariants checked after each."""

from dataclasses import dataclass
from typing import Any, TypeVar

from tiderl_jax.core.commands import Admit, Command, Publish, RunTurn
from tiderl_jax.core.config import ElasticConfig, PriorityWeights, SchedulerConfig
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
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.invariants import check
from tiderl_jax.scheduler.limits import GroupLimits, Limits
from tiderl_jax.scheduler.presets import policies
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.scheduler.state import GroupPhase, RankSpec
from tiderl_jax.scheduler.step_costs import StepCosts

Said = TypeVar("Said")

PAGE_TOKENS, MAX_TURN_TOKENS, MAX_CONTEXT_TOKENS = 10, 10, 100
MICROBATCH_TOKENS = 100
S = 1_000_000_000
WEIGHTS = PriorityWeights(8.0, 4.0, 2.0, 1.0)
ELASTIC = ElasticConfig(
    tau=1.0, trend_weight=1.0, confirm_steps=2, trial_steps=2, min_gain=1.01, max_drift=2
)
COSTS = StepCosts(0.001, 0.001, 0.002, 0.1, 0.0)
UNSCORED = StepCosts(0.0, 0.001, 0.002, 0.0, 0.0)


def updated(step: int, version: int, trained_tokens: int = 1) -> Updated:
    """A step that trained; its tokens are of no age."""
    return Updated(
        step=step,
        version=PolicyVersion(version),
        digest=f"weights-{version}",
        trained_tokens=trained_tokens,
        context_tokens=trained_tokens,
        untrained_tokens=(),
        n_microbatches=1,
        lags=(),
        tokens_at_lag=(),
        reward_mean=0.0,
    )


def train_group(index: int) -> GroupId:
    return GroupId(Purpose.TRAIN, index)


def member(index: int, position: int = 0, attempt: int = 0) -> RolloutId:
    return RolloutId(train_group(index), position, attempt)


@dataclass(frozen=True)
class Setting:
    """What a test may choose, with sizes so small that everything can be counted by hand."""

    preset: str = "tiderl_paper"
    admission: str = ""
    batching: str = ""
    staleness: str = ""
    pipelining: str = "full_batch"
    scaling: str = "static"
    elastic: ElasticConfig = ELASTIC
    bound: int = 1
    prompts: int = 1
    min_prompts: int = 0  # as many as `prompts`
    members: int = 1
    group: GroupLimits | None = None
    max_rollouts: int = 4
    max_groups: int = 8
    max_environments: int = 32
    n_evaluation_tasks: int = 0
    every_steps: int = 0
    steps: int = 4
    n_ranks: int = 1
    n_trainers: int = 1
    min_rollout: int = 0  # as many as `n_ranks`, and so for the most
    max_rollout: int = 0
    has_scorer: bool = True
    n_slots: int = 4
    budget_tokens: int = 400
    deadline_s: float = 100.0
    max_attempts: int = 2
    max_faults: int = 10

    @property
    def n_members(self) -> int:
        """Of a training group that arrives."""
        return self.members + (self.group.n_extra if self.group else 0)

    def config(self) -> SchedulerConfig:
        return SchedulerConfig(
            preset=self.preset,
            admission=self.admission,
            batching=self.batching,
            staleness=self.staleness,
            pipelining=self.pipelining,
            scaling=self.scaling,
            staleness_bound=self.bound,
            max_open_groups=self.max_groups,
            max_open_environments=self.max_environments,
            max_open_rollouts_per_rank=self.max_rollouts,
            priority=WEIGHTS,
            elastic=self.elastic,
        )

    def limits(self, *, on_policy: bool) -> Limits:
        return Limits(
            steps=self.steps,
            prompts_per_step=self.prompts,
            min_prompts_per_step=self.min_prompts or self.prompts,
            group=self.group or GroupLimits(self.members, 0, 0, self.members, False),
            max_tokens_per_turn=MAX_TURN_TOKENS,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            deadline_ns=round(self.deadline_s * S),
            staleness_bound=0 if on_policy else self.bound,
            max_open_groups=self.max_groups,
            max_open_environments=self.max_environments,
            max_open_rollouts_per_rank=self.max_rollouts,
            priority=WEIGHTS,
            elastic=self.elastic,
            min_rollout_ranks=self.min_rollout or self.n_ranks,
            max_rollout_ranks=self.max_rollout or self.n_ranks,
            n_shared_trainers=0,
            microbatch_tokens=MICROBATCH_TOKENS,
            n_evaluation_tasks=self.n_evaluation_tasks,
            evaluate_every_steps=self.every_steps,
            max_attempts=self.max_attempts,
            max_faults=self.max_faults,
        )

    def ranks(self) -> tuple[RankSpec, ...]:
        """Those that roll out, then those that train."""
        roles = [Role.ROLLOUT] * self.n_ranks + [Role.TRAINER] * self.n_trainers
        return tuple(
            RankSpec(RankId(rank), role, self.n_slots, self.budget_tokens, PAGE_TOKENS)
            for rank, role in enumerate(roles)
        )


class Hand:
    """Keeps the scheduler, the time, and the commands of the last event."""

    def __init__(
        self,
        preset: str = "tiderl_paper",
        *,
        saved: dict[str, object] | None = None,
        started: bool = True,
        **choices: Any,
    ) -> None:
        """`choices` are those of a `Setting`."""
        setting = Setting(preset, **choices)
        chosen = policies(setting.config())
        limits = setting.limits(on_policy=chosen.admission.on_policy)
        costs = COSTS if setting.has_scorer else UNSCORED
        self.scheduler = Scheduler(limits, chosen, setting.ranks(), costs, saved)
        self.state = self.scheduler.state
        self.n_members = setting.n_members
        self.now_ns = 0
        self.commands: list[Command] = self.scheduler.start(0) if started else []

    def tell(self, event: Event, at_s: float | None = None) -> list[Command]:
        """One event; afterwards all invariants hold."""
        if at_s is not None:
            self.now_ns = round(at_s * S)
        self.commands = self.scheduler.handle(event, self.now_ns)
        check(self.state, drops=self.scheduler.policies.staleness.drops)
        return self.commands

    def said(self, kind: type[Said]) -> list[Said]:
        """The commands of one kind."""
        return [command for command in self.commands if isinstance(command, kind)]

    def load_weights(self) -> list[Command]:
        """Every rank proves the version that was published last."""
        said: list[Command] = []
        version = self.state.published
        assert version is not None
        for rank in list(self.state.ranks.values()):
            if rank.loading is not None:
                said += self.tell(WeightsLoaded(rank.spec.rank, version, f"weights-{version}"))
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
            if self.state.groups[group].phase is GroupPhase.PROBING:
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
        return self.tell(updated(learner.steps_done, version))

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
