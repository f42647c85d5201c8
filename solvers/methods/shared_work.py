"""Seconds of a pass of dual ascent that several workers share, and how many blocks and parts take least.

K blocks that agree p times a sweep take 1 + a (K - 1) / p times the passes of one, where each takes a K-th of
the work and p exchanges of weights and sums:

    seconds(K, p) = (1 + a (K - 1) / p) (work / K + p exchange)

It is least at p = sqrt(a (K - 1) work / (K exchange)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

#: Most parts of a sweep.
MOST_PARTS = 64
#: The factor a before it is measured, its most, and its least: on 11,000 standardised rows of 17 features 8
#: blocks took 82 passes with one part, 53 with 16 and 32 with 64; on rows behind a ReLU 32, 20 and 20.
MORE, LEAST_MORE = 3.5, 0.1


@dataclass(frozen=True)
class SharedWork:
    """A pass of `work` seconds of one worker over `blocks` workers, with `exchange` seconds a part."""

    blocks: int
    work: float
    exchange: float = 0.0
    more: float = MORE

    @property
    def parts(self) -> int:
        """The number of parts that takes least time."""
        if self.exchange <= 0.0:
            return MOST_PARTS
        best = math.sqrt(self.more * (self.blocks - 1) * self.work / (self.blocks * self.exchange))
        return max(min(round(best), MOST_PARTS), 1)

    @property
    def seconds(self) -> float:
        """Seconds of as much progress as one block makes in a pass."""
        parts = self.parts if self.blocks > 1 else 0
        passes = 1.0 + self.more * (self.blocks - 1) / max(parts, 1)
        return passes * (self.work / self.blocks + parts * self.exchange)


def measured_more(known: float, blocks: int, safety_factor: float, parts: int) -> float:
    """Return the factor a after a sweep whose parts needed this mean safety factor.

    Where blocks overshoot little, it is small.  It moves half of the way to the measured one, in proportion.
    """
    found = (safety_factor - 1.0) * parts / max(blocks - 1, 1)
    return math.sqrt(known * min(max(found, LEAST_MORE), MORE))


def fastest(work: float, exchanges: Mapping[int, float]) -> SharedWork:
    """Return what takes least: one worker alone, or as many as `exchanges` has seconds of an exchange for."""
    shared = [SharedWork(blocks, work, exchange) for blocks, exchange in exchanges.items() if blocks > 1]
    return min([SharedWork(1, work), *shared], key=lambda each: each.seconds)
