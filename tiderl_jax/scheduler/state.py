"""All that the scheduler knows, as plain data. Sums and queues are kept by `phases.enter`."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from tiderl_jax.core.commands import StepMode
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.scheduler.elastic import Elastic
from tiderl_jax.scheduler.limits import Limits
from tiderl_jax.scheduler.ranking import Ranking
from tiderl_jax.scheduler.readiness import Readiness
from tiderl_jax.scheduler.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank: its role at the start, what it can decode at once, how much KV it holds."""

    rank: RankId
    role: Role
    n_slots: int
    budget_tokens: int  # of the KV pool
    page_tokens: int


class Phase(Enum):
    """Where a rollout is; always exactly one. What follows from it is looked up millions of times.

    is_open: the rollout has an environment.
    is_parked: its KV may be reclaimed, and its environment's clock stands still.
    waits_for_driver: a driver owes an event about it.
    wants_turn: its next turn may run.
    is_pausable: it may be paused if it holds KV.
    may_grow: its context is expected to grow on its rank.
    """

    PENDING = "pending"  # not admitted yet
    STARTING = "starting"  # its environment is being opened
    HELD = "held"  # opened ahead; its first turn waits for weights that it may train under
    READY = "ready"  # its next turn may run
    DECODING = "decoding"
    ACTING = "acting"  # its environment works
    PARKED_READY = "parked_ready"  # paused; the environment has answered
    PARKED_ACTING = "parked_acting"  # paused; the environment has not answered yet
    ENDING = "ending"  # truncated; its trajectory is being closed
    ENDED = "ended"

    def __init__(self, word: str) -> None:
        self.is_open = word not in ("pending", "ended")
        self.is_parked = word in ("parked_ready", "parked_acting")
        self.waits_for_driver = word in ("starting", "decoding", "acting", "ending")
        self.wants_turn = word in ("ready", "parked_ready")
        self.is_pausable = word in ("ready", "acting")
        self.may_grow = word in ("starting", "held", "ready", "decoding", "acting")


@dataclass(slots=True)
class Rollout:
    """One attempt of one member of a group."""

    id: RolloutId
    phase: Phase = Phase.PENDING
    rank: RankId | None = None
    context_tokens: int = 0  # all tokens so far, the environment's last answer included
    held_tokens: int = 0  # of the context, those whose KV is kept between turns
    last_turn_tokens: int = 0  # the context when the last turn ended (before: the prompt)
    n_turns: int = 0
    since_ns: int = 0  # in its phase
    deadline_ns: int = 0
    oldest_version: PolicyVersion | None = None  # among its sampled tokens
    ready_order: int = 0  # when it became ready, as a count of such moments
    resident: bool = False  # the engine knows it: from its first turn until a `Release`
    used_tokens: int = 0  # its share of its rank's `used_tokens`
    expected_tokens: int = 0  # its share of its rank's `expected_tokens`


class GroupPhase(Enum):
    """Where a group is."""

    UNPROBED = "unprobed"
    PROBING = "probing"
    OPEN = "open"  # measured; members may be admitted
    COMPLETE = "complete"  # all members ended; waits in the buffer for the learner


@dataclass(slots=True)
class Group:
    """The rollouts of one task."""

    id: GroupId
    born: int  # order of arrival; smaller is older
    n_needed: int  # members that must end
    members: list[Rollout]  # the current attempt of each
    pending: deque[int]  # members to be admitted
    since_ns: int  # in its phase
    phase: GroupPhase = GroupPhase.UNPROBED
    ahead: bool = False  # beyond what staleness lets in: environments may open, no turn may run
    begun: bool = False  # all its members may have an environment
    is_evaluation: bool = field(init=False)  # it is scored only
    n_probes: int = 0
    holds_probe: bool = False  # the probe's environment waits for the first member
    prompt_tokens: int = 0  # of the first turn, as probed; 0 where nobody probes
    rank: RankId | None = None  # all members run here, for the sake of their common prefix
    deadline_ns: int | None = None
    topped_up: bool = False  # its late members were replaced once
    ended: dict[RolloutId, int] = field(default_factory=dict[RolloutId, int])  # context tokens
    oldest_version: PolicyVersion | None = None  # among all members' sampled tokens

    def __post_init__(self) -> None:
        self.is_evaluation = self.id.purpose.is_evaluation

    @property
    def n_unfinished(self) -> int:
        """Members that may still come to hold an environment and KV."""
        return len(self.members) - len(self.ended)

    @property
    def share_ended(self) -> float:
        """How nearly complete it is."""
        return len(self.ended) / self.n_needed


