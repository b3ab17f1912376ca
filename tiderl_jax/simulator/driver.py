"""The virtual driver: carries commands out on a simulated world and answers with events.

It believes the scheduler nothing: a command that contradicts the state of the world is an
`InvariantError`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tiderl_jax.core import commands, events
from tiderl_jax.core.commands import Command
from tiderl_jax.core.config import ExperimentConfig
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event, TurnStop
from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, Role, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.report.facts import RolloutFacts
from tiderl_jax.scheduler.presets import policies
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import VirtualClock
from tiderl_jax.simulator.cluster import VirtualCluster
from tiderl_jax.simulator.costs import CostModel
from tiderl_jax.simulator.draws import Draws
from tiderl_jax.simulator.engine import Turn, VirtualRank
from tiderl_jax.simulator.environments import VirtualEnvironments
from tiderl_jax.simulator.episodes import Episode, Episodes
from tiderl_jax.simulator.learner import VirtualLearner
from tiderl_jax.simulator.tally import Tally
from tiderl_jax.simulator.tasks import VirtualTasks
from tiderl_jax.simulator.trainer import VirtualTrainer


class VirtualDriver:
    """Event source and executor of `scheduler.loop.run` in virtual time."""

    def __init__(
        self,
        config: ExperimentConfig,
        ranks: tuple[RankSpec, ...],
        costs: CostModel,
        draws: Draws,
        saved: Mapping[str, Any],
        on_rollout: Callable[[RolloutFacts], None],
    ) -> None:
        """`saved` is the snapshot of the scheduler that the run goes on from.

        `on_rollout` gets the facts of a rollout before the event that tells of its end.
        """
        self.tally = Tally()
        self._config = config
        self._costs = costs
        self._draws = draws
        self._on_rollout = on_rollout
        self._clock = VirtualClock()
        self._episodes = Episodes()
        self._tasks = VirtualTasks(config, saved)
        self._engines = {spec.rank: self._new_engine(spec) for spec in ranks}
        self._cluster = VirtualCluster(ranks, self._engines, self._clock, costs, draws, self.tally)
        self._environments = VirtualEnvironments(
            self._clock, draws, config.environment, self.tally, self._answered, self._failed
        )
        self._learner = VirtualLearner(
            PolicyVersion(saved["version"]),
            VirtualTrainer(self._clock, costs.step, self._update_s),
            self._episodes,
            self.tally,
            self._trainer_rests,
            trimmed_beyond=_trimmed_beyond(config),
        )
        self._probed: set[GroupId] = set()  # their first member finds its environment open
        self._shared = self._shared_engines()
        self._duplicates = config.simulation.faults.duplicate > 0
        self._again: Event | None = None
        self._n_events = 0
        self._handlers = self._all_handlers()

    def stop_at(self, at_ns: int) -> None:
        """Asks for a clean stop at this time."""
        self._clock.at(at_ns, events.StopRequested)

    def next(self) -> tuple[Event, int]:
        """The next event; now and then one arrives twice."""
        if self._again is not None:
            again, self._again = self._again, None
            return again, self._clock.now_ns
        event, now_ns = self._clock.next()
        if self._duplicates:
            self._n_events += 1
            if self._draws.is_duplicated(self._n_events):
                self.tally.faults["duplicate"] += 1
                self._again = event
        return event, now_ns

    def execute(self, command: Command, now_ns: int) -> None:
        """Schedules what the command leads to."""
        self._handlers[type(command)](command)

    def _all_handlers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            commands.RequestTasks: self._bring,
            commands.Probe: self._probe,
            commands.Admit: self._admit,
            commands.RunTurn: self._run_turn,
            commands.StepEnvironment: self._step_environment,
            commands.Migrate: self._migrate,
            commands.Pause: self._pause,
            commands.Resume: self._resume,
            commands.Release: self._release,
            commands.PauseEnvironment: self._pause_environment,
            commands.ResumeEnvironment: self._resume_environment,
            commands.EndRollout: self._end_rollout,
            commands.DropRollout: self._drop_rollout,
            commands.DropGroup: self._drop_group,
            commands.StartStep: self._start_step,
            commands.Feed: self._feed,
            commands.Repartition: self._repartition,
            commands.Publish: self._publish,
            commands.SetTimer: self._set_timer,
            commands.Finish: _ignore,
            commands.Abort: _ignore,
        }

    def _new_engine(self, spec: RankSpec) -> VirtualRank:
        return VirtualRank(
            spec,
            self._costs,
            self._clock,
            self._turn_ended,
            max_tokens_per_turn=self._config.rollout.max_tokens_per_turn,
            drops_kv=self._config.decoder.kv_after_update == "drop",
        )

    # Tasks and environments.

    def _bring(self, command: commands.RequestTasks) -> None:
        purpose = command.purpose
        groups = tuple(self._tasks.take(purpose) for _ in range(command.n_groups))
        if not purpose.is_evaluation:
            for group in groups:
                self.tally.workload(self._draws.workload(group)).asked_groups += 1
        arrived = events.TasksArrived(groups, self._tasks.n_members(purpose))
        self._clock.after(self._costs.request_s, lambda: arrived)

    def _probe(self, command: commands.Probe) -> None:
        group = command.group
        delay_s = self._draws.episode(RolloutId(group, 0)).delays_s[0]
        self._environments.probe(group, delay_s, partial(self._probed.add, group))

    def _admit(self, command: commands.Admit) -> None:
        rollout, group = command.rollout, command.rollout.group
        self._cluster.rolling_out(command.rank)
        episode = Episode(
            rollout,
            command.rank,
            self._draws.workload(group),
            self._draws.prompt_tokens(group),
            self._draws.episode(rollout),
            self._clock.now_ns,
        )
        self._episodes.begin(episode)
        if group in self._probed:
            self._probed.discard(group)
            self._environments.open_already(episode)
        else:
            self._environments.work(episode)

    def _step_environment(self, command: commands.StepEnvironment) -> None:
        episode = self._episodes.under_way(command.rollout)
        if episode.n_turns == 0 or episode.turn is not None:
            raise InvariantError(f"The environment of {command.rollout} has no turn to answer.")
        self._environments.work(episode)

    def _answered(self, episode: Episode) -> Event | None:
        plan, turn = episode.plan, episode.n_turns
        if turn >= plan.n_turns:
            return self._end(episode, Outcome.FINISHED)
        if turn >= self._config.environment.max_turns:
            return self._end(episode, Outcome.TRUNCATED_TURNS)
        n_tokens = episode.prompt_tokens if turn == 0 else plan.observation_tokens[turn - 1]
        episode.context_tokens += n_tokens
        return events.EnvironmentReady(episode.rollout, n_tokens)

    def _failed(self, episode: Episode, reason: str) -> Event:
        self._episodes.forget(episode)
        return events.EnvironmentFailed(episode.rollout, reason)

    def _pause_environment(self, command: commands.PauseEnvironment) -> None:
        self._environments.stop_clock(self._episodes.under_way(command.rollout))

    def _resume_environment(self, command: commands.ResumeEnvironment) -> None:
        self._environments.run_clock(self._episodes.under_way(command.rollout))

    # Turns.

    def _run_turn(self, command: commands.RunTurn) -> None:
        episode = self._episodes.under_way(command.rollout)
        if episode.working or episode.parked or episode.rank != command.rank:
            raise InvariantError(
                f"Rollout {command.rollout} runs a turn on rank {command.rank}, but it is on rank "
                f"{episode.rank}, is paused, or lacks an observation."
            )
        if episode.turn is None:
            n_tokens = episode.plan.generated_tokens[episode.n_turns]
            episode.turn = Turn(
                command.rollout, episode.prompt_tokens, episode.context_tokens, n_tokens
            )
        self._cluster.rolling_out(command.rank).begin(episode.turn)

    def _turn_ended(self, turn: Turn) -> Event:
        episode = self._episodes.under_way(turn.rollout)
        number = episode.n_turns
        if self._draws.engine_fails(turn.rollout, number):
            self.tally.faults["engine"] += 1
            self._forget(episode)
            return events.RolloutFailed(turn.rollout, "the engine lost the turn")
        episode.take_turn(turn)
        return events.TurnEnded(
            turn.rollout,
            episode.rank,
            TurnStop.LENGTH if episode.plan.cut[number] else TurnStop.END_OF_TURN,
            turn.n_tokens,
            turn.found_tokens,
            turn.prefilled_tokens,
            turn.sampled[0][0],
        )

    def _migrate(self, command: commands.Migrate) -> None:
        episode = self._episodes.under_way(command.rollout)
        self._cluster.rolling_out(command.rank)
        self._engines[episode.rank].interrupt(command.rollout)
        episode.rank = command.rank

    def _pause(self, command: commands.Pause) -> None:
        episode = self._on_rank(command.rollout, command.rank)
        if episode.parked:
            raise InvariantError(f"Rollout {command.rollout} is paused twice.")
        self._engines[command.rank].release(command.rollout)
        episode.parked = True

    def _resume(self, command: commands.Resume) -> None:
        episode = self._on_rank(command.rollout, command.rank)
        if not episode.parked:
            raise InvariantError(f"Rollout {command.rollout} is resumed but not paused.")
        episode.parked = False

    def _on_rank(self, rollout: RolloutId, rank: RankId) -> Episode:
        episode = self._episodes.under_way(rollout)
        if episode.rank != rank:
            raise InvariantError(f"Rollout {rollout} is on rank {episode.rank}, not on {rank}.")
        return episode

    def _release(self, command: commands.Release) -> None:
        self._engines[command.rank].release(command.rollout)

    # Ends.

    def _end_rollout(self, command: commands.EndRollout) -> None:
        episode = self._episodes.under_way(command.rollout)
        self._environments.close(episode)

        def ended() -> Event | None:
            return None if episode.is_over else self._end(episode, command.outcome)

        self._clock.after(self._costs.request_s, ended)

    def _end(self, episode: Episode, outcome: Outcome) -> Event:
        rollout = episode.rollout
        if not episode.sampled:
            self._forget(episode)
            return events.RolloutFailed(rollout, "no token was captured")
        self._episodes.end(episode, self._clock.now_ns)
        self.tally.outcomes[outcome] += 1
        if rollout.group.purpose.is_evaluation:
            self.tally.evaluated.append((rollout, episode.oldest_version))
        else:
            self.tally.workload(episode.workload).ended.add(episode)
        self._on_rollout(
            RolloutFacts(
                rollout=rollout,
                reward=episode.plan.reward,
                outcome=outcome,
                n_turns=episode.n_turns,
                model_tokens=episode.n_sampled_tokens,
                context_tokens=episode.trained_context_tokens,
                start_version=episode.start_version,
            )
        )
        return events.RolloutEnded(rollout, outcome)

    def _drop_rollout(self, command: commands.DropRollout) -> None:
        self.tally.dropped_rollouts[command.reason] += 1
        for episode in self._episodes.of(command.rollout.group):
            if episode.rollout == command.rollout:
                self._forget(episode)

    def _drop_group(self, command: commands.DropGroup) -> None:
        group = command.group
        self._probed.discard(group)
        for episode in self._episodes.of(group):
            self._forget(episode)
        if not group.purpose.is_evaluation:
            self.tally.dropped_groups[group] = command.reason
            self.tally.workload(self._draws.workload(group)).dropped_groups += 1

    def _forget(self, episode: Episode) -> None:
        self._environments.close(episode)
        self._engines[episode.rank].interrupt(episode.rollout)
        self._episodes.forget(episode)

    # The learner, its weights, the ranks.

    def _start_step(self, command: commands.StartStep) -> None:
        self._learner.start(command, self._trainer_ranks())

    def _feed(self, command: commands.Feed) -> None:
        for engine in self._shared:
            engine.stand_still()
        self._learner.feed(command)

    def _trainer_rests(self) -> None:
        for engine in self._shared:
            engine.go_on()

    def _trainer_ranks(self) -> list[RankId]:
        """Its ranks; on shared devices they are named by their numbers."""
        partition = self._config.partition
        if partition.share_devices:
            return [RankId(device) for device in range(partition.actor_devices)]
        return self._cluster.with_role(Role.TRAINER)

    def _shared_engines(self) -> list[VirtualRank]:
        """Ranks that stand still while the trainer works, since it has their devices."""
        partition = self._config.partition
        n_shared = partition.actor_devices if partition.share_devices else 0
        return [engine for rank, engine in self._engines.items() if rank < n_shared]

    def _update_s(self, n_ranks: int) -> float:
        return self._config.learner.updates_per_step * self._costs.update_s(n_ranks)

    def _repartition(self, command: commands.Repartition) -> None:
        if self._learner.has_open_step:
            raise InvariantError(f"Rank {command.rank} changes its role while a step is open.")
        self._cluster.repartition(command.rank, command.role)

    def _publish(self, command: commands.Publish) -> None:
        if command.version != self._learner.version:
            raise InvariantError(
                f"Version {command.version} is published; the learner has {self._learner.version}."
            )
        self._cluster.publish(command.version, command.ranks)

    def _set_timer(self, command: commands.SetTimer) -> None:
        at_ns = command.at_ns
        self._clock.at(at_ns, lambda: events.TimerFired(at_ns))


def _ignore(command: Command) -> None:
    """The loop ends by itself."""


def _trimmed_beyond(config: ExperimentConfig) -> int | None:
    """The lag beyond which tokens are left out of the loss; None: none are."""
    trims = policies(config.scheduler).staleness.trims
    return config.scheduler.staleness_bound if trims else None
