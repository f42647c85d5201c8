"""The problem P(w) = AT_k(l(w)) + |w|^2 / (2 C): its losses, lower bounds, and results.

    AT_k(l) = (1/k) sum_{i <= k} l_[i] = max { <p, l> : 0 <= p_i <= 1/k, sum p <= 1 },    l >= 0,

for real k in [1, n]: with k = 7.5 the eighth largest counts half.  Lemma 1 writes it as a minimum,

    AT_k(l) = (n/k) min_{t >= 0} { (1/n) sum_i [l_i - t]_+ + (k/n) t },

whose braces are eq. 2.  The paper's "proportional" hides the factor: eq. 3 at C_3 has the minimiser of P at C
= C_3 k/n, so that a fixed C_3 regularises less and less as k grows.  This package uses P and its own C
throughout, as does the authors' released code.

Each loss is the maximum of zero and a few smooth convex pieces of the score, l(z; y) = max(0, max_j c_j(z;
y)), all that the solvers need: a new loss is a function that returns them and a line in `INDIVIDUAL_LOSSES`.

For any scores z and weights p in the set of AT_k, with u_i = p_i l'(z_i) and b = sum_i p_i (l(z_i) - l'(z_i)
z_i), convexity gives P(w) >= b + <X^T u, w> + |w|^2 / (2 C) for every w, and the minimum of the right side is

    D(u, b) = b - (C/2) |X^T u|^2,    reached at w = -C X^T u.

Convex combinations of (u, b) serve as well.  This is the dual for every convex loss, without conjugates.
Since P is strongly convex, a gap g between P(w) and D puts the optimum within sqrt(2 C g) of w.

Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, section 1, eq. 1-3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from scipy.special import expit

from topline.solvers.core.problem import checked_rows, positive_number
from topline.solvers.core.rows import is_sparse, nonfinite_rows
from topline.solvers.core.state import HasObjective, Objective, Status
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.names import not_known
from topline.solvers.typing import Float64Array


def checked_k(k: Any, n: int) -> float:
    """Return k as a float in [1, n]; InvalidProblemError otherwise."""
    if isinstance(k, bool) or not isinstance(k, Real) or not 1.0 <= float(k) <= n:
        raise InvalidProblemError(f"k is {k!r}; give a number from 1 to the {n} examples that there are")
    return float(k)


def top_weights(losses: Float64Array, k: float) -> Float64Array:
    """Return p (n,) with <p, losses> = AT_k: 1/k on the largest, the rest of k on the next; stable."""
    k = checked_k(k, len(losses))
    whole = math.floor(k)
    p = np.zeros(len(losses))
    # Sort, stably, only losses that may count: those not below the last.
    last = kth_largest(losses, k)
    candidates = np.flatnonzero(losses >= last)
    order = candidates[np.argsort(-losses[candidates], kind="stable")]
    p[order[:whole]] = 1.0 / k
    if whole < k:
        p[order[whole]] = (k - whole) / k
    return p


def kth_largest(losses: Float64Array, k: float) -> float:
    """Return l_[ceil k], the smallest loss that counts: the top-k loss, and a minimiser t of eq. 2."""
    place = len(losses) - math.ceil(checked_k(k, len(losses)))
    return float(np.partition(losses, place)[place])


def average_top(losses: Float64Array, k: float) -> float:
    """Return AT_k, the average of the k largest losses (n,)."""
    k = checked_k(k, len(losses))
    t = kth_largest(losses, k)
    return t + float(np.maximum(losses - t, 0.0).sum()) / k


def C_to_equation_3(C: float, k: float, n: int) -> float:  # noqa: N802 - C is the name of the mathematics
    """Return the C at which eq. 3 has the minimiser that P has at this C: C n/k."""
    return C * n / checked_k(k, n)


def C_from_equation_3(C: float, k: float, n: int) -> float:  # noqa: N802
    """Return the C at which P has the minimiser that eq. 3 has at this C: C k/n."""
    return C * checked_k(k, n) / n


def C_from_svm(C: float, n: int) -> float:  # noqa: N802
    """Return the C, n C, for which P with k = n is the C-SVM |w|^2 / 2 + C sum_i l_i, as in LinearSVC."""
    return C * n


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces c_j of all examples at their scores, with first and second derivatives: (J, n) each."""

    values: Float64Array
    slopes: Float64Array
    curvatures: Float64Array

    def losses(self) -> Float64Array:
        """Return the loss of each example, (n,)."""
        return np.asarray(np.maximum(self.values.max(axis=0), 0.0))

    def subgradients(self) -> Float64Array:
        """Return a derivative of each loss, (n,): of its first largest piece, or 0 if the loss is 0."""
        largest = self.values.argmax(axis=0)[None]
        slopes = np.take_along_axis(self.slopes, largest, axis=0)[0]
        return np.where(np.take_along_axis(self.values, largest, axis=0)[0] > 0.0, slopes, 0.0)


