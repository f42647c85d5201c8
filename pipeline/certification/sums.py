"""Sums over the training rows that a certificate is made of, in float64, independent of the solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.formulas import CertifiedLoss, envelope, penalties

# Dual rows are convex combinations of vertices, kept up in the precision of their array.
FEASIBLE = {8: 1e-9, 4: 2e-5}


@dataclass
class CertificateSums:
    """What one pass adds up; means are taken at the end.

    `class_weights` say how often a row counts, by its label, and `product` is X^T A, which starts at 0 where
    the pass is to find a dual point, and stays None where b stands for one.  That is `share` times minus the
    gradients at the weights `point` (d, m), by default at W; its b is `share` times theirs, a lower bound.
    """

    loss: CertifiedLoss
    gamma: float
    gamma_own: float
    class_weights: NDArray[np.float64]
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
        """Add rows X (r, d) with labels y (r,) and, where they are kept, dual variables A (r, m)."""
        scores, weights = np.asarray(X @ W), self.class_weights[y]
        self.rows += len(y)
        losses = envelope(self.loss, scores, y, self.gamma, self.gamma_own)
        self.loss_sum += float(weights @ losses)
        if self.product is None:
            return
        if A is None:
            at = scores if self.point is None else np.asarray(X @ self.point)
            beta, counted = self.loss.gradient(at, y, self.gamma, self.gamma_own), self.share * weights
            alpha = beta * counted[:, None]
        else:
            counted = weights
            alpha = A.astype(np.float64)
            beta = alpha / np.where(weights > 0.0, weights, np.inf)[:, None]
            self._check(alpha, beta, y, weights, FEASIBLE[A.dtype.itemsize])
        self.product += np.asarray(X.T @ alpha)
        self.conjugate += float(counted @ self.loss.conjugate(beta, y))
        self.penalty += float(counted @ penalties(beta, y, self.gamma, self.gamma_own))
        if self.gamma > 0:
            lift = self.gamma * beta
            if self.gamma_own != self.gamma:
                lift[np.arange(len(y)), y] *= self.gamma_own / self.gamma
            self.shifted_sum += float(weights @ self.loss.values(scores + lift, y))

    def _check(
        self,
        alpha: NDArray[np.float64],
        beta: NDArray[np.float64],
        y: NDArray[Any],
        weights: NDArray[np.float64],
        tolerance: float,
    ) -> None:
        """Note by how much rows leave their domains; an example without weight has alpha_i = 0."""
        amounts = self.loss.violations(beta, y)
        amounts[weights == 0.0] = np.abs(alpha[weights == 0.0]).sum(axis=1)
        self.tolerance = max(self.tolerance, tolerance)
        self.outside += float(np.where(weights > 0.0, weights, 1.0) @ amounts)
        self.mass += 0.5 * float(np.abs(alpha).sum()) / self.loss.radius
        self.infeasibility = max(self.infeasibility, float(amounts.max(initial=0.0)))

    @property
    def largest_infeasibility(self) -> float:
        """The largest one of a row, or the share of all rows' mass outside.

        Where C is large all rows are tiny, and what is little beside the domain is much for them.
        """
        return max(self.infeasibility, self.outside / self.mass if self.mass > 0.0 else 0.0)
