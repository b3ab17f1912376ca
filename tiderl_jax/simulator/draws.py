"""All chance of a simulated world. Every draw is a function of identity, never of a stream:
two policies meet the same tasks, delays and faults.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tiderl_jax.core.config import RolloutConfig, SimulationConfig
from tiderl_jax.core.identity import generator, key_words
from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, RolloutId
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.simulator.distributions import Values
from tiderl_jax.simulator.profiles import PROFILES, Profile, Workload

ENDLESS_TURNS = 1_000_000
"""Planned by an episode that only a limit ends."""

_SLOW_WEIGHTS_FACTOR = 10.0


class EpisodePlan(NamedTuple):
    """What one attempt will meet. Turns are listed up to `max_turns`, whatever is planned."""

    n_turns: int  # after which the environment says that the episode is done
    generated_tokens: list[int]  # of turn t = 0, 1, ...; the limit of a turn where it is cut
    cut: list[bool]  # turn t runs into its token limit
    observation_tokens: list[int]  # of the answer to turn t
    delays_s: list[float]  # [0] the environment's start, [t + 1] its answer to turn t
    reward: float  # 0 or 1


class _Group(NamedTuple):
    """What the members of a group share."""

    workload: Workload
    prompt_tokens: int


class _Source:
    """`core.identity.generator` at a third of its price: one generator is keyed again and again.

    What it returned before is void.
    """

    def __init__(self) -> None:
        self._bits = np.random.Philox(key=0)
        self._fresh = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def __call__(self, seed: int, purpose: str, *identity: int) -> np.random.Generator:
        self._fresh["state"]["key"] = np.array(key_words(seed, purpose, *identity), np.uint64)
        self._bits.state = self._fresh
        return self._generator


class Draws:
    """The random choices of one simulated world.

    Raises:
      ConfigError: no profile has the name that the simulation gives.
    """

    def __init__(
        self, seed: int, simulation: SimulationConfig, rollout: RolloutConfig, max_turns: int
    ) -> None:
        if simulation.profile not in PROFILES:
            raise unknown_name(simulation.profile, PROFILES, "simulation.profile")
        profile = PROFILES[simulation.profile]
        self._seed = seed
        self._source = _Source()
        self._alternate_groups = profile.alternate_groups
        self._workloads = _stretched(profile, simulation, 1.0)
        self._slow_workloads = _stretched(profile, simulation, profile.alternate_factor)
        self._turns_scale = simulation.turns_scale
        self._faults = simulation.faults
        self._turn_limit = rollout.max_tokens_per_turn
        self._prompt_limit = rollout.max_context_tokens - rollout.max_tokens_per_turn
        self._max_turns = max_turns
        self._group = lru_cache(maxsize=65_536)(self._draw_group)

    def workload(self, group: GroupId) -> str:
        """The kind of the group's task."""
        return self._group(group).workload.name

    def prompt_tokens(self, group: GroupId) -> int:
        """Tokens of the first prompt, the same for all members; a first turn fits behind it."""
        return self._group(group).prompt_tokens

    def episode(self, rollout: RolloutId) -> EpisodePlan:
        """The whole plan of one attempt."""
        workload = self._group(rollout.group).workload
        draw = self._source(self._seed, "episode", *_identity(rollout))
        is_won = draw.random() < workload.success
        never_ends = draw.random() < workload.never_ends
        n_turns = max(round(float(workload.turns.sample(draw, 1)[0]) * self._turns_scale), 1)
        if never_ends:
            n_turns = ENDLESS_TURNS
        n = min(n_turns, self._max_turns)
        cut = draw.random(n) < workload.cut_turn
        generated = np.minimum(_counts(workload.generated_tokens.sample(draw, n)), self._turn_limit)
        if workload.cut_turn > 0:
            generated[cut] = self._turn_limit
        return EpisodePlan(
            n_turns=n_turns,
            generated_tokens=generated.tolist(),
            cut=cut.tolist(),
            observation_tokens=_counts(workload.observation_tokens.sample(draw, n)).tolist(),
            delays_s=workload.start_s.sample(draw, 1).tolist()
            + workload.answer_s.sample(draw, n).tolist(),
            reward=float(is_won),
        )

    def probe_fails(self, group: GroupId, n: int) -> bool:
        """Whether the group's n-th probe fails."""
        return self._happens(self._faults.probe, "probe", group.purpose, group.number, n)

    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        """`crash`, `hang`, `late` or empty: what becomes of the answer to a turn."""
        faults = self._faults
        if faults.crash == faults.hang == faults.late == 0:
            return ""
        chance = self._chance("fault", *_identity(rollout), turn)
        for name, rate in (("crash", faults.crash), ("hang", faults.hang), ("late", faults.late)):
            if chance < rate:
                return name
            chance -= rate
        return ""

    def engine_fails(self, rollout: RolloutId, turn: int) -> bool:
        """Whether the engine loses this turn."""
        rate = self._faults.engine
        return rate > 0 and self._happens(rate, "engine", *_identity(rollout), turn)

    def is_duplicated(self, n_events: int) -> bool:
        """Whether the n-th event arrives twice."""
        return self._happens(self._faults.duplicate, "duplicate", n_events)

    def weights_delay_factor(self, rank: RankId, version: PolicyVersion) -> float:
        """By which this rank takes longer to load this version."""
        is_slow = self._happens(self._faults.slow_weights, "slow weights", rank, version)
        return _SLOW_WEIGHTS_FACTOR if is_slow else 1.0

    def acknowledgement_lost(self, rank: RankId, version: PolicyVersion, n: int) -> bool:
        """Whether the rank's n-th word about loaded weights is lost."""
        rate = self._faults.lost_acknowledgement
        return self._happens(rate, "acknowledgement", rank, version, n)

    def rank_loss_times(self, rank: RankId) -> Iterator[float]:
        """Virtual seconds at which the rank is lost, rising, without an end unless none is."""
        per_hour = self._faults.rank_loss_per_hour
        if per_hour == 0:
            return
        draw, at_s = generator(self._seed, "rank loss", rank), 0.0
        while True:
            at_s += draw.exponential(3600 / per_hour)
            yield at_s

    def _draw_group(self, group: GroupId) -> _Group:
        draw = self._source(self._seed, "group", group.purpose, group.number)
        n_groups = self._alternate_groups
        is_slow = n_groups > 0 and group.number // n_groups % 2 == 0
        workloads = self._slow_workloads if is_slow else self._workloads
        workload = workloads[draw.integers(len(workloads))]
        n_tokens = int(_counts(workload.prompt_tokens.sample(draw, 1))[0])
        return _Group(workload, min(n_tokens, self._prompt_limit))

    def _happens(self, rate: float, purpose: str, *identity: int) -> bool:
        return rate > 0 and self._chance(purpose, *identity) < rate

    def _chance(self, purpose: str, *identity: int) -> float:
        """Uniform in [0, 1): a hash alone, without a generator."""
        high, low = key_words(self._seed, purpose, *identity)
        return (high * 2**32 + low) / 2**64


def _stretched(
    profile: Profile, simulation: SimulationConfig, factor: float
) -> tuple[Workload, ...]:
    """The profile's workloads with the simulation's delays; answers take `factor` times as long."""
    scale, tail = simulation.delay_scale, simulation.delay_tail
    return tuple(
        replace(
            workload,
            start_s=workload.start_s.stretched(scale, tail),
            answer_s=workload.answer_s.stretched(scale * factor, tail),
        )
        for workload in profile.workloads
    )


def _identity(rollout: RolloutId) -> tuple[int, int, int, int]:
    return rollout.group.purpose, rollout.group.number, rollout.member, rollout.attempt


def _counts(values: Values) -> Values:
    """Whole numbers, at least 1."""
    return np.maximum(np.rint(values), 1).astype(np.int64)
