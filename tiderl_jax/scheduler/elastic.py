"""What an elastic scaling remembers between its plans."""

from dataclasses import dataclass, field

from tiderl_jax.core.ids import Role
from tiderl_jax.scheduler.readiness import Window


@dataclass(slots=True)
class Windows:
    """Sums over consecutive windows."""

    n: int = 0
    tokens: int = 0
    time_ns: int = 0
    trainer_wait: float = 0.0
    rollout_wait: float = 0.0

    def add(self, window: Window) -> None:
        """Takes one more."""
        self.n += 1
        self.tokens += window.trained_tokens
        self.time_ns += window.length_ns
        self.trainer_wait += window.trainer_wait
        self.rollout_wait += window.rollout_wait

    @property
    def goodput(self) -> float:
        """Trained tokens per ns."""
        return self.tokens / self.time_ns if self.time_ns else 0.0


@dataclass(slots=True)
class Trial:
    """A move of `ers_guarded` that must prove itself."""

    toward: Role
    n_before: int  # rollout ranks
    goodput_before: float


@dataclass(slots=True)
class Elastic:
    """Trends, confirmations, the fetch size, and the move that is on trial."""

    n_groups: int  # of the next step
    n_home: int  # rollout ranks at the start
    n_aim: int  # rollout ranks that `ers_guarded` wants
    buffer_groups: float = -1.0  # running mean of the groups ready at an update; below 0: none yet
    head_of_line_ns: float = 0.0  # running mean of HoL
    generation_deficits: int = 0  # in a row
    consumption_deficits: int = 0
    windows: Windows = field(default_factory=Windows)  # since the last decision
    settled: bool = False  # the window that a move (or the start) disturbed is over
    trial: Trial | None = None
    rest: dict[Role, int] = field(default_factory=dict[Role, int])  # windows until a new trial
    patience: dict[Role, int] = field(default_factory=dict[Role, int])  # length of the next rest
