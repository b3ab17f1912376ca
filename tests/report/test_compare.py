"""Runs side by side: one row per run over its seeds, and a picture."""

import pytest
from report_runs import SMALL, play, small_run, write_run

from tiderl_jax.report.compare import compare, markdown_table, measured, reward_per_wall_s
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.run_files import RunRecord, read_run


@pytest.fixture
def record(tmp_path) -> RunRecord:
    write_run(tmp_path / "run", play(Ledger(SMALL), small_run()))
    return read_run(tmp_path / "run")


def test_reward_per_wall_second_is_all_reward_over_the_time_to_the_last_update(record):
    assert reward_per_wall_s(record) == pytest.approx((1 + 0 + 0.25 + 1) / 24)


def test_the_table_has_the_mean_and_the_range_over_seeds(record):
    other = RunRecord(
        record.config,
        {**record.summary, "goodput_tokens_per_s": 3.0},
        record.rows,
        record.timeline,
        (),
    )
    lines = markdown_table({"sync": [record, other], "a|b": [other], "none": []}).splitlines()
    header = [cell.strip() for cell in lines[0].split(" | ")]
    sync = [cell.strip("| ") for cell in lines[2].split(" | ")]
    goodput = (28 / 24 + 3) / 2
    column = header.index("goodput (tokens/s)")
    assert sync[column] == f"{goodput:.4g} (1.167 to 3)"
    assert lines[3].startswith("| a\\|b | 1 |")
    assert lines[4].startswith("| none | 0 | - |")


def test_a_figure_that_a_run_lacks_is_left_out(record):
    assert measured([record], "success, sampled") == []


def test_a_table_and_a_picture_are_written(record, tmp_path):
    compare({"sync": [record], "tiderl": [record, record], "none": []}, tmp_path)
    assert "| tiderl | 2 |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
