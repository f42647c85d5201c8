"""Sums over the training rows for certificates, in float64, independent of the solvers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.formulas import CertifiedLoss, envelope, penalties

# Dual rows are convex combinations of vertices, in the precision of their array.
FEASIBLE = {8: 1e-9, 4: 2e-5}
# Bytes of scores per call of a loss.  Its formulas make many arrays of that size, and the system clears large
# ones page by page: that took most of the time at 10,000 classes.
_SCORE_BYTES = 1 << 18


@dataclass
class CertificateSums:
    """Totals of one pass; means are taken at the end.

    `weights` (n,) are the rows' weights, None for 1; rows are added in order.  `product` is X^T A, initially
    0 if the pass must find a dual point, None if b replaces it.  That point is `share` times minus the
    gradients at the weights `point` (d, m), by default W; its b is `share` times theirs, a lower bound.
    """

    loss: CertifiedLoss
    gamma: float
    gamma_own: float
    weights: NDArray[np.float64] | None
    rows: int = 0
    loss_sum: float = 0.0
    shifted_sum: float = 0.0
    conjugate: float = 0.0
    penalty: float = 0.0
    infeasibility: float = 0.0
    outside: float = 0.0
    mass: float = 0.0
    tolerance: float = 0.0
    product: NDArray[np.float64] | None = None
    point: NDArray[np.float64] | None = None
    share: float = 1.0

    def add(self, X: Any, y: NDArray[Any], A: NDArray[Any] | None, W: NDArray[np.float64]) -> None:
        """Add rows X (r, d) with labels y (r,) and any dual variables A (r, m)."""
        scores, first = np.asarray(X @ W), self.rows
        self.rows += len(y)
        weights = np.ones(len(y)) if self.weights is None else self.weights[first : self.rows]
        elsewhere = self.product is not None and self.point is not None and A is None
        points = np.asarray(X @ self.point) if elsewhere else scores
        alpha = np.empty_like(scores)
        for few in _row_slices(scores):
            losses = envelope(self.loss, scores[few], y[few], self.gamma, self.gamma_own)
            self.loss_sum += float(weights[few] @ losses)
            if self.product is not None:
                kept = None if A is None else A[few]
                alpha[few] = self._add_duals(scores[few], points[few], y[few], kept, weights[few])
        if self.product is not None:
            self.product += np.asarray(X.T @ alpha)

    def _add_duals(
        self,
        scores: NDArray[np.float64],
        point: NDArray[np.float64],
        y: NDArray[Any],
        A: NDArray[Any] | None,
        weights: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Add dual variables, A or minus the gradients at the scores of `point`, and return them weighted."""
        if A is None:
            beta, counted = self.loss.gradient(point, y, self.gamma, self.gamma_own), self.share * weights
            alpha: NDArray[np.float64] = beta * counted[:, None]
        else:
            counted = weights
            alpha = A.astype(np.float64)
            beta = alpha / np.where(weights > 0.0, weights, np.inf)[:, None]
            amounts = self.loss.violations(beta, y)
            # An example of weight 0 has alpha_i = 0.
            amounts[weights == 0.0] = np.abs(alpha[weights == 0.0]).sum(axis=1)
            self.tolerance = max(self.tolerance, FEASIBLE[A.dtype.itemsize])
            self.outside += float(np.where(weights > 0.0, weights, 1.0) @ amounts)
            self.mass += 0.5 * float(np.abs(alpha).sum()) / self.loss.radius
            self.infeasibility = max(self.infeasibility, float(amounts.max(initial=0.0)))
        self.conjugate += float(counted @ self.loss.conjugate(beta, y))
        self.penalty += float(counted @ penalties(beta, y, self.gamma, self.gamma_own))
        if self.gamma > 0:
            lift = self.gamma * beta
            if self.gamma_own != self.gamma:
                lift[np.arange(len(y)), y] *= self.gamma_own / self.gamma
            self.shifted_sum += float(weights @ self.loss.values(scores + lift, y))
        return alpha

    @property
    def largest_infeasibility(self) -> float:
        """The largest infeasibility of a row, or the share of all mass outside: at large C rows are tiny."""
        return max(self.infeasibility, self.outside / self.mass if self.mass > 0.0 else 0.0)


def _row_slices(scores: NDArray[np.float64]) -> Iterator[slice]:
    """Yield slices of the rows of scores (r, m), of few rows if m is large."""
    step = max(1, _SCORE_BYTES // scores[:1].nbytes) if scores.size else 1
    for start in range(0, len(scores), step):
        yield slice(start, start + step)
