"""Runs side by side: one row per run over its seeds, and a picture."""

import pytest
from report_runs import SMALL, play, small_run, write_run

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report.compare import (
    FIGURES,
    REAL,
    SIMULATED,
    compare,
    markdown_table,
    measured,
    reward_per_wall_s,
)
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
    runs = {"sync": [record, other], "a|b": [other], "none": []}
    lines = markdown_table(runs, REAL).splitlines()
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


def with_goodput(record: RunRecord, value: float, *, simulated: bool = False) -> RunRecord:
    summary = {**record.summary, "goodput_tokens_per_s": value}
    config = {**record.config, "simulated": simulated}
    return RunRecord(config, summary, record.rows, record.timeline, ())


def test_from_five_seeds_on_the_table_has_the_confidence_interval(record):
    """For 1..5: the mean 3 and 2.776 x sqrt(2.5 / 5) = 1.963 (see test_claims)."""
    records = [with_goodput(record, float(i)) for i in range(1, 6)]
    row = markdown_table({"many": records}, ["goodput (tokens/s)"]).splitlines()[2]
    assert row == "| many | 5 | 3 ± 1.963 |"


def test_runs_in_virtual_time_are_compared_by_what_they_cost(record, tmp_path):
    compare({"sync": [with_goodput(record, 1.0, simulated=True)]}, tmp_path)
    header = (tmp_path / "table.md").read_text().splitlines()[0]
    assert header == f"| run | seeds | {' | '.join(SIMULATED)} |"


def test_an_experiment_names_the_figures_of_its_comparison(record, tmp_path):
    compare({"sync": [record]}, tmp_path, ["KV hit rate"])
    assert (tmp_path / "table.md").read_text().startswith("| run | seeds | KV hit rate |\n")
    with pytest.raises(ConfigError, match="did you mean 'KV hit rate'"):
        compare({"sync": [record]}, tmp_path, ["KV hits rate"])


def test_every_figure_can_be_measured(record):
    assert {name for name in FIGURES if not measured([record], name)} == {
        "success, sampled",
        "success, greedy",
    }


def test_twenty_runs_fit_into_the_picture(record, tmp_path):
    runs = {f"run {i}": [with_goodput(record, float(i), simulated=True)] for i in range(20)}
    compare(runs, tmp_path)
    width, height = png_size(tmp_path / "comparison.png")
    assert height > 3 * 20 * 25  # pixels of three rows of panels with a bar each
    assert width < 2.5 * height


def png_size(path) -> tuple[int, int]:
    header = path.read_bytes()[16:24]
    return int.from_bytes(header[:4]), int.from_bytes(header[4:])
