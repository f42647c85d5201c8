"""Confidence intervals of shares, reliability bins and the expected calibration error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

BINS = 15
#: Default confidence level of intervals.
CONFIDENCE = 0.95

Interval = tuple[float, float]


def share_interval(share: float, rows: float, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's interval of a share measured on `rows` rows; [0, 1] for none.

    E. B. Wilson, "Probable inference", 1927: the shares p with |share - p| <= z sqrt(p (1 - p) / rows).
    """
    if not rows > 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    grown = 1.0 + z * z / rows
    middle = (share + z * z / (2.0 * rows)) / grown
    half = z / grown * math.sqrt(share * (1.0 - share) / rows + (z / (2.0 * rows)) ** 2)
    # Rounding can push an end past the share itself.
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def class_mean_interval(
    right: NDArray[np.bool_], classes: NDArray[Any], weights: NDArray[Any], confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the weighted share of rows that are right, with classes as strata; all (n,).

    Wilson's interval at the effective number of rows that has the variance sum_c v_c^2 p_c (1 - p_c) / n_c,
    v_c the weight of class c.  Each p_c gets one pseudo-hit and one pseudo-miss, since a few rows that agree
    make no class certain.  As that variance is itself estimated, the quantile is Student's with
    Satterthwaite's degrees of freedom.
    """
    used = weights > 0.0
    _, own, rows = np.unique(classes[used], return_inverse=True, return_counts=True)
    shares = np.bincount(own, weights=weights[used]) / weights[used].sum()
    rates = (np.bincount(own, weights=right[used]) + 1.0) / (rows + 2.0)
    parts = shares**2 * rates * (1.0 - rates) / rows
    mean, variance = float(shares @ rates), float(parts.sum())
    level = 0.5 + confidence / 2.0
    wider = float(stdtrit(variance**2 / (parts**2 / rows).sum(), level)) / NormalDist().inv_cdf(level)
    measured = min(float(weights[used] @ right[used] / weights[used].sum()), 1.0)
    return share_interval(measured, mean * (1.0 - mean) / (variance * wider**2), confidence)


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows whose first class has a probability in (low, high]: mean probability and accuracy."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability(
    confidence: NDArray[Any], right: NDArray[np.bool_], bins: int = BINS
) -> tuple[ReliabilityBin, ...]:
    """Return the non-empty bins of equal width; `confidence` and `right` are (n,).

    A classifier is calibrated if mean confidence and accuracy agree in every bin (Guo et al. 2017, section
    2).
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
