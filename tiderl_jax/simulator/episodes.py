"""Simulated rollouts: those under way, and those that ended and wait for their training step."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, RolloutId
from tiderl_jax.simulator.clock import NS_PER_S
from tiderl_jax.simulator.draws import EpisodePlan
from tiderl_jax.simulator.engine import Turn


@dataclass(slots=True, eq=False)
class Episode:
    """One attempt. Its environment's clock can be stopped: `clock_ns` is the time that it ran."""

    rollout: RolloutId
    rank: RankId
    workload: str
    prompt_tokens: int
    plan: EpisodePlan
    began_ns: int
    ended_ns: int = 0
    is_over: bool = False  # ended, failed or dropped
    parked: bool = False  # its KV may be reclaimed
    turn: Turn | None = None  # that decodes, or waits to go on after an interruption
    n_turns: int = 0
    context_tokens: int = 0
    trained_context_tokens: int = 0  # up to the model's last token
    sampled: dict[PolicyVersion, int] = field(
        default_factory=dict
    )  # model-owned tokens by version, in the order of sampling
    # Its environment.
    working: bool = False  # it owes an answer
    n_works: int = 0  # names what it works on
    idle_since_ns: int = 0  # by its own clock
    stopped_at_ns: int | None = None
    stopped_ns: int = 0  # in all, before that
    rearm: Callable[[], None] | None = None  # sets the deadline that came up in the meantime

    @property
    def n_sampled_tokens(self) -> int:
        """Model-owned tokens so far."""
        return sum(self.sampled.values())

    @property
    def start_version(self) -> PolicyVersion:
        """Of its first token."""
        return next(iter(self.sampled))

    @property
    def oldest_version(self) -> PolicyVersion:
        """Among its tokens."""
        return min(self.sampled)

    @property
    def duration_s(self) -> float:
        """From admission to the end."""
        return (self.ended_ns - self.began_ns) / NS_PER_S

    def clock_ns(self, now_ns: int) -> int:
        """The time on its environment's clock."""
        return (now_ns if self.stopped_at_ns is None else self.stopped_at_ns) - self.stopped_ns

    def take_turn(self, turn: Turn) -> None:
        """A turn has ended."""
        self.turn = None
        self.n_turns += 1
        self.context_tokens += turn.n_tokens
        self.trained_context_tokens = self.context_tokens
        for version, n_tokens in turn.sampled:
            self.sampled[version] = self.sampled.get(version, 0) + n_tokens


class Episodes:
    """By rollout and by group, so that dropping a group costs as much as it has members."""

    def __init__(self) -> None:
        self._under_way: dict[RolloutId, Episode] = {}
        self._groups: dict[GroupId, dict[RolloutId, Episode]] = {}  # ended ones too

    @property
    def n_groups(self) -> int:
        """Groups of which anything is held."""
        return len(self._groups)

    @property
    def n_under_way(self) -> int:
        """Rollouts that have not ended."""
        return len(self._under_way)

    def begin(self, episode: Episode) -> None:
        """Takes in a new attempt."""
        if episode.rollout in self._under_way:
            raise InvariantError(f"Rollout {episode.rollout} is admitted twice.")
        self._under_way[episode.rollout] = episode
        self._groups.setdefault(episode.rollout.group, {})[episode.rollout] = episode

    def under_way(self, rollout: RolloutId) -> Episode:
        """A rollout about which the scheduler gave a command."""
        episode = self._under_way.get(rollout)
        if episode is None:
            raise InvariantError(f"Rollout {rollout} is not under way.")
        return episode

    def find(self, rollout: RolloutId) -> Episode | None:
        """The rollout, if it is under way."""
        return self._under_way.get(rollout)

    def end(self, episode: Episode, now_ns: int) -> None:
        """It is over; it waits for its training step, unless it was only evaluated."""
        del self._under_way[episode.rollout]
        episode.is_over, episode.working, episode.ended_ns = True, False, now_ns
        if episode.rollout.group.purpose.is_evaluation:
            self._leave(episode)

    def forget(self, episode: Episode) -> None:
        """It failed or was dropped."""
        self._under_way.pop(episode.rollout, None)
        episode.is_over, episode.working = True, False
        self._leave(episode)

    def of(self, group: GroupId) -> list[Episode]:
        """All that is held of a group."""
        return list(self._groups.get(group, {}).values())

    def take(self, group: GroupId) -> list[Episode]:
        """Hands a complete group over for good.

        Raises:
          InvariantError: nothing is held of it, or a member has not ended.
        """
        members = self._groups.pop(group, None)
        if members is None or not all(episode.is_over for episode in members.values()):
            raise InvariantError(f"Group {group} is trained although it is not complete.")
        return list(members.values())

    def _leave(self, episode: Episode) -> None:
        members = self._groups[episode.rollout.group]
        del members[episode.rollout]
        if not members:
            del self._groups[episode.rollout.group]
