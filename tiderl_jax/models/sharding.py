"""Where parameters live on a mesh, read off the axis letters that end their names.

The model width D is split over `data` (fully sharded data parallel); heads, feed-forward width and
vocabulary over `tensor`. An axis that the mesh does not divide is held whole, and so are vectors.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

MESH_AXES = ("data", "tensor")
MESH_AXIS_OF = {"D": "data", "H": "tensor", "K": "tensor", "F": "tensor", "V": "tensor"}


def make_mesh(devices: Sequence[jax.Device], tensor_parallel: int) -> Mesh:
    """A ("data", "tensor") mesh of these devices; the compiler places the communication.

    Raises:
      ValueError: `tensor_parallel` does not divide the number of devices.
    """
    grid = np.array(devices).reshape(-1, tensor_parallel)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def shardings(tree: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every leaf of a tree that is keyed by the transformer's parameter names.

    That is the parameters, their gradients and an optimizer's moments; what carries no such name
    (a counter) is replicated.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, _spec(_name(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def _name(path: tuple[Any, ...]) -> str:
    names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
    return names[-1] if names else ""


def _spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    letters = name.rpartition("_")[2]
    if len(shape) < 2 or len(letters) != len(shape):
        return P()
    axes = [MESH_AXIS_OF.get(letter) for letter in letters]
    divides = [
        axis is not None and n % mesh.shape[axis] == 0 for axis, n in zip(axes, shape, strict=True)
    ]
    return P(*[axis if fits else None for axis, fits in zip(axes, divides, strict=True)])
