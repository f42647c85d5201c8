"""Seconds of a pass of dual ascent that several workers share, and how many blocks and parts take least.

K blocks that agree p times a sweep take 1 + a (K - 1) / p times the passes of one, where each takes a K-th of
the work and p exchanges of weights and sums:

    seconds(K, p) = (1 + a (K - 1) / p) (work / K + p exchange)

It is least at p = sqrt(a (K - 1) work / (K exchange)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

#: Most parts of a sweep.
MOST_PARTS = 64
#: The factor a.  Max hinge, rows behind a ReLU: 24,000 of 512 features, 60 classes, took two blocks 21 and 17
#: passes with 4 and 8 parts, 5,000 rows took 8 blocks 32, 21 and 20 with 1, 4 and 16; but 6,000 standardised
#: rows of 17 features 82, 72, 53 and 32 with 1, 4, 16 and 64.
MORE = 1.0
#: Seconds of a sweep of all rows, in products of all rows with W.
SWEEP_WORK = 3.0
#: Share of a sweep that one thread does in turn: two threads took .80 and .90 of the seconds of one
#: (`tests.benchmarks.scale.worker_speed`).
_IN_TURN = 0.65
#: Several blocks are forecast to take at most this share of the seconds of one, or one is kept: what blocks
#: cost in passes depends on the rows.  Two processes forecast to take .70 of the seconds (rows behind a ReLU)
#: took .70, but .75 (unit rows) .76 and 1.07, .78 and .85 (standardised rows) 1.01 and 1.26.
_GAIN = 0.75


@dataclass(frozen=True)
class SharedWork:
    """A pass of `work` seconds over `blocks` blocks at the same time, with `exchange` seconds a part.

    `alone` are the seconds that one block was forecast to take, if the two were compared.
    """

    blocks: int
    work: float
    exchange: float = 0.0
    alone: float = 0.0

    @property
    def parts(self) -> int:
        """The number of parts that takes least time."""
        if self.exchange <= 0.0:
            return MOST_PARTS
        best = math.sqrt(MORE * (self.blocks - 1) * self.work / (self.blocks * self.exchange))
        return max(min(round(best), MOST_PARTS), 1)

    @property
    def passes(self) -> float:
        """Passes in which the blocks make as much progress as one makes in a pass."""
        return 1.0 + MORE * (self.blocks - 1) / self.parts

    @property
    def seconds(self) -> float:
        """Seconds of these passes."""
        parts = self.parts if self.blocks > 1 else 0
        return self.passes * (self.work / self.blocks + parts * self.exchange)


def threads_speed(threads: int) -> float:
    """Return how many times faster so many threads sweep one block, of which one updates all rows."""
    return 1.0 / (_IN_TURN + (1.0 - _IN_TURN) / threads)


def fastest(alone: SharedWork, *shared: SharedWork) -> SharedWork:
    """Return the arrangement that takes least; one block `alone` unless another takes clearly less."""
    best = min((alone, *shared), key=lambda each: each.seconds)
    return replace(best if best.seconds < _GAIN * alone.seconds else alone, alone=alone.seconds)
