"""Counts compilations: after warm-up there must be none, and that is a metric."""

import jax.monitoring


class CompileCounter:
    """Counts every program that XLA compiles from its construction on."""

    def __init__(self) -> None:
        self.n_compiles = 0
        self._n_warm = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, name: str, duration_s: float, **_: object) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            self.n_compiles += 1

    def warm(self) -> None:
        """Warm-up is over."""
        self._n_warm = self.n_compiles

    @property
    def after_warm_up(self) -> int:
        """Compilations since `warm`."""
        return self.n_compiles - self._n_warm
