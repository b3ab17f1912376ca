"""Segments: tokens born together. Built once where they are born, only sliced afterwards."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from tiderl_jax.core.ids import PolicyVersion


class Owner(IntEnum):
    """Who made a token. The loss mask is a function of this and of nothing else."""

    MODEL = 0
    TEMPLATE = 1
    ENV = 2


NO_VERSION = PolicyVersion(-1)
"""The version field of tokens that no policy sampled."""


def _frozen(values: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Tokens of one owner, born together; immutable.

    Tokens that the model did not sample have log-probs 0 and version `NO_VERSION`; they are never
    read, because the loss mask follows the owner.
    """

    owner: Owner
    token_ids: np.ndarray  # int32 [T]
    logp_raw: np.ndarray  # float32 [T], nats: log softmax of the model's logits
    logp: np.ndarray  # float32 [T], nats: of the distribution sampled from (temperature applied)
    versions: np.ndarray  # int32 [T], the policy version each token was sampled under

    def __post_init__(self) -> None:
        for name, dtype in (
            ("token_ids", np.int32),
            ("logp_raw", np.float32),
            ("logp", np.float32),
            ("versions", np.int32),
        ):
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
        n_tokens = self.token_ids.shape
        if not n_tokens == self.logp_raw.shape == self.logp.shape == self.versions.shape:
            raise ValueError("every field of a segment must have one value per token")
        if self.owner is Owner.MODEL and np.any(self.versions < 0):
            raise ValueError("every token sampled by the model carries its policy version")

    def __len__(self) -> int:
        return len(self.token_ids)


def given(owner: Owner, token_ids: np.ndarray | list[int]) -> Segment:
    """A segment that no policy sampled: the template's or the environment's tokens."""
    n_tokens = len(token_ids)
    zeros = np.zeros(n_tokens, np.float32)
    return Segment(
        owner, np.asarray(token_ids, np.int32), zeros, zeros, np.full(n_tokens, NO_VERSION)
    )
