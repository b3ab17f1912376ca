"""Microbatch shaping (RA2P, TideRL section 1.2): which trajectories are trained at once, and where.

Trajectories are taken longest first, ids deciding between equals, so that nothing depends on the
order in which they became ready.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heapreplace

from tiderl_jax.core.commands import Microbatch, StepMode
from tiderl_jax.core.ids import RolloutId

Sized = tuple[RolloutId, int]
"""A trajectory and its tokens."""


def shape(
    rollouts: Sequence[Sized], tokens: int, n_workers: int, mode: StepMode, last: bool
) -> list[Microbatch]:
    """Every trajectory in one microbatch of at most `tokens`, or alone if it is longer.

    Co-located: the trajectories go to the workers in zig-zag, so that the workers' sums differ by
    the longest trajectory at most; each fills its own microbatches.
    Decoupled: filled microbatches, longest first, go to the workers in turn. At the end of a step
    (`last`) those that are too few for all workers are spread over all of them, and the shortest
    trajectory follows alone: the actors end together, and the last score is not waited for long.
    """
    ordered = _longest_first(rollouts)
    if mode is StepMode.COLOCATED:
        shares = _zig_zag(ordered, n_workers)
        packed = [(worker, part) for worker in shares for part in _packed(shares[worker], tokens)]
    else:
        ending = last and len(ordered) > 0
        parts = _ending(ordered, tokens, n_workers) if ending else _packed(ordered, tokens)
        packed = [(i % n_workers, part) for i, part in enumerate(parts)]
    return [
        Microbatch(worker, tuple(rollout for rollout, _ in part), _n_tokens(part))
        for worker, part in packed
    ]


def packable(rollouts: Sequence[Sized], tokens: int) -> tuple[list[Sized], list[Sized]]:
    """Those that fill whole microbatches now, and those that should wait for more to join them.

    The emptiest microbatch waits if it has room; any two together would have exceeded the limit.
    `shape` makes the same microbatches of those that are full.
    """
    parts = _packed(_longest_first(rollouts), tokens)
    waits = parts.pop() if parts and _n_tokens(parts[-1]) < tokens else []
    return [rollout for part in parts for rollout in part], waits


def _longest_first(rollouts: Sequence[Sized]) -> list[Sized]:
    return sorted(rollouts, key=lambda rollout: (-rollout[1], rollout[0]))


def _n_tokens(part: Sequence[Sized]) -> int:
    return sum(tokens for _, tokens in part)


def _zig_zag(ordered: list[Sized], n_workers: int) -> dict[int, list[Sized]]:
    shares: dict[int, list[Sized]] = {worker: [] for worker in range(n_workers)}
    for i, rollout in enumerate(ordered):
        turn, place = divmod(i, n_workers)
        shares[n_workers - 1 - place if turn % 2 else place].append(rollout)
    return shares


def _packed(ordered: list[Sized], limit: int) -> list[list[Sized]]:
    """Each into the fullest microbatch with room for it; fullest microbatches first."""
    parts: list[list[Sized]] = []
    rooms: list[tuple[int, int]] = []  # of each part with its index, smallest first
    for rollout in ordered:
        place = bisect_left(rooms, (rollout[1], -1))
        if place < len(rooms):
            room, part = rooms.pop(place)
            parts[part].append(rollout)
        else:
            room, part = limit, len(parts)
            parts.append([rollout])
        insort(rooms, (room - rollout[1], part))
    return [parts[part] for _, part in rooms]


def _ending(ordered: list[Sized], limit: int, n_workers: int) -> list[list[Sized]]:
    """Whole rounds of filled microbatches, one of evenly filled ones, and the shortest alone."""
    *others, shortest = ordered
    parts = _packed(others, limit)
    n_whole = len(parts) - len(parts) % n_workers
    rest = [rollout for part in parts[n_whole:] for rollout in part]
    return [*parts[:n_whole], *_spread(_longest_first(rest), limit, n_workers), [shortest]]


def _spread(ordered: list[Sized], limit: int, n_parts: int) -> list[list[Sized]]:
    """Each into the emptiest of the parts, or into one of its own where there is no room."""
    parts: list[list[Sized]] = [[] for _ in range(n_parts)]
    emptiest = [(0, part) for part in range(n_parts)]  # a heap
    for rollout in ordered:
        n_tokens, part = emptiest[0]
        if n_tokens and n_tokens + rollout[1] > limit:
            parts.append([rollout])
        else:
            parts[part].append(rollout)
            heapreplace(emptiest, (n_tokens + rollout[1], part))
    return sorted(filter(None, parts), key=_n_tokens, reverse=True)
