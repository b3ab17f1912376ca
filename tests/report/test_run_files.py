"""The files of a run directory are written whole, and read back as they were."""

import json

import pytest
from report_runs import SMALL, play, small_run, write_run

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report import run_files
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.run_files import (
    append_metrics,
    read_run,
    write_json,
    write_metrics,
    write_text,
)
from tiderl_jax.report.tensorboard import TensorBoard


@pytest.fixture
def ledger() -> Ledger:
    return play(Ledger(SMALL), small_run())


def test_a_run_directory_is_read_back_as_it_was_written(tmp_path, ledger):
    write_run(tmp_path, ledger)
    record = read_run(tmp_path)
    assert record.config["name"] == "small"
    assert record.summary == ledger.summary(0)
    assert record.rows == ledger.rows()
    assert record.timeline == ledger.timeline()
    assert record.claims == ()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_json(tmp_path / "summary.json", {"wall_s": 1.0})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "summary.json", {"wall_s": float("nan")})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"wall_s": 1.0}


def test_no_partial_file_is_left_behind(tmp_path, ledger):
    write_run(tmp_path, ledger)
    write_text(tmp_path / "new" / "folder" / "a.txt", "text")
    assert not list(tmp_path.rglob("*.partial"))


def test_rows_are_appended_and_void_ones_replaced(tmp_path, ledger):
    first, second = ledger.rows()
    write_run(tmp_path, ledger)
    write_metrics(tmp_path, [first])
    append_metrics(tmp_path, second)
    assert read_run(tmp_path).rows == [first, second]


@pytest.mark.parametrize("name", [run_files.CONFIG, run_files.SUMMARY, run_files.METRICS])
def test_a_missing_or_broken_file_is_named_in_one_sentence(tmp_path, ledger, name):
    write_run(tmp_path, ledger)
    (tmp_path / name).write_text("{")
    with pytest.raises(ConfigError, match=name):
        read_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing"):
        read_run(tmp_path)


def test_tensorboard_events_hold_the_rows(tmp_path, ledger):
    board = TensorBoard(tmp_path)
    for row in ledger.rows():
        board.write(row)
    board.close()
    (events,) = (tmp_path / run_files.EVENTS).iterdir()
    written = events.read_bytes()
    for name in (b"kv/hit_rate", b"perf/goodput_tokens_per_s", b"critic/rewards/mean"):
        assert name in written
    assert b"wall_s" not in written
