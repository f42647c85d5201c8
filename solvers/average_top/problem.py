"""The problem: P(w) = AT_k(l(w)) + |w|^2 / (2 C), its lower bounds, and what a run has reached.

For any scores z and weights p in the set of AT_k, with u_i = p_i l'(z_i) and
b = sum_i p_i (l(z_i) - l'(z_i) z_i), convexity says P(w) >= b + <X^T u, w> + |w|^2 / (2 C) for every w, and
the minimum of the right side is

    D(u, b) = b - (C/2) |X^T u|^2,    reached at w = -C X^T u.

Convex combinations of (u, b) serve as well.  This is the dual of every convex loss, with no conjugate needed.
Since P is strongly convex, a gap g between P(w) and D puts the optimum within sqrt(2 C g) of w.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from topline.solvers.average_top.aggregates import average_top, checked_k, top_weights
from topline.solvers.average_top.losses import IndividualLoss, Pieces, individual_loss
from topline.solvers.core.inputs import checked_rows, positive_number
from topline.solvers.core.objective import HasObjective, Objective
from topline.solvers.core.rows import is_sparse, nonfinite_rows
from topline.solvers.core.stopping import Status
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.typing import Float64Array

#: w = 0 is taken for the optimum where its value is certified to this share.
_ZERO = 1e-9


@dataclass(frozen=True, eq=False)
class AverageTopProblem:
    """Examples, a loss, k and C.

    Attributes
    ----------
    X : (n, d) float64, an array or CSR matrix; append a feature that is always 1 for a bias.
    y : (n,) float64, -1 and 1 for the losses of signs.
    loss : loss of one example.
    k : how many of the largest losses are averaged, real, 1 <= k <= n.
    C : weight of the losses against |w|^2 / 2.
    """

    X: Any = field(repr=False)
    y: Float64Array = field(repr=False)
    loss: IndividualLoss
    k: float
    C: float

    @classmethod
    def of(cls, X: Any, y: Any, loss: Any, k: float, C: float) -> Self:
        """Check the parts and make the problem of them.

        Raises InvalidProblemError for shapes, targets or parameters that make no problem, and NonFiniteError
        for NaN or infinity in the examples.
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
        """Return P(w), the pieces at its scores known."""
        return average_top(pieces.losses(), self.k) + float(w @ w) / (2.0 * self.C)

    def primal(self, w: Float64Array) -> float:
        """Return P(w)."""
        return self.value(w, self.pieces(self.scores(w)))

    def evaluated(self, w: Float64Array) -> tuple[float, LowerBound]:
        """Return P(w), and the lower bound of P that its subgradient at w makes."""
        z = self.scores(w)
        pieces = self.pieces(z)
        losses, slopes = pieces.losses(), pieces.subgradients()
        p = top_weights(losses, self.k)
        bound = self.lower_bound(p * slopes, float(p @ (losses - slopes * z)), p)
        return self.value(w, pieces), bound

    def lower_bound(self, u: Float64Array, b: float, p: Float64Array) -> LowerBound:
        """Return the bound of u (n,), b and p (n,) >= 0; they are scaled down where p is outside its set."""
        share = 1.0 / max(1.0, float(p.sum()), self.k * float(p.max()))
        u, b, p = share * u, share * b, share * p
        w = -self.C * np.asarray(self.X.T @ u, dtype=np.float64)
        return LowerBound(b - float(w @ w) / (2.0 * self.C), w, u, b, p)


@dataclass(frozen=True, eq=False)
class LowerBound:
    """A number that P is nowhere below, and what shows it.

    Attributes
    ----------
    value : D(u, b).
    w : (d,) -C X^T u, where the bound has its minimum.
    u : (n,) coefficients of the examples.
    b : constant term.
    p : (n,) weights of the losses: 0 <= p <= 1/k, sum at most 1.
    """

    value: float
    w: Float64Array
    u: Float64Array
    b: float
    p: Float64Array


@dataclass(frozen=True, eq=False)
class AverageTopResult(HasObjective):
    """What a run reached.

    Attributes
    ----------
    objective : P(w) and a lower bound of its minimum; primal, dual, gap and relative_gap are attributes.
    w : (d,) weights; exactly 0 where `collapsed`.
    status : how the run ended.
    iterations : rounds, each a few passes over the examples.
    collapsed : whether w = 0 is the optimum, as far as the certificate can tell: the k worst examples then
        contradict each other and nothing was learned.  A larger k helps, C does not.
    bound : what the dual value was computed from; None from a method that keeps no u.
    """

    objective: Objective
    w: Float64Array = field(repr=False)
    status: Status
    iterations: int
    collapsed: bool
    bound: LowerBound | None = field(default=None, repr=False)


def is_converged(problem: AverageTopProblem, w: Float64Array, primal: float, dual: float, tol: float) -> bool:
    """Return whether w is good enough: within tol, and known to be, or known not to be, at w = 0."""
    objective = Objective(primal, dual)
    if objective.relative_gap > tol:
        return False
    zero_is_within = float(w @ w) <= 2.0 * problem.C * max(objective.gap, 0.0)
    return not zero_is_within or Objective(problem.at_zero, dual).relative_gap <= _ZERO


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
    """Return what a run reached, with w = 0 in place of weights that cannot be told from it.

    `unsolved` is the status of a run that fell short of tol.
    """
    objective = Objective(primal, dual)
    if not objective.finite:
        return AverageTopResult(objective, w, Status.NONFINITE, iterations, collapsed=False, bound=bound)
    near = float(w @ w) <= 2.0 * problem.C * max(objective.gap, 0.0)
    at_zero = near and Objective(problem.at_zero, dual).relative_gap <= max(tol, _ZERO)
    if at_zero:
        w, primal = np.zeros_like(w), problem.at_zero
    # What D exceeds P by is rounding.
    objective = Objective(primal, min(dual, primal))
    # Without any loss at 0 nothing is wrong with it.
    collapsed = at_zero and primal > 0.0
    status = Status.SOLVED if objective.reaches(tol) else unsolved
    return AverageTopResult(objective, w, status, iterations, collapsed=collapsed, bound=bound)


def collapse_shown_by(problem: AverageTopProblem, known: LowerBound, tol: float) -> AverageTopResult | None:
    """Return w = 0 where a bound of the same examples and loss shows it to be the optimum; otherwise None.

    The bound may come from another C, on which D(u, b) depends by |X^T u|^2 alone, or from another k: weights
    p that are feasible for one k are so for every smaller one.
    """
    bound = problem.lower_bound(known.u, known.b, known.p)
    if Objective(problem.at_zero, bound.value).relative_gap > min(tol, _ZERO):
        return None
    return finished(
        problem, np.zeros(problem.d), problem.at_zero, bound.value, tol=tol, iterations=0,
        unsolved=Status.NO_PROGRESS, bound=bound,
    )  # fmt: skip
