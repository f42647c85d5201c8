"""Split-conformal sets: classes of a row that together hold the right one with a stated probability.

Each of n calibration rows, used for nothing else, has the conformity score E of its own class; a new row's
set holds the classes with E at most the ceil((n + 1) coverage)-th smallest of them.  If calibration rows and
the new row are exchangeable, the set holds the right class with probability at least `coverage` and, since no
two E are equal, at most coverage + 1 / (n + 1) (Vovk et al. 2005; Angelopoulos and Bates 2023, section 1).
With calibration rows of one class only, this holds given that class.

    E(x, c) = sum_{j before c} p_j + u p_c + penalty (rank_c - 1 + u)

where classes are ordered by score, p are probabilities, and u is uniform, drawn once per row: Adaptive
Prediction Sets (Romano et al. 2020), regularised as by Angelopoulos et al. (2021), with the penalty applied
from the first class on so that E rises strictly along the order.

By rank, E = rank_c - p_c, with ties broken by u; without probabilities E = rank_c - 1 + u.  If top-1 accuracy
exceeds `coverage`, the empty sets are then those of the least certain rows.  By probability, E = 1 - p_c: no
sets are smaller on average if the p are right (Sadinle et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, IntArray

#: How E is computed: a number is the penalty of adaptive sets, None means by rank.
Weighing = float | Literal["probability"] | None

#: Penalties tried for adaptive sets; the largest leave little but the rank.
PENALTIES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0, 100.0)
#: Weight of u by rank and by probability: it decides between probabilities closer than this.
SETTLES = 1e-6


def conformity(
    scores: NDArray[Any], probabilities: NDArray[Any] | None, draws: NDArray[Any], weighing: Weighing
) -> Float64Array:
    """Return E of every class, shape (r, m).

    Parameters
    ----------
    scores : (r, m); they order the classes, ties by class number
    probabilities : (r, m); optional by rank, where they order classes of equal rank
    draws : (r,) u of each row, uniform in [0, 1)
    weighing : the penalty of adaptive sets, "probability", or None for the rank
    """
    order = np.argsort(-np.asarray(scores), axis=1, kind="stable")
    u = np.asarray(draws, dtype=np.float64)[:, None]
    before = np.arange(order.shape[1])[None, :]
    if probabilities is None:
        along = before + u
    else:
        p = np.take_along_axis(np.asarray(probabilities, dtype=np.float64), order, axis=1)
        if weighing is None or weighing == "probability":
            along = _uncertainty(p, u) + (before if weighing is None else 0.0)
        else:
            along = np.cumsum(p, axis=1) - p + u * p + weighing * (before + u)
    found = np.empty(order.shape)
    np.put_along_axis(found, order, along, axis=1)
    return found


def _uncertainty(p: Float64Array, u: Float64Array) -> Float64Array:
    """Return 1 - p, in [0, 1], with ties broken by u."""
    return (1.0 - SETTLES) * (1.0 - p) + SETTLES * u


@dataclass(frozen=True, eq=False)
class CalibrationRows:
    """Statistics of calibration rows that give the thresholds for any coverage and weighing; all (n,).

    `labels` are the classes, `ranks` their ranks by score (from 1), `before` the total probability of the
    classes ranked ahead, `own` their own probability (both NaN without probabilities), `draws` the u of the
    rows.
    """

    labels: NDArray[np.int32]
    ranks: NDArray[np.int32]
    before: Float64Array
    own: Float64Array
    draws: Float64Array

    def __repr__(self) -> str:
        return f"CalibrationRows({len(self.labels):,} rows)"

    @classmethod
    def of(
        cls, scores: NDArray[Any], probabilities: NDArray[Any] | None, labels: IntArray, draws: NDArray[Any]
    ) -> CalibrationRows:
        """Return the statistics of rows with scores and probabilities (n, m) and classes (n,)."""
        y = np.asarray(labels, dtype=np.int64)
        place, u = np.arange(len(y)), np.asarray(draws, dtype=np.float64)
        nothing = np.zeros_like(u)
        ranks = conformity(scores, None, nothing, None)[place, y].astype(np.int32) + np.int32(1)
        own = before = np.full(len(y), np.nan)
        if probabilities is not None:
            before = conformity(scores, probabilities, nothing, 0.0)[place, y]
            own = np.asarray(probabilities, dtype=np.float64)[place, y]
        return cls(y.astype(np.int32), ranks, before, own, u)

    def __len__(self) -> int:
        """Return n."""
        return len(self.labels)

    def conformity(self, weighing: Weighing) -> Float64Array:
        """Return E of the rows' own classes, shape (n,)."""
        if weighing == "probability":
            return _uncertainty(self.own, self.draws)
        if weighing is not None:
            return self.before + self.draws * self.own + weighing * (self.ranks - 1 + self.draws)
        return self.ranks - 1 + (_uncertainty(self.own, self.draws) if self.weighed else self.draws)

    @property
    def weighed(self) -> bool:
        """Whether the rows have probabilities."""
        return not np.isnan(self.own).any()

    def thresholds(
        self, coverage: float, weighing: Weighing, classes: Sequence[str], *, per_class: bool
    ) -> Float64Array:
        """Return the largest E at which each class (m,) joins a set.

        With `per_class` each threshold comes from the rows of its class, and is infinite (the class is in
        every set) where these are too few.  Raises `InvalidProblemError` for a coverage outside (0, 1), and
        for one that no class has enough rows to give.
        """
        if not 0.0 < coverage < 1.0:
            raise InvalidProblemError(f"the coverage is {coverage:g}; give a share between 0 and 1")
        E, n, m = self.conformity(weighing), len(self), len(classes)
        groups = [E[self.labels == code] for code in range(m)] if per_class else [E]
        found = np.array([_quantile(part, coverage) for part in groups])
        if np.isinf(found).all():
            needed = f"{coverage:g} needs {least_rows(coverage)}"
            best = f"{math.floor(1e4 * n / (n + 1)) / 1e4:g} at most" if n else "none"
            who = f"there are {n} calibration rows, which give a coverage of {best}, and {needed}"
            if per_class:
                who = f"no class has so many calibration rows as a coverage of {needed} of"
            raise InvalidProblemError(f"{who}: lower the coverage, or hold out more calibration rows")
        return np.broadcast_to(found, m).copy()