@dataclass(frozen=True)
class IndividualLoss:
    """A loss of one score; `binary` if targets are the signs -1 and 1 rather than any numbers.

    `pieces` takes scores z (n,) and targets y (n,).
    """

    name: str
    binary: bool
    pieces: Callable[[Float64Array, Float64Array], Pieces]


def _hinge(z: Float64Array, y: Float64Array) -> Pieces:
    """Return the one piece of max(0, 1 - y z)."""
    return Pieces((1.0 - y * z)[None], -y[None], np.zeros((1, len(y))))


def _logistic(z: Float64Array, y: Float64Array) -> Pieces:
    """Return log2(1 + exp(-y z)), which is smooth: in bits, so that it is 1 at z = 0 like the hinge."""
    margin, scale = y * z, 1.0 / np.log(2.0)
    wrong, values = expit(-margin), scale * np.logaddexp(0.0, -margin)
    return Pieces(values[None], (-scale * y * wrong)[None], (scale * wrong * expit(margin))[None])


def _square(z: Float64Array, y: Float64Array) -> Pieces:
    """Return (z - y)^2, which is smooth."""
    return Pieces(((z - y) ** 2)[None], (2.0 * (z - y))[None], np.full((1, len(y)), 2.0))


def _absolute(z: Float64Array, y: Float64Array) -> Pieces:
    """Return the pieces z - y and y - z of |z - y|."""
    signs = np.array([[1.0], [-1.0]])
    return Pieces(signs * (z - y), np.broadcast_to(signs, (2, len(y))), np.zeros((2, len(y))))


#: Every loss by name.
INDIVIDUAL_LOSSES: Mapping[str, IndividualLoss] = MappingProxyType(
    {
        "hinge": IndividualLoss("hinge", True, _hinge),
        "logistic": IndividualLoss("logistic", True, _logistic),
        "square": IndividualLoss("square", False, _square),
        "absolute": IndividualLoss("absolute", False, _absolute),
    }
)


def individual_loss(loss: Any) -> IndividualLoss:
    """Return the named loss, or the value itself; InvalidProblemError lists the losses."""
    if isinstance(loss, IndividualLoss):
        return loss
    if not isinstance(loss, str) or loss not in INDIVIDUAL_LOSSES:
        raise InvalidProblemError(not_known("individual loss", loss, INDIVIDUAL_LOSSES))
    return INDIVIDUAL_LOSSES[loss]


#: w = 0 counts as optimal if its value is certified to this fraction.
_ZERO = 1e-9


