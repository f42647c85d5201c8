"""Assign consecutive blocks to workers, and decide when a new assignment is worth moving blocks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from topline.pipeline.cluster.messages import Span

#: Consecutive blocks of each worker, in the order of the blocks.
Assignment: TypeAlias = dict[str, tuple[Span, ...]]

#: A cut may miss its target by this part of a share if that leaves fewer sums to send.
_SLACK = 1 / 16
#: Speed-up that a new assignment must promise: one that adds a worker, and any other.
_GAIN_OF_NEWCOMERS, _GAIN = 1.05, 1.25


def assign(spans: Sequence[Span], shares: Mapping[str, float]) -> Assignment:
    """Return consecutive blocks for each worker by its share; workers without blocks are absent.

    A worker's sums merge along the tree over all blocks.  Near each target the cut is placed at the block
    whose number is divisible by the largest power of two, so that the fewest sums are sent.
    """
    total, n = sum(shares.values()), spans[-1].stop
    owned: Assignment = {}
    first, reached = 0, 0.0
    for number, (worker, share) in enumerate(shares.items(), start=1):
        reached += share
        wanted, slack = n * reached / total, n * share / total * _SLACK
        last = len(spans) if number == len(shares) else _cut(spans, wanted, slack)
        if last > first:
            owned[worker] = tuple(spans[first:last])
            first = last
    return owned


def _cut(spans: Sequence[Span], wanted: float, slack: float) -> int:
    """Return the number of blocks whose end is closest to `wanted` rows from the start."""
    away = {index: abs(span.stop - wanted) for index, span in enumerate(spans, start=1)}
    near = [index for index, distance in away.items() if distance <= min(away.values()) + slack]
    return max(near, key=lambda index: (index & -index, -away[index]))


def in_block_order(owned: Assignment, found: Sequence[str]) -> list[str]:
    """Return the workers `found`, in the order of their blocks.

    Newcomers replace lost workers first; the rest go in the middle, where the fewest blocks move.
    """
    newcomers = [worker for worker in found if worker not in owned]
    line: list[str] = []
    for worker in owned:
        if worker in found:
            line.append(worker)
        elif newcomers:
            line.append(newcomers.pop(0))
    middle = len(line) // 2
    return [*line[:middle], *newcomers, *line[middle:]]


def reassign_after_loss(spans: Sequence[Span], owned: Assignment, shares: Mapping[str, float]) -> Assignment:
    """Return an assignment to the workers of `shares`; other blocks stay if all lost workers are replaced."""
    newcomers = [worker for worker in shares if worker not in owned]
    gone = [worker for worker in owned if worker not in shares]
    if owned and len(newcomers) >= len(gone):
        heirs = dict(zip(gone, newcomers, strict=False))
        return {heirs.get(worker, worker): blocks for worker, blocks in owned.items()}
    return assign(spans, {worker: shares[worker] for worker in in_block_order(owned, list(shares))})


def better_assignment(
    spans: Sequence[Span], owned: Assignment, shares: Mapping[str, float]
) -> Assignment | None:
    """Return an assignment whose rounds are enough shorter to justify moving blocks, or None.

    `shares` are rows per second of the present workers, including every owner of blocks.
    """
    other = assign(spans, {worker: shares[worker] for worker in in_block_order(owned, list(shares))})
    gain = _GAIN if set(other) <= set(owned) else _GAIN_OF_NEWCOMERS
    return other if _round(owned, shares) > gain * _round(other, shares) else None


def _round(owned: Assignment, shares: Mapping[str, float]) -> float:
    """Return the relative time of a round: that of the slowest worker."""
    return max((blocks[-1].stop - blocks[0].start) / shares[worker] for worker, blocks in owned.items())
