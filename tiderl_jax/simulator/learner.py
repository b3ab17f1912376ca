"""The simulated learner: which trajectories train, under which version, and what is told of it.

Groups of equal rewards train like any other; a real learner leaves them out for want of an
advantage. So goodput counts what the trainer consumed, as the paper does.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from tiderl_jax.core import events
from tiderl_jax.core.commands import Feed, Microbatch, StartStep
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import GroupId, PolicyVersion, RankId, RolloutId, lag
from tiderl_jax.simulator.cluster import digest
from tiderl_jax.simulator.episodes import Episode, Episodes
from tiderl_jax.simulator.tally import Tally
from tiderl_jax.simulator.trainer import VirtualTrainer, Work

_TRIMMED = "trimmed"
"""Why tokens older than the bound did not train."""


class VirtualLearner:
    """Takes complete groups, hands their trajectories to the trainer, mints versions."""

    def __init__(
        self,
        version: PolicyVersion,
        trainer: VirtualTrainer,
        episodes: Episodes,
        tally: Tally,
        rests: Callable[[], None],
        trimmed_beyond: int | None = None,
    ) -> None:
        """`rests` is called whenever the trainer has nothing more to do.

        Tokens with a lag above `trimmed_beyond` are left out of the loss.
        """
        self.version = version
        self._trainer = trainer
        self._episodes = episodes
        self._tally = tally
        self._rests = rests
        self._trimmed_beyond = trimmed_beyond
        self._waiting: dict[RolloutId, Episode] = {}  # of groups in the step, not fed yet
        self._trained: list[Episode] = []  # fed in the step
        self._n_microbatches = 0

    @property
    def has_open_step(self) -> bool:
        """Whether a step is open."""
        return self._trainer.is_open

    def start(self, command: StartStep, ranks: Sequence[RankId]) -> None:
        """Opens a step on these ranks."""
        self._trainer.start(command.step, command.mode, command.n_scorers, ranks)
        self._waiting, self._trained, self._n_microbatches = {}, [], 0

    def feed(self, command: Feed) -> None:
        """Trains on what is fed; the groups are used up.

        Raises:
          InvariantError: it trains what is not there, or trains it twice, or leaves some of it out.
        """
        for group in command.groups:
            self._take(group)
        work = [self._work(microbatch) for microbatch in command.microbatches]
        if command.last and self._waiting:
            raise InvariantError(f"Step {command.step} ends without {next(iter(self._waiting))}.")
        self._n_microbatches += len(work)
        step, feed, last = command.step, command.feed, command.last
        self._trainer.feed(step, feed, work, last, lambda: self._done(step, feed, last))

    def _take(self, group: GroupId) -> None:
        if group.purpose.is_evaluation:
            raise InvariantError(f"Group {group} is an evaluation and trains.")
        episodes = self._episodes.take(group)
        tally = self._tally.workload(episodes[0].workload)
        tally.trained_groups += 1
        self._tally.trained_groups.append(group)
        for episode in episodes:
            self._waiting[episode.rollout] = episode
            tally.trained.add(episode)

    def _work(self, microbatch: Microbatch) -> Work:
        n_tokens = 0
        for rollout in microbatch.rollouts:
            episode = self._waiting.pop(rollout, None)
            if episode is None:
                raise InvariantError(f"Rollout {rollout} is trained twice, or was never taken.")
            self._trained.append(episode)
            n_tokens += episode.trained_context_tokens
        return Work(microbatch.worker, n_tokens)

    def _done(self, step: int, feed: int, last: bool) -> Event:
        if not self._trainer.is_busy:
            self._rests()
        return self._updated(step) if last else events.Trained(step, feed)

    def _updated(self, step: int) -> Event:
        trained, at_version = self._trained, self.version
        at_lags: Counter[int] = Counter()
        lags: list[int] = []
        n_trimmed = 0
        for episode in trained:
            fresh = {
                lag(at_version, version): n_tokens
                for version, n_tokens in episode.sampled.items()
                if not self._is_trimmed(lag(at_version, version))
            }
            at_lags.update(fresh)
            self._tally.workload(episode.workload).tokens_at_lag.update(fresh)
            n_trimmed += sum(episode.sampled.values()) - sum(fresh.values())
            lags += [max(fresh)] if fresh else []
        self.version = PolicyVersion(at_version + 1)
        self._tally.lags.extend(lags)
        self._tally.tokens_at_lag.update(at_lags)
        self._tally.trained_tokens += at_lags.total()
        return events.Updated(
            step=step,
            version=self.version,
            digest=digest(self.version),
            trained_tokens=at_lags.total(),
            context_tokens=sum(episode.trained_context_tokens for episode in trained),
            untrained_tokens=((_TRIMMED, n_trimmed),) if n_trimmed else (),
            n_microbatches=self._n_microbatches,
            lags=tuple(lags),
            tokens_at_lag=tuple(sorted(at_lags.items())),
            reward_mean=sum(episode.plan.reward for episode in trained) / len(trained),
        )

    def _is_trimmed(self, of_lag: int) -> bool:
        return self._trimmed_beyond is not None and of_lag > self._trimmed_beyond
