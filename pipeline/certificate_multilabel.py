"""The losses of label sets in the certificate, apart from the solvers' own.

With the label set Y of a row, its complement N and scores s,

    multilabel hinge     Phi = max(0, 1 + max_N s - min_Y s)        (0 where Y or N is empty)
    multilabel softmax   Phi = (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y)

A dual row alpha of the hinge is p on Y and -q on N, with p, q >= 0 and sum p = sum q <= 1, and
-Phi*(-alpha) = sum q; of the softmax 1_Y/|Y| - alpha is a distribution, and -Phi*(-alpha) its entropy.  The
envelope takes gamma/2 |alpha|^2 off the dual.  Source: Lapin's thesis, prop. 6.5 to 6.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import csr_matrix
from scipy.special import entr, logsumexp, softmax

from pipeline.certificate_math import Array, Labels
from storage.label_sets import LabelSetTable


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """Which classes are a row's own: those of the set that its label numbers, or its label alone."""

    m: int
    table: LabelSetTable | None = None

    def rows(self, y: Labels) -> NDArray[np.bool_]:
        """Give the own classes (r, m) of labels y (r,)."""
        if self.table is None:
            return np.asarray(np.arange(self.m) == np.asarray(y)[:, None])
        ones = np.ones(len(self.table.indices), dtype=np.int8)
        shape = (len(self.table), self.m)
        sets = csr_matrix((ones, self.table.indices, self.table.indptr), shape=shape)
        return np.asarray(sets[np.asarray(y, dtype=np.int64)].toarray() == 1)

    def signs(self, y: Labels) -> Array:
        """Give 1 for own classes and -1 for the others."""
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
        """Give the dual row with the largest sum q - <p, s_Y> + <q, s_N> - gamma/2 (|p|^2 + |q|^2)."""
        own, alpha = self.own.rows(y), np.zeros_like(scores)
        for row in np.flatnonzero(self.values(scores, y) > 0.0):
            mine = own[row]
            if gamma == 0.0:
                alpha[row, np.argmin(np.where(mine, scores[row], np.inf))] = 1.0
                alpha[row, np.argmax(np.where(mine, -np.inf, scores[row]))] = -1.0
            else:
                p, q = _two_simplices(-scores[row, mine] / gamma, scores[row, ~mine] / gamma, 1.0 / gamma)
                alpha[row, mine], alpha[row, ~mine] = p, -q
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
        """Give the shares less the probabilities; it is smooth as it is, so gamma is 0."""
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
    """Minimise |p - c|^2 + |q - e|^2 - 2 bonus t over p, q >= 0 with sum p = sum q = t <= 1.

    For fixed t both are projections on a simplex, p = max(0, c - theta); the slope in t is minus twice
    theta_p + theta_q + bonus, which falls with t.
    """

    def slope(t: float) -> float:
        return _level(c, t) + _level(e, t) + bonus

    t = 1.0 if slope(1.0) >= 0.0 else float(brentq(slope, 0.0, 1.0, xtol=1e-15))
    p, q = (np.maximum(values - _level(values, t), 0.0) for values in (c, e))
    # Both sums are t but for rounding, and one of them stands for both.
    return p, q * (p.sum() / q.sum()) if q.sum() > 0.0 else q


def _level(values: Array, total: float) -> float:
    """Give theta with sum max(0, values - theta) = total."""
    ranked = -np.sort(-values)
    levels: Any = (np.cumsum(ranked) - total) / np.arange(1, len(ranked) + 1)
    return float(levels[np.flatnonzero(ranked >= levels)[-1]])
