"""The journal: every event, appended before it is acted on.

Records are length-prefixed with a CRC. A torn tail, which a crash leaves, is cut on opening; a
broken record before the last one is fatal.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from tiderl_jax.core.errors import StorageFault
from tiderl_jax.core.events import Event
from tiderl_jax.core.wire import decode, encode

_HEADER = struct.Struct("<II")  # payload bytes, CRC32 of the payload


class Journal:
    """An append-only file of (now_ns, event)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        whole_bytes = sum(_HEADER.size + len(payload) for payload in _payloads(path))
        self._file = path.open("r+b")
        self._file.truncate(whole_bytes)
        self._file.seek(whole_bytes)

    def append(self, event: Event, now_ns: int) -> None:
        """Adds an event; it reaches the disk with the operating system's next flush."""
        payload = json.dumps([now_ns, encode(event)], separators=(",", ":")).encode()
        self._file.write(_HEADER.pack(len(payload), zlib.crc32(payload)) + payload)

    def close(self) -> None:
        """Flushes and closes the file."""
        self._file.close()


def read(path: Path) -> Iterator[tuple[Event, int]]:
    """Every (event, now_ns) of a journal, without a torn tail.

    Raises:
      StorageFault: a record before the last one is broken.
    """
    for payload in _payloads(path):
        now_ns, record = json.loads(payload)
        yield decode(record), now_ns


def _payloads(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    start = 0
    while start + _HEADER.size <= len(data):
        n_bytes, crc = _HEADER.unpack_from(data, start)
        end = start + _HEADER.size + n_bytes
        payload = data[start + _HEADER.size : end]
        if len(payload) < n_bytes:
            return  # torn
        if zlib.crc32(payload) != crc:
            if end == len(data):
                return  # torn
            raise StorageFault(f"The journal {path} is broken at byte {start}.")
        yield payload
        start = end
