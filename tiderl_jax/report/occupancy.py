"""What every rollout rank, rollout and trainer is doing, and for how long."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core.commands import (
    Admit,
    Command,
    DropGroup,
    Pause,
    Publish,
    Resume,
    RunTurn,
    StartStep,
    StepEnvironment,
)
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    RolloutEnded,
    RolloutFailed,
    TurnEnded,
    Updated,
    WeightsLoaded,
)
from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, RolloutId
from tiderl_jax.report.facts import RunFacts
from tiderl_jax.report.sums import Doing, Sum, Sums, Training, rank_ns, trainer_ns
from tiderl_jax.report.timeline import Span, Timeline

_ENVIRONMENT, _READY, _DECODING = "environment", "waiting", "decoding"
_PARKED = "parked"


@dataclass(slots=True)
class Track:
    """What something is doing since when, and up to when that has been charged to the sums."""

    label: str
    since_ns: int
    charged_ns: int

    @classmethod
    def starting(cls, label: str, now_ns: int) -> "Track":
        """A track that begins now."""
        return cls(label, now_ns, now_ns)

    def charge(self, now_ns: int) -> int:
        """Time that was not charged yet, in ns."""
        elapsed_ns, self.charged_ns = now_ns - self.charged_ns, now_ns
        return elapsed_ns

    def turn_to(self, label: str, now_ns: int, details: Mapping[str, Any]) -> Span:
        """Begins something else; returns the span that ends by that."""
        span = Span(self.label, self.since_ns, now_ns, details)
        self.label, self.since_ns, self.charged_ns = label, now_ns, now_ns
        return span


@dataclass(slots=True)
class OpenRollout:
    """A rollout under way."""

    rank: RankId
    track: Track
    phase: str = _ENVIRONMENT
    parked: bool = False
    spans: list[Span] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # of the span under way

    @property
    def label(self) -> str:
        """What its track shows."""
        return _PARKED if self.parked and self.phase != _DECODING else self.phase


class Occupancy:
    """Follows events and commands, and charges time to `sums` and spans to the timeline.

    Several things happen at one instant (a turn ends, so its environment steps); a track changes
    only to what holds when the instant is over (`settle`).
    """

    def __init__(
        self,
        run: RunFacts,
        sums: Sums,
        timeline: Timeline,
        now_ns: int,
        *,
        n_updates: int,
    ) -> None:
        self._run = run
        self._sums = sums
        self._timeline = timeline
        self._ranks = {rank: Track.starting(Doing.NOT_ADMITTED, now_ns) for rank in run.ranks}
        self._trainer = Track.starting(Training.WAITING, now_ns)
        self._step: dict[str, Any] = {}  # details of the step that is running; empty: none
        self._rollouts: dict[RolloutId, OpenRollout] = {}
        self._phases = {rank: Counter[str]() for rank in run.ranks}
        self._loading: dict[RankId, PolicyVersion] = {}
        self._n_updates = n_updates
        self._groups: set[GroupId] = set()  # of training, under way or in a step
        self._n_trained_groups = n_updates * run.groups_per_step
        self._in_step: dict[int, tuple[GroupId, ...]] = {}
        self._touched: set[RolloutId] = set()
        self._touched_ranks: set[RankId] = set()
        self._was_held = self._held

    @property
    def _held(self) -> bool:
        """Whether the bound on staleness admits no new group (design: the capacity rule)."""
        capacity = (self._run.staleness_bound + self._n_updates + 1) * self._run.groups_per_step
        return self._n_trained_groups + len(self._groups) >= capacity

    def on_event(self, event: Event, now_ns: int) -> None:
        """Follows what happened."""
        match event:
            case EnvironmentReady(rollout, _):
                self._move(rollout, _READY)
            case TurnEnded(rollout):
                self._turn_ended(event)
            case EnvironmentFailed(rollout, _) | RolloutFailed(rollout, _):
                self._close(rollout, now_ns, "failed")
            case RolloutEnded(rollout, outcome):
                self._close(rollout, now_ns, outcome.value)
            case WeightsLoaded(rank, version, _):
                if self._loading.get(rank, version) <= version:
                    self._loading.pop(rank, None)
                    self._touched_ranks.add(rank)
                self._timeline.rank(rank, Span(f"weights {version} loaded", now_ns))
            case Updated(step):
                groups = self._in_step.pop(step, ())
                self._groups.difference_update(groups)
                self._n_trained_groups += len(groups)
                self._n_updates += 1
                self.charge(now_ns)
                self._end_step(event, now_ns)
            case _:
                pass

    def on_command(self, command: Command, now_ns: int) -> None:
        """Follows what was decided."""
        match command:
            case Admit(rollout, rank):
                self._open(rollout, rank, now_ns)
            case RunTurn(rollout, rank):
                self._open(rollout, rank, now_ns)
                self._move(rollout, _DECODING)
            case StepEnvironment(rollout):
                self._move(rollout, _ENVIRONMENT)
            case Pause(rollout, _):
                self._sums[Sum.PAUSES] += 1
                self._park(rollout, True)
            case Resume(rollout, _):
                self._park(rollout, False)
            case DropGroup(group, reason):
                self._groups.discard(group)
                for rollout in [one for one in self._rollouts if one.group == group]:
                    self._close(rollout, now_ns, reason.value)
            case StartStep(step, groups, mode):
                self._in_step[step] = groups
                self._step = {"step": step, "groups": len(groups), "mode": mode.value}
            case Publish(version, ranks):
                self._loading |= dict.fromkeys(ranks, version)
                self._touched_ranks.update(ranks)
                self._timeline.trainer(Span(f"publish {version}", now_ns))
            case _:
                pass

    def settle(self, now_ns: int) -> None:
        """Ends the instant: every track shows what holds now."""
        if self._held != self._was_held:  # concerns every idle rank
            self._was_held = self._held
            self._touched_ranks.update(self._ranks)
        for rank in self._touched_ranks:
            track, label = self._ranks[rank], self._doing(rank)
            if label != track.label:
                self._sums[rank_ns(track.label)] += track.charge(now_ns)
                self._timeline.rank(rank, track.turn_to(label, now_ns, {}))
        self._touched_ranks.clear()
        if self._step and self._trainer.label == Training.WAITING:
            self._sums[trainer_ns(Training.WAITING)] += self._trainer.charge(now_ns)
            self._timeline.trainer(self._trainer.turn_to(Training.TRAINING, now_ns, {}))
        for rollout in self._touched & self._rollouts.keys():
            one = self._rollouts[rollout]
            if one.label != one.track.label:
                one.spans.append(one.track.turn_to(one.label, now_ns, one.details))
                one.details = {}
        self._touched.clear()

    def charge(self, now_ns: int) -> None:
        """Charges the time so far to the sums, without ending what is under way."""
        for track in self._ranks.values():
            self._sums[rank_ns(track.label)] += track.charge(now_ns)
        self._sums[trainer_ns(self._trainer.label)] += self._trainer.charge(now_ns)

    def draw_open_spans(self, timeline: Timeline, now_ns: int) -> None:
        """Adds what is under way, up to now, to a timeline."""
        for rank, track in self._ranks.items():
            timeline.rank(rank, Span(track.label, track.since_ns, now_ns))
        timeline.trainer(Span(self._trainer.label, self._trainer.since_ns, now_ns, self._step))
        for rollout, one in self._rollouts.items():
            under_way = Span(one.track.label, one.track.since_ns, now_ns)
            timeline.rollout(rollout, [*one.spans, under_way])

    def _doing(self, rank: RankId) -> Doing:
        phases = self._phases[rank]
        if phases[_DECODING]:
            return Doing.DECODING
        if rank in self._loading:
            return Doing.WEIGHTS
        if phases[_READY]:
            return Doing.SCHEDULER
        if phases[_ENVIRONMENT]:
            return Doing.ENVIRONMENTS
        return Doing.STALENESS if self._held else Doing.NOT_ADMITTED

    def _open(self, rollout: RolloutId, rank: RankId, now_ns: int) -> None:
        if rollout in self._rollouts:
            return
        self._rollouts[rollout] = OpenRollout(rank, Track.starting(_ENVIRONMENT, now_ns))
        self._phases[rank][_ENVIRONMENT] += 1
        self._touched_ranks.add(rank)
        if not rollout.group.purpose.is_evaluation:
            self._groups.add(rollout.group)

    def _move(self, rollout: RolloutId, phase: str) -> None:
        one = self._rollouts.get(rollout)
        if one is not None:
            self._phases[one.rank][one.phase] -= 1
            self._phases[one.rank][phase] += 1
            one.phase = phase
            self._touched.add(rollout)
            self._touched_ranks.add(one.rank)

    def _park(self, rollout: RolloutId, parked: bool) -> None:
        if rollout in self._rollouts:
            self._rollouts[rollout].parked = parked
            self._touched.add(rollout)

    def _turn_ended(self, event: TurnEnded) -> None:
        self._move(event.rollout, _READY)
        if event.rollout in self._rollouts:
            self._rollouts[event.rollout].details = {
                "generated_tokens": event.generated_tokens,
                "found_tokens": event.found_tokens,
                "prefilled_tokens": event.prefilled_tokens,
                "oldest_version": event.oldest_version,
            }

    def _close(self, rollout: RolloutId, now_ns: int, end: str) -> None:
        one = self._rollouts.pop(rollout, None)
        if one is not None:
            self._phases[one.rank][one.phase] -= 1
            self._touched_ranks.add(one.rank)
            one.spans.append(one.track.turn_to(end, now_ns, one.details))
            one.spans.append(Span(end, now_ns, details={"rank": one.rank}))
            self._timeline.rollout(rollout, one.spans)

    def _end_step(self, event: Updated, now_ns: int) -> None:
        if self._trainer.label == Training.TRAINING:
            details = {**self._step, "trained_tokens": event.trained_tokens}
            self._timeline.trainer(self._trainer.turn_to(Training.WAITING, now_ns, details))
        self._step = {}
