"""Claims: what an experiment expects, stated as data beside its config, and what it measured.

A measure is taken of each seed by itself, paired by seed where it compares runs. The value is the
mean over seeds; `low` and `high` are its `spread`. A comparison names its baseline, and the best of
several baselines is the best in hindsight: by the mean over all seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tiderl_jax.core.errors import ConfigError
from tiderl_jax.core.resolve import unknown_name
from tiderl_jax.report.run_files import write_json
from tiderl_jax.report.spread import spread

if TYPE_CHECKING:
    from rich.table import Table

Summary = Mapping[str, Any]
SeedsOf = Mapping[str, Sequence[Summary]]  # run name -> one summary per seed, in the same order

_ROUNDING = 1e-9  # shares are binary fractions: 0.8 as 24 of 30 must meet 0.8


class Measure(Protocol):
    """A number of each seed."""

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """One value per seed for which it was measured; empty if its run is not there."""
        ...

    def baseline(self, summaries: SeedsOf) -> str:
        """The run that it is held against; empty where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one run; `key` is a dotted path into its summary."""

    key: str
    run: str

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """See `Measure`."""
        values = (_look_up(summary, self.key) for summary in summaries.get(self.run, ()))
        return [value for value in values if value is not None]

    def baseline(self, summaries: SeedsOf) -> str:
        """See `Measure`."""
        return ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of one run over the same figure of another, seed by seed."""

    key: str
    run: str
    over: str

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """See `Measure`."""
        pairs = zip(summaries.get(self.run, ()), summaries.get(self.over, ()), strict=False)
        values = [(_look_up(one, self.key), _look_up(two, self.key)) for one, two in pairs]
        return [above / below for above, below in values if above is not None and below]

    def baseline(self, summaries: SeedsOf) -> str:
        """See `Measure`."""
        return self.over


@dataclass(frozen=True, slots=True)
class RatioToBest:
    """A figure of one run over the same figure of the best of others, seed by seed."""

    key: str
    run: str
    over: Sequence[str]
    smaller_is_better: bool

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """See `Measure`."""
        return Ratio(self.key, self.run, self.baseline(summaries)).per_seed(summaries)

    def baseline(self, summaries: SeedsOf) -> str:
        """The best of the others by the mean over seeds; empty if none was measured."""
        values = {run: Figure(self.key, run).per_seed(summaries) for run in self.over}
        means = {run: float(np.mean(of_run)) for run, of_run in values.items() if of_run}
        best = min if self.smaller_is_better else max
        return best(means, key=means.__getitem__, default="")


@dataclass(frozen=True, slots=True)
class Gain:
    """How much larger one figure of a run is than another (the last than the first, say)."""

    first: str
    last: str
    run: str

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """See `Measure`."""
        ours = summaries.get(self.run, ())
        values = [(_look_up(one, self.first), _look_up(one, self.last)) for one in ours]
        return [last - first for first, last in values if first is not None and last is not None]

    def baseline(self, summaries: SeedsOf) -> str:
        """See `Measure`."""
        return ""


@dataclass(frozen=True, slots=True)
class OverCells:
    """The smallest or the middle one of the same measure in many cells of a grid, seed by seed."""

    statistic: str
    cells: Sequence[Measure]

    def per_seed(self, summaries: SeedsOf) -> list[float]:
        """See `Measure`; nothing unless every cell was measured."""
        of_cells = [cell.per_seed(summaries) for cell in self.cells]
        statistic = {"min": np.min, "median": np.median}[self.statistic]
        return [float(statistic(of_seed)) for of_seed in zip(*of_cells, strict=False)]

    def baseline(self, summaries: SeedsOf) -> str:
        """See `Measure`; each cell has its own."""
        return "of each cell"


def min_over(cells: Sequence[Measure]) -> OverCells:
    """The measure in the cell where it is the smallest."""
    return OverCells("min", cells)


def median_over(cells: Sequence[Measure]) -> OverCells:
    """The measure in the cell in the middle."""
    return OverCells("median", cells)


