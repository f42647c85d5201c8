"""Calibration of a loss: its population risk, and whether minimisers rank the classes correctly.

At one x with class probabilities p the risk of scores g is R(g) = sum_y p_y Phi(g; y).  A loss is top-s
calibrated if, for every p, every minimiser of R gives the s likeliest classes the s highest scores (Lapin's
thesis, definition 6.1).  Ties count against the scores, as in every top-k error of this package, so
calibration fails at p exactly if tying one of the s likeliest classes, a, with a less likely class b costs
nothing:

    min {R(g): g_a = g_b} = min R        for some a of the s likeliest and b outside with p_b < p_a

(By convexity, a minimiser with g_b > g_a and a point with g_a > g_b have one with g_a = g_b between them.)
Both minima are computed by cutting planes, one set per class, and the reported bounds enclose them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.losses.base import Loss
from topline.solvers.losses.ranking import N_SUMS
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.typing import Float64Array

#: Largest absolute score: e^-40 is negligible beside 1 in float64.  A sum of exponentials, which is least at
#: half of the logarithms of p, takes less: no linear program resolves the cuts of e^80.
REACH, REACH_OF_EXPONENTIALS = 40.0, 6.0
#: Gap of the minima, in units of the loss, and the limit of cuts per class.
_TOL, _CUTS = 1e-7, 500
#: Rises below this count as zero; well above the sum of two gaps.
NOTHING = 1e-6


@dataclass(frozen=True, eq=False)
class PopulationMinimum:
    """The least population risk: `risk` at `scores` (m,), and a lower `bound` on it."""

    scores: Float64Array
    risk: float
    bound: float


@dataclass(frozen=True, eq=False)
class Consistency:
    """Whether the minimisers at one p rank the s likeliest classes on top.

    The least rise of the risk when a less likely class ties with one of these lies between `least` and
    `most`; `pair` (likely, less likely) attains it.
    """

    s: int
    least: float
    most: float
    pair: tuple[int, int]

    @property
    def consistent(self) -> bool:
        """Whether every minimiser is top-s Bayes optimal, that is, the rise is positive."""
        return self.least > NOTHING


def bayes_error(p: Any, k: int) -> float:
    """Return the least top-k error at class probabilities p (m,): 1 - the k largest (lemma 6.1)."""
    p = probabilities(p)
    return float(1.0 - np.sort(p)[::-1][:k].sum())


def population_minimum(
    loss: Loss,
    p: Any,
    *,
    level: tuple[int, int] | None = None,
    smoothing: float = 0.0,
    smoothing_kind: str = "moreau",
) -> PopulationMinimum:
    """Minimise R over scores within `REACH` of 0, the two classes of `level`, if given, having equal scores.

    Raises UnsupportedCombinationError for a non-convex loss and InvalidProblemError if p is not a
    distribution.
    """
    p = probabilities(p)
    m = len(p)
    if not loss.form(m).convex:
        raise UnsupportedCombinationError(
            f"the population risk of {loss.name} is not convex, and a minimum could not be certified; use a"
            " convex loss"
        )
    reach = REACH if loss.form(m).family.bounded else REACH_OF_EXPONENTIALS
    g, best, bound = np.zeros(m), (np.zeros(m), np.inf), -np.inf
    rows: list[Float64Array] = []
    right: list[float] = []
    equal = None if level is None else (np.eye(2 * m)[[level[0]]] - np.eye(2 * m)[[level[1]]])
    for _ in range(_CUTS):
        values, slopes = _losses(loss, g, smoothing, smoothing_kind)
        if p @ values < best[1]:
            best = (g, float(p @ values))
        if best[1] - bound <= _TOL:
            return PopulationMinimum(*best, bound)
        for y in np.flatnonzero(p):
            rows.append(np.concatenate([slopes[y], -np.eye(m)[y]]))
            right.append(float(slopes[y] @ g - values[y]))
        found: Any = linprog(
            np.concatenate([np.zeros(m), p]), np.array(rows), right, equal, None if level is None else [0.0],
            [(-reach, reach)] * m + [(0.0, None)] * m, method="highs",
        )  # fmt: skip
        g, bound = found.x[:m], max(bound, float(found.fun))
    return PopulationMinimum(*best, bound)


def consistency(
    loss: Loss, p: Any, s: int, *, smoothing: float = 0.0, smoothing_kind: str = "moreau"
) -> Consistency:
    """Return whether every minimiser of R at p (m,) gives the s likeliest classes the s highest scores.

    Classes of equal probability may come in either order.
    """
    p = probabilities(p)
    if not 1 <= s < len(p):
        raise InvalidProblemError(f"s is {s} of {len(p)} classes; give 1 to {len(p) - 1}")
    order = np.argsort(-p, kind="stable")
    pairs = [(int(a), int(b)) for a in order[:s] for b in order[s:] if p[a] > p[b]]
    options: dict[str, Any] = {"smoothing": smoothing, "smoothing_kind": smoothing_kind}
    free = population_minimum(loss, p, **options)
    rises = []
    for pair in pairs:
        level = population_minimum(loss, p, level=pair, **options)
        rises.append((level.bound - free.risk, level.risk - free.bound, pair))
    return Consistency(s, *min(rises, default=(np.inf, np.inf, (0, 0))))


def probabilities(p: Any) -> Float64Array:
    """Return p (m,) as float64 after checking that it is a distribution over two or more classes."""
    values = np.asarray(p, dtype=np.float64)
    if values.ndim != 1 or len(values) < 2 or (values < 0).any() or not abs(values.sum() - 1.0) <= 1e-9:
        raise InvalidProblemError(
            f"p has the shape {values.shape} and sums to {values.sum():g}; give the probabilities of two or"
            " more classes, which sum to 1"
        )
    return values


def _losses(
    loss: Loss, g: Float64Array, smoothing: float, smoothing_kind: str
) -> tuple[Float64Array, Float64Array]:
    """Return Phi(g; y) for every class y (m,), and the gradients (m, m)."""
    m = len(g)
    U, losses, sums = np.empty((m, m)), np.empty(m), np.zeros(N_SUMS)
    gammas = (smoothing, 0.0 if smoothing_kind == "others" else smoothing)
    scores = np.ascontiguousarray(np.broadcast_to(g, (m, m)))
    gradient_rows(loss.form(m), scores, np.arange(m, dtype=np.int32), np.ones(m), gammas, U, sums, losses)
    return losses, -U
