"""SVM^Perf for the precision and the recall at k: a cut of all examples at once, not one loss an example.

    P(w) = lam/2 |w|^2 + max(0, max_{|Q| = k} L(Q) + (1/p) (sum_{i in Q} s_i - sum_{i positive} s_i))
    L(Q) = 1 - |Q and positives| / k   (precision at k),   1 - |Q and positives| / p   (recall at k)

where p is the number of positives and Q runs over the sets of k examples that could be called positive.  The
worst Q has, for some a, the a highest positives and the k - a highest negatives, so that a sort of each finds
it.  An example may have a score for each of m classes, as in `top_push`: the own classes of n examples as
positives and k n as k is the reduction of a multiclass problem that the tables use (thesis, section 5.2.3).

Cuts are kept whole (one slack), and w is the best for all cuts so far: D of those is a lower bound of P, and
P - D the certificate.
Source: T. Joachims, "A support vector method for multivariate performance measures", ICML 2005; one slack
after T. Joachims, T. Finley, C.-N. Yu, "Cutting-plane training of structural SVMs", 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tests.reproduce.baselines.rows import finite_rows, positives_of
from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import InvalidProblemError
from topline.solvers.methods.atoms import Atoms, maximise_on_simplex
from topline.solvers.typing import Float64Array

#: Cuts of weight 0 that are kept for a while: they often come back.
_IDLE = 50


@dataclass(frozen=True, eq=False)
class SVMPerfResult(HasObjective):
    """What `solve_svm_perf` reached: `W` (d, m) scores rows of X as X @ W; `cuts` is how many it made."""

    W: Float64Array
    objective: Objective
    cuts: int


def solve_svm_perf(
    X: Any,
    positive: Any,
    lam: float,
    *,
    k: int,
    measure: Literal["precision", "recall"] = "precision",
    tol: float = 1e-3,
    max_cuts: int = 2000,
) -> SVMPerfResult:
    """Solve P for X (n, d), dense or CSR, and a mask `positive` (n,) or (n, m), to a relative gap of tol.

    The result says which gap it has: it may be more after `max_cuts`.

    Raises InvalidProblemError for a mask without positives or without negatives, a k beyond the number of
    scores, another measure, or a lam or tol that is no positive number, and NonFiniteError for NaN or
    infinity in X.
    """
    X = finite_rows(X)
    mask = positives_of(positive, X.shape[0])
    k = positive_integer("k", k)
    if k > mask.size or measure not in ("precision", "recall"):
        raise InvalidProblemError(
            f"the {measure!r} at {k} was asked for, of {mask.size} scores; use the precision or the recall"
            f" at 1 to {mask.size}"
        )
    problem = _Problem(X, mask, positive_number("lam", lam), k, k if measure == "precision" else None)
    return _cut(problem, positive_number("tol", tol), positive_integer("max_cuts", max_cuts))


@dataclass(frozen=True, eq=False)
class _Problem:
    X: Any
    positive: np.ndarray[Any, np.dtype[np.bool_]]
    lam: float
    k: int
    called: int | None  # what hits are divided by; None for the positives

    def cut(self, W: Float64Array) -> tuple[float, Float64Array, float]:
        """Return the risk at W, and g (d, m) and b with risk(V) >= b + <g, V> for every V, equal at W."""
        scores = np.asarray(self.X @ W, dtype=np.float64)
        chosen, hits = worst_set(scores, self.positive, self.k, self.called)
        p = int(self.positive.sum())
        change = (chosen.astype(np.float64) - self.positive) / p
        b = 1.0 - hits / (self.called or p)
        risk = b + float(np.vdot(change, scores))
        if risk <= 0.0:
            return 0.0, np.zeros_like(W), 0.0
        return risk, np.asarray(self.X.T @ change, dtype=np.float64), b


def worst_set(
    scores: Float64Array, positive: np.ndarray[Any, np.dtype[np.bool_]], k: int, called: int | None
) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int]:
    """Return the mask of the worst Q of k scores, and how many positives it has.

    A hit counts 1 / called of the measure, 1 / p where that is None.
    """
    p, q = int(positive.sum()), int((~positive).sum())
    places = [np.flatnonzero(positive), np.flatnonzero(~positive)]
    flat = scores.ravel()
    ranked = [own[np.argsort(-flat[own], kind="stable")] for own in places]
    sums = [np.concatenate([[0.0], np.cumsum(flat[order])]) for order in ranked]
    hits = np.arange(max(0, k - q), min(k, p) + 1)
    values = -hits / (called or p) + (sums[0][hits] + sums[1][k - hits]) / p
    best = int(hits[values.argmax()])
    chosen = np.zeros(positive.size, dtype=bool)
    chosen[ranked[0][:best]] = chosen[ranked[1][: k - best]] = True
    return chosen.reshape(positive.shape), best


def _cut(problem: _Problem, tol: float, max_cuts: int) -> SVMPerfResult:
    """Add the cut at the best point of all cuts until P there is near enough to D."""
    shape = (problem.X.shape[1], problem.positive.shape[1])
    atoms = Atoms(
        W=np.zeros((1, *shape)), conjugate_means=np.zeros(1), weights=np.ones(1), gram=np.zeros((1, 1))
    )
    W = np.zeros(shape)
    best = SVMPerfResult(W, Objective(np.inf, 0.0), 0)
    for count in range(1, max_cuts + 1):
        risk, g, b = problem.cut(W)
        primal = 0.5 * problem.lam * float(np.vdot(W, W)) + risk
        if primal < best.primal:
            best = SVMPerfResult(W, Objective(primal, best.dual), count)
        atoms, _ = atoms.with_atom(problem.lam, g / -problem.lam, b)
        weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
        atoms = atoms.weighted(weights, idle=_IDLE)
        W, mean = atoms.point()
        dual = max(best.dual, mean - 0.5 * problem.lam * float(np.vdot(W, W)))
        best = SVMPerfResult(best.W, Objective(best.primal, min(dual, best.primal)), count)
        if best.relative_gap <= tol:
            break
    return best
