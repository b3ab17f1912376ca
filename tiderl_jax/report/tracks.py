"""Draws what ranks, trainer and rollouts do into a timeline, as they change from one to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core.ids import RankId, RolloutId
from tiderl_jax.report.timeline import Span, Timeline

MAX_OPEN_ROLLOUTS = 1024
"""Rollouts drawn at the same time; those admitted beyond it have no track."""


@dataclass(slots=True)
class Track:
    """What something is doing, and since when."""

    label: str
    since_ns: int

    def turn_to(self, label: str, now_ns: int, details: Mapping[str, Any]) -> Span:
        """Begins something else; returns the span that ends by that."""
        span = Span(self.label, self.since_ns, now_ns, details)
        self.label, self.since_ns = label, now_ns
        return span


@dataclass(slots=True)
class RolloutTrack(Track):
    """The track of a rollout under way, with its spans so far."""

    rank: RankId
    spans: list[Span] = field(default_factory=list)


class Tracks:
    """One track per rank, one for the trainer, one per rollout."""

    def __init__(self, ranks: Mapping[RankId, str], trainer: str, now_ns: int) -> None:
        self._timeline = Timeline()
        self._ranks = {rank: Track(label, now_ns) for rank, label in ranks.items()}
        self._trainer = Track(trainer, now_ns)
        self._rollouts: dict[RolloutId, RolloutTrack] = {}

    def timeline(self, now_ns: int, details: Mapping[str, Any]) -> Timeline:
        """Everything so far, with what is under way up to now; `details` are the trainer's."""
        timeline = self._timeline.copy()
        for rank, track in self._ranks.items():
            timeline.rank(rank, Span(track.label, track.since_ns, now_ns))
        trainer = self._trainer
        timeline.trainer(Span(trainer.label, trainer.since_ns, now_ns, details))
        for rollout, track in self._rollouts.items():
            under_way = Span(track.label, track.since_ns, now_ns)
            timeline.rollout(rollout, [*track.spans, under_way])
        return timeline

    def rank(self, rank: RankId, label: str, now_ns: int) -> None:
        """A rank does something else."""
        self._timeline.rank(rank, self._ranks[rank].turn_to(label, now_ns, {}))

    def rank_instant(self, rank: RankId, name: str, now_ns: int) -> None:
        """Something happened at a rank."""
        self._timeline.rank(rank, Span(name, now_ns))

    def trainer(self, label: str, now_ns: int, details: Mapping[str, Any]) -> None:
        """The trainer does something else; the details are of what it did."""
        self._timeline.trainer(self._trainer.turn_to(label, now_ns, details))

    def trainer_instant(self, name: str, now_ns: int) -> None:
        """Something happened at the trainer."""
        self._timeline.trainer(Span(name, now_ns))

    def open(self, rollout: RolloutId, rank: RankId, label: str, now_ns: int) -> None:
        """A rollout begins."""
        if len(self._rollouts) < MAX_OPEN_ROLLOUTS:
            self._rollouts[rollout] = RolloutTrack(label, now_ns, rank)
        else:
            self._timeline.skip_rollout()

    def rollout(
        self, rollout: RolloutId, label: str, now_ns: int, details: Mapping[str, Any] | None = None
    ) -> None:
        """A rollout does something else; the details are of what it did."""
        track = self._rollouts.get(rollout)
        if track is not None and track.label != label:
            track.spans.append(track.turn_to(label, now_ns, details or {}))

    def migrate(self, rollout: RolloutId, rank: RankId, now_ns: int) -> None:
        """A rollout goes on at another rank."""
        track = self._rollouts.get(rollout)
        if track is not None:
            details = {"from_rank": track.rank, "rank": rank}
            track.spans.append(Span("migrate", now_ns, details=details))
            track.rank = rank

    def close(self, rollout: RolloutId, end: str, now_ns: int) -> None:
        """A rollout is over."""
        track = self._rollouts.pop(rollout, None)
        if track is not None:
            track.spans.append(track.turn_to(end, now_ns, {}))
            track.spans.append(Span(end, now_ns, details={"rank": track.rank}))
            self._timeline.rollout(rollout, track.spans)
