"""The frozen numbers that decisions are held to."""

from dataclasses import dataclass

from tiderl_jax.core.config import ElasticConfig, ExperimentConfig, PriorityWeights

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """When a group is complete without all of its members (see `core.config.GroupConfig`)."""

    n_needed: int  # members that make a whole group
    n_extra: int
    deadline_ns: int  # 0: none
    n_viable: int  # that are enough at the deadline
    tops_up: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, bounds and weights; none changes during a run."""

    steps: int
    prompts_per_step: int
    min_prompts_per_step: int
    group: GroupLimits
    max_tokens_per_turn: int
    max_context_tokens: int
    deadline_ns: int  # of a whole rollout, from its admission
    staleness_bound: int  # versions
    max_open_groups: int
    max_open_environments: int
    max_open_rollouts_per_rank: int  # 0: no cap
    priority: PriorityWeights
    elastic: ElasticConfig
    min_rollout_ranks: int
    max_rollout_ranks: int
    n_shared_trainers: int  # devices that the trainer shares with the rollout ranks; 0: none
    microbatch_tokens: int
    n_evaluation_tasks: int
    evaluate_every_steps: int
    max_attempts: int
    max_faults: int

    @classmethod
    def of(cls, config: ExperimentConfig, *, on_policy: bool) -> "Limits":
        """The limits of a resolved experiment; `on_policy` holds its staleness to 0."""
        rollout, scheduler, partition = config.rollout, config.scheduler, config.partition
        learner, elastic = config.learner, partition.max_rollout_ranks > 0
        return cls(
            steps=config.steps,
            prompts_per_step=rollout.prompts_per_step,
            min_prompts_per_step=rollout.min_prompts_per_step or rollout.prompts_per_step,
            group=_group_limits(config),
            max_tokens_per_turn=rollout.max_tokens_per_turn,
            max_context_tokens=rollout.max_context_tokens,
            deadline_ns=round(rollout.deadline_s * _NS_PER_S),
            staleness_bound=0 if on_policy else scheduler.staleness_bound,
            max_open_groups=scheduler.max_open_groups,
            max_open_environments=scheduler.max_open_environments,
            max_open_rollouts_per_rank=scheduler.max_open_rollouts_per_rank,
            priority=scheduler.priority,
            elastic=scheduler.elastic,
            min_rollout_ranks=(
                partition.min_rollout_ranks if elastic else partition.n_rollout_ranks
            ),
            max_rollout_ranks=(
                partition.max_rollout_ranks if elastic else partition.n_rollout_ranks
            ),
            n_shared_trainers=partition.actor_devices if partition.share_devices else 0,
            microbatch_tokens=learner.tokens_per_row * learner.rows_per_microbatch,
            n_evaluation_tasks=config.evaluation.n_tasks,
            evaluate_every_steps=config.evaluation.every_steps,
            max_attempts=config.environment.max_attempts,
            max_faults=config.environment.max_faults,
        )


def _group_limits(config: ExperimentConfig) -> GroupLimits:
    group, n_needed = config.rollout.group, config.rollout.samples_per_prompt
    return GroupLimits(
        n_needed=n_needed,
        n_extra=group.extra_members,
        deadline_ns=round(group.deadline_s * _NS_PER_S),
        n_viable=group.min_members or n_needed,
        tops_up=group.below_minimum == "top_up",
    )
