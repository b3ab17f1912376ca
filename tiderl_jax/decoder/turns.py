"""What a decoder is asked for and what it answers."""

from dataclasses import dataclass

import numpy as np

from tiderl_jax.core.events import TurnStop
from tiderl_jax.core.ids import RolloutId


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one turn's tokens are chosen."""

    temperature: float  # 0: greedy
    key: tuple[int, int]  # two 32-bit words, from `core.identity.key_words`
    max_tokens: int  # of this turn
    stop_token_id: int  # sampled last, if it is sampled at all


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """Continue this context, which is the rollout's whole context so far."""

    rollout: RolloutId
    context_ids: np.ndarray  # int32 [T]
    sampling: Sampling


@dataclass(frozen=True, slots=True, eq=False)
class TurnResult:
    """The model's part of a turn. `found_tokens` + `prefilled_tokens` is the context's length."""

    rollout: RolloutId
    token_ids: np.ndarray  # int32 [T]
    logp_raw: np.ndarray  # float32 [T], nats: log softmax of the logits
    logp: np.ndarray  # float32 [T], nats: of the distribution sampled from
    versions: np.ndarray  # int32 [T], the policy version each token was sampled under
    stop: TurnStop
    found_tokens: int  # context tokens whose KV was there
    prefilled_tokens: int  # context tokens computed for this turn
