"""Forecast of a run's remaining time, extrapolating its gap's decline over recent rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from topline.solvers.core.state import ThinnedHistory

# Fewer rounds show no trend.
LEAST_ROUNDS = 6
# A wider range is no answer, unless it ends within this share of the rounds so far.
WIDEST, NEAR = 10.0, 0.1
# Nor is an extrapolation over this many times the observed decline, in decades.
FARTHEST = 10.0
# Points that a running forecast keeps.
KEPT = 512
# A law is plausible while its squared error is within this factor of the better one's.
PLAUSIBLE = 2.0

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the tolerance is reached, with a 95 % range."""

    seconds: float
    low: float
    high: float


def time_text(left: TimeLeft | None) -> str:
    """Return the estimate as shown after a gap; "" if unknown or next to nothing."""
    if left is None or left.high < 1.0:
        return ""
    low, high = rough_time(left.low), rough_time(left.high)
    if left.high <= 1.5 * left.low or low == high:
        return f", about {rough_time(left.seconds)} left"
    return f", {low} to {high} left"


def rough_time(seconds: float) -> str:
    """Return seconds in the largest unit of which there are about two."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


class Forecast:
    """Estimates the remaining time from a run's records, in bounded memory.

    It uses relative gaps or, for losses that are not convex, the gradient relative to the first one.
    """

    def __init__(self, tol: float) -> None:
        self._tol = tol
        self._points: ThinnedHistory[tuple[float, float, float]] = ThinnedHistory(KEPT)
        self._round, self._best = -1, math.inf

    def take(self, record: Mapping[str, Any]) -> None:
        """Add a record; anything but a round with numbers is skipped."""
        stationarity = record.get("stationarity")
        gap = record.get("relative_gap") if stationarity is None else stationarity
        if "round" not in record or gap is None or not math.isfinite(gap):
            return
        if record["round"] <= self._round:
            # Rounds repeated after a loss replace their earlier records.
            self._points, self._best = ThinnedHistory(KEPT), math.inf
        self._round, self._best = record["round"], min(self._best, gap)
        self._points.add((float(self._round), float(record["seconds"]), self._best))

    def left(self) -> TimeLeft | None:
        """Return the time left according to the records so far."""
        points = np.asarray(self._points.records(), np.float64).reshape(-1, 3)
        return time_left(points[:, 0], points[:, 1], points[:, 2], self._tol)


def time_left(rounds: ArrayLike, seconds: ArrayLike, gaps: ArrayLike, tol: float) -> TimeLeft | None:
    """Estimate from the gaps after ascending rounds, and the seconds at their ends.

    The smallest gap so far is assumed to fall by a constant factor per round or as a power of the rounds,
    whichever fits the last half better; the last quarter is used too.  Returns None for an insignificant
    decline, one far from the tolerance, or an end uncertain by more than a factor of ten.
    """
    t, clock = np.asarray(rounds, np.float64), np.asarray(seconds, np.float64)
    best = np.minimum.accumulate(np.asarray(gaps, np.float64))
    if len(t) and best[-1] <= tol:
        return TimeLeft(0.0, 0.0, 0.0)
    if len(t) < LEAST_ROUNDS or not tol > 0.0:
        return None
    windows = [_window(t, share) for share in (0.5, 0.25)]
    found = [_rounds_left(t[first:], np.log(best[first:]), math.log(tol)) for first in windows]
    low, high = min(one[1] for one in found), max(one[2] for one in found)
    rounds_left = math.sqrt(found[0][0] * found[1][0])
    shown, missing = math.log(best[windows[0]] / best[-1]), math.log(best[-1] / tol)
    vague = high > WIDEST * low and high > NEAR * (t[-1] - t[0])
    if math.isinf(high) or vague or missing > FARTHEST * shown:
        return None
    pace = (clock[-1] - clock[windows[0]]) / (t[-1] - t[windows[0]])
    return TimeLeft(float(pace * rounds_left), float(pace * low), float(pace * high))


def _window(t: Floats, share: float) -> int:
    """Return the index of the first of the last `share` of the rounds, or of a few more."""
    first = int(np.searchsorted(t, t[-1] - share * (t[-1] - t[0])))
    return min(first, len(t) - LEAST_ROUNDS)


def _rounds_left(t: Floats, logs: Floats, goal: float) -> tuple[float, float, float]:
    """Return the expected, least and most rounds until `logs` reaches `goal`; infinite if it may not."""
    laws = [_line(t, logs), _line(np.log1p(t), logs)]
    errors = [law.error for law in laws]
    ranges = []
    for law, rounds_of in zip(laws, (_linear, _logarithmic), strict=True):
        if law.error <= PLAUSIBLE * min(errors) + 1e-18 * len(t):
            drop, spread = logs[-1] - goal, law.errors * law.scatter
            ranges.append(
                (
                    rounds_of(t[-1], drop, law.slope),
                    rounds_of(t[-1], max(drop - spread, 0.0), law.slope - law.errors * law.slope_error),
                    rounds_of(t[-1], drop + spread, law.slope + law.errors * law.slope_error),
                    law.error,
                )
            )
    best = min(ranges, key=lambda one: one[3])
    return best[0], min(one[1] for one in ranges), max(one[2] for one in ranges)


def _linear(_: float, drop: float, slope: float) -> float:
    return drop / -slope if slope < 0.0 else math.inf


def _logarithmic(now: float, drop: float, slope: float) -> float:
    steps = drop / -slope if slope < 0.0 else math.inf
    return (1.0 + now) * math.expm1(steps) if steps < 100.0 else math.inf


@dataclass(frozen=True)
class _Line:
    """A fitted line: slope and its standard error, squared error, typical distance of points.

    `errors` is the number of standard errors that contain 95 %.
    """

    slope: float
    slope_error: float
    error: float
    scatter: float
    errors: float


def _line(x: Floats, y: Floats) -> _Line:
    """Fit by least squares; autocorrelated errors count as fewer points."""
    from scipy.stats import linregress

    fit = linregress(x, y)
    off = y - fit.intercept - fit.slope * x
    error = float(off @ off)
    together = float(off[1:] @ off[:-1]) / error if error > 0.0 else 0.0
    together = min(max(together, 0.0), 0.9)
    inflation = math.sqrt((1.0 + together) / (1.0 - together))
    # Quantile of Student's t to two digits from 4 degrees of freedom on.
    errors, scatter = 1.96 + 3.3 / (len(x) - 2), math.sqrt(error / (len(x) - 2))
    return _Line(float(fit.slope), inflation * float(fit.stderr), error, scatter, errors)
