"""The report is one page that needs nothing else, and trusts no text."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_runs import SMALL, play, small_run, write_run

from experiments import report as report_command
from tiderl_jax.report import html, plots
from tiderl_jax.report.html import duration, number, render, ten_figures, write_report
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.run_files import REPORT, RunRecord, read_run
from tiderl_jax.report.theme import DARK, LIGHT

HOSTILE = "<script>alert(1)</script>$\\frac$"
RESULT = {
    "baseline": "sync",
    "aim": "≥ 2",
    "source": "the abstract",
    "n": 3,
    "low": 1.0,
    "high": 1.5,
}


@pytest.fixture
def record(tmp_path) -> RunRecord:
    write_run(tmp_path, play(Ledger(SMALL), small_run()))
    return read_run(tmp_path)


@pytest.fixture
def one_picture(monkeypatch):
    """Pictures are slow; for what is not about them one is enough."""
    monkeypatch.setattr(html, "PICTURES", plots.PICTURES[-1:])


@pytest.fixture(autouse=True)
def _small_pictures(monkeypatch):
    """Nobody looks at them here."""
    monkeypatch.setattr(plots, "DOTS_PER_INCH", 40)


class Links(HTMLParser):
    """Everything that the page would load or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loaded += [value for name, value in attrs if name in ("src", "srcset", "href")]


def test_the_page_needs_nothing_else_and_embeds_every_picture_in_both_themes(record):
    page = Links(render(record))
    assert len(page.loaded) == 2 * len(plots.PICTURES)
    assert all(link.startswith("data:image/png;base64,") for link in page.loaded)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)


@pytest.mark.usefixtures("one_picture")
def test_hostile_text_is_escaped_wherever_it_comes_from(record):
    summary = {
        **record.summary,
        "policy": HOSTILE,
        "waterfall": {**record.summary["waterfall"], HOSTILE: 3},
    }
    config = {**record.config, "name": HOSTILE, "config": {HOSTILE: HOSTILE}}
    rows = [{**row, HOSTILE: 1.0} for row in record.rows]
    claims = [RESULT | {"name": HOSTILE, "value": 1.0, "met": False, "source": HOSTILE}]
    hostile = replace(record, summary=summary, config=config, rows=rows, claims=claims)
    page = render(hostile)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 7


def test_hostile_names_can_be_drawn(record):
    waterfall = {**record.summary["waterfall"], HOSTILE: 3}
    hostile = replace(record, summary={**record.summary, "waterfall": waterfall})
    for picture in plots.PICTURES:
        if picture.title == "Where sampled tokens went":
            assert picture.png(hostile, LIGHT).startswith(b"\x89PNG")


@pytest.mark.usefixtures("one_picture")
def test_a_simulated_run_is_labelled_as_one(record):
    real = render(record)
    simulated = render(replace(record, config={**record.config, "simulated": True}))
    assert "real run" in real
    assert "simulated run" not in real
    assert "simulated run" in simulated
    assert "virtual time" in simulated


@pytest.mark.usefixtures("one_picture")
def test_unmet_claims_are_shown(record):
    claims = [
        RESULT | {"name": "fast", "value": 1.25, "met": False},
        RESULT | {"name": "absent", "value": None, "low": None, "high": None, "met": False, "n": 0},
    ]
    page = render(replace(record, claims=claims))
    assert re.findall(r'class="unmet">(\w+)', page) == ["NO", "NO"]
    assert "1 to 1.5" in page
    assert "not measured" in page


def test_a_run_in_which_nothing_happened_can_be_drawn(tmp_path, monkeypatch):
    write_run(tmp_path, Ledger(SMALL))
    empty = read_run(tmp_path)
    for picture in plots.PICTURES:
        assert picture.png(empty, DARK).startswith(b"\x89PNG")
    monkeypatch.setattr(html, "PICTURES", ())
    assert "0 tokens/s" in render(empty)


def test_there_are_ten_figures_that_matter(record):
    figures = ten_figures(record.summary)
    assert len(figures) == 10
    assert dict((name, value) for name, value, _ in figures)["Goodput"] == "1.17 tokens/s"


@pytest.mark.usefixtures("one_picture")
def test_the_command_rebuilds_the_page_from_the_files_alone(tmp_path, monkeypatch, capsys):
    write_run(tmp_path, play(Ledger(SMALL), small_run()))
    page = write_report(tmp_path).read_text()
    (tmp_path / REPORT).unlink()
    monkeypatch.setattr("sys.argv", ["report", "--workdir", str(tmp_path)])
    assert report_command.main() == 0
    assert (tmp_path / REPORT).read_text() == page
    assert REPORT in capsys.readouterr().out


def test_the_command_names_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["report", "--workdir", str(tmp_path)])
    assert report_command.main() == 2
    assert "config.json is missing" in capsys.readouterr().err


def test_numbers_and_times_are_written_for_people():
    assert [number(n) for n in (None, 0, 0.12345, 12.345, 12345.6)] == [
        "-",
        "0",
        "0.123",
        "12.3",
        "12,346",
    ]
    assert [duration(s) for s in (5.64, 184, 3720)] == ["5.6 s", "3 min 04 s", "1 h 02 min"]
