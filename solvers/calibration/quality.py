"""How far probabilities can be trusted: reliability and the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows whose first class has a probability in (low, high], how probable it is, and how often right."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability(
    confidence: NDArray[Any], right: NDArray[np.bool_], bins: int = BINS
) -> tuple[ReliabilityBin, ...]:
    """Return the bins, of equal width, that have rows; `confidence` and `right` are (n,).

    Guo et al. 2017, section 2: the first class of a row is right as often as its probability says if mean
    confidence and accuracy of every bin agree.
    """
    p = np.asarray(confidence, dtype=np.float64)
    place = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    rows = np.bincount(place, minlength=bins)
    sums = np.bincount(place, weights=p, minlength=bins)
    hits = np.bincount(place, weights=np.asarray(right, dtype=np.float64), minlength=bins)
    return tuple(
        ReliabilityBin(
            i / bins, (i + 1) / bins, int(rows[i]), float(sums[i] / rows[i]), float(hits[i] / rows[i])
        )
        for i in np.flatnonzero(rows).tolist()
    )


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return the expected calibration error: the mean over rows of |confidence - accuracy| of their bin."""
    total = sum(part.rows for part in bins)
    return sum(part.rows * abs(part.confidence - part.accuracy) for part in bins) / max(total, 1)
