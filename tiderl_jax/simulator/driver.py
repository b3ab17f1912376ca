"""The virtual driver: carries commands out on a simulated world and answers with events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiderl_jax.core import commands, events
from tiderl_jax.core.commands import Command, DropReason
from tiderl_jax.core.config import EnvironmentConfig, RolloutConfig
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event, TurnStop
from tiderl_jax.core.ids import GroupId, PolicyVersion, Purpose, RankId, RolloutId
from tiderl_jax.core.trajectories import Outcome
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import Happening, VirtualClock
from tiderl_jax.simulator.engine import VirtualRank
from tiderl_jax.simulator.episodes import Episode
from tiderl_jax.simulator.profile import CostModel, Draws


@dataclass(slots=True)
class Tally:
    """What the simulated world did."""

    trained_tokens: int = 0
    sampled_tokens: int = 0
    found_tokens: int = 0
    prefilled_tokens: int = 0
    trained_groups: list[GroupId] = field(default_factory=list[GroupId])
    dropped_groups: dict[GroupId, DropReason] = field(default_factory=dict[GroupId, DropReason])
    lags: list[int] = field(default_factory=list[int])
    evaluated: list[tuple[RolloutId, PolicyVersion]] = field(
        default_factory=list[tuple[RolloutId, PolicyVersion]]
    )  # rollouts of evaluations that ended, and the version they sampled under
    outcomes: dict[Outcome, int] = field(default_factory=dict[Outcome, int])


@dataclass(frozen=True, slots=True)
class World:
    """All that defines a simulated run besides the scheduler."""

    rollout: RolloutConfig
    environment: EnvironmentConfig
    ranks: tuple[RankSpec, ...]
    costs: CostModel
    draws: Draws


class VirtualDriver:
    """Event source and executor of `scheduler.loop.run` in virtual time."""

    def __init__(self, world: World, saved: Mapping[str, Any]) -> None:
        """`saved` is the snapshot of the scheduler that the run goes on from."""
        self.tally = Tally()
        self._world = world
        self._draws = world.draws
        self._clock = VirtualClock()
        self._version = PolicyVersion(saved["version"])
        self._unfinished: list[int] = list(saved["unfinished_train_indices"])
        self._next_index = dict.fromkeys(Purpose, 0) | {Purpose.TRAIN: saved["next_train_index"]}
        self._ranks = {
            spec.rank: VirtualRank(spec, world.costs, world.rollout.max_tokens_per_turn)
            for spec in world.ranks
        }
        self._episodes: dict[RolloutId, Episode] = {}
        self._finished: dict[GroupId, list[Episode]] = {}
        self._n_probes: dict[GroupId, int] = {}
        self._again: Event | None = None
        self._n_events = 0

    def stop_at(self, at_ns: int) -> None:
        """Asks for a clean stop at this time."""
        self._clock.at(at_ns, events.StopRequested)

    def next(self) -> tuple[Event, int]:
        """The next event; now and then one arrives twice."""
        if self._again is not None:
            again, self._again = self._again, None
            return again, self._clock.now_ns
        event, now_ns = self._clock.next()
        self._n_events += 1
        if self._draws.is_duplicated(self._n_events):
            self._again = event
        return event, now_ns

    def execute(self, command: Command, now_ns: int) -> None:
        """Schedules what the command leads to."""
        match command:
            case commands.RequestTasks(purpose, n_groups):
                self._bring(purpose, n_groups)
            case commands.Probe(group):
                self._probe(group)
            case commands.Admit(rollout, rank):
                self._admit(rollout, rank)
            case commands.RunTurn(rollout, rank):
                self._run_turn(self._episodes[rollout], self._ranks[rank])
            case commands.StepEnvironment(rollout):
                self._work(self._episodes[rollout], lambda: self._answer(rollout))
            case commands.Pause(rollout, rank):
                self._ranks[rank].pause(rollout)
            case commands.Resume(rollout, rank):
                self._ranks[rank].resume(rollout)
            case commands.Release(rollout, rank):
                self._ranks[rank].release(rollout)
            case commands.PauseEnvironment(rollout):
                self._episodes[rollout].stop_clock(now_ns)
            case commands.ResumeEnvironment(rollout):
                self._episodes[rollout].run_clock(now_ns)
                self._set_alarm(self._episodes[rollout])
            case commands.EndRollout(rollout, outcome):
                self._episodes[rollout].end_work()
                self._soon(lambda: self._end(self._episodes.get(rollout), outcome))
            case commands.DropGroup(group, reason):
                self._drop(group, reason)
            case commands.StartStep(step, groups, _):
                self._train(step, groups)
            case commands.Publish(version, ranks):
                self._publish(version, ranks)
            case commands.SetTimer(at_ns):
                self._clock.at(at_ns, lambda: events.TimerFired(at_ns))
            case commands.Finish() | commands.Abort():
                pass

    def _soon(self, happening: Happening) -> None:
        self._clock.after(self._world.costs.request_s, happening)

    # Tasks and environments.

    def _bring(self, purpose: Purpose, n_groups: int) -> None:
        groups = tuple(GroupId(purpose, self._take_index(purpose)) for _ in range(n_groups))
        n_members = 1 if purpose.is_evaluation else self._world.rollout.samples_per_prompt
        self._soon(lambda: events.TasksArrived(groups, n_members))

    def _take_index(self, purpose: Purpose) -> int:
        if purpose is Purpose.TRAIN and self._unfinished:
            return self._unfinished.pop(0)
        self._next_index[purpose] += 1
        return self._next_index[purpose] - 1

    def _probe(self, group: GroupId) -> None:
        attempt = self._n_probes[group] = self._n_probes.get(group, 0) + 1
        event: Event = events.ProbeMeasured(group, self._draws.prompt_tokens(group))
        if self._draws.probe_fails(group, attempt):
            event = events.ProbeFailed(group, "the probe failed")
        self._clock.after(self._draws.delay_s(RolloutId(group, 0), 0), lambda: event)

    def _admit(self, rollout: RolloutId, rank: RankId) -> None:
        episode = Episode(rollout, rank, self._draws.n_turns(rollout))
        self._episodes[rollout] = episode

        def ready() -> Event:
            episode.context_tokens = self._draws.prompt_tokens(rollout.group)
            return events.EnvironmentReady(rollout, episode.context_tokens)

        self._work(episode, ready)

    def _work(self, episode: Episode, answer: Happening) -> None:
        """The environment works; it answers, crashes or hangs, under a deadline."""
        episode.begin_work(self._clock.now_ns, self._world.environment.step_deadline_s)
        self._set_alarm(episode)
        rollout, turn = episode.rollout, episode.n_turns
        fault = self._draws.environment_fault(rollout, turn)
        if fault == "hang":
            return

        def done() -> Event | None:
            if not episode.end_work():
                return events.EnvironmentReady(
                    rollout, 1
                )  # too late: it has been failed or dropped
            return answer() if not fault else self._fail(episode, "the environment crashed")

        self._clock.after(self._draws.delay_s(rollout, turn), done)

    def _set_alarm(self, episode: Episode) -> None:
        if not episode.working:
            return
        alarm = episode.alarm

        def expired() -> Event | None:
            if episode.alarm != alarm or not episode.end_work():
                return None
            return self._fail(episode, "the environment did not answer in time")

        self._clock.at(episode.deadline_ns, expired)

    def _answer(self, rollout: RolloutId) -> Event | None:
        episode = self._episodes[rollout]
        if episode.n_turns >= episode.planned_turns:
            return self._end(episode, Outcome.FINISHED)
        if episode.n_turns >= self._world.environment.max_turns:
            return self._end(episode, Outcome.TRUNCATED_TURNS)
        n_tokens = self._draws.observation_tokens(rollout, episode.n_turns)
        episode.context_tokens += n_tokens
        return events.EnvironmentReady(rollout, n_tokens)

    def _fail(self, episode: Episode, reason: str) -> Event:
        self._episodes.pop(episode.rollout, None)
        return events.EnvironmentFailed(episode.rollout, reason)

    # Turns.

    def _run_turn(self, episode: Episode, rank: VirtualRank) -> None:
        rollout, turn = episode.rollout, episode.n_turns
        if rank.version is None or episode.working:
            raise InvariantError(f"Rollout {rollout} runs a turn without weights or observation.")
        found = rank.begin_turn(rollout, episode.context_tokens)
        prefilled = episode.context_tokens - found
        generated, is_cut = self._draws.turn(rollout, turn, self._world.rollout.max_tokens_per_turn)
        version = rank.version
        stop = TurnStop.LENGTH if is_cut else TurnStop.END_OF_TURN
        ended = events.TurnEnded(rollout, episode.rank, stop, generated, found, prefilled, version)

        def done() -> Event:
            if self._episodes.get(rollout) is not episode:
                return ended  # too late: its group was dropped
            if self._draws.engine_fails(rollout, turn):
                rank.forget(rollout)
                del self._episodes[rollout]
                return events.RolloutFailed(rollout, "the engine lost the turn")
            episode.context_tokens += generated
            rank.end_turn(rollout, episode.context_tokens)
            self._count_turn(episode, ended)
            return ended

        self._clock.after(rank.turn_s(prefilled, generated), done)

    def _count_turn(self, episode: Episode, turn: events.TurnEnded) -> None:
        episode.n_turns += 1
        episode.sampled_tokens += turn.generated_tokens
        known = episode.oldest_version
        episode.oldest_version = (
            turn.oldest_version if known is None else min(known, turn.oldest_version)
        )
        self.tally.sampled_tokens += turn.generated_tokens
        self.tally.found_tokens += turn.found_tokens
        self.tally.prefilled_tokens += turn.prefilled_tokens

    def _end(self, episode: Episode | None, outcome: Outcome) -> Event | None:
        if episode is None or episode.rollout not in self._episodes:
            return None  # dropped meanwhile
        rollout = episode.rollout
        del self._episodes[rollout]
        if episode.oldest_version is None:
            return events.RolloutFailed(rollout, "no token was captured")
        self.tally.outcomes[outcome] = self.tally.outcomes.get(outcome, 0) + 1
        if rollout.group.purpose.is_evaluation:
            self.tally.evaluated.append((rollout, episode.oldest_version))
        else:
            self._finished.setdefault(rollout.group, []).append(episode)
        return events.RolloutEnded(rollout, outcome)

    def _drop(self, group: GroupId, reason: DropReason) -> None:
        self.tally.dropped_groups[group] = reason
        self._finished.pop(group, None)
        for rollout in [rollout for rollout in self._episodes if rollout.group == group]:
            episode = self._episodes.pop(rollout)
            episode.end_work()
            self._ranks[episode.rank].forget(rollout)

    # The learner and its weights.

    def _train(self, step: int, groups: tuple[GroupId, ...]) -> None:
        episodes = [episode for group in groups for episode in self._finished.pop(group)]
        self.tally.trained_groups.extend(groups)
        version = self._version
        lags = tuple(version - (episode.oldest_version or 0) for episode in episodes)
        trained = sum(episode.sampled_tokens for episode in episodes)
        context = sum(episode.context_tokens for episode in episodes)
        self.tally.lags.extend(lags)
        self.tally.trained_tokens += trained

        def done() -> Event:
            self._version = PolicyVersion(version + 1)
            return events.Updated(
                step=step,
                version=self._version,
                digest=_digest(self._version),
                trained_tokens=trained,
                context_tokens=context,
                untrained_tokens=(),
                n_microbatches=1,
                lags=lags,
                reward_mean=0.0,
            )

        self._clock.after(context * self._world.costs.learner_s_per_token, done)

    def _publish(self, version: PolicyVersion, ranks: tuple[RankId, ...]) -> None:
        if version != self._version:
            raise InvariantError(
                f"Version {version} is published; the learner has {self._version}."
            )
        for rank in ranks:
            self._clock.after(
                self._world.costs.publish_s * (1 + 0.1 * rank),
                lambda rank=rank: self._loaded(rank, version),
            )

    def _loaded(self, rank: RankId, version: PolicyVersion) -> Event:
        self._ranks[rank].load(version)
        return events.WeightsLoaded(rank, version, _digest(version))


def _digest(version: PolicyVersion) -> str:
    return f"weights-{version}"
