"""Carries out the scheduler's commands on real engines, real environments and a real learner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from tiderl_jax.core.commands import (
    Abort,
    Admit,
    Command,
    DropGroup,
    DropRollout,
    EndRollout,
    Feed,
    Finish,
    Migrate,
    Pause,
    PauseEnvironment,
    Probe,
    Publish,
    Release,
    Repartition,
    RequestTasks,
    Resume,
    ResumeEnvironment,
    RunTurn,
    SetTimer,
    StartStep,
    StepEnvironment,
)
from tiderl_jax.core.config import RolloutConfig
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import (
    EnvironmentFailed,
    EnvironmentReady,
    Event,
    ProbeFailed,
    ProbeMeasured,
    RolloutEnded,
    RolloutFailed,
    TasksArrived,
)
from tiderl_jax.core.identity import key_words
from tiderl_jax.core.ids import GroupId, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome, Task, Trajectory
from tiderl_jax.decoder.turns import Sampling, TurnRequest
from tiderl_jax.envs.protocol import Answer
from tiderl_jax.models.chat import ChatRenderer
from tiderl_jax.runtime.decoders import DecoderWorker
from tiderl_jax.runtime.environments import EnvironmentPool
from tiderl_jax.runtime.episodes import Episode, Episodes
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.learner_worker import LearnerWorker
from tiderl_jax.runtime.tasks import TaskSource


@dataclass(frozen=True, slots=True)
class TurnRules:
    """What a turn and a rollout are limited by, and the seed of every sample."""

    rollout: RolloutConfig
    max_turns: int
    seed: int


class Executor:
    """One method per kind of command. Methods return at once; workers answer with events."""

    def __init__(
        self,
        rules: TurnRules,
        inbox: Inbox,
        tasks: TaskSource,
        episodes: Episodes,
        renderer: ChatRenderer,
        on_trajectory: Callable[[Trajectory], None],
    ) -> None:
        self._rules = rules
        self._inbox = inbox
        self._tasks = tasks
        self._episodes = episodes
        self._renderer = renderer
        self._on_trajectory = on_trajectory
        self._probes: set[RolloutId] = set()

    def connect(
        self,
        environments: EnvironmentPool,
        decoders: Mapping[RankId, DecoderWorker],
        learner: LearnerWorker,
    ) -> None:
        """Gives the executor its workers, which report to its `started`, `answered`, `failed`."""
        self._environments = environments
        self._decoders = decoders
        self._learner = learner

    def execute(self, command: Command, now_ns: int) -> None:
        """Starts what the scheduler asked for."""
        match command:
            case RequestTasks():
                self._request_tasks(command)
            case Probe(group):
                self._probe(group)
            case Admit(rollout, _):
                self._admit(rollout)
            case RunTurn(rollout, rank):
                self._run_turn(rollout, rank)
            case StepEnvironment(rollout):
                self._step_environment(rollout)
            case Pause(rollout, rank) | Release(rollout, rank):
                self._decoders[rank].release(rollout)
            case Resume():
                pass  # the decoder finds what is left of its KV at the next turn
            case PauseEnvironment(rollout):
                self._environments.pause(rollout)
            case ResumeEnvironment(rollout):
                self._environments.resume(rollout)
            case EndRollout(rollout, outcome):
                self._inbox.deliver(partial(self._end, rollout, outcome))
            case DropGroup(group, _):
                self._drop(group)
            case Migrate(rollout, rank):
                self._leave_all_but(rank, rollout)
            case DropRollout(rollout, _):
                self._episodes.forget(rollout)
                self._forget(rollout)
            case StartStep():
                pass  # the learner has its mesh for good
            case Feed(step, _, groups, _, _):
                self._train(step, groups)
            case Repartition(rank, _):
                raise InvariantError(f"Rank {rank} cannot change its role in a real run.")
            case Publish(_, ranks):
                for rank in ranks:
                    self._decoders[rank].load_weights(self._learner.published)
            case SetTimer(at_ns):
                self._inbox.set_timer(at_ns)
            case Finish() | Abort():
                pass  # the loop ends by itself
            case _:
                assert_never(command)

    # What environments report, from their threads; noted in the driver's.

    def started(self, rollout: RolloutId, task: Task, observation: str) -> None:
        """The environment is open: its first prompt begins the episode."""
        self._inbox.deliver(partial(self._started, rollout, task, observation))

    def answered(self, rollout: RolloutId, answer: Answer) -> None:
        """The environment answered: the next turn may run, or the rollout is over."""
        self._inbox.deliver(partial(self._answered, rollout, answer))

    def failed(self, rollout: RolloutId, reason: str) -> None:
        """The environment is lost, and with it the attempt."""
        self._inbox.deliver(partial(self._failed, rollout, reason))

    def _started(self, rollout: RolloutId, task: Task, observation: str) -> Event | None:
        if not self._environments.is_open(rollout):
            return None  # its group was dropped meanwhile
        episode = Episode(rollout, task, self._rules.rollout.max_context_tokens)
        n_tokens = episode.append(self._renderer.first(observation))
        self._episodes.begin(episode)
        if rollout not in self._probes:
            return EnvironmentReady(rollout, n_tokens)
        self._environments.pause(rollout)  # it is idle by our doing until it is admitted
        return ProbeMeasured(rollout.group, n_tokens)

    def _answered(self, rollout: RolloutId, answer: Answer) -> Event | None:
        episode = self._episodes.find(rollout)
        if episode is None:
            return None
        episode.reward += answer.reward
        if answer.done:
            return self._end(rollout, Outcome.FINISHED)
        if episode.n_turns >= self._rules.max_turns:
            return self._end(rollout, Outcome.TRUNCATED_TURNS)
        return EnvironmentReady(rollout, episode.append(self._renderer.next(answer.observation)))

    def _failed(self, rollout: RolloutId, reason: str) -> Event:
        self._episodes.pop(rollout)
        if rollout in self._probes:
            self._probes.discard(rollout)
            return ProbeFailed(rollout.group, reason)
        return EnvironmentFailed(rollout, reason)

    # What the scheduler asks for, from the driver's thread.

    def _request_tasks(self, command: RequestTasks) -> None:
        groups = self._tasks.take(command.purpose, command.n_groups)
        self._inbox.post(TasksArrived(groups, self._tasks.n_members(command.purpose)))

    def _probe(self, group: GroupId) -> None:
        probe = RolloutId(group, member=0)
        self._probes.add(probe)
        self._environments.open(probe, self._tasks.task(group))

    def _admit(self, rollout: RolloutId) -> None:
        if rollout in self._probes:  # its environment has been open since the probe
            self._probes.discard(rollout)
            self._environments.resume(rollout)
            episode = self._episodes.find(rollout)
            if episode is not None:
                self._inbox.post(EnvironmentReady(rollout, len(episode.context_ids)))
        else:
            self._environments.open(rollout, self._tasks.task(rollout.group))

    def _run_turn(self, rollout: RolloutId, rank: RankId) -> None:
        episode = self._episodes.find(rollout)
        if episode is None:
            return  # it failed meanwhile, and the scheduler has been told
        limits, group = self._rules.rollout, rollout.group
        greedy = group.purpose is Purpose.EVALUATE_GREEDY
        evaluation = group.purpose is Purpose.EVALUATE
        sampling = Sampling(
            temperature=0.0 if greedy else 1.0 if evaluation else limits.temperature,
            key=key_words(
                self._rules.seed,
                "sample",
                group.purpose,
                group.number,
                rollout.member,
                rollout.attempt,
                episode.n_turns,
            ),
            max_tokens=limits.max_tokens_per_turn,
            stop_token_id=self._renderer.stop_token_id,
        )
        self._decoders[rank].run_turn(TurnRequest(rollout, episode.context_ids, sampling))

    def _step_environment(self, rollout: RolloutId) -> None:
        episode = self._episodes.find(rollout)
        if episode is not None:
            action = self._renderer.text(episode.segments[-1].token_ids)
            self._environments.step(rollout, action)

    def _end(self, rollout: RolloutId, outcome: Outcome) -> Event | None:
        self._environments.close(rollout)
        episode = self._episodes.pop(rollout)
        if episode is None:
            return None
        trajectory = episode.finish(outcome)
        if not trajectory.segments:
            return RolloutFailed(rollout, "no token of the model was captured")
        if not rollout.group.purpose.is_evaluation:
            self._episodes.keep(trajectory)
        self._on_trajectory(trajectory)
        return RolloutEnded(rollout, outcome)

    def _drop(self, group: GroupId) -> None:
        for rollout in self._episodes.drop(group):
            self._forget(rollout)

    def _forget(self, rollout: RolloutId) -> None:
        self._probes.discard(rollout)
        self._environments.close(rollout)
        for decoder in self._decoders.values():
            decoder.release(rollout)

    def _leave_all_but(self, rank: RankId, rollout: RolloutId) -> None:
        for other, decoder in self._decoders.items():
            if other != rank:
                decoder.release(rollout)

    def _train(self, step: int, groups: tuple[GroupId, ...]) -> None:
        """A whole batch: `full_batch` is the only pipelining of a real run so far."""
        trajectories = [self._episodes.take(group) for group in groups]
        self._learner.start(step, trajectories)
