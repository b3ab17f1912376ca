"""The compiled programs of training: plain functions on trees, with explicit shardings.

Parameters are float32 masters whatever the model computes in, so gradients add up in float32 and
small updates are not lost. Rows are split over the mesh's `data` axis. Nothing is donated across
meshes. Shapes: R packed rows, T tokens of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tiderl_jax.learner.log_probs import token_log_probs
from tiderl_jax.learner.packed_attention import packed_attend
from tiderl_jax.learner.packing import Rows
from tiderl_jax.models.sharding import shardings

Tree = Any
"""A pytree of arrays: parameters, gradients, or an optimizer's state."""

Loss = Callable[[jax.Array, Rows, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]
"""(logp_RT, rows, denominator) -> this micro-batch's share of the loss, and sums to be reported."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the arguments of every program live."""

    mesh: Mesh
    params: Tree  # NamedShardings, also of gradients

    @property
    def rows(self) -> NamedSharding:
        """Of every array of a micro-batch."""
        return NamedSharding(self.mesh, P("data"))

    @property
    def replicated(self) -> NamedSharding:
        """Of scalars."""
        return NamedSharding(self.mesh, P())


@dataclass(frozen=True, slots=True)
class Policy:
    """The model as the learner sees it: log-probs of packed tokens."""

    graphdef: nnx.GraphDef
    dtype: str  # that the model computes in
    temperature: float
    chunk_tokens: int

    def log_probs(self, params: Tree, rows: Rows) -> tuple[jax.Array, jax.Array]:
        """(log-probs, entropies) [R, T] of the tokens that the model owns, 0 elsewhere."""
        model = nnx.merge(self.graphdef, cast(params, self.dtype))
        hidden_RTD = model.hidden(rows.token_ids, rows.positions, packed_attend(rows.segment_ids))
        return token_log_probs(
            model.logits,
            hidden_RTD,
            rows.token_ids,
            rows.loss_mask,
            self.temperature,
            self.chunk_tokens,
        )


def cast(tree: Tree, dtype: str) -> Tree:
    """The same tree in another dtype."""
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def copy_program(dtype: str, out: Tree) -> Callable[[Tree], Tree]:
    """tree -> a copy in `dtype` that shares no buffer with it, so donating one keeps the other."""
    copy = partial(jax.tree.map, partial(jnp.array, dtype=dtype, copy=True))
    return jax.jit(copy, out_shardings=out)


def zeros_program(params: Tree, placement: Placement) -> Callable[[], Tree]:
    """() -> gradients of 0, in float32."""

    def zeros() -> Tree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)

    return jax.jit(zeros, out_shardings=placement.params)


def score_program(policy: Policy, placement: Placement) -> Callable[[Tree, Rows], jax.Array]:
    """(params, rows) -> log-probs [R, T], float32 nats."""

    def score(params: Tree, rows: Rows) -> jax.Array:
        return policy.log_probs(params, rows)[0]

    return jax.jit(
        score, in_shardings=(placement.params, placement.rows), out_shardings=placement.rows
    )


def accumulate_program(
    policy: Policy, loss: Loss, placement: Placement
) -> Callable[[Tree, Tree, Rows, Any], tuple[Tree, dict[str, jax.Array], jax.Array]]:
    """(params, grads, rows, denominator) -> (grads + this micro-batch's, sums, log-probs [R, T]).

    `denominator` counts the whole update, so no split into micro-batches changes the gradient. The
    gradients given are donated.
    """

    def accumulate(
        params: Tree, grads: Tree, rows: Rows, denominator: jax.Array
    ) -> tuple[Tree, dict[str, jax.Array], jax.Array]:
        def objective(params: Tree) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
            logp_RT, entropy_RT = policy.log_probs(params, rows)
            share, sums = loss(logp_RT, rows, denominator)
            return share, ({**sums, "loss": share, "entropy": entropy_RT.sum()}, logp_RT)

        new_grads, (sums, logp_RT) = jax.grad(objective, has_aux=True)(params)
        return jax.tree.map(jnp.add, grads, new_grads), sums, logp_RT

    return jax.jit(
        accumulate,
        donate_argnums=1,
        in_shardings=(placement.params, placement.params, placement.rows, placement.replicated),
        out_shardings=(placement.params, placement.replicated, placement.rows),
    )


def init_optimizer(tx: optax.GradientTransformation, params: Tree, placement: Placement) -> Tree:
    """The optimizer's first state, born where its parameters live."""
    abstract = jax.eval_shape(tx.init, params)
    return jax.jit(tx.init, out_shardings=shardings(abstract, placement.mesh))(params)


def apply_program(
    tx: optax.GradientTransformation, opt_state: Tree, placement: Placement
) -> Callable[[Tree, Tree, Tree], tuple[Tree, Tree, dict[str, jax.Array]]]:
    """(params, opt_state, grads) -> (params, opt_state, {"grad_norm", "applied"}).

    A gradient that is not finite changes nothing: neither parameters nor moments nor the count that
    the learning rate follows. Parameters and state are donated.
    """
    state = shardings(opt_state, placement.mesh)

    def apply(
        params: Tree, opt_state: Tree, grads: Tree
    ) -> tuple[Tree, Tree, dict[str, jax.Array]]:
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(grad_norm)
        updates, new_state = tx.update(grads, opt_state, params)
        new_params = optax.apply_updates(params, updates)
        new_params, new_state = jax.tree.map(
            partial(jnp.where, finite), (new_params, new_state), (params, opt_state)
        )
        return new_params, new_state, {"grad_norm": grad_norm, "applied": finite}

    return jax.jit(
        apply,
        donate_argnums=(0, 1),
        in_shardings=(placement.params, state, placement.params),
        out_shardings=(placement.params, state, placement.replicated),
    )
