"""The learner's thread: one step at a time, then a published version."""

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiderl_jax.core.events import Updated
from tiderl_jax.core.ids import PolicyVersion
from tiderl_jax.core.trajectories import Trajectory
from tiderl_jax.learner.learner import Learner, StepReport
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.threads import supervised
from tiderl_jax.runtime.weights import Published, publish


@dataclass(frozen=True, slots=True)
class Job:
    """One training step."""

    step: int
    trainer_version: PolicyVersion
    groups: Sequence[Sequence[Trajectory]]


class LearnerWorker:
    """Trains the steps it is handed and keeps each version until a newer one is published."""

    def __init__(
        self,
        learner: Learner,
        initial: Published,
        inbox: Inbox,
        before_updated: Callable[[int], None],
        on_report: Callable[[int, StepReport, float], None],
    ) -> None:
        self._learner = learner
        self._inbox = inbox
        self._before_updated = before_updated
        self._on_report = on_report
        self._versions = {initial.version: initial}
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = supervised("learner", self._run, inbox)

    def take(self, version: PolicyVersion) -> Published:
        """A version that was minted; older ones are forgotten, since versions only grow."""
        for older in [known for known in self._versions if known < version]:
            del self._versions[older]
        return self._versions[version]

    def start(self, job: Job) -> None:
        """Trains a step; answered by `Updated`."""
        self._jobs.put(job)

    def stop(self) -> None:
        """Ends the thread after the step that is running."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began_s = time.monotonic()
            report = self._learner.step(job.groups, job.trainer_version)
            version = PolicyVersion(job.trainer_version + 1)
            published = publish(version, self._learner.params)
            self._versions[version] = published
            self._on_report(job.step, report, time.monotonic() - began_s)
            self._before_updated(job.step)
            self._inbox.post(
                Updated(
                    step=job.step,
                    version=version,
                    digest=published.digest,
                    trained_tokens=report.trained_tokens,
                    context_tokens=report.context_tokens,
                    untrained_tokens=report.untrained_tokens,
                    n_microbatches=report.n_microbatches,
                    lags=report.lags,
                    reward_mean=report.reward_mean,
                )
            )