@dataclass(frozen=True, eq=False)
class AverageTopProblem:
    """Examples with targets, a loss, k and C; append to X a feature that is always 1 for a bias.

    X is (n, d) float64, an array or CSR matrix; y (n,) float64 is -1 and 1 for the losses of signs; k, real,
    is from 1 to n; C weighs the losses against |w|^2 / 2.
    """

    X: Any = field(repr=False)
    y: Float64Array = field(repr=False)
    loss: IndividualLoss
    k: float
    C: float

    @classmethod
    def of(cls, X: Any, y: Any, loss: Any, k: float, C: float) -> Self:
        """Return the checked problem.

        Raises InvalidProblemError for invalid shapes, targets or parameters, and NonFiniteError for NaN or
        infinity in the examples.
        """
        loss = individual_loss(loss)
        rows: Any = checked_rows(X)
        rows = rows.astype(np.float64, copy=False) if is_sparse(rows) else np.asarray(rows, dtype=np.float64)
        targets = np.asarray(y, dtype=np.float64)
        if targets.shape != (rows.shape[0],) or not len(targets):
            raise InvalidProblemError(
                f"there are {rows.shape[0]} rows of features and targets of the shape {targets.shape}; give"
                " one target per row, and at least one"
            )
        if rows.shape[1] == 0:
            raise InvalidProblemError("the features have no columns; give at least one")
        if len(nonfinite_rows(rows)) or not np.isfinite(targets).all():
            raise NonFiniteError("the examples hold NaN or infinity; fix or drop these rows")
        if loss.binary and not np.isin(targets, (-1.0, 1.0)).all():
            raise InvalidProblemError(f"the loss {loss.name} takes the targets -1 and 1; give these")
        return cls(rows, targets, loss, checked_k(k, len(targets)), positive_number("C", C))

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.y)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @cached_property
    def at_zero(self) -> float:
        """P(0)."""
        return self.value(np.zeros(self.d), self.pieces(np.zeros(self.n)))

    def scores(self, w: Float64Array) -> Float64Array:
        """Return X w, (n,)."""
        return np.asarray(self.X @ w, dtype=np.float64)

    def pieces(self, z: Float64Array) -> Pieces:
        """Return the pieces of the losses at scores z (n,)."""
        return self.loss.pieces(z, self.y)

    def value(self, w: Float64Array, pieces: Pieces) -> float:
        """Return P(w), given the pieces at its scores."""
        return average_top(pieces.losses(), self.k) + float(w @ w) / (2.0 * self.C)

    def primal(self, w: Float64Array) -> float:
        """Return P(w)."""
        return self.value(w, self.pieces(self.scores(w)))

    def evaluated(self, w: Float64Array) -> tuple[float, LowerBound]:
        """Return P(w), and the lower bound of P from its subgradient at w."""
        z = self.scores(w)
        pieces = self.pieces(z)
        losses, slopes = pieces.losses(), pieces.subgradients()
        p = top_weights(losses, self.k)
        bound = self.lower_bound(p * slopes, float(p @ (losses - slopes * z)), p)
        return self.value(w, pieces), bound

    def lower_bound(self, u: Float64Array, b: float, p: Float64Array) -> LowerBound:
        """Return the bound of u (n,), b and p (n,) >= 0, scaled down if p is outside its set."""
        share = 1.0 / max(1.0, float(p.sum()), self.k * float(p.max()))
        u, b, p = share * u, share * b, share * p
        w = -self.C * np.asarray(self.X.T @ u, dtype=np.float64)
        return LowerBound(b - float(w @ w) / (2.0 * self.C), w, u, b, p)


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A certified lower bound of P: `value` = D(u, b), and w = -C X^T u (d,), where it has its minimum.

    u (n,) are the coefficients of the examples, p (n,) the weights of the losses: 0 <= p <= 1/k, sum at most
    1.
    """

    value: float
    w: Float64Array
    u: Float64Array
    b: float
    p: Float64Array


@dataclass(frozen=True, eq=False)
class AverageTopResult(HasObjective):
    """Result of a run of `iterations` rounds, each a few passes over the examples.

    Attributes
    ----------
    objective : P(w) and a lower bound of its minimum; also `primal`, `dual`, `gap` and `relative_gap`.
    w : (d,) weights; exactly 0 if `collapsed`.
    collapsed : whether w = 0 is optimal up to the certificate's accuracy: the k worst examples contradict
        each other and nothing was learned. A larger k helps, C does not.
    bound : the certificate of the dual value; None from a method that keeps no u.
    """

    objective: Objective
    w: Float64Array = field(repr=False)
    status: Status
    iterations: int
    collapsed: bool
    bound: LowerBound | None = field(default=None, repr=False)


def is_converged(problem: AverageTopProblem, w: Float64Array, primal: float, dual: float, tol: float) -> bool:
    """Return whether w is within tol, and w = 0 known to be optimal or known not to be."""
    return Objective(primal, dual).relative_gap <= tol and (
        not _zero_is_near(problem, w, primal, dual) or Objective(problem.at_zero, dual).relative_gap <= _ZERO
    )


def _zero_is_near(problem: AverageTopProblem, w: Float64Array, primal: float, dual: float) -> bool:
    """Return whether the gap leaves room for w = 0 as the optimum."""
    return float(w @ w) <= 2.0 * problem.C * max(primal - dual, 0.0)


def finished(
    problem: AverageTopProblem,
    w: Float64Array,
    primal: float,
    dual: float,
    *,
    tol: float,
    iterations: int,
    unsolved: Status,
    bound: LowerBound | None = None,
) -> AverageTopResult:
    """Return the result of a run, with w = 0 replacing weights that are not certified to be better.

    `unsolved` is the status if the run fell short of tol.
    """
    objective = Objective(primal, dual)
    if not objective.finite:
        return AverageTopResult(objective, w, Status.NONFINITE, iterations, collapsed=False, bound=bound)
    at_zero = _zero_is_near(problem, w, primal, dual)
    at_zero = at_zero and Objective(problem.at_zero, dual).relative_gap <= max(tol, _ZERO)
    if at_zero:
        w, primal = np.zeros_like(w), problem.at_zero
    # D exceeds P only by rounding.
    objective = Objective(primal, min(dual, primal))
    # Zero weights are fine if they have no loss.
    collapsed = at_zero and primal > 0.0
    status = Status.SOLVED if objective.reaches(tol) else unsolved
    return AverageTopResult(objective, w, status, iterations, collapsed=collapsed, bound=bound)