def figure(key: str, run: str) -> Figure:
    """The figure `key` of `run`."""
    return Figure(key, run)


def ratio(key: str, run: str, over: str) -> Ratio:
    """The figure `key` of `run`, divided by that of `over`."""
    return Ratio(key, run, over)


def ratio_to_best(
    key: str, run: str, over: Sequence[str], *, smaller_is_better: bool = False
) -> RatioToBest:
    """The figure `key` of `run`, divided by that of the best run of `over` in hindsight."""
    return RatioToBest(key, run, over, smaller_is_better)


def gain(first: str, last: str, run: str) -> Gain:
    """The figure `last` minus the figure `first`, both of `run`."""
    return Gain(first, last, run)


@dataclass(frozen=True, slots=True)
class Claim:
    """An expectation. Exactly one of `at_least` and `at_most` is given."""

    name: str
    measure: Measure
    at_least: float | None = None
    at_most: float | None = None
    every_seed: bool = False  # True: each seed must meet it, not only their mean
    source: str = ""

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ConfigError(f"Claim {self.name!r} needs either at_least or at_most.")

    @property
    def aim(self) -> str:
        """What is expected, in words."""
        limit = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        return limit + (" at every seed" if self.every_seed else "")

    def is_met(self, values: Sequence[float]) -> bool:
        """Whether these seeds meet it; never, when nothing was measured."""
        if not values:
            return False
        judged = values if self.every_seed else [float(np.mean(values))]
        if self.at_least is not None:
            return min(judged) >= self.at_least - _ROUNDING
        return max(judged) <= self.at_most + _ROUNDING


def evaluate(claims: Sequence[Claim], summaries: SeedsOf) -> list[dict[str, Any]]:
    """Measures claims: a list of {name, baseline, value, low, high, aim, met, source, n}.

    Raises:
      ConfigError: a claim names a figure that no summary has.
    """
    return [
        result(claim, claim.measure.per_seed(summaries), claim.measure.baseline(summaries))
        for claim in claims
    ]


def write_claims(path: Path, results: Sequence[Mapping[str, Any]]) -> None:
    """Writes `claims.json`."""
    write_json(path, list(results))


def result(claim: Claim, values: Sequence[float], baseline: str = "") -> dict[str, Any]:
    """The result of a claim whose values were measured by whoever calls."""
    low, high = spread(values)
    return {
        "name": claim.name,
        "baseline": baseline,
        "value": float(np.mean(values)) if values else None,
        "low": low,
        "high": high,
        "aim": claim.aim,
        "met": claim.is_met(values),
        "source": claim.source,
        "n": len(values),
    }


def _look_up(summary: Summary, key: str) -> float | None:
    value: Any = summary
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            known = value if isinstance(value, Mapping) else ()
            raise unknown_name(name, known, f"part of the figure {key!r}:")
        value = value[name]
    return value


_COLUMNS = ("claim", "baseline", "measured", "range", "seeds", "aim", "met", "source")


def _cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    value, low, high = (result[name] for name in ("value", "low", "high"))
    return (
        str(result["name"]),
        str(result["baseline"]),
        "not measured" if value is None else f"{value:.4g}",
        "" if low is None else f"{low:.4g} to {high:.4g}",
        str(result["n"]),
        str(result["aim"]),
        "yes" if result["met"] else "NO",
        str(result["source"]),
    )


def markdown_table(results: Sequence[Mapping[str, Any]]) -> str:
    """All claims, met or not, as a Markdown table."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_cells(result) for result in results)]
    escaped = ([cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows)
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def rich_table(results: Sequence[Mapping[str, Any]]) -> "Table":
    """All claims, met or not, for a terminal."""
    from rich.table import Table
    from rich.text import Text

    n_met = sum(bool(result["met"]) for result in results)
    table = Table(*_COLUMNS, title=f"Claims: {n_met} of {len(results)} met")
    for result in results:
        style = "green" if result["met"] else "bold red"
        cells = dict(zip(_COLUMNS, _cells(result), strict=True))
        table.add_row(*(Text(cell, style if name == "met" else "") for name, cell in cells.items()))
    return table
