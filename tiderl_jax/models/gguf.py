"""A reader for GGUF files, version 3: metadata, and tensors of four storage types as float32.

Layout: a header, key/value metadata, a table of tensors, then their data at aligned offsets. The
block formats are those of ggml: 32 weights share a scale (Q8_0), or a scale and a minimum (Q4_1).
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiderl_jax.core.errors import ConfigError, WeightsFault

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

_STORAGE = {
    0: ("F32", np.dtype("<f4"), 1),
    1: ("F16", np.dtype("<f2"), 1),
    3: ("Q4_1", np.dtype([("scale", "<f2"), ("low", "<f2"), ("nibbles", "u1", 16)]), 32),
    8: ("Q8_0", np.dtype([("scale", "<f2"), ("steps", "i1", 32)]), 32),
}
"""Storage type -> (name, dtype of a block, weights in a block)."""


class _Entry(NamedTuple):
    shape: tuple[int, ...]  # outermost axis first, as NumPy has it
    storage: int
    offset: int  # from the beginning of the data


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open file: metadata at hand, tensors dequantised when asked for."""

    path: Path
    metadata: dict[str, Any]
    entries: dict[str, _Entry]
    data: np.ndarray  # uint8, memory-mapped

    def tensor(self, name: str) -> np.ndarray:
        """One tensor as float32, outermost axis first ([out, in] for a matrix).

        Raises:
          WeightsFault: it does not exist, is cut short, or its storage type is not supported.
        """
        if name not in self.entries:
            raise WeightsFault(f"{self.path} holds no tensor {name}.")
        shape, storage, offset = self.entries[name]
        if storage not in _STORAGE:
            raise WeightsFault(f"{name} in {self.path} has the unsupported GGUF type {storage}.")
        kind, dtype, block_weights = _STORAGE[storage]
        n_bytes = int(np.prod(shape)) // block_weights * dtype.itemsize
        stored = self.data[offset : offset + n_bytes]
        if len(stored) != n_bytes:
            raise WeightsFault(f"{name} in {self.path} is cut short.")
        return _dequantise(kind, stored.view(dtype)).reshape(shape)


def _dequantise(kind: str, blocks: np.ndarray) -> np.ndarray:
    """float32 weights, flat, of a flat array of blocks."""
    if kind in ("F32", "F16"):
        return blocks.astype(np.float32)
    scale = blocks["scale"].astype(np.float32)[:, None]
    if kind == "Q8_0":
        return (blocks["steps"] * scale).ravel()
    # A byte holds weight i in its low half and weight i + 16 in its high half.
    nibbles = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1)
    return (nibbles * scale + blocks["low"].astype(np.float32)[:, None]).ravel()


class _Cursor:
    """Reads the typed values of the header one after another."""

    def __init__(self, data: np.ndarray):
        self._bytes = memoryview(data)
        self.position = 0

    def scalar(self, form: str) -> Any:
        """One number in a `struct` format."""
        (value,) = struct.unpack_from(form, self._bytes, self.position)
        self.position += struct.calcsize(form)
        return value

    def string(self) -> str:
        """A length and that many bytes of UTF-8."""
        n_bytes = self.scalar("<Q")
        self.position += n_bytes
        return bytes(self._bytes[self.position - n_bytes : self.position]).decode()

    def value(self, kind: int) -> Any:
        """A metadata value: scalar, string, or a list of either."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, n_items = self.scalar("<I"), self.scalar("<Q")
            return [self.value(item_kind) for _ in range(n_items)]
        return self.scalar(_SCALARS[kind])

    def entry(self) -> _Entry:
        """A row of the tensor table; GGUF lists the innermost axis first."""
        n_axes = self.scalar("<I")
        axes = [self.scalar("<Q") for _ in range(n_axes)]
        return _Entry(tuple(reversed(axes)), self.scalar("<I"), self.scalar("<Q"))


def read_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF file.

    Raises:
      ConfigError: it does not exist, or is not GGUF version 3.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"There is no GGUF file {path}.")
    data = np.memmap(path, np.uint8, mode="r")
    try:
        cursor = _Cursor(data)
        magic, version = cursor.scalar("<I"), cursor.scalar("<I")
        if magic != 0x46554747 or version != 3:
            raise ConfigError(f"{path} is not a GGUF file of version 3.")
        n_tensors, n_values = cursor.scalar("<Q"), cursor.scalar("<Q")
        metadata = {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(n_values)}
        entries = {cursor.string(): cursor.entry() for _ in range(n_tensors)}
    except (struct.error, KeyError, UnicodeDecodeError) as cause:
        raise ConfigError(f"The header of {path} is broken.") from cause
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.position // alignment) * alignment
    return GgufFile(path, metadata, entries, data[start:])
