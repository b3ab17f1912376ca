"""Simulated rollouts and the clocks of their environments."""

from dataclasses import dataclass

from tiderl_jax.core.ids import PolicyVersion, RankId, RolloutId
from tiderl_jax.simulator.clock import NS_PER_S


@dataclass(slots=True)
class Episode:
    """One attempt under way."""

    rollout: RolloutId
    rank: RankId
    planned_turns: int
    context_tokens: int = 0
    sampled_tokens: int = 0
    n_turns: int = 0
    oldest_version: PolicyVersion | None = None
    working: bool = False  # the environment owes an answer
    alarm: int = 0  # counts deadlines, so that an outdated one is known
    left_ns: int | None = None  # of the deadline, while its clock stands still
    deadline_ns: int = 0

    def begin_work(self, now_ns: int, limit_s: float) -> None:
        """The environment must answer within `limit_s` of running clock."""
        self.working = True
        self.alarm += 1
        self.deadline_ns = now_ns + round(limit_s * NS_PER_S)
        self.left_ns = None

    def end_work(self) -> bool:
        """The environment answered or failed; False if it had before."""
        was_working, self.working = self.working, False
        self.alarm += 1
        return was_working

    def stop_clock(self, now_ns: int) -> None:
        """No deadline passes until `run_clock`."""
        self.alarm += 1
        self.left_ns = self.deadline_ns - now_ns

    def run_clock(self, now_ns: int) -> None:
        """The deadline counts again."""
        if self.left_ns is not None:
            self.deadline_ns = now_ns + self.left_ns
            self.left_ns = None
        self.alarm += 1
