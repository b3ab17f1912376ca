"""Reinforcement: the scheduler's event loop in wall time, over real engines, worlds and learner."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tiderl_jax.core.commands import Abort, Command, Finish
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import TiderlError
from tiderl_jax.core.events import Event, StopRequested, Updated
from tiderl_jax.core.ids import PolicyVersion, RankId
from tiderl_jax.core.trajectories import Trajectory
from tiderl_jax.decoder.engine import Engine
from tiderl_jax.learner.step_report import StepReport
from tiderl_jax.report.facts import RolloutFacts, RunFacts
from tiderl_jax.report.ledger import Ledger
from tiderl_jax.runtime.alarms import AlarmClock
from tiderl_jax.runtime.assembly import Parts, build_engines
from tiderl_jax.runtime.checkpoints import Manifest
from tiderl_jax.runtime.compiles import CompileCounter
from tiderl_jax.runtime.decoders import DecoderWorker
from tiderl_jax.runtime.environments import EnvironmentPool
from tiderl_jax.runtime.episodes import Episodes
from tiderl_jax.runtime.executor import Executor, TurnRules
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.journal import Journal
from tiderl_jax.runtime.learner_worker import LearnerWorker
from tiderl_jax.runtime.progress import ProgressDisplay
from tiderl_jax.runtime.run_folder import RunFolder
from tiderl_jax.runtime.stop import StopFlag
from tiderl_jax.runtime.tasks import TaskSource
from tiderl_jax.runtime.threads import DaemonPool, supervised
from tiderl_jax.runtime.weights import Published, publish
from tiderl_jax.scheduler import loop
from tiderl_jax.scheduler.presets import policy_name
from tiderl_jax.scheduler.ranks import rank_specs
from tiderl_jax.scheduler.scheduler import Scheduler
from tiderl_jax.scheduler.step_costs import StepCosts

N_ENVIRONMENT_THREADS = 4
EVENTS_PER_CHECK = 256
"""Invariants are checked after every so many events of a real run."""

UNKNOWN_COSTS = StepCosts(0.0, 0.0, 0.0, 0.0, 0.0)
"""Of a training step: `full_batch`, the only pipelining of a real run, does not ask for them."""


class Reinforcement:
    """One process's part of a run: from the warm start, or the newest commit, to its end."""

    def __init__(
        self,
        config: ExperimentConfig,
        parts: Parts,
        folder: RunFolder,
        display: ProgressDisplay,
        compiles: CompileCounter,
        manifest: Manifest | None,
    ) -> None:
        self._config = config
        self._parts = parts
        self._folder = folder
        self._display = display
        self._compiles = compiles
        saved = None if manifest is None else manifest.scheduler
        self._scheduler = _scheduler(config, saved)
        self._tasks = _tasks(config, parts, saved)
        self._ledger = Ledger(
            RunFacts.of(config, policy_name(config.scheduler)),
            snapshot=None if manifest is None else manifest.ledger,
        )
        self._n_rows = self._ledger.n_rows

    def to_end(self, stop: StopFlag) -> bool:
        """Runs the loop until nothing is left to do; False if it was stopped before.

        Raises:
          TiderlError: the run cannot go on.
        """
        version = PolicyVersion(self._steps_done)
        published = publish(version, self._parts.learner.weights())
        engines = build_engines(self._config, self._parts, published)
        with self._display.timed("the decoders' programs are compiled"):
            for engine in engines.values():
                engine.warm_up()
        self._folder.begin(self._ledger.rows())
        self._commit()
        self._compiles.warm()
        self._inbox = Inbox(self._ledger.now_ns)  # the run's clock starts here
        self._display.phase("training", self._config.steps, n_done=self._ledger.n_updates)
        stop.then(lambda: self._inbox.post(StopRequested()))
        last = self._loop(engines, published)
        self._display.say(f"report: {self._folder.finish(self._ledger, self._compiles)}")
        if isinstance(last, Abort):
            raise TiderlError(last.reason)
        self._commit(complete=last.complete)
        return last.complete

    def _loop(self, engines: Mapping[RankId, Engine], published: Published) -> Finish | Abort:
        journal = Journal(self._folder.path / "journal")
        try:
            with self._workers(engines, published) as executor:
                return loop.run(
                    self._scheduler,
                    self._inbox,
                    executor,
                    start_ns=self._inbox.now_ns(),
                    journal=journal.append,
                    observers=(self._ledger.observe, self._on_turn_of_loop),
                    events_per_check=EVENTS_PER_CHECK,
                )
        finally:
            journal.close()

    @contextmanager
    def _workers(
        self, engines: Mapping[RankId, Engine], published: Published
    ) -> Iterator[Executor]:
        """Starts every worker, and stops them all."""
        config, inbox, episodes, alarms = self._config, self._inbox, Episodes(), AlarmClock()
        rules = TurnRules(config.rollout, config.environment.max_turns, config.seed)
        executor = Executor(
            rules, inbox, self._tasks, episodes, self._parts.renderer, self._on_trajectory
        )
        with DaemonPool(N_ENVIRONMENT_THREADS, "environment") as threads:
            environments = EnvironmentPool(
                self._parts.world,
                config.environment,
                config.seed,
                threads,
                alarms,
                executor.started,
                executor.answered,
                executor.failed,
            )
            clock = supervised("alarm clock", alarms.run, inbox)
            devices = self._parts.partition.rollout
            decoders = {
                rank: DecoderWorker(rank, engine, devices[rank], episodes, inbox)
                for rank, engine in engines.items()
            }
            learner = LearnerWorker(self._parts.learner, published, inbox, self._on_step)
            executor.connect(environments, decoders, learner)
            try:
                yield executor
            finally:
                alarms.stop()
                clock.join()
                for worker in (*decoders.values(), learner):
                    worker.stop()
                environments.close_all()

    def _on_trajectory(self, trajectory: Trajectory) -> None:
        self._ledger.rollout(
            RolloutFacts(
                rollout=trajectory.rollout,
                reward=trajectory.reward,
                outcome=trajectory.outcome,
                n_turns=trajectory.n_turns,
                model_tokens=trajectory.n_model_tokens,
                context_tokens=len(trajectory.token_ids),
                start_version=trajectory.first_version,
            )
        )

    def _on_step(self, step: int, report: StepReport) -> None:
        """In the learner's thread, which stands still meanwhile: arrays of a commit are written."""
        self._ledger.learner(report.metrics)
        n_done, every = step + 1, self._config.checkpoint.every_steps
        if n_done % every == 0 or n_done == self._config.steps:
            self._folder.commits.save_arrays(n_done, self._parts.learner.state)

    def _on_turn_of_loop(
        self, event: Event | None, commands: Sequence[Command], now_ns: int
    ) -> None:
        """Commits before the commands are carried out, so before the version is published."""
        if isinstance(event, Updated) and self._folder.commits.has_arrays(self._steps_done):
            self._commit()
        if self._ledger.n_rows > self._n_rows:
            for row in self._ledger.rows()[self._n_rows :]:
                self._folder.add(row)
                self._display.row(row)
            self._n_rows = self._ledger.n_rows

    def _commit(self, *, complete: bool = False) -> None:
        """Commits the present step; outside of the loop the learner's arrays are written first."""
        commits, step = self._folder.commits, self._steps_done
        if not commits.has_arrays(step):
            commits.save_arrays(step, self._parts.learner.state)
        commits.commit(step, self._scheduler.snapshot(), self._ledger.snapshot(), complete)

    @property
    def _steps_done(self) -> int:
        return self._scheduler.state.learner.steps_done


def _scheduler(config: ExperimentConfig, saved: Mapping[str, object] | None) -> Scheduler:
    return Scheduler.of(config, rank_specs(config), UNKNOWN_COSTS, saved)


def _tasks(
    config: ExperimentConfig, parts: Parts, saved: Mapping[str, object] | None
) -> TaskSource:
    rollout = config.rollout
    sizes = (rollout.samples_per_prompt + rollout.group.extra_members, config.evaluation)
    if saved is None:
        return TaskSource(parts.world, *sizes)
    return TaskSource(
        parts.world,
        *sizes,
        n_evaluations=saved["n_evaluations"],
        next_train_index=saved["next_train_index"],
        unfinished_train_indices=saved["unfinished_train_indices"],
    )
