"""A tiny model in several versions, and a dense reference that knows no pages."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tiderl_jax.core.config import ArchitectureConfig, DecoderConfig
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RolloutId
from tiderl_jax.decoder.engine import Engine
from tiderl_jax.decoder.turns import Sampling, TurnRequest, TurnResult
from tiderl_jax.models.transformer import ModelSpec, new_model

ARCHITECTURE = ArchitectureConfig(
    n_layers=2,
    d_model=16,
    n_heads=4,
    n_kv_heads=2,
    d_head=8,
    d_ff=24,
    rope_base=10000.0,
    norm_epsilon=1e-5,
    tied_embedding=True,
)
N_TOKENS = 11
MAX_CONTEXT = 32
CONFIG = DecoderConfig(
    n_slots=4,
    n_pages=24,
    page_tokens=4,
    prefill_chunk_tokens=6,
    decode_steps_per_dispatch=3,
    kv_after_update="drop",
)


@dataclass(frozen=True)
class TinyWorld:
    """Everything that a decoder test needs."""

    graphdef: nnx.GraphDef
    params: list[nnx.State]  # by policy version, again from the first when they are used up
    spec: ModelSpec
    logits: Callable[[int, np.ndarray], np.ndarray]  # (version, ids [T]) -> [T, V], dense

    def engine(self, version: int = 0, **changes: object) -> Engine:
        """A fresh engine; it shares its compiled programs with all others."""
        return Engine(
            self.graphdef,
            self.params[version],
            self.spec,
            replace(CONFIG, **changes),
            MAX_CONTEXT,
            PolicyVersion(version),
            jax.devices()[0],
        )

    def check_against_dense(self, request: TurnRequest, result: TurnResult) -> None:
        """Every token and log-prob is that of its version's weights over its whole past."""
        ids = np.concatenate([request.context_ids, result.token_ids])
        temperature = request.sampling.temperature
        dense = {version: self.logits(version, ids) for version in set(result.versions.tolist())}
        for i, token in enumerate(result.token_ids):
            logits = dense[int(result.versions[i])][len(request.context_ids) + i - 1]
            scaled = logits / temperature if temperature else logits
            if not temperature:
                assert logits[token] >= logits.max() - 1e-4
            assert abs(result.logp_raw[i] - log_softmax(logits)[token]) < 1e-4
            assert abs(result.logp[i] - log_softmax(scaled)[token]) < 1e-4


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def dense_logits(graphdef: nnx.GraphDef, params: nnx.State, ids_T: jax.Array) -> jax.Array:
    """A plain causal forward pass over one padded row: [T] -> [T, V]."""
    n_groups = ARCHITECTURE.n_heads // ARCHITECTURE.n_kv_heads

    def attend(layer: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = jnp.repeat(k, n_groups, axis=2), jnp.repeat(v, n_groups, axis=2)
        score = jnp.einsum("bthe,bshe->bhts", q, k) / np.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones(score.shape[-2:], bool))[None, None]
        weight = jax.nn.softmax(jnp.where(causal, score, -jnp.inf), axis=-1)
        return jnp.einsum("bhts,bshe->bthe", weight, v)

    model = nnx.merge(graphdef, params)
    hidden = model.hidden(ids_T[None], jnp.arange(len(ids_T))[None], attend)
    return model.logits(hidden[0])


def tiny_world() -> TinyWorld:
    """Three versions of one tiny model."""
    spec = ModelSpec(ARCHITECTURE, N_TOKENS, "float32")
    graphdef, _ = new_model(spec, 0)
    # Larger weights than at initialisation, so that the versions disagree about the next token.
    params = [jax.tree.map(lambda x: 3 * x, new_model(spec, seed)[1]) for seed in range(3)]
    forward = jax.jit(lambda params, ids_T: dense_logits(graphdef, params, ids_T))

    def logits(version: int, ids: np.ndarray) -> np.ndarray:
        padded = np.zeros(MAX_CONTEXT, np.int32)
        padded[: len(ids)] = ids
        return np.asarray(forward(params[version % len(params)], padded))[: len(ids)]

    return TinyWorld(graphdef, params, spec, logits)


def rollout_id(member: int, group: int = 0) -> RolloutId:
    """The rollout of a training group."""
    return RolloutId(GroupId(Purpose.TRAIN, group), member)


def turn(
    rollout: RolloutId,
    context_ids: np.ndarray | list[int],
    max_tokens: int = 4,
    temperature: float = 0.0,
    key: tuple[int, int] = (1, 2),
    stop_token_id: int = -1,
) -> TurnRequest:
    """A request; greedy, and without a stop token, unless said otherwise."""
    sampling = Sampling(temperature, key, max_tokens, stop_token_id)
    return TurnRequest(rollout, np.asarray(context_ids, np.int32), sampling)


def run(engine: Engine, *requests: TurnRequest) -> list[TurnResult]:
    """Starts these turns together and returns their results in the order of the requests."""
    for request in requests:
        engine.run_turn(request)
    return finish(engine, *requests)


def finish(engine: Engine, *requests: TurnRequest) -> list[TurnResult]:
    """Steps until the turns of these requests have ended."""
    results: dict[RolloutId, TurnResult] = {}
    while engine.n_active:
        results |= {result.rollout: result for result in engine.step()}
        engine.check()
    return [results[request.rollout] for request in requests]


def occupy(engine: Engine, n_pages: int) -> None:
    """Lets other rollouts hold this many pages between their turns."""
    rng = np.random.default_rng(99)
    for group in range(n_pages // 4):
        run(engine, turn(rollout_id(0, 1000 + group), rng.integers(0, N_TOKENS, 15), 2))
