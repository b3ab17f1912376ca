"""What every rank and rollout is doing, and for how long."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core.commands import (
    Admit,
    DropGroup,
    DropRollout,
    Feed,
    Migrate,
    Pause,
    PauseEnvironment,
    Publish,
    Repartition,
    Resume,
    ResumeEnvironment,
    RunTurn,
    StepEnvironment,
)
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    RankLost,
    RankReady,
    RolloutEnded,
    RolloutFailed,
    Trained,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, Role, RolloutId
from tiderl_jax.report.facts import RunFacts
from tiderl_jax.report.sums import Doing, Sum, Sums, Training, rank_ns
from tiderl_jax.report.tracks import Tracks
from tiderl_jax.report.trainer_time import TrainerTime

_ENVIRONMENT, _READY, _DECODING, _HELD = range(4)  # phases of a rollout
_PHASE_IN_WORDS = ("environment", "waiting", "decoding", "held")
_PARKED = "parked"
AWAY_IN_ROLE = {Role.ROLLOUT: None, Role.TRAINER: Doing.TRAINER}
_RANK_NS = {doing: rank_ns(doing) for doing in Doing}
_TRAIN = Purpose.TRAIN


def starting_in(role: Role) -> Doing:
    """What a rank does before anything has happened."""
    return AWAY_IN_ROLE[role] or Doing.NOT_ADMITTED


@dataclass(slots=True, eq=False)
class RankState:
    """A rank: what it does, and what is on it."""

    rank: RankId
    away: Doing | None  # None: it rolls out
    doing: Doing
    charged_ns: int  # up to when its time has been charged to the sums
    n_in_phase: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # of its rollouts
    loading: PolicyVersion | None = None


@dataclass(slots=True, eq=False)
class OpenRollout:
    """A rollout under way."""

    rank: RankState
    phase: int = _ENVIRONMENT
    parked: bool = False

    @property
    def label(self) -> str:
        """What its track shows."""
        if self.parked and self.phase != _DECODING:
            return _PARKED
        return _PHASE_IN_WORDS[self.phase]


class Occupancy:
    """Follows events and commands, and charges time to `sums` and spans to the tracks (if any).

    Several things happen at one instant (a turn ends, and the next one runs); a rank changes only
    to what it does when the instant is over (`settle`). An event that arrives a second time changes
    nothing.
    """

    def __init__(
        self,
        run: RunFacts,
        sums: Sums,
        tracks: Tracks | None,
        trainer: TrainerTime,
        now_ns: int,
        *,
        n_updates: int,
    ) -> None:
        """The trainer must follow what happens before this does."""
        self._run = run
        self._sums = sums
        self._tracks = tracks
        self._trainer = trainer
        self._ranks = {
            rank: RankState(rank, AWAY_IN_ROLE[role], starting_in(role), now_ns)
            for rank, role in run.roles.items()
        }
        self._shared = [state for rank, state in self._ranks.items() if rank < run.n_shared]
        self._rollouts: dict[RolloutId, OpenRollout] = {}
        self._members: dict[GroupId, set[RolloutId]] = {}  # that are under way, by group
        self._n_open_groups = 0  # of training, not in a step yet
        self._n_trained_groups = n_updates * run.groups_per_step
        self._n_groups_in_step = 0
        self._n_updates = n_updates
        self._touched: dict[RankState, None] = {}
        self._held = self._is_held()

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            EnvironmentReady: self._environment_ready,
            TurnEnded: self._turn_ended,
            EnvironmentFailed: self._failed,
            RolloutFailed: self._failed,
            RolloutEnded: self._ended,
            WeightsLoaded: self._weights_loaded,
            RankReady: self._rank_ready,
            RankLost: self._rank_lost,
            Trained: self._trained,
            Updated: self._updated,
            Admit: self._admit,
            RunTurn: self._run_turn,
            StepEnvironment: self._step_environment,
            Migrate: self._migrate,
            Pause: self._pause,
            Resume: self._resume,
            PauseEnvironment: self._hold,
            ResumeEnvironment: self._let_in,
            DropRollout: self._drop_rollout,
            DropGroup: self._drop_group,
            Feed: self._feed,
            Repartition: self._repartition,
            Publish: self._publish,
        }

    def settle(self, now_ns: int) -> None:
        """Ends the instant: every rank shows what holds now."""
        if not self._touched:
            return
        for state in self._touched:
            doing = self._doing(state)
            if doing is not state.doing:
                self._sums[_RANK_NS[state.doing]] += now_ns - state.charged_ns
                state.doing, state.charged_ns = doing, now_ns
                if self._tracks is not None:
                    self._tracks.rank(state.rank, doing, now_ns)
        self._touched.clear()

    def _charge(self, now_ns: int) -> None:
        """Charges the time so far to the sums, without ending what is under way."""
        for state in self._ranks.values():
            self._sums[_RANK_NS[state.doing]] += now_ns - state.charged_ns
            state.charged_ns = now_ns

    # Ranks.

    def _doing(self, state: RankState) -> Doing:
        n_in_phase = state.n_in_phase
        if state.away is not None:
            return state.away
        if n_in_phase[_DECODING]:
            return Doing.DECODING
        if self._trainer.training is Training.TRAINING and state.rank < self._run.n_shared:
            return Doing.TRAINER
        if state.loading is not None:
            return Doing.WEIGHTS
        if n_in_phase[_READY]:
            return Doing.SCHEDULER
        if n_in_phase[_ENVIRONMENT]:
            return Doing.ENVIRONMENTS
        return Doing.STALENESS if self._held else Doing.NOT_ADMITTED

    def _is_held(self) -> bool:
        """Whether the bound on staleness admits no new group (design: the capacity rule)."""
        capacity = (self._run.staleness_bound + self._n_updates + 1) * self._run.groups_per_step
        n_accepted = self._n_trained_groups + self._n_groups_in_step
        return n_accepted + self._n_open_groups >= capacity

    def _hold_or_not(self) -> None:
        """After a change in the number of groups, which concerns every idle rank."""
        held = self._is_held()
        if held != self._held:
            self._held = held
            self._touched.update(dict.fromkeys(self._ranks.values()))

    def _publish(self, command: Publish, now_ns: int) -> None:
        for rank in command.ranks:
            self._ranks[rank].loading = command.version
            self._touched[self._ranks[rank]] = None

    def _weights_loaded(self, event: WeightsLoaded, now_ns: int) -> None:
        state = self._ranks[event.rank]
        if state.loading is not None and state.loading <= event.version:
            state.loading = None
            self._touched[state] = None
        if self._tracks is not None:
            self._tracks.rank_instant(event.rank, f"weights {event.version} loaded", now_ns)

    def _repartition(self, command: Repartition, now_ns: int) -> None:
        self._sums[Sum.REPARTITIONS] += 1
        self._assign(self._ranks[command.rank], Doing.MOVING, now_ns)

    def _rank_ready(self, event: RankReady, now_ns: int) -> None:
        self._assign(self._ranks[event.rank], AWAY_IN_ROLE[event.role], now_ns)

    def _rank_lost(self, event: RankLost, now_ns: int) -> None:
        state = self._ranks[event.rank]
        self._assign(state, Doing.LOST, now_ns)
        for rollout, one in self._rollouts.items():
            if one.rank is state and one.phase == _DECODING:
                self._move(rollout, one, _READY, now_ns)

    def _assign(self, state: RankState, away: Doing | None, now_ns: int) -> None:
        if Doing.TRAINER in (away, state.away):
            joined = (away is Doing.TRAINER) - (state.away is Doing.TRAINER)
            self._trainer.add_devices(joined, now_ns)
        state.away, state.loading = away, None
        self._touched[state] = None

    # The trainer.

    def _feed(self, command: Feed, now_ns: int) -> None:
        self._n_groups_in_step += len(command.groups)
        for group in command.groups:
            if self._members.pop(group, None) is not None:
                self._n_open_groups -= 1
        self._touch_shared()

    def _trained(self, event: Trained, now_ns: int) -> None:
        self._touch_shared()

    def _updated(self, event: Updated, now_ns: int) -> None:
        self._n_trained_groups += self._n_groups_in_step
        self._n_groups_in_step = 0
        self._n_updates += 1
        self._hold_or_not()
        self._touch_shared()
        self._charge(now_ns)

    def _touch_shared(self) -> None:
        self._touched.update(dict.fromkeys(self._shared))

    # Rollouts.

    def _admit(self, command: Admit | RunTurn, now_ns: int) -> None:
        rollout, state = command.rollout, self._ranks[command.rank]
        if rollout in self._rollouts:
            return
        self._rollouts[rollout] = OpenRollout(state)
        state.n_in_phase[_ENVIRONMENT] += 1
        self._touched[state] = None
        if rollout.group not in self._members:
            self._members[rollout.group] = set()
            if rollout.group.purpose is _TRAIN:
                self._n_open_groups += 1
                self._hold_or_not()
        self._members[rollout.group].add(rollout)
        if self._tracks is not None:
            self._tracks.open(rollout, command.rank, _PHASE_IN_WORDS[_ENVIRONMENT], now_ns)

    def _environment_ready(self, event: EnvironmentReady, now_ns: int) -> None:
        one = self._rollouts.get(event.rollout)
        if one is not None and one.phase == _ENVIRONMENT:
            self._move(event.rollout, one, _READY, now_ns)

    def _run_turn(self, command: RunTurn, now_ns: int) -> None:
        one = self._rollouts.get(command.rollout)
        if one is None:  # admitted before this ledger began
            self._admit(command, now_ns)
            one = self._rollouts[command.rollout]
        self._move(command.rollout, one, _DECODING, now_ns)

    def _turn_ended(self, event: TurnEnded, now_ns: int) -> None:
        one = self._rollouts.get(event.rollout)
        if one is None or one.phase != _DECODING:
            return
        details = None
        if self._tracks is not None:
            details = {
                "generated_tokens": event.generated_tokens,
                "found_tokens": event.found_tokens,
                "prefilled_tokens": event.prefilled_tokens,
                "oldest_version": event.oldest_version,
            }
        self._move(event.rollout, one, _READY, now_ns, details)

    def _step_environment(self, command: StepEnvironment, now_ns: int) -> None:
        one = self._rollouts.get(command.rollout)
        if one is not None:
            self._move(command.rollout, one, _ENVIRONMENT, now_ns)

    def _move(
        self,
        rollout: RolloutId,
        one: OpenRollout,
        phase: int,
        now_ns: int,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        n_in_phase = one.rank.n_in_phase
        n_in_phase[one.phase] -= 1
        n_in_phase[phase] += 1
        one.phase = phase
        self._touched[one.rank] = None
        if self._tracks is not None:
            self._tracks.rollout(rollout, one.label, now_ns, details)

    def _migrate(self, command: Migrate, now_ns: int) -> None:
        one = self._rollouts.get(command.rollout)
        if one is None:
            return
        if one.phase == _DECODING:
            self._move(command.rollout, one, _READY, now_ns)
        one.rank.n_in_phase[one.phase] -= 1
        self._touched[one.rank] = None
        one.rank = self._ranks[command.rank]
        one.rank.n_in_phase[one.phase] += 1
        self._touched[one.rank] = None
        if self._tracks is not None:
            self._tracks.migrate(command.rollout, command.rank, now_ns)

    def _pause(self, command: Pause, now_ns: int) -> None:
        self._sums[Sum.PAUSES] += 1
        self._park(command.rollout, True, now_ns)

    def _resume(self, command: Resume, now_ns: int) -> None:
        self._park(command.rollout, False, now_ns)

    def _hold(self, command: PauseEnvironment, now_ns: int) -> None:
        """Its clock stops although it is not paused: its first turn waits for newer weights."""
        one = self._rollouts.get(command.rollout)
        if one is not None and one.phase == _READY and not one.parked:
            self._move(command.rollout, one, _HELD, now_ns)

    def _let_in(self, command: ResumeEnvironment, now_ns: int) -> None:
        one = self._rollouts.get(command.rollout)
        if one is not None and one.phase == _HELD:
            self._move(command.rollout, one, _READY, now_ns)

    def _park(self, rollout: RolloutId, parked: bool, now_ns: int) -> None:
        one = self._rollouts.get(rollout)
        if one is not None:
            one.parked = parked
            if self._tracks is not None:
                self._tracks.rollout(rollout, one.label, now_ns)

    def _failed(self, event: EnvironmentFailed | RolloutFailed, now_ns: int) -> None:
        self._close(event.rollout, "failed", now_ns)

    def _ended(self, event: RolloutEnded, now_ns: int) -> None:
        self._close(event.rollout, event.outcome.value, now_ns)

    def _drop_rollout(self, command: DropRollout, now_ns: int) -> None:
        self._close(command.rollout, command.reason.value, now_ns)

    def _close(self, rollout: RolloutId, end: str, now_ns: int) -> None:
        one = self._rollouts.pop(rollout, None)
        if one is None:
            return
        one.rank.n_in_phase[one.phase] -= 1
        self._touched[one.rank] = None
        members = self._members.get(rollout.group, set())
        members.discard(rollout)
        if not members and rollout.group.purpose is not _TRAIN:
            self._members.pop(rollout.group, None)
        if self._tracks is not None:
            self._tracks.close(rollout, end, now_ns)

    def _drop_group(self, command: DropGroup, now_ns: int) -> None:
        if command.group not in self._members:
            return
        for rollout in tuple(self._members[command.group]):
            self._close(rollout, command.reason.value, now_ns)
        if command.group.purpose is _TRAIN:
            del self._members[command.group]
            self._n_open_groups -= 1
            self._hold_or_not()
