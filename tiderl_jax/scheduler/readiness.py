"""The readiness signals of TideRL, measured: RAS, TPRM, HoL, step time, and who waited how long."""

from dataclasses import dataclass

_STEP_WEIGHT = 0.5
"""Of the newest window in the running mean of step times."""


@dataclass(frozen=True, slots=True)
class Window:
    """What the time between two updates was like."""

    length_ns: int
    trained_tokens: int
    trainer_wait: float  # share of the time in which no feed was outstanding (TWT)
    rollout_wait: float  # share of the rollout ranks' time in which no turn ran (RWT)


@dataclass(slots=True)
class Readiness:
    """Signals of the run so far; a window is the time between two updates.

    RAS: microbatches ready when the step started. TPRM: mean gap between microbatches that became
    ready later, in ns. The times that ranks and trainer waited are those of the present window.
    """

    n_ready_at_start: int = 0  # RAS
    gap_ns: float = float("inf")  # TPRM
    step_ns: float = 0.0  # running mean of a window's length; 0: none has ended
    group_tokens: float = 0.0  # running mean of a complete group's tokens; 0: none was complete
    arrived_tokens: int = 0  # of groups that completed in this window
    window_began_ns: int = 0
    trainer_busy_ns: int = 0  # while a feed was outstanding
    trainer_busy_since_ns: int | None = None
    idle_rank_ns: int = 0  # of rollout ranks without a running turn, summed

    def trainer_works(self, now_ns: int) -> None:
        """A feed is outstanding from now on."""
        if self.trainer_busy_since_ns is None:
            self.trainer_busy_since_ns = now_ns

    def trainer_rests(self, now_ns: int) -> None:
        """No feed is outstanding any more."""
        if self.trainer_busy_since_ns is not None:
            self.trainer_busy_ns += now_ns - self.trainer_busy_since_ns
            self.trainer_busy_since_ns = None

    def group_completes(self, n_tokens: int, weight: float) -> None:
        """A group has become ready."""
        self.arrived_tokens += n_tokens
        if self.group_tokens == 0:
            self.group_tokens = n_tokens
        self.group_tokens += weight * (n_tokens - self.group_tokens)

    def expected_gap_ns(self, now_ns: int, microbatch_tokens: int) -> float:
        """TPRM, or before any window has ended the mean gap so far."""
        if self.gap_ns != float("inf") or not self.arrived_tokens:
            return self.gap_ns
        return (now_ns - self.window_began_ns) * microbatch_tokens / self.arrived_tokens

    def close_window(
        self, now_ns: int, microbatch_tokens: int, n_rollout_ranks: int, trained_tokens: int
    ) -> Window:
        """Takes the signals of the window that ends now; the trainer rests at that moment."""
        length_ns = max(1, now_ns - self.window_began_ns)
        if self.arrived_tokens:
            self.gap_ns = length_ns * microbatch_tokens / self.arrived_tokens
        if self.step_ns == 0:
            self.step_ns = length_ns
        self.step_ns += _STEP_WEIGHT * (length_ns - self.step_ns)
        window = Window(
            length_ns=length_ns,
            trained_tokens=trained_tokens,
            trainer_wait=1 - self.trainer_busy_ns / length_ns,
            rollout_wait=self.idle_rank_ns / (length_ns * max(1, n_rollout_ranks)),
        )
        self.arrived_tokens = self.trainer_busy_ns = self.idle_rank_ns = 0
        self.window_began_ns = now_ns
        return window
