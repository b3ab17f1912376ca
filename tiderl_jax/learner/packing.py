"""Packing: trajectories laid end to end in rows of one fixed shape, so that one program serves all.

The token at index t of a row is predicted from the tokens before it in the same segment.
Shapes: R rows of a micro-batch, T tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tiderl_jax.core.errors import LearnerFault
from tiderl_jax.core.trajectories import Trajectory

PADDING = 0
"""The segment id of slots that hold no token."""


class Rows(NamedTuple):
    """One micro-batch of packed rows. Values outside `loss_mask` are never read by an objective."""

    token_ids: Any  # int32 [R, T]
    positions: Any  # int32 [R, T], from 0 in every segment
    segment_ids: Any  # int32 [R, T], from 1 in every row; PADDING where there is no token
    loss_mask: Any  # bool [R, T], True at the tokens that the model owns
    old_logp: Any  # float32 [R, T], nats, as recorded when the token was sampled
    advantage: Any  # float32 [R, T]
    reference_logp: Any  # float32 [R, T], nats, under the frozen reference policy


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trajectory was put."""

    microbatch: int
    row: int
    start: int
    n_tokens: int

    def cut(self, microbatches: Sequence[np.ndarray]) -> np.ndarray:
        """[T] of this trajectory out of one [R, T] array per micro-batch."""
        return microbatches[self.microbatch][self.row, self.start : self.start + self.n_tokens]


@dataclass(frozen=True, slots=True)
class Packed:
    """Micro-batches of one shape, and the place of every trajectory in them."""

    microbatches: tuple[Rows, ...]
    places: tuple[Place, ...]  # in the order of the trajectories given

    @property
    def efficiency(self) -> float:
        """The share of slots that hold a token."""
        n_slots = sum(rows.token_ids.size for rows in self.microbatches)
        return sum(place.n_tokens for place in self.places) / max(n_slots, 1)


def empty_rows(n_rows: int, tokens_per_row: int) -> Rows:
    """A micro-batch without a token."""
    shape = (n_rows, tokens_per_row)
    return Rows(
        token_ids=np.zeros(shape, np.int32),
        positions=np.zeros(shape, np.int32),
        segment_ids=np.full(shape, PADDING, np.int32),
        loss_mask=np.zeros(shape, bool),
        old_logp=np.zeros(shape, np.float32),
        advantage=np.zeros(shape, np.float32),
        reference_logp=np.zeros(shape, np.float32),
    )


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    rows_per_microbatch: int,
    tokens_per_row: int,
) -> Packed:
    """Packs trajectories, first fit in order of decreasing length.

    Raises:
      LearnerFault: a trajectory is longer than a row, or begins with a token that the model owns
        (nothing predicts it).
    """
    for trajectory in trajectories:
        _check(trajectory, tokens_per_row)
    places = _first_fit_decreasing(
        [len(trajectory.token_ids) for trajectory in trajectories],
        rows_per_microbatch,
        tokens_per_row,
    )
    n_microbatches = 1 + max((place.microbatch for place in places), default=-1)
    microbatches = tuple(
        empty_rows(rows_per_microbatch, tokens_per_row) for _ in range(n_microbatches)
    )
    for trajectory, advantage, place in zip(trajectories, advantages, places, strict=True):
        _write(microbatches[place.microbatch], place, trajectory, advantage)
    return Packed(microbatches, places)


def _check(trajectory: Trajectory, tokens_per_row: int) -> None:
    n_tokens = len(trajectory.token_ids)
    if n_tokens > tokens_per_row:
        raise LearnerFault(
            f"Rollout {trajectory.rollout} has {n_tokens} tokens, more than a row of "
            f"learner.tokens_per_row = {tokens_per_row} holds."
        )
    if trajectory.loss_mask[0]:
        raise LearnerFault(
            f"Rollout {trajectory.rollout} begins with a token that the model owns; "
            "nothing predicts it."
        )


def _first_fit_decreasing(
    lengths: list[int], rows_per_microbatch: int, tokens_per_row: int
) -> tuple[Place, ...]:
    used_tokens: list[int] = []
    places: dict[int, Place] = {}
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        n_tokens = lengths[index]
        fitting = (row for row, used in enumerate(used_tokens) if used + n_tokens <= tokens_per_row)
        row = next(fitting, len(used_tokens))
        if row == len(used_tokens):
            used_tokens.append(0)
        places[index] = Place(*divmod(row, rows_per_microbatch), used_tokens[row], n_tokens)
        used_tokens[row] += n_tokens
    return tuple(places[index] for index in range(len(lengths)))


def _write(rows: Rows, place: Place, trajectory: Trajectory, advantage: float) -> None:
    here = (place.row, slice(place.start, place.start + place.n_tokens))
    rows.token_ids[here] = trajectory.token_ids
    rows.positions[here] = np.arange(place.n_tokens)
    rows.segment_ids[here] = rows.segment_ids[place.row].max() + 1
    rows.loss_mask[here] = trajectory.loss_mask
    rows.old_logp[here] = trajectory.logp
    rows.advantage[here] = advantage
