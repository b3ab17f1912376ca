"""What a training step costs in each of its modes (RA2P, TideRL section 1.2).

A cost is the time in seconds from the start of the step until its last backward ends; gradient
reduction and optimizer are the same in all modes and left out. Microbatches are equally long here.
Their ranks take them in order of arrival; those that never arrive (an infinite gap) cost nothing.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import inf, isfinite


@dataclass(frozen=True, slots=True)
class MicrobatchTimes:
    """Seconds of a microbatch on one trainer rank, and of one swap of scorer and actor there."""

    score_s: float
    forward_s: float
    backward_s: float
    swap_s: float

    @property
    def train_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What work costs on one trainer rank. Without a scorer, scoring and swaps cost 0."""

    score_s_per_token: float
    forward_s_per_token: float
    backward_s_per_token: float
    swap_s: float
    microbatch_s: float  # fixed overhead of each pass over a microbatch

    def times(self, tokens: float) -> MicrobatchTimes:
        """The times of a microbatch of this many tokens."""
        is_scored = self.score_s_per_token > 0
        return MicrobatchTimes(
            score_s=self.score_s_per_token * tokens + self.microbatch_s if is_scored else 0.0,
            forward_s=self.forward_s_per_token * tokens + self.microbatch_s,
            backward_s=self.backward_s_per_token * tokens + self.microbatch_s,
            swap_s=self.swap_s,
        )


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When the microbatches of a step become ready: RAS at once, the rest one by one."""

    n_ready: int  # RAS
    gap_s: float  # TPRM; infinite: nothing more is expected
    n_total: int

    @property
    def n_expected(self) -> int:
        """Microbatches that ever arrive."""
        return self.n_total if isfinite(self.gap_s) else min(self.n_ready, self.n_total)

    def at_s(self, microbatch: int) -> float:
        """When this one is ready, counted from 0."""
        n_later = microbatch - self.n_ready + 1
        return n_later * self.gap_s if n_later > 0 else 0.0


def best_scorers(times: MicrobatchTimes, n_ranks: int) -> int:
    """Ranks that should only score, so that scoring and training keep pace with each other.

    0: nothing is scored, or one rank alone cannot be divided.
    """
    if times.score_s == 0:
        return 0

    def microbatches_per_s(n_scorers: int) -> float:
        return min(n_scorers / times.score_s, (n_ranks - n_scorers) / times.train_s)

    balanced = int(n_ranks * times.score_s / (times.score_s + times.train_s))
    few = min(max(1, balanced), n_ranks - 1)
    return max(few, min(few + 1, n_ranks - 1), key=microbatches_per_s)


def _can_stream(times: MicrobatchTimes, n_ranks: int, n_scorers: int) -> bool:
    return n_scorers < n_ranks and (n_scorers > 0 or times.score_s == 0)


def decoupled_s(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int) -> float:
    """C_dec in closed form; infinite when the ranks cannot be divided so.

    The paper: `sum_{i=0..M-1} i * t_ref + sum_{i=1..N} max(delta_i, t_f + t_b)`. We read it so:

    - The first sum is the waiting of all M actors together. A step is longer by what one of them
      waits, so it is divided by the number of actors; with several scorers actor i waits only for
      the i // n_scorers scores before its own.
    - N counts the rounds of the busiest actor. A round also takes as long as the scorers need for
      a score for every actor, or the actors would soon wait again for what the first sum counts.
    - delta_i is what has to arrive between two rounds, taken as its mean over the step: what is
      ready at the start is worked off while the rest arrives. With the gaps as they come (0 for
      the ready ones, long after that) the two would be added up, as if none of it overlapped.
      The last round ends after the last arrival, so N - 1 rounds bear the waiting.
    """
    if not _can_stream(times, n_ranks, n_scorers):
        return inf
    n, n_actors = arrivals.n_expected, n_ranks - n_scorers
    if n == 0:
        return 0.0
    n_rounds = -(-n // n_actors)
    fill_s = score_round_s = 0.0
    if n_scorers > 0:
        fill_s = times.score_s * _mean_quotient(min(n, n_actors), n_scorers)
        score_round_s = times.score_s * n_actors / n_scorers
    # (N - 1) * max(mean of delta_i, round), also for N = 1.
    rounds_s = max(arrivals.at_s(n - 1), (n_rounds - 1) * max(times.train_s, score_round_s))
    return fill_s + rounds_s + times.train_s


def _mean_quotient(n: int, divisor: int) -> float:
    """Mean of i // divisor over 0 <= i < n."""
    n_whole, n_left = divmod(n, divisor)
    return (divisor * n_whole * (n_whole - 1) / 2 + n_whole * n_left) / n


def simulated_decoupled_s(
    arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_scorers: int
) -> float:
    """The decoupled cost microbatch by microbatch; infinite when the ranks cannot be divided so.

    Scorers and actors take microbatches in turn, in order of arrival. An actor's forward does not
    wait for the score, its backward does.
    """
    if not _can_stream(times, n_ranks, n_scorers):
        return inf
    scorer_free_s = [0.0] * n_scorers
    actor_free_s = [0.0] * (n_ranks - n_scorers)
    for i in range(arrivals.n_expected):
        ready_s = scored_s = arrivals.at_s(i)
        if n_scorers > 0:
            scorer = i % n_scorers
            scored_s = max(ready_s, scorer_free_s[scorer]) + times.score_s
            scorer_free_s[scorer] = scored_s
        actor = i % len(actor_free_s)
        forwarded_s = max(ready_s, actor_free_s[actor]) + times.forward_s
        actor_free_s[actor] = max(forwarded_s, scored_s) + times.backward_s
    return max(actor_free_s)


def colocated_s(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int) -> float:
    """The co-located cost, wave by wave: all that is ready is scored, then trained."""
    return _waves_s(arrivals, times, n_ranks, max(1, arrivals.n_total))


def swap_per_microbatch_s(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int) -> float:
    """The cost of always streaming through shared ranks (TideRL, loss C2).

    Every rank takes one microbatch at most before scorer and actor swap again.
    """
    return _waves_s(arrivals, times, n_ranks, n_ranks)


def _waves_s(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int, n_at_once: int) -> float:
    """Waves of what is ready, `n_at_once` at most: swap, score, swap back, train."""
    n, n_taken, now_s = arrivals.n_expected, 0, 0.0
    while n_taken < n:
        now_s = max(now_s, arrivals.at_s(n_taken))
        n_arrived = bisect_right(range(n), now_s, lo=n_taken, key=arrivals.at_s)
        n_wave = min(n_at_once, n_arrived - n_taken)
        n_each = -(-n_wave // n_ranks)
        now_s += 2 * times.swap_s + n_each * (times.score_s + times.train_s)
        n_taken += n_wave
    return now_s


def break_even_ready(arrivals: Arrivals, times: MicrobatchTimes, n_ranks: int) -> int:
    """The smallest RAS at which decoupled streaming is not dearer than co-located aggregation.

    Both by the cost model that RA2P decides by, with the gap and the total of `arrivals`.
    `n_total + 1` if there is none.
    """
    n_scorers = best_scorers(times, n_ranks)
    for n_ready in range(arrivals.n_total + 1):
        such = replace(arrivals, n_ready=n_ready)
        if decoupled_s(such, times, n_ranks, n_scorers) <= colocated_s(such, times, n_ranks):
            return n_ready
    return arrivals.n_total + 1