@dataclass(slots=True)
class Rank:
    """One rank and the rollouts on it."""

    spec: RankSpec
    role: Role | None  # None: on its way to another role, or lost
    page_tokens: int = field(init=False)
    budget_tokens: int = field(init=False)  # the pool in whole pages
    version: PolicyVersion | None = None  # served now; None until weights are loaded
    loading: PolicyVersion | None = None  # published to it and not proved yet
    idle_since_ns: int | None = None  # rolls out, but no turn runs; None: one runs
    n_open: int = 0  # admitted rollouts that have not ended
    n_parked: int = 0
    used_tokens: int = 0  # KV kept for waiting rollouts + KV that running turns may come to need
    expected_tokens: int = 0  # context and expected next growth of all that is not parked
    expected_evaluation_tokens: int = 0  # the share of evaluation in `expected_tokens`
    decoding: dict[RolloutId, None] = field(default_factory=dict[RolloutId, None])
    held: dict[RolloutId, None] = field(
        default_factory=dict[RolloutId, None]
    )  # of groups that are not ahead any more: wait for this rank's weights
    ready: Ranking[RolloutId] = field(default_factory=Ranking[RolloutId])  # want a turn
    idle: Ranking[RolloutId] = field(default_factory=Ranking[RolloutId])  # hold KV, do not decode
    parked_acting: Ranking[RolloutId] = field(default_factory=Ranking[RolloutId])
    partial: Ranking[GroupId] = field(default_factory=Ranking[GroupId])  # have pending members

    def __post_init__(self) -> None:
        self.page_tokens = self.spec.page_tokens
        self.budget_tokens = self.spec.budget_tokens - self.spec.budget_tokens % self.page_tokens

    def rounded(self, n_tokens: int) -> int:
        """Tokens of the whole pages that hold `n_tokens`."""
        page_tokens = self.page_tokens
        return -(-n_tokens // page_tokens) * page_tokens

    @property
    def free_tokens(self) -> int:
        """Pool tokens that no rollout keeps or may come to need in its running turn."""
        return self.budget_tokens - self.used_tokens

    @property
    def n_free_slots(self) -> int:
        """Turns that could start now."""
        return self.spec.n_slots - len(self.decoding)


@dataclass(slots=True)
class Step:
    """A training step that is open."""

    mode: StepMode
    n_scorers: int
    n_workers: int  # trainer ranks that train
    n_groups: int  # that it takes in all
    began_ns: int
    groups: dict[GroupId, PolicyVersion] = field(
        default_factory=dict[GroupId, PolicyVersion]
    )  # used up so far, with their oldest version
    waiting: dict[RolloutId, int] = field(
        default_factory=dict[RolloutId, int]
    )  # trajectories of these groups that are not fed yet, with their tokens
    unfed: dict[GroupId, None] = field(default_factory=dict[GroupId, None])  # told by the next feed
    n_streamed: int = 0  # microbatches
    n_feeds: int = 0
    n_trained: int = 0  # feeds whose gradients have been added up
    closed: bool = False  # it has had its last feed

    @property
    def n_missing(self) -> int:
        """Groups that it still takes."""
        return self.n_groups - len(self.groups)


@dataclass(slots=True)
class Learner:
    """The trainer: what it has done and what it trains on now."""

    version: PolicyVersion
    digest: str | None  # of this version's weights; None until someone proved it
    steps_done: int
    groups_trained: int  # by the steps that are done
    step: Step | None = None


@dataclass(slots=True)
class Evaluation:
    """A running evaluation; it pins the version that the ranks serve."""

    step: int  # steps done by the evaluated version
    version: PolicyVersion
    n_groups_left: int


@dataclass(slots=True)
class Counters:
    """What happened, over the whole run."""

    faults: int = 0
    retries: int = 0
    pauses: int = 0
    resumes: int = 0
    escapes: int = 0  # paused rollouts that went on elsewhere
    lost_ranks: int = 0
    ignored_events: int = 0  # late, duplicate or unknown
    dropped_groups: dict[str, int] = field(default_factory=dict[str, int])  # by reason


@dataclass(slots=True)
class State:
    """The whole state of the scheduler."""

    limits: Limits
    costs: StepCosts
    learner: Learner
    readiness: Readiness
    elastic: Elastic
    ranks: dict[RankId, Rank]
    counters: Counters
    next_train_index: int  # training groups below it have arrived, except `returning`
    returning: set[int]  # training groups that arrived before a resume and did not train
    evaluated_step: int | None  # the last evaluation that ended, in steps done
    n_evaluations: int  # that ended
    groups: dict[GroupId, Group] = field(default_factory=dict[GroupId, Group])
    buffer: dict[GroupId, int] = field(default_factory=dict[GroupId, int])  # in order; tokens
    buffer_tokens: int = 0
    by_oldest: dict[PolicyVersion, dict[GroupId, None]] = field(
        default_factory=dict[PolicyVersion, dict[GroupId, None]]
    )  # training groups that have sampled, the buffer included
    unprobed: Ranking[GroupId] = field(default_factory=Ranking[GroupId])
    unplaced: Ranking[GroupId] = field(default_factory=Ranking[GroupId])  # have no rank yet
    placeable: Ranking[RankId] = field(default_factory=Ranking[RankId])  # by expected free tokens
    evaluable: Ranking[RankId] = field(default_factory=Ranking[RankId])  # serve some version
    requested: dict[Purpose, int] = field(default_factory=dict[Purpose, int])  # not arrived yet
    n_open_groups: int = 0  # training groups that arrived and are not complete
    ahead: dict[GroupId, None] = field(default_factory=dict[GroupId, None])  # of these, in order
    n_begun_members: int = 0  # not ended, of groups that are probed or placed
    n_unfinished_members: int = 0  # of all groups that arrived
    n_working: int = 0  # rollouts about which a driver owes an event
    n_environments: int = 0  # open now, those opened by probes included
    growth_tokens: float = 0.0  # expected growth of a context in one turn
    published: PolicyVersion | None = None  # the last version sent to the ranks
    published_digest: str | None = None  # of that version; None until a rank proved one
    published_groups: int = 0  # that had trained by that version
    n_rollout_ranks: int = 0
    n_trainer_ranks: int = 0
    pool_tokens: int = 0  # of all rollout ranks
    n_serving: int = 0  # ranks that serve it
    n_loading: int = 0  # ranks that have not proved it yet
    n_changing: int = 0  # ranks whose `RankReady` is owed
    evaluation: Evaluation | None = None
    deadlines: deque[tuple[int, RolloutId]] = field(
        default_factory=deque[tuple[int, RolloutId]]
    )  # in order, since every rollout has the same time
    group_deadlines: deque[tuple[int, GroupId]] = field(
        default_factory=deque[tuple[int, GroupId]]
    )  # likewise
    timer_ns: int | None = None
    now_ns: int = 0
    lockstep_order: int = 0  # batching `lockstep`: rollouts that were ready before it may run
    n_born: int = 0
    n_ready: int = 0
    stopping: bool = False
    over: bool = False

    def rollout(self, rollout: RolloutId) -> Rollout | None:
        """The rollout if this very attempt is known."""
        group = self.groups.get(rollout.group)
        if group is None or rollout.member >= len(group.members):
            return None
        current = group.members[rollout.member]
        return current if current.id == rollout else None

    def live(self, rollout: RolloutId) -> Rollout:
        """A rollout that must exist."""
        found = self.rollout(rollout)
        if found is None:
            raise InvariantError(f"Rollout {rollout} is in a queue but unknown.")
        return found

    def rank_of(self, rollout: Rollout) -> Rank:
        """The rank of an admitted rollout."""
        if rollout.rank is None:
            raise InvariantError(f"Rollout {rollout.id} has no rank.")
        return self.ranks[rollout.rank]

    def with_role(self, role: Role) -> list[Rank]:
        """The ranks of a role."""
        return [rank for rank in self.ranks.values() if rank.role is role]

    @property
    def n_trainers(self) -> int:
        """Ranks that the trainer has; those of a shared machine are the rollout ranks."""
        return self.limits.n_shared_trainers or self.n_trainer_ranks

    @property
    def n_accepted_groups(self) -> int:
        """Groups that trained, train, or wait in the buffer; dropped ones do not count."""
        step = self.learner.step
        n_training = len(step.groups) if step else 0
        return self.learner.groups_trained + n_training + len(self.buffer)

    @property
    def next_use_version(self) -> int:
        """The trainer's version when a group that completes now can train at the earliest."""
        step = self.learner.step
        return self.learner.version + (step is not None and step.n_missing == 0)

    @property
    def n_begun_groups(self) -> int:
        """Groups that were accepted, or are open within what staleness lets in."""
        return self.n_accepted_groups + self.n_open_groups - len(self.ahead)

    def may_begin(self, group: Group) -> bool:
        """Whether all members of the group may have an environment, or it would be alone.

        What is ahead leaves half of the environments to evaluation and to what is not.
        """
        n_members = self.n_begun_members + len(group.members)
        if group.ahead:
            return 2 * n_members <= self.limits.max_open_environments
        return self.n_begun_members == 0 or n_members <= self.limits.max_open_environments

    @property
    def evaluation_due(self) -> bool:
        """Whether the newest version must be evaluated, or is being evaluated."""
        limits, done = self.limits, self.learner.steps_done
        if limits.n_evaluation_tasks == 0:
            return False
        if self.evaluation is not None:
            return True
        every = limits.evaluate_every_steps
        planned = done in (0, limits.steps) or (every > 0 and done % every == 0)
        return planned and (self.evaluated_step is None or self.evaluated_step < done)
