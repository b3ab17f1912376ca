"""The simulated ranks: their roles, the weights on their way to them, and how they are lost."""

from collections.abc import Iterator, Mapping, Sequence

from tiderl_jax.core import events
from tiderl_jax.core.errors import InvariantError
from tiderl_jax.core.events import Event
from tiderl_jax.core.ids import PolicyVersion, RankId, Role
from tiderl_jax.scheduler.state import RankSpec
from tiderl_jax.simulator.clock import NS_PER_S, VirtualClock
from tiderl_jax.simulator.costs import CostModel
from tiderl_jax.simulator.draws import Draws
from tiderl_jax.simulator.engine import VirtualRank
from tiderl_jax.simulator.tally import Tally

RETURN_S = 120.0
"""Until a lost rank is back; assumed [30, 600]."""

RESEND_S = 5.0
"""Until a lost acknowledgement is sent again; assumed [1, 60]."""


class VirtualCluster:
    """All ranks. Each is in one role, on its way to another, or lost."""

    def __init__(
        self,
        specs: Sequence[RankSpec],
        engines: Mapping[RankId, VirtualRank],
        clock: VirtualClock,
        costs: CostModel,
        draws: Draws,
        tally: Tally,
    ) -> None:
        """`engines`: of every rank, since any may come to roll out."""
        self._engines = engines
        self._clock = clock
        self._costs = costs
        self._draws = draws
        self._tally = tally
        self._roles: dict[RankId, Role | None] = {spec.rank: spec.role for spec in specs}
        self._loading: dict[RankId, PolicyVersion] = {}  # the newest version on its way
        self._n_losses = 0
        for spec in specs:
            self._await_loss(spec.rank, draws.rank_loss_times(spec.rank))

    def with_role(self, role: Role) -> list[RankId]:
        """The ranks of a role."""
        return [rank for rank, has in self._roles.items() if has is role]

    def rolling_out(self, rank: RankId) -> VirtualRank:
        """The engine of a rank.

        Raises:
          InvariantError: the rank does not roll out now.
        """
        if self._roles[rank] is not Role.ROLLOUT:
            raise InvariantError(f"Rank {rank} does not roll out; its role is {self._roles[rank]}.")
        return self._engines[rank]

    def repartition(self, rank: RankId, role: Role) -> None:
        """Gives a rank another role, in its time.

        Raises:
          InvariantError: it has that role, has none, or still runs turns.
        """
        engine = self._engines[rank]
        if self._roles[rank] in (None, role) or engine.n_running:
            raise InvariantError(
                f"Rank {rank} cannot become {role.value}: it is {self._roles[rank]} and runs "
                f"{engine.n_running} turns."
            )
        self._leave_role(rank)
        costs = self._costs
        delay_s = costs.to_rollout_s if role is Role.ROLLOUT else costs.to_trainer_s
        self._clock.after(delay_s, lambda: self._enter_role(rank, role))

    def publish(self, version: PolicyVersion, ranks: Sequence[RankId]) -> None:
        """Brings a version to ranks; an older one that is still on its way is called off.

        Raises:
          InvariantError: a rank does not roll out.
        """
        for rank in ranks:
            self.rolling_out(rank)
            self._loading[rank] = version
            factor = self._draws.weights_delay_factor(rank, version)
            if factor > 1:
                self._tally.faults["slow_weights"] += 1
            self._clock.after(
                factor * self._costs.publish_s, lambda rank=rank: self._load(rank, version)
            )

    def _load(self, rank: RankId, version: PolicyVersion) -> Event | None:
        if self._loading.get(rank) != version:
            return None
        del self._loading[rank]
        self._engines[rank].load(version)
        return self._acknowledge(rank, version, 1)

    def _acknowledge(self, rank: RankId, version: PolicyVersion, n: int) -> Event | None:
        served = self._engines[rank].version
        if served is None or served < version:
            return None  # the rank has lost it meanwhile
        if self._draws.acknowledgement_lost(rank, version, n):
            self._tally.faults["lost_acknowledgement"] += 1
            self._clock.after(RESEND_S, lambda: self._acknowledge(rank, version, n + 1))
            return None
        return events.WeightsLoaded(rank, version, digest(version))

    def _leave_role(self, rank: RankId) -> None:
        self._roles[rank] = None
        self._loading.pop(rank, None)
        self._engines[rank].empty()

    def _enter_role(self, rank: RankId, role: Role) -> Event:
        self._roles[rank] = role
        return events.RankReady(rank, role)

    def _await_loss(self, rank: RankId, times_s: Iterator[float]) -> None:
        at_s = next(times_s, None)
        if at_s is not None:
            self._clock.at(round(at_s * NS_PER_S), lambda: self._lose(rank, times_s))

    def _lose(self, rank: RankId, times_s: Iterator[float]) -> Event | None:
        """Rollout ranks are lost, every second time for good, but never the last one."""
        self._await_loss(rank, times_s)
        others = [other for other in self.with_role(Role.ROLLOUT) if other != rank]
        if self._roles[rank] is not Role.ROLLOUT:
            return None
        self._n_losses += 1
        returns = self._n_losses % 2 == 1 or not others
        self._tally.faults["rank_loss" if returns else "rank_loss_for_good"] += 1
        self._leave_role(rank)
        if returns:
            self._clock.after(RETURN_S, lambda: self._enter_role(rank, Role.ROLLOUT))
        return events.RankLost(rank, returns)


def digest(version: PolicyVersion) -> str:
    """What the weights of a version are known by."""
    return f"weights-{version}"
