from pathlib import Path

import pytest

from tiderl_jax.core.errors import StorageFault
from tiderl_jax.core.events import ProbeMeasured
from tiderl_jax.core.ids import GroupId, Purpose
from tiderl_jax.runtime.journal import Journal, read


def events(n_events: int) -> list[tuple[ProbeMeasured, int]]:
    return [(ProbeMeasured(GroupId(Purpose.TRAIN, i), 10 + i), i * 1000) for i in range(n_events)]


def written(path: Path, n_events: int) -> bytes:
    journal = Journal(path)
    for event, now_ns in events(n_events):
        journal.append(event, now_ns)
    journal.close()
    return path.read_bytes()


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    written(tmp_path / "journal", 5)
    assert list(read(tmp_path / "journal")) == events(5)


def test_a_tail_torn_at_any_byte_is_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    two = len(written(tmp_path / "two", 2))
    whole = written(path, 3)
    for n_bytes in range(two, len(whole)):
        path.write_bytes(whole[:n_bytes])
        assert list(read(path)) == events(2)
        Journal(path).close()
        assert path.read_bytes() == whole[:two]
        journal = Journal(path)
        journal.append(*events(3)[2])
        journal.close()
        assert path.read_bytes() == whole


def test_a_flipped_bit_in_the_middle_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = bytearray(written(path, 3))
    whole[20] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StorageFault, match="broken at byte 0"):
        list(read(path))
