"""The timeline of a run as Chrome trace events: open it in Perfetto or chrome://tracing.

Source of the format: "Trace Event Format" (Google, 2016): complete events `X`, instants `i`,
metadata `M`; `ts` and `dur` in microseconds.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core.ids import RankId, RolloutId

MAX_SPANS = 50_000
MAX_ROLLOUTS = 256

TRAINER, RANKS, ROLLOUTS = 1, 2, 3  # Chrome's process ids group the tracks
_PROCESSES = {TRAINER: "trainer", RANKS: "ranks", ROLLOUTS: "rollouts"}
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took from `begin_ns` to `end_ns`, or an instant (`end_ns` is None)."""

    name: str
    begin_ns: int
    end_ns: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it took no time at all, without being meant as an instant."""
        return self.end_ns == self.begin_ns


class Timeline:
    """Bounded: beyond the limits the oldest spans, and the oldest whole rollouts, are dropped."""

    def __init__(self, max_spans: int = MAX_SPANS, max_rollouts: int = MAX_ROLLOUTS) -> None:
        self._spans: deque[tuple[int, int, Span]] = deque(maxlen=max_spans)
        self._rollouts: deque[tuple[RolloutId, tuple[Span, ...]]] = deque(maxlen=max_rollouts)
        self._n_spans = 0
        self._n_rollouts = 0

    def copy(self) -> Timeline:
        """A timeline that goes its own way from here."""
        other = copy.copy(self)
        other._spans, other._rollouts = self._spans.copy(), self._rollouts.copy()
        return other

    def rank(self, rank: RankId, span: Span) -> None:
        """Adds a span to a rank's track."""
        self._add(RANKS, rank, span)

    def trainer(self, span: Span) -> None:
        """Adds a span to the trainer's track."""
        self._add(TRAINER, 0, span)

    def rollout(self, rollout: RolloutId, spans: Iterable[Span]) -> None:
        """Adds the whole track of a rollout that is over."""
        self._n_rollouts += 1
        self._rollouts.append((rollout, tuple(span for span in spans if not span.is_empty)))

    def skip_rollout(self) -> None:
        """Counts a rollout that nobody has drawn."""
        self._n_rollouts += 1

    def _add(self, process: int, track: int, span: Span) -> None:
        if span.is_empty:
            return
        self._n_spans += 1
        self._spans.append((process, track, span))

    def chrome_trace(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """The document of `timeline.json`; what was dropped is said in its metadata."""
        tracks = {
            (process, track): _track_name(process, track) for process, track, _ in self._spans
        }
        events = [_event(process, track, span) for process, track, span in self._spans]
        for i, (rollout, spans) in enumerate(self._rollouts):
            tracks[ROLLOUTS, i] = str(rollout)
            events += [_event(ROLLOUTS, i, span) for span in spans]
        events.sort(key=lambda event: event["ts"])
        return {
            "displayTimeUnit": "ms",
            "traceEvents": [*_names(tracks), *events],
            "otherData": {
                **metadata,
                "spans_dropped": self._n_spans - len(self._spans),
                "rollout_tracks_dropped": self._n_rollouts - len(self._rollouts),
                "note": (
                    f"At most {self._spans.maxlen} spans of ranks and trainer and the tracks of "
                    f"{self._rollouts.maxlen} rollouts are kept; older ones are dropped."
                ),
            },
        }


def _track_name(process: int, track: int) -> str:
    return f"rank {track}" if process == RANKS else "trainer"


def _event(process: int, track: int, span: Span) -> dict[str, Any]:
    begin_us = span.begin_ns / _NS_PER_US
    event = {"name": span.name, "pid": process, "tid": track, "ts": begin_us}
    if span.end_ns is None:
        event |= {"ph": "i", "s": "t"}
    else:
        event |= {"ph": "X", "dur": (span.end_ns - span.begin_ns) / _NS_PER_US}
    return event | {"args": dict(span.details)}


def _names(tracks: Mapping[tuple[int, int], str]) -> Iterable[dict[str, Any]]:
    for process in sorted({process for process, _ in tracks}):
        yield _metadata("process_name", process, 0, name=_PROCESSES[process])
        yield _metadata("process_sort_index", process, 0, sort_index=process)
    for (process, track), name in sorted(tracks.items()):
        yield _metadata("thread_name", process, track, name=name)
        yield _metadata("thread_sort_index", process, track, sort_index=track)


def _metadata(kind: str, process: int, track: int, **values: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": values}
