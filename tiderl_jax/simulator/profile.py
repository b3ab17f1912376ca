"""What is simulated: how long things take, what tasks are like, what goes wrong.

Every draw is a function of identity (`core.identity.generator`): two policies meet the same tasks.
"""

from dataclasses import dataclass

import numpy as np

from tiderl_jax.core.identity import generator
from tiderl_jax.core.ids import GroupId, RolloutId


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds that engines take. All values are assumed, in proportion to a small model."""

    prefill_s_per_token: float = 2e-5
    decode_step_s: float = 5e-3  # of a batch of one
    decode_step_s_per_turn: float = 1e-4  # added by every further turn in the batch
    learner_s_per_token: float = 2e-4
    publish_s: float = 0.05
    request_s: float = 1e-3  # bringing tasks, closing an episode


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Probability of each fault, per opportunity."""

    probe: float = 0.0  # a probe fails
    crash: float = 0.0  # an environment crashes instead of answering
    hang: float = 0.0  # an environment never answers
    engine: float = 0.0  # a turn's tokens are lost
    duplicate: float = 0.0  # an event arrives twice


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """What episodes are like. Token counts are uniform in [low, high]; delays log-normal."""

    mean_turns: float = 4.0  # geometric
    prompt_tokens: tuple[int, int] = (20, 60)
    turn_tokens: tuple[int, int] = (4, 12)
    observation_tokens: tuple[int, int] = (5, 20)
    cut_turn: float = 0.0  # probability that a turn runs into its token limit
    delay_median_s: float = 0.2
    delay_sigma: float = 0.8


class Draws:
    """The random choices of one simulated world."""

    def __init__(self, seed: int, profile: WorkloadProfile, faults: FaultRates) -> None:
        self._seed = seed
        self._profile = profile
        self._faults = faults

    def _rollout(self, purpose: str, rollout: RolloutId, turn: int = 0) -> np.random.Generator:
        group = rollout.group
        return generator(
            self._seed, purpose, group.purpose, group.number, rollout.member, rollout.attempt, turn
        )

    def prompt_tokens(self, group: GroupId) -> int:
        """Tokens of the first prompt, the same for all members."""
        draw = generator(self._seed, "prompt", group.purpose, group.number)
        return _between(draw, self._profile.prompt_tokens)

    def n_turns(self, rollout: RolloutId) -> int:
        """Turns after which the environment says that the episode is done."""
        return int(self._rollout("turns", rollout).geometric(1 / self._profile.mean_turns))

    def turn(self, rollout: RolloutId, turn: int, limit_tokens: int) -> tuple[int, bool]:
        """Sampled tokens of a turn, and whether the limit cut it."""
        draw = self._rollout("turn", rollout, turn)
        if draw.random() < self._profile.cut_turn:
            return limit_tokens, True
        return min(_between(draw, self._profile.turn_tokens), limit_tokens), False

    def engine_fails(self, rollout: RolloutId, turn: int) -> bool:
        """Whether the engine loses this turn."""
        rate = self._faults.engine
        return rate > 0 and bool(self._rollout("engine", rollout, turn).random() < rate)

    def observation_tokens(self, rollout: RolloutId, turn: int) -> int:
        """Tokens of the answer to a turn."""
        return _between(
            self._rollout("observation", rollout, turn), self._profile.observation_tokens
        )

    def delay_s(self, rollout: RolloutId, turn: int) -> float:
        """Time that the environment takes to answer (turn 0: to start)."""
        draw = self._rollout("delay", rollout, turn)
        return self._profile.delay_median_s * float(draw.lognormal(0.0, self._profile.delay_sigma))

    def environment_fault(self, rollout: RolloutId, turn: int) -> str:
        """`crash`, `hang` or empty."""
        crash, hang = self._faults.crash, self._faults.hang
        if crash + hang == 0:
            return ""
        chance = self._rollout("fault", rollout, turn).random()
        if chance < crash:
            return "crash"
        return "hang" if chance < crash + hang else ""

    def probe_fails(self, group: GroupId, probe: int) -> bool:
        """Whether this probe of the group fails."""
        rate = self._faults.probe
        draw = generator(self._seed, "probe", group.purpose, group.number, probe)
        return rate > 0 and bool(draw.random() < rate)

    def is_duplicated(self, n_events: int) -> bool:
        """Whether the n-th event arrives twice."""
        rate = self._faults.duplicate
        return rate > 0 and bool(generator(self._seed, "duplicate", n_events).random() < rate)


def _between(draw: np.random.Generator, bounds: tuple[int, int]) -> int:
    return int(draw.integers(bounds[0], bounds[1] + 1))
