"""Simulated environments: they answer late, crash, hang, and their clocks can be stopped.

An answer needs a deadline in the heap only if it will not come in time, which is known when it is
asked for. A session that was idle for longer than its lease is found out when it is used next.
"""

from collections.abc import Callable
from functools import partial

from tiderl_jax.core import events
from tiderl_jax.core.config import EnvironmentConfig
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import GroupId
from tiderl_jax.simulator.clock import NS_PER_S, VirtualClock
from tiderl_jax.simulator.draws import Draws
from tiderl_jax.simulator.episodes import Episode
from tiderl_jax.simulator.tally import Tally

Answered = Callable[[Episode], Event | None]
Failed = Callable[[Episode, str], Event]


class VirtualEnvironments:
    """All environments of a run."""

    def __init__(
        self,
        clock: VirtualClock,
        draws: Draws,
        config: EnvironmentConfig,
        tally: Tally,
        answered: Answered,
        failed: Failed,
    ) -> None:
        """`answered` and `failed` are told what became of what was asked of an environment."""
        self._clock = clock
        self._draws = draws
        self._tally = tally
        self._answered = answered
        self._failed = failed
        self._limit_ns = round(config.step_deadline_s * NS_PER_S)
        self._lease_ns = round(config.idle_lease_s * NS_PER_S)
        self._n_probes: dict[GroupId, int] = {}

    def probe(self, group: GroupId, delay_s: float, opened: Callable[[], None]) -> None:
        """Opens an environment for its first prompt alone; `opened` when that has worked."""
        n = self._n_probes[group] = self._n_probes.get(group, 0) + 1
        fails = self._draws.probe_fails(group, n)
        delay_ns = min(round(delay_s * NS_PER_S), self._limit_ns)

        def measured() -> Event:
            if fails:
                self._tally.faults["probe"] += 1
                return events.ProbeFailed(group, "the probe failed")
            opened()
            return events.ProbeMeasured(group, self._draws.prompt_tokens(group))

        self._clock.at(self._clock.now_ns + delay_ns, measured)

    def open_already(self, episode: Episode) -> None:
        """The environment was opened by a probe: it has its first prompt at once."""
        episode.working = True
        self._clock.at(self._clock.now_ns, partial(self._answer, episode, 0))

    def work(self, episode: Episode) -> None:
        """The environment opens or plays a turn, under a deadline.

        Raises:
          InvariantError: it is at work.
        """
        if episode.working:
            raise InvariantError(f"The environment of {episode.rollout} is asked twice at once.")
        now_ns, turn = self._clock.now_ns, episode.n_turns
        episode.working = True
        episode.n_works += 1
        work = episode.n_works
        if turn > 0 and episode.clock_ns(now_ns) - episode.idle_since_ns > self._lease_ns:
            self._clock.at(now_ns, partial(self._fail, episode, work, "lease", "no traffic"))
            return
        fault = self._draws.environment_fault(episode.rollout, turn)
        delay_ns = round(episode.plan.delays_s[turn] * NS_PER_S)
        at_ns = now_ns + delay_ns
        if fault == "hang" or delay_ns > self._limit_ns:
            due_ns = episode.clock_ns(now_ns) + self._limit_ns
            self._set_alarm(episode, work, due_ns, "hang" if fault == "hang" else "slow")
        if fault == "crash":
            self._clock.at(at_ns, partial(self._fail, episode, work, "crash", "it crashed"))
        elif fault != "hang":
            self._clock.at(at_ns, partial(self._answer, episode, work))
        if fault == "late":
            self._tally.faults["late"] += 1
            self._clock.at(at_ns + self._limit_ns, partial(self._stray, episode))

    def close(self, episode: Episode) -> None:
        """Nothing of it is heard of again, except what is late."""
        episode.working = False
        episode.n_works += 1

    def stop_clock(self, episode: Episode) -> None:
        """No deadline passes until `run_clock`."""
        if episode.stopped_at_ns is not None:
            raise InvariantError(f"The environment of {episode.rollout} is paused twice.")
        episode.stopped_at_ns = self._clock.now_ns

    def run_clock(self, episode: Episode) -> None:
        """Time counts again."""
        if episode.stopped_at_ns is None:
            raise InvariantError(f"The environment of {episode.rollout} is not paused.")
        episode.stopped_ns += self._clock.now_ns - episode.stopped_at_ns
        episode.stopped_at_ns = None
        if episode.rearm is not None:
            rearm, episode.rearm = episode.rearm, None
            rearm()

    def _answer(self, episode: Episode, work: int) -> Event | None:
        if episode.n_works != work:
            return None
        if not episode.working:
            return self._stray(episode)  # it has been failed meanwhile
        episode.working = False
        episode.idle_since_ns = episode.clock_ns(self._clock.now_ns)
        return self._answered(episode)

    def _stray(self, episode: Episode) -> Event | None:
        """An answer that nobody waits for; while another is awaited, its number gives it away."""
        return None if episode.working else events.EnvironmentReady(episode.rollout, 1)

    def _set_alarm(self, episode: Episode, work: int, due_ns: int, kind: str) -> None:
        """Fails the environment when its clock shows `due_ns` and it has not answered."""
        left_ns = due_ns - episode.clock_ns(self._clock.now_ns)

        def expired() -> Event | None:
            if not episode.working or episode.n_works != work:
                return None
            if episode.stopped_at_ns is not None:
                episode.rearm = lambda: self._set_alarm(episode, work, due_ns, kind)
            elif episode.clock_ns(self._clock.now_ns) < due_ns:
                self._set_alarm(episode, work, due_ns, kind)
            else:
                return self._fail(episode, work, kind, "no answer in time")
            return None

        self._clock.at(self._clock.now_ns + left_ns, expired)

    def _fail(self, episode: Episode, work: int, kind: str, reason: str) -> Event | None:
        if not episode.working or episode.n_works != work:
            return None
        episode.working = False
        self._tally.faults[kind] += 1
        return self._failed(episode, f"the environment failed: {reason}")
