"""What the trainer is doing, and for how long: it trains only while it has been fed."""

from collections.abc import Callable, Mapping
from typing import Any

from tiderl_jax.core.commands import Feed, Publish, StartStep
from tiderl_jax.core.events import Trained, Updated
from tiderl_jax.report.sums import Sum, Sums, Training, trainer_ns
from tiderl_jax.report.tracks import Tracks


class TrainerTime:
    """Charges the trainer's time to `sums`, and its waiting also for each of its devices."""

    def __init__(self, sums: Sums, tracks: Tracks | None, n_devices: int, now_ns: int) -> None:
        self._sums = sums
        self._tracks = tracks
        self._n_devices = n_devices  # that do nothing but train
        self._feeds: set[int] = set()  # of the open step, that are not trained
        self._charged_ns = now_ns
        self.training = Training.WAITING
        """What it does now."""
        self.step: dict[str, Any] = {}
        """Details of the open step."""

    @property
    def handlers(self) -> Mapping[type, Callable[[Any, int], None]]:
        """What it follows."""
        return {
            StartStep: self._start_step,
            Feed: self._feed,
            Trained: self._trained,
            Updated: self._updated,
            Publish: self._publish,
        }

    def add_devices(self, n_devices: int, now_ns: int) -> None:
        """So many devices join it; negative: they leave."""
        self.charge(now_ns)
        self._n_devices += n_devices

    def charge(self, now_ns: int) -> None:
        """Charges the time so far to the sums."""
        elapsed_ns, self._charged_ns = now_ns - self._charged_ns, now_ns
        self._sums[trainer_ns(self.training)] += elapsed_ns
        if self.training is Training.WAITING:
            self._sums[Sum.TRAINER_WAITING_DEVICE_NS] += elapsed_ns * self._n_devices

    def _start_step(self, command: StartStep, now_ns: int) -> None:
        self.step = {"step": command.step, "mode": command.mode.value, "groups": 0}

    def _feed(self, command: Feed, now_ns: int) -> None:
        self._turn_to(Training.TRAINING, now_ns, {})
        self._feeds.add(command.feed)
        self.step["groups"] += len(command.groups)

    def _trained(self, event: Trained, now_ns: int) -> None:
        if event.step == self.step.get("step"):
            self._feeds.discard(event.feed)
            if not self._feeds:
                self._turn_to(Training.WAITING, now_ns, self.step)

    def _updated(self, event: Updated, now_ns: int) -> None:
        self._turn_to(
            Training.WAITING, now_ns, {**self.step, "trained_tokens": event.trained_tokens}
        )
        self.charge(now_ns)
        self._feeds.clear()
        self.step = {}

    def _publish(self, command: Publish, now_ns: int) -> None:
        if self._tracks is not None:
            self._tracks.trainer_instant(f"publish {command.version}", now_ns)

    def _turn_to(self, training: Training, now_ns: int, details: Mapping[str, Any]) -> None:
        """The details are of what it did until now."""
        if training is self.training:
            return
        self.charge(now_ns)
        self.training = training
        if self._tracks is not None:
            self._tracks.trainer(training, now_ns, dict(details))
