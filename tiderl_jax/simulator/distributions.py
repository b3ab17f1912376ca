"""Distributions that workloads are made of. Each draws n values at once from a generator."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

Values = np.ndarray  # [n], integers or floats
_Z_OF_P90 = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal variable."""

    median: float
    sigma: float  # of the logarithm

    @classmethod
    def of_percentiles(cls, p50: float, p90: float) -> "LogNormal":
        """The one with these percentiles."""
        return cls(p50, math.log(p90 / p50) / _Z_OF_P90)

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """float64 [n]."""
        return generator.lognormal(math.log(self.median), self.sigma, n)

    def stretched(self, scale: float, tail: float) -> "LogNormal":
        """Its median times `scale`, its sigma times `tail`."""
        return LogNormal(self.median * scale, self.sigma * tail)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Either of two: `usual`, or with probability `rare_share` `rare`."""

    usual: LogNormal
    rare: LogNormal
    rare_share: float

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """float64 [n]."""
        is_rare = generator.random(n) < self.rare_share
        normal = generator.standard_normal(n)
        median = np.where(is_rare, self.rare.median, self.usual.median)
        return median * np.exp(np.where(is_rare, self.rare.sigma, self.usual.sigma) * normal)

    def stretched(self, scale: float, tail: float) -> "Mixture":
        """Both parts stretched."""
        return Mixture(
            self.usual.stretched(scale, tail), self.rare.stretched(scale, tail), self.rare_share
        )


@dataclass(frozen=True, slots=True)
class UniformInts:
    """Every integer in [low, high] alike."""

    low: int
    high: int

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """float64 [n], whole numbers (a generator's own integers cost twice the time)."""
        n_values = self.high - self.low + 1
        return self.low + np.floor(n_values * generator.random(n))


@dataclass(frozen=True, slots=True)
class Geometric:
    """Trials up to the first success: memoryless, at least 1."""

    mean: float

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """int64 [n]."""
        return generator.geometric(1 / self.mean, n)


@dataclass(frozen=True, slots=True)
class Clipped:
    """Values outside [low, high] are put at the nearer end."""

    of: LogNormal | Mixture | Geometric
    low: float
    high: float

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """[n], of the kind of `of`."""
        return np.minimum(np.maximum(self.of.sample(generator, n), self.low), self.high)


Counts = LogNormal | UniformInts | Geometric | Clipped
"""Of turns or tokens; fractions are rounded where they are used."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds, never longer than the cap (a tool's own time limit)."""

    of: LogNormal | Mixture
    cap_s: float

    def sample(self, generator: np.random.Generator, n: int) -> Values:
        """float64 [n]."""
        return np.minimum(self.of.sample(generator, n), self.cap_s)

    def stretched(self, scale: float, tail: float) -> "Delays":
        """All delays times `scale`, the cap too; sigma times `tail`."""
        return Delays(self.of.stretched(scale, tail), self.cap_s * scale)