def exact_rank(n: int, coverage: float) -> int:
    """Return ceil((n + 1) coverage), exact for the coverage's decimal representation."""
    return math.ceil((n + 1) * Fraction(repr(float(coverage))))


def least_rows(coverage: float) -> int:
    """Return the least n with coverage <= n / (n + 1), the calibration rows that a coverage needs."""
    share = Fraction(repr(float(coverage)))
    return math.ceil(share / (1 - share))


def _quantile(E: Float64Array, coverage: float) -> float:
    """Return the ceil((n + 1) coverage)-th smallest of E (n,), infinity if there are too few."""
    place = exact_rank(len(E), coverage)
    return float(np.partition(E, place - 1)[place - 1]) if place <= len(E) else math.inf


def prediction_sets(
    scores: NDArray[Any],
    probabilities: NDArray[Any] | None,
    draws: NDArray[Any],
    weighing: Weighing,
    thresholds: Float64Array,
) -> NDArray[np.bool_]:
    """Return a mask (r, m) of the classes in each row's set; a set may be empty."""
    return conformity(scores, probabilities, draws, weighing) <= thresholds


def smallest_weighings(
    scores: NDArray[Any],
    probabilities: NDArray[Any],
    labels: IntArray,
    draws: NDArray[Any],
    coverages: Sequence[float],
    *,
    per_class: bool = False,
) -> list[Weighing]:
    """Return for each coverage the weighing with the smallest sets on tuning rows (n, m).

    With `per_class` each class has its own threshold.  Tuning rows must not be calibration rows: the
    guarantee then holds whichever weighing is chosen.
    """
    y = np.asarray(labels, dtype=np.int64)
    place = np.arange(len(y))
    weighings: tuple[Weighing, ...] = (None, "probability", *PENALTIES)
    sizes = np.empty((len(weighings), len(coverages)))
    for i, weighing in enumerate(weighings):
        E = conformity(scores, probabilities, draws, weighing)
        own = E[place, y]
        groups = [own[y == code] for code in range(E.shape[1])] if per_class else [own]
        for j, coverage in enumerate(coverages):
            # A class with too few tuning rows takes the largest threshold.
            bounds = [min(_quantile(part, coverage), (part if len(part) else own).max()) for part in groups]
            sizes[i, j] = np.count_nonzero(np.array(bounds) >= E)
    return [weighings[i] for i in sizes.argmin(axis=0).tolist()]
