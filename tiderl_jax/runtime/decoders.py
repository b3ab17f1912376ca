"""One thread per rollout rank: it owns the rank's engine and nobody else touches it."""

import queue
from collections.abc import Callable
from functools import partial

import jax

from tiderl_jax.core.events import TurnEnded, WeightsLoaded
from tiderl_jax.core.ids import PolicyVersion, RankId, RolloutId
from tiderl_jax.core.segments import Owner, Segment
from tiderl_jax.decoder.engine import Engine
from tiderl_jax.decoder.turns import TurnRequest, TurnResult
from tiderl_jax.runtime.episodes import Episodes
from tiderl_jax.runtime.inbox import Inbox
from tiderl_jax.runtime.threads import supervised
from tiderl_jax.runtime.weights import Published, load


class DecoderWorker:
    """Runs an engine's dispatches; orders are carried out between them, in order of arrival."""

    def __init__(
        self,
        rank: RankId,
        engine: Engine,
        device: jax.Device,
        episodes: Episodes,
        inbox: Inbox,
    ) -> None:
        self.rank = rank
        self._engine = engine
        self._device = device
        self._episodes = episodes
        self._inbox = inbox
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = supervised(f"decoder {rank}", self._run, inbox)

    def run_turn(self, request: TurnRequest) -> None:
        """Decodes a turn; answered by `TurnEnded`."""
        self._orders.put(lambda: self._engine.run_turn(request))

    def release(self, rollout: RolloutId) -> None:
        """The rollout holds no pages here any more; a turn that it still decodes is cancelled."""
        self._orders.put(lambda: self._engine.cancel(rollout))

    def load_weights(self, published: Published) -> None:
        """Swaps weights between two dispatches; answered by `WeightsLoaded`."""

        def order() -> None:
            params = load(published, jax.sharding.SingleDeviceSharding(self._device))
            self._engine.load_weights(params, published.version)
            self._inbox.post(WeightsLoaded(self.rank, published.version, published.digest))

        self._orders.put(order)

    def stop(self) -> None:
        """Ends the thread after the dispatch that is running."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            # With turns to decode only take what is there; otherwise wait for something to do.
            while self._engine.n_active == 0 or not self._orders.empty():
                order = self._orders.get()
                if order is None:
                    return
                order()
            for result in self._engine.step():
                self._inbox.deliver(partial(self._turn_ended, result))

    def _turn_ended(self, result: TurnResult) -> TurnEnded | None:
        """In the driver's thread."""
        episode = self._episodes.find(result.rollout)
        if episode is None:
            return None  # its group was dropped while this dispatch ran
        segment = Segment(
            Owner.MODEL, result.token_ids, result.logp_raw, result.logp, result.versions
        )
        episode.append([segment])
        episode.n_turns += 1
        return TurnEnded(
            rollout=result.rollout,
            rank=self.rank,
            stop=result.stop,
            generated_tokens=len(segment),
            found_tokens=result.found_tokens,
            prefilled_tokens=result.prefilled_tokens,
            oldest_version=PolicyVersion(int(segment.versions.min())),
        )
