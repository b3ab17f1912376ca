"""Claims are measured over paired seeds, and one that is not met is never hidden."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.report.claims import (
    Claim,
    evaluate,
    figure,
    gain,
    markdown_table,
    ratio,
    ratio_to_best,
    rich_table,
    write_claims,
)

RUNS = {
    "fast": [{"x": 6.0, "eval": {"a": 0.2, "b": 0.9}}, {"x": 8.0, "eval": {"a": 0.4, "b": 0.7}}],
    "slow": [{"x": 3.0, "eval": {"a": 0.0, "b": 0.1}}, {"x": 2.0, "eval": {"a": None, "b": 0.1}}],
}


def result(measure, **aim) -> dict:
    (one,) = evaluate([Claim("claim", measure, **aim)], RUNS)
    return one


def test_a_figure_is_found_by_its_dotted_path_and_averaged_over_seeds():
    assert result(figure("eval.b", "fast"), at_least=0.8) == {
        "name": "claim",
        "baseline": "",
        "value": pytest.approx(0.8),
        "low": 0.7,
        "high": 0.9,
        "aim": "≥ 0.8",
        "met": True,
        "source": "",
        "n": 2,
    }


def test_a_ratio_is_taken_seed_by_seed():
    one = result(ratio("x", "fast", "slow"), at_most=2.9)
    assert (one["value"], one["low"], one["high"]) == (3, 2, 4)
    assert (one["aim"], one["met"]) == ("≤ 2.9", False)


def test_a_gain_is_the_last_minus_the_first():
    one = result(gain("eval.a", "eval.b", "fast"), at_least=0.5)
    assert one["value"] == pytest.approx((0.7 + 0.3) / 2)
    assert one["met"]


def test_a_seed_without_the_figure_is_left_out_of_the_count():
    one = result(gain("eval.a", "eval.b", "slow"), at_least=0)
    assert (one["n"], one["value"]) == (1, pytest.approx(0.1))


def test_every_seed_must_meet_a_claim_about_every_seed():
    one = result(figure("eval.b", "fast"), at_least=0.8, every_seed=True)
    assert (one["met"], one["aim"]) == (False, "≥ 0.8 at every seed")
    assert result(figure("eval.b", "fast"), at_most=0.9, every_seed=True)["met"]
    assert not result(figure("eval.b", "fast"), at_most=0.8, every_seed=True)["met"]


def test_a_claim_about_a_run_that_is_not_there_is_not_met():
    one = result(figure("x", "ghost"), at_most=1)
    assert (one["value"], one["met"], one["n"]) == (None, False, 0)


def test_a_figure_that_no_summary_has_is_named_with_the_nearest_one():
    with pytest.raises(ConfigError, match="did you mean 'eval'"):
        result(figure("evil.b", "fast"), at_least=0)


def test_a_claim_has_exactly_one_limit():
    with pytest.raises(ConfigError, match="needs either"):
        Claim("both", figure("x", "fast"), at_least=1, at_most=2)
    with pytest.raises(ConfigError, match="needs either"):
        Claim("none", figure("x", "fast"))


def test_from_five_seeds_on_the_range_is_the_confidence_interval_of_the_mean():
    """For 1..5: the mean 3, the deviation sqrt(2.5), and t(4, 97.5 %) = 2.776 (any table)."""
    runs = {"many": [{"x": float(i)} for i in range(1, 6)]}
    (one,) = evaluate([Claim("claim", figure("x", "many"), at_least=0)], runs)
    half = 2.776445 * np.sqrt(2.5) / np.sqrt(5)
    assert (one["low"], one["high"]) == pytest.approx((3 - half, 3 + half), abs=1e-5)


def test_tables_show_unmet_and_unmeasured_claims():
    results = evaluate(
        [
            Claim("met", figure("x", "fast"), at_least=1),
            Claim("unmet | [red]", figure("x", "fast"), at_least=99, source="a paper"),
            Claim("unmeasured", figure("x", "ghost"), at_least=1),
        ],
        RUNS,
    )
    table = markdown_table(results)
    assert [line.split(" | ")[-2] for line in table.splitlines()[2:]] == ["yes", "NO", "NO"]
    assert "unmet \\| [red]" in table
    assert "not measured" in table
    shown = io.StringIO()
    Console(width=200, file=shown).print(rich_table(results))
    shown = shown.getvalue()
    assert "1 of 3 met" in shown
    assert shown.count("NO") == 2
    assert "unmet | [red]" in shown


def test_claims_are_written_as_a_list(tmp_path):
    results = evaluate([Claim("a", figure("x", "fast"), at_least=1)], RUNS)
    write_claims(tmp_path / "claims.json", results)
    assert json.loads((tmp_path / "claims.json").read_text()) == results


STATIC = {
    "ours": [{"x": 6.0}, {"x": 4.0}],
    "quarter": [{"x": 3.0}, {"x": 2.0}],
    "half": [{"x": 4.0}, {"x": 0.5}],  # best at one seed, not by the mean
    "broken": [{"x": None}, {"x": None}],
}


def best_result(over, **options) -> dict:
    measure = ratio_to_best("x", "ours", over, **options)
    (one,) = evaluate([Claim("claim", measure, at_least=1)], STATIC)
    return one


def test_the_best_baseline_is_the_best_by_its_mean_over_seeds_and_is_named():
    one = best_result(("quarter", "half", "broken"))
    assert (one["baseline"], one["value"], one["n"]) == ("quarter", 2, 2)


def test_the_best_baseline_of_what_should_be_small_is_the_smallest():
    one = best_result(("quarter", "half"), smaller_is_better=True)
    assert (one["baseline"], one["value"]) == ("half", (6 / 4 + 4 / 0.5) / 2)


def test_a_ratio_to_baselines_that_are_not_there_is_not_measured():
    one = best_result(("broken", "ghost"))
    assert (one["baseline"], one["n"], one["met"]) == ("", 0, False)


def test_a_comparison_names_its_baseline_and_the_table_shows_it():
    one = result(ratio("x", "fast", "slow"), at_least=1)
    assert one["baseline"] == "slow"
    assert markdown_table([one]).splitlines()[2].startswith("| claim | slow | 3 |")
