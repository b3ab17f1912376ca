"""What a person sees while a run goes on: a bar with the time that remains, and a line per step."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Row = Mapping[str, float | None]


class ProgressDisplay:
    """A bar for the phase that runs (warm start, training), and a log above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> "ProgressDisplay":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Says how long the block took; `what` says what is done then."""
        began_s = time.monotonic()
        yield
        self.say(f"{what} ({time.monotonic() - began_s:.1f} s)")

    def phase(self, name: str, n_total: int, n_done: int = 0) -> None:
        """A new bar, in place of the one before."""
        for task in list(self._progress.task_ids):
            self._progress.remove_task(task)
        self._task = self._progress.add_task(name, total=n_total, completed=n_done, note="")

    def advance(self, note: str = "") -> None:
        """One more of the phase is done."""
        self._progress.update(self._task, advance=1, note=note)

    def row(self, row: Row) -> None:
        """A row of `metrics.jsonl`: a training step or an evaluation."""
        if row.get("eval/sampled_success") is not None:
            self.say(_evaluation_line("sampled at temperature 1", "sampled", row))
        elif row.get("eval/greedy_success") is not None:
            self.say(_evaluation_line("greedy", "greedy", row))
        else:
            self.say(_step_line(row))
            self.advance(f"reward {_number(row, 'rollout/reward_mean', '.2f')}")


def _number(row: Row, name: str, spec: str) -> str:
    value = row.get(name)
    return "-" if value is None else format(value, spec)


def _evaluation_line(title: str, kind: str, row: Row) -> str:
    return (
        f"evaluation after step {_number(row, 'train/step', '.0f')}, {title}: success "
        f"{_number(row, f'eval/{kind}_success', '.1%')} of "
        f"{_number(row, f'eval/{kind}_episodes', '.0f')} tasks"
    )


def _step_line(row: Row) -> str:
    return (
        f"step {_number(row, 'train/step', '4.0f')}"
        f"  reward {_number(row, 'rollout/reward_mean', '.3f')}"
        f"  goodput {_number(row, 'perf/goodput_tokens_per_s', '6.1f')} tok/s"
        f"  step {_number(row, 'timing_s/step', '5.2f')} s"
        f"  waiting: rollout {_number(row, 'idle/rollout_share', '4.0%')}"
        f" trainer {_number(row, 'idle/trainer_share', '4.0%')}"
        f"  lag {_number(row, 'staleness/lag_mean', '.2f')}"
        f"  KV hit {_number(row, 'kv/hit_rate', '.0%')}"
    )
