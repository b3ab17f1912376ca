"""How long an environment takes to answer: a pure function; the waiting happens in `runtime`."""

import math

from tiderl_jax.core.config import LatencyConfig
from tiderl_jax.core.identity import generator


def delay_s(config: LatencyConfig, seed: int, *identity: int) -> float:
    """A log-normal delay in seconds, capped; the same for ever for one seed and identity.

    A heavy tail is what tools have: most answers come at once, a few hold up their whole batch.
    """
    normal = generator(seed, "delay", *identity).standard_normal()
    return min(config.median_s * math.exp(config.sigma * normal), config.cap_s)
