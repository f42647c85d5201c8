"""Two classifiers on the same rows: how much better one is at top-k, how sure that is, and an exact test.

Of n rows let b be those that only the challenger has among its first k guesses, and c those that only the
champion has.  The gain in top-k accuracy is (b - c) / n; rows that both have, or neither, say nothing.

The interval is Bonett and Price's (2012) for a difference of paired proportions: Wald's on b + 1, c + 1 and
n + 2.  Unlike Wald's own it has some width where b = c = 0, and holds its level in small samples.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri


@dataclass(frozen=True)
class PairedAccuracy:
    """Top-k accuracy of challenger and champion on the same `rows`.

    `gain` is challenger - champion, `low`..`high` its interval at the level `confidence`, `p_value` that of
    the exact two-sided test of McNemar; `only_challenger` and `only_champion` count the rows that one alone
    has right.
    """

    k: int
    rows: int
    challenger: float
    champion: float
    gain: float
    low: float
    high: float
    confidence: float
    p_value: float
    only_challenger: int
    only_champion: int

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


def paired_accuracy(
    challenger: NDArray[np.integer[Any]],
    champion: NDArray[np.integer[Any]],
    k: int,
    confidence: float = 0.95,
) -> PairedAccuracy:
    """Compare at k, given the rank of each row's own class under both, shape (n,) with n > 0."""
    ours, theirs = challenger <= k, champion <= k
    n = len(ours)
    b, c = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    low, high = gain_interval(b, c, n, confidence)
    return PairedAccuracy(
        k, n, float(ours.mean()), float(theirs.mean()), (b - c) / n, low, high, confidence,
        mcnemar_exact(b, c), b, c,
    )  # fmt: skip


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided p-value of "both are as good": b of b + c is binomial with probability 1/2."""
    return min(1.0, 2.0 * float(bdtr(min(b, c), b + c, 0.5))) if b + c else 1.0


def gain_interval(b: int, c: int, n: int, confidence: float) -> tuple[float, float]:
    """Interval of the gain in accuracy, by Bonett and Price."""
    p, q = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = float(ndtri(0.5 + confidence / 2)) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return max(-1.0, p - q - half), min(1.0, p - q + half)
