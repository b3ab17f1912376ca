"""Rows of metrics as TensorBoard events."""

from pathlib import Path

from tiderl_jax.report.metrics import AXES, STEP, Row, aliases
from tiderl_jax.report.run_files import EVENTS


class TensorBoard:
    """Writes rows under `<folder>/events`, also by the names verl's dashboards know."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter  # late: it takes a third of a second

        self._writer = SummaryWriter(str(folder / EVENTS), flush_secs=10)

    def write(self, row: Row) -> None:
        """Adds one row, at its `train/step`."""
        step = int(row[STEP] or 0)
        for name, value in (row | aliases(row)).items():
            if value is not None and name not in AXES:
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is buffered."""
        self._writer.close()
