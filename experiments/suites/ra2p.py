"""Whether RA2P picks the cheaper mode of a training step, and what the modes are worth.

    python -m experiments.benchmark --suite ra2p --workdir runs/benchmark_ra2p

The grid: steps of 8 to 64 microbatches of 8192 tokens, by how many are ready at the start (RAS) and
how fast the others arrive (TPRM), with the costs of the 7B shape on H100; which mode is the better
one is told by simulating both, microbatch by microbatch. The micro-benchmark is the paper's: eight
microbatches ready, four H100, against streaming that swaps scorer and actor for every round.
A second.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.suites.scheduler import text_setting
from tiderl_jax.report.claims import Claim, result
from tiderl_jax.report.run_files import write_json
from tiderl_jax.scheduler.step_costs import (
    Arrivals,
    MicrobatchTimes,
    best_scorers,
    colocated_s,
    decoupled_s,
    simulated_decoupled_s,
    swap_per_microbatch_s,
)
from tiderl_jax.simulator.costs import cost_model

MICROBATCH_TOKENS = 8192
TOTALS = (8, 12, 16, 24, 32, 48, 64)
GAPS_S = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 1.2, 2.0, 4.0)
TOLERANCE = 1.02
CHOICES: dict[str, Callable[[Arrivals, MicrobatchTimes, int, int], float]] = {
    "closed form (ra2p)": decoupled_s,
    "simulated (ra2p_planned)": simulated_decoupled_s,
}


def run(workdir: Path) -> list[dict[str, Any]]:
    """Measures the choices on trainers of 4, 8 and 24 ranks, then the micro-benchmark."""
    times = cost_model(text_setting()).step.times(MICROBATCH_TOKENS)
    results: list[dict[str, Any]] = []
    for n_ranks in (4, 8, 24):
        cells = [cell(arrivals, times, n_ranks) for arrivals in grid()]
        write_json(workdir / f"grid_{n_ranks}.json", cells)
        results += [
            result(
                Claim(
                    f"{n_ranks} ranks: share of cells within 2 % of the better mode, {choice}",
                    None,
                    at_least=0.95,
                    source="issue 3",
                ),
                [sum(within(one, choice) for one in cells) / len(cells)],
                baseline="the better mode",
            )
            for choice in CHOICES
        ]
        results += [
            result(
                Claim(
                    f"{n_ranks} ranks: cells of {len(cells)} where {mode} is the better one",
                    None,
                    at_least=1,
                    source="issue 3",
                ),
                [sum(one[mode] < one[other] for one in cells)],
            )
            for mode, other in (("decoupled", "colocated"), ("colocated", "decoupled"))
        ]
    return [*results, *micro_benchmark(times)]


def grid() -> Iterator[Arrivals]:
    """RAS by TPRM by the size of the step."""
    for n_total in TOTALS:
        for n_ready in sorted({round(n_total * sixteenth / 16) for sixteenth in range(17)}):
            for gap_s in GAPS_S:
                yield Arrivals(n_ready, gap_s, n_total)


def cell(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int) -> dict[str, Any]:
    """Seconds of both modes as simulated, and as each choice expects decoupled streaming."""
    n_scorers = best_scorers(times, n_ranks)
    return {
        "n_ready": arrivals.n_ready,
        "gap_s": arrivals.gap_s,
        "n_total": arrivals.n_total,
        "colocated": colocated_s(arrivals, times, n_ranks),
        "decoupled": simulated_decoupled_s(arrivals, times, n_ranks, n_scorers),
        **{name: expects(arrivals, times, n_ranks, n_scorers) for name, expects in CHOICES.items()},
    }


def within(one: dict[str, Any], choice: str) -> bool:
    """Whether the mode that the choice picks costs at most 2 % more than the better one."""
    picked = "decoupled" if one[choice] <= one["colocated"] else "colocated"
    return one[picked] <= TOLERANCE * min(one["colocated"], one["decoupled"])


def micro_benchmark(times: MicrobatchTimes) -> list[dict[str, Any]]:
    """Eight microbatches ready on four ranks: each mode over streaming with swap."""
    arrivals, n_ranks = Arrivals(8, 0.0, 8), 4
    swapping_s = swap_per_microbatch_s(arrivals, times, n_ranks)
    one = cell(arrivals, times, n_ranks)
    return [
        result(
            Claim(
                f"8 ready on 4 ranks: time of {mode} over streaming with swap",
                None,
                at_most=0.557,
                source="TideRL reports step time down by up to 44.3 %",
            ),
            [one[mode] / swapping_s],
            baseline="streaming with swap",
        )
        for mode in ("decoupled", "colocated")
    ]
