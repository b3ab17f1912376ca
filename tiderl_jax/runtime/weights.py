"""Published weights: a version is a manifest, and whoever serves it has proved its digest."""

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tiderl_jax.core.errors import WeightsFault
from tiderl_jax.core.ids import PolicyVersion


@dataclass(frozen=True, slots=True)
class Published:
    """One version of the policy, ready to be loaded by any rank."""

    version: PolicyVersion
    digest: str
    params: Any  # pytree of arrays, never donated


@jax.jit
def _checksums(params: Any) -> jax.Array:
    """uint32 [leaves]: a position-weighted sum of every leaf's bits.

    Integer sums do not depend on the order of addition, so neither on the sharding of the leaf.
    """

    def one(leaf: jax.Array) -> jax.Array:
        width = jnp.uint16 if leaf.dtype.itemsize == 2 else jnp.uint32
        bits = jax.lax.bitcast_convert_type(leaf, width).astype(jnp.uint32).reshape(-1)
        weights = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
        return jnp.sum(bits * weights, dtype=jnp.uint32)

    return jnp.stack([one(leaf) for leaf in jax.tree.leaves(params)])


def digest(params: Any) -> str:
    """16 hex digits over every leaf's path, shape, dtype and bits."""
    state = hashlib.blake2b(digest_size=8)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        state.update(f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype};".encode())
    state.update(np.asarray(_checksums(params)).tobytes())
    return state.hexdigest()


def publish(version: PolicyVersion, params: Any) -> Published:
    """A version of these parameters, which nobody may overwrite from now on."""
    return Published(version, digest(params), params)


def load(published: Published, sharding: jax.sharding.Sharding) -> Any:
    """Brings a version to a rank's devices and proves its digest there.

    Raises:
      WeightsFault: what arrived is not what was published.
    """
    # Never donate here: a donated device_put to another mesh crashes (and frees nothing).
    params = jax.device_put(published.params, sharding)
    arrived = digest(params)
    if arrived != published.digest:
        raise WeightsFault(
            f"Version {published.version} arrived with digest {arrived} instead of "
            f"{published.digest}, and is not served."
        )
    return params
