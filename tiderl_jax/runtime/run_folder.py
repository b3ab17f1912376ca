"""A run's directory: locked while it is used, and what is written into it."""

import fcntl
from pathlib import Path
from types import TracebackType

from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import StorageFault
from tiderl_jax.core.resolve import config_hash
from tiderl_jax.report import run_files
from tiderl_jax.report.html import write_report
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.report.metrics import Row
from tiderl_jax.report.tensorboard import TensorBoard
from tiderl_jax.runtime.checkpoints import CheckpointStore
from tiderl_jax.runtime.compiles import CompileCounter


class RunFolder:
    """One run directory, used by one process at a time."""

    def __init__(self, path: Path, config: ExperimentConfig) -> None:
        self.path = path
        self._config = config
        self.commits = CheckpointStore(
            path / "checkpoints", config_hash(config), config.checkpoint.keep
        )

    def __enter__(self) -> "RunFolder":
        """Takes the directory.

        Raises:
          StorageFault: another process is using it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise StorageFault(f"{self.path} is in use by another process.") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.close()

    def begin(self, rows: list[Row]) -> None:
        """Writes the config and the rows up to the commit that the run goes on from."""
        run_files.write_config(self.path, self._config, simulated=False)
        run_files.write_metrics(self.path, rows)
        self._tensorboard = TensorBoard(self.path)

    def add(self, row: Row) -> None:
        """A new row of metrics."""
        run_files.append_metrics(self.path, row)
        self._tensorboard.write(row)

    def finish(self, ledger: Ledger, compiles: CompileCounter) -> Path:
        """Writes summary, timeline and report; returns the report's path."""
        self._tensorboard.close()
        run_files.write_json(self.path / run_files.SUMMARY, ledger.summary(compiles.after_warm_up))
        run_files.write_timeline(self.path, ledger.timeline())
        return write_report(self.path)
