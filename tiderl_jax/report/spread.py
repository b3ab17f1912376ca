"""How far values at several seeds lie apart."""

from collections.abc import Sequence

import numpy as np

FEW_SEEDS = 5
"""Below so many a confidence interval says nothing; the smallest and the largest are shown."""


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """(low, high): of fewer than five values the smallest and the largest, else the 95 %
    confidence interval of their mean by Student's t; (None, None) of no values.
    """
    if not values:
        return None, None
    if len(values) < FEW_SEEDS:
        return min(values), max(values)
    from scipy.special import stdtrit  # late: only needed here

    n, mean = len(values), float(np.mean(values))
    half = float(stdtrit(n - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(n))
    return mean - half, mean + half
