"""The losses of label sets in the certificate, independent of the solvers.

With the label set Y of a row, its complement N and scores s,

    multilabel hinge     Phi = max(0, 1 + max_N s - min_Y s)        (0 where Y or N is empty)
    multilabel softmax   Phi = (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y)

A dual row alpha of the hinge is p on Y and -q on N, with p, q >= 0 and sum p = sum q <= 1, and
-Phi*(-alpha) = sum q; of the softmax 1_Y/|Y| - alpha is a distribution, and -Phi*(-alpha) its entropy.  The
envelope takes gamma/2 |alpha|^2 off the dual.  Source: Lapin's thesis, prop. 6.5 to 6.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import entr, logsumexp, softmax

from topline.pipeline.certification.formulas import Array, Labels
from topline.storage.datasets import LabelSetTable

# Halvings of an interval of 0 to 1: as many as float64 tells apart, and some.
BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """Which classes are a row's own: those of the set that its label numbers, or its label alone."""

    m: int
    table: LabelSetTable | None = None

    def rows(self, y: Labels) -> NDArray[np.bool_]:
        """Return the own classes (r, m) of labels y (r,)."""
        numbers = np.asarray(y, dtype=np.int64)
        if self._sets is None:
            return np.asarray(np.arange(self.m) == numbers[:, None])
        return np.asarray(self._sets[numbers].toarray() == 1)

    @cached_property
    def _sets(self) -> Any:
        """The table as a matrix of ones, (sets, m), None without one."""
        table = self.table
        if table is None:
            return None
        ones = np.ones(len(table.indices), dtype=np.int8)
        return csr_matrix((ones, table.indices, table.indptr), shape=(len(table), self.m))

    def signs(self, y: Labels) -> Array:
        """Return 1 for own classes and -1 for the others."""
        return np.where(self.rows(y), 1.0, -1.0)


@dataclass(frozen=True, eq=False)
class MultilabelHinge:
    """The multilabel SVM's loss."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Phi(s; y) of each row."""
        own = self.own.rows(y)
        wanted, others = np.where(own, scores, np.inf), np.where(own, -np.inf, scores)
        return np.asarray(np.maximum(0.0, 1.0 + others.max(axis=1) - wanted.min(axis=1)))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual row with the largest sum q - <p, s_Y> + <q, s_N> - gamma/2 (|p|^2 + |q|^2)."""
        own, alpha = self.own.rows(y), np.zeros_like(scores)
        lossy = np.flatnonzero(self.values(scores, y) > 0.0)
        mine = own[lossy]
        wanted, others = np.where(mine, -scores[lossy], -np.inf), np.where(mine, -np.inf, scores[lossy])
        if gamma == 0.0:
            alpha[lossy, wanted.argmax(axis=1)] = 1.0
            alpha[lossy, others.argmax(axis=1)] = -1.0
        else:
            p, q = _two_simplices(wanted / gamma, others / gamma, 1.0 / gamma)
            alpha[lossy] = p - q
        return alpha

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Sum of q."""
        return np.asarray(-np.where(self.own.rows(y), 0.0, alpha).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which each row leaves the domain."""
        own = self.own.rows(y)
        p, q = np.where(own, alpha, 0.0), np.where(own, 0.0, -alpha)
        amounts = [np.abs(alpha.sum(axis=1)), -p.min(axis=1), -q.min(axis=1), p.sum(axis=1) - 1.0]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))


@dataclass(frozen=True, eq=False)
class MultilabelSoftmax:
    """The cross entropy to equal shares of a row's labels; rows without labels have none."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Phi(s; y) of each row."""
        return np.asarray(logsumexp(scores, axis=1) - (self._shares(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the shares less the probabilities; it is smooth as it is, so gamma is 0."""
        return np.asarray(self._shares(y) - softmax(scores, axis=1))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Entropy of the shares less alpha."""
        return np.asarray(entr(np.maximum(self._shares(y) - alpha, 0.0)).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which the shares less alpha are no distribution."""
        amounts = [np.abs(alpha.sum(axis=1)), (alpha - self._shares(y)).max(axis=1)]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def _shares(self, y: Labels) -> Array:
        own = self.own.rows(y)
        return np.asarray(own / np.maximum(own.sum(axis=1, keepdims=True), 1))


def _two_simplices(c: Array, e: Array, bonus: float) -> tuple[Array, Array]:
    """Minimise |p - c|^2 + |q - e|^2 - 2 bonus t over p, q >= 0 with sum p = sum q = t <= 1, row by row.

    For a fixed t both are projections on a simplex, p = max(0, c - theta) with theta = max_j (sum of the j
    largest c - t) / j; the slope in t is minus twice theta_p + theta_q + bonus, which falls with t: its root
    is bisected.  c and e (r, m) are -inf where there is no entry.
    """
    sums = [np.cumsum(-np.sort(-values, axis=1), axis=1) for values in (c, e)]
    ranks = np.arange(1, c.shape[1] + 1)

    def levels(t: Array) -> list[Array]:
        return [((part - t[:, None]) / ranks).max(axis=1) for part in sums]

    low, high = np.zeros(len(c)), np.ones(len(c))
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        more = sum(levels(middle)) + bonus >= 0.0
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    p, q = (
        np.maximum(values - level[:, None], 0.0) for values, level in zip((c, e), levels(high), strict=True)
    )
    # Both sums are t but for rounding, and one of them stands for both.
    total, other = p.sum(axis=1, keepdims=True), q.sum(axis=1, keepdims=True)
    return p, q * np.divide(total, other, out=np.ones_like(other), where=other > 0.0)
