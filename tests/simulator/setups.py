"""Small simulated runs, by hand and by seed."""

from dataclasses import replace

from tiderl_jax.core.config import (
    EnvironmentConfig,
    EvaluationConfig,
    LatencyConfig,
    PriorityWeights,
    RolloutConfig,
    SchedulerConfig,
)
from tiderl_jax.core.identity import generator
from tiderl_jax.core.ids import RankId
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.profile import CostModel, FaultRates, WorkloadProfile
from tiderl_jax.simulator.simulate import Setup

PAGE_TOKENS = 16
MAX_CONTEXT_TOKENS = 192


def small_setup(preset: str, *, seed: int = 0, n_ranks: int = 2, pool: float = 4.0) -> Setup:
    """4 steps of 3 groups of 4; every rank's pool holds `pool` whole rollouts."""
    budget_tokens = round(pool * MAX_CONTEXT_TOKENS)
    return Setup(
        scheduler=SchedulerConfig(
            preset, "", "", "", "", "", 1, 8, 40, PriorityWeights(8.0, 4.0, 2.0, 1.0)
        ),
        rollout=RolloutConfig(3, 4, 16, MAX_CONTEXT_TOKENS, 1.0, 600.0),
        evaluation=EvaluationConfig(3, 2, "held_out"),
        environment=EnvironmentConfig(
            "none", {}, 6, LatencyConfig(0.0, 0.0, 1.0), 20.0, 100.0, 3, 10_000
        ),
        steps=4,
        ranks=tuple(
            RankSpec(RankId(rank), 6, budget_tokens, PAGE_TOKENS) for rank in range(n_ranks)
        ),
        profile=WorkloadProfile(),
        costs=CostModel(),
        faults=FaultRates(),
        seed=seed,
    )


def random_setup(seed: int) -> Setup:
    """Limits, policies, workload and faults drawn from a seed; each fault is on in half of them."""
    draw = generator(seed, "random setup")
    preset = ("sync", "tiderl")[draw.integers(2)]
    setup = small_setup(
        preset, seed=seed, n_ranks=int(draw.integers(1, 4)), pool=float(draw.uniform(1.2, 10))
    )
    admission, batching = "", ""
    if draw.random() < 0.3:
        admission = ("batch", "request", "ctb")[draw.integers(3)]
    if draw.random() < 0.3:
        batching = ("request", "ctb")[draw.integers(2)]
    prompts_per_step = int(draw.integers(1, 5))
    n_members = int(draw.integers(1, 6))

    def rate(high: float) -> float:
        return float(draw.uniform(0, high)) * int(draw.integers(2))

    return replace(
        setup,
        scheduler=replace(
            setup.scheduler,
            admission=admission,
            batching=batching,
            staleness_bound=int(draw.integers(0, 4)),
            max_open_groups=int(draw.integers(2, 17)),
            max_open_environments=int(draw.integers(1, 41)),
        ),
        rollout=replace(
            setup.rollout,
            prompts_per_step=prompts_per_step,
            samples_per_prompt=n_members,
            deadline_s=float(draw.choice([2.0, 10.0, 600.0])),
        ),
        evaluation=EvaluationConfig(int(draw.integers(0, 4)), int(draw.integers(0, 3)), "held_out"),
        environment=replace(setup.environment, step_deadline_s=5.0),
        steps=int(draw.integers(1, 4)),
        ranks=tuple(replace(spec, n_slots=int(draw.integers(1, 33))) for spec in setup.ranks),
        profile=replace(
            setup.profile,
            mean_turns=float(draw.uniform(1, 6)),
            delay_sigma=float(draw.uniform(0, 1.5)),
            cut_turn=rate(0.1),
        ),
        costs=replace(setup.costs, publish_s=float(draw.choice([0.0, 0.05, 3.0]))),
        faults=FaultRates(rate(0.1), rate(0.05), rate(0.03), rate(0.03), rate(0.2)),
    )
