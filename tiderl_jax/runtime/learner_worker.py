"""The learner's thread: one step at a time, then a published version."""

import queue
from collections.abc import Callable, Sequence

from tiderl_jax.core.events import Updated
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.core.trajectories import Trajectory
from tiderl_jax.learner.learner import Learner
from tiderl_jax.learner.step_report import StepReport
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.threads import supervised
from tiderl_jax.runtime.weights import Published, publish


class LearnerWorker:
    """Trains the steps it is handed, and mints the versions."""

    def __init__(
        self,
        learner: Learner,
        initial: Published,
        inbox: Inbox,
        on_step: Callable[[int, StepReport], None],
    ) -> None:
        """`on_step(step, report)` is called in the learner's thread before `Updated` is posted."""
        self._learner = learner
        self._inbox = inbox
        self._on_step = on_step
        self._jobs: queue.SimpleQueue[tuple[int, Sequence[Sequence[Trajectory]]] | None] = (
            queue.SimpleQueue()
        )
        self.published = initial  # the newest version; a scheduler publishes no other
        self._thread = supervised("learner", self._run, inbox)

    def start(self, step: int, groups: Sequence[Sequence[Trajectory]]) -> None:
        """Trains a step; answered by `Updated`."""
        self._jobs.put((step, groups))

    def stop(self) -> None:
        """Ends the thread after the step that is running."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            step, groups = job
            report = self._learner.step(groups, self.published.version)
            version = PolicyVersion(self.published.version + 1)
            self.published = publish(version, self._learner.weights())
            self._on_step(step, report)
            self._inbox.post(
                Updated(
                    step=step,
                    version=version,
                    digest=self.published.digest,
                    trained_tokens=report.trained_tokens,
                    context_tokens=report.context_tokens,
                    untrained_tokens=report.untrained_tokens,
                    n_microbatches=report.n_microbatches,
                    lags=report.lags,
                    tokens_at_lag=report.tokens_at_lag,
                    reward_mean=report.reward_mean,
                )
            )
