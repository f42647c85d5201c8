"""The other losses of the certificate: one-vs-all, softmax, top-k entropies, and those of label sets.

They are independent of the solvers too.

    one-vs-all       Phi = sum_j phi(z_j s_j), z_j = 1 for own classes, of which a row may have several, and
                     -1 elsewhere; a dual row is alpha_j = z_j a_j, 0 <= a_j <= 1
    top-k entropy    Phi = max of <a, x> - sum x log x - p log p, p = 1 - sum x, over x in the top-k simplex
                     {x >= 0, sum x <= 1, x_j <= sum x / k}; softmax is k = 1

The truncated top-k entropy with k > 1 is not convex: there is nothing to certify its models with.
With the label set Y of a row, its complement N and scores s,

    multilabel hinge     Phi = max(0, 1 + max_N s - min_Y s)        (0 where Y or N is empty)
    multilabel softmax   Phi = (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y)

A dual row alpha of the hinge is p on Y and -q on N, with p, q >= 0 and sum p = sum q <= 1, and
-Phi*(-alpha) = sum q; of the softmax 1_Y/|Y| - alpha is a distribution, and -Phi*(-alpha) its entropy.  The
envelope takes gamma/2 |alpha|^2 off the dual.  Source: Lapin's thesis, sections 6.2.1 and 6.2.3, prop. 6.5 to
6.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import entr, expit, logsumexp, softmax

from topline.pipeline.certification.formulas import (
    HINGE_PER_RANK,
    Array,
    CertifiedLoss,
    Labels,
    RankedLoss,
    dual_rows,
    others_of,
)
from topline.pipeline.errors import InputError
from topline.storage.datasets import LabelSetTable

# Halvings of [0, 1]: enough for float64, with a margin.
BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class OwnClasses:
    """The own classes of rows: the set that a label numbers, or the label alone."""

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
        """The table as a matrix of ones, (sets, m), or None."""
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
        """Return Phi(s; y) of each row."""
        own = self.own.rows(y)
        wanted, others = np.where(own, scores, np.inf), np.where(own, -np.inf, scores)
        return np.asarray(np.maximum(0.0, 1.0 + others.max(axis=1) - wanted.min(axis=1)))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual rows maximising sum q - <p, s_Y> + <q, s_N> - gamma/2 (|p|^2 + |q|^2)."""
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
        """Return the sum of q."""
        return np.asarray(-np.where(self.own.rows(y), 0.0, alpha).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row leaves the domain."""
        own = self.own.rows(y)
        p, q = np.where(own, alpha, 0.0), np.where(own, 0.0, -alpha)
        amounts = [np.abs(alpha.sum(axis=1)), -p.min(axis=1), -q.min(axis=1), p.sum(axis=1) - 1.0]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))


@dataclass(frozen=True, eq=False)
class MultilabelSoftmax:
    """The cross entropy with equal shares of a row's labels; 0 for rows without labels."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row."""
        return np.asarray(logsumexp(scores, axis=1) - (self._shares(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the shares minus the probabilities; the loss is smooth, so gamma is 0."""
        return np.asarray(self._shares(y) - softmax(scores, axis=1))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return the entropy of the shares minus alpha."""
        return np.asarray(entr(np.maximum(self._shares(y) - alpha, 0.0)).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much the shares minus alpha fail to be a distribution."""
        amounts = [np.abs(alpha.sum(axis=1)), (alpha - self._shares(y)).max(axis=1)]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def _shares(self, y: Labels) -> Array:
        own = self.own.rows(y)
        return np.asarray(own / np.maximum(own.sum(axis=1, keepdims=True), 1))


def _two_simplices(c: Array, e: Array, bonus: float) -> tuple[Array, Array]:
    """Minimise |p - c|^2 + |q - e|^2 - 2 bonus t over p, q >= 0 with sum p = sum q = t <= 1, row by row.

    For fixed t both are projections on a simplex, p = max(0, c - theta) with theta = max_j (sum of the j
    largest c - t) / j; the slope in t is minus twice theta_p + theta_q + bonus, which falls with t: its root
    is bisected.  c and e (r, m) are -inf at missing entries.
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
    # Both sums are t up to rounding, so one stands for both.
    total, other = p.sum(axis=1, keepdims=True), q.sum(axis=1, keepdims=True)
    return p, q * np.divide(total, other, out=np.ones_like(other), where=other > 0.0)


def certified_loss(
    record: Mapping[str, Any], m: int, label_sets: LabelSetTable | None = None
) -> CertifiedLoss:
    """Return a model record's loss, for labels that number `label_sets` if given.

    Raises `InputError` for a loss that is unknown here or has no dual problem.
    """
    own = OwnClasses(m, label_sets)
    name, k = str(record.get("name")), int(record.get("k", 1))
    if name in HINGE_PER_RANK:
        return RankedLoss.from_record(record, m)
    if name == "truncated_topk_entropy" and k > 1:
        raise InputError(
            f"the loss {name} with k = {k} is not convex: it has no dual problem, so "
            "its models have no certificate"
        )
    known: dict[str, CertifiedLoss] = {
        "one_vs_all_hinge": OneVsAllHinge(own),
        "one_vs_all_logistic": OneVsAllLogistic(own),
        "multilabel_hinge": MultilabelHinge(own),
        "multilabel_softmax": MultilabelSoftmax(own),
        "softmax": TopKEntropy(1),
        "topk_entropy": TopKEntropy(k),
        "truncated_topk_entropy": TopKEntropy(1),
    }
    if name not in known:
        names = sorted([*HINGE_PER_RANK, *known])
        raise InputError(f"the certificate of loss {name!r} is not known; known: {names}")
    return known[name]


@dataclass(frozen=True, eq=False)
class OneVsAllHinge:
    """phi(z) = max(0, 1 - z)."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row."""
        return np.asarray(np.maximum(0.0, 1.0 - self.own.signs(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
        """Return z_j a_j, a the slack over gamma clipped to [0, 1]; a vertex for gamma = 0."""
        signs = self.own.signs(y)
        slack = 1.0 - signs * scores
        if gamma == 0.0:
            return np.asarray(signs * (slack > 0.0))
        weights = np.where(signs > 0.0, gamma_own, gamma)
        return np.asarray(signs * np.clip(slack / weights, 0.0, 1.0))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return the sum of a."""
        return np.asarray((self.own.signs(y) * alpha).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much the a leave [0, 1]."""
        a = self.own.signs(y) * alpha
        return np.asarray(np.maximum(np.maximum(-a, a - 1.0).max(axis=1), 0.0))


@dataclass(frozen=True, eq=False)
class OneVsAllLogistic:
    """phi(z) = log(1 + exp(-z))."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row."""
        return np.asarray(np.logaddexp(0.0, -self.own.signs(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return z_j / (1 + exp(z_j s_j)); the loss is smooth, so gamma is 0."""
        signs = self.own.signs(y)
        return np.asarray(signs * expit(-signs * scores))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return the sum of the binary entropies of a."""
        a = np.clip(self.own.signs(y) * alpha, 0.0, 1.0)
        return np.asarray((entr(a) + entr(1.0 - a)).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much the a leave [0, 1]."""
        return OneVsAllHinge(self.own).violations(alpha, y)


class _Entropic(NamedTuple):
    """The maximum over x of rows of a top-k entropy.

    Attributes
    ----------
    level : log(s / (1 - s)) of the optimal s = sum x, shape (r,).
    capped : how many classes are at their cap s / k, (r,).
    tails : log sum exp of all classes but the u highest, for every u below k, (r, k).
    top : the k highest classes, highest first, (r, k).
    """

    level: Array
    capped: NDArray[np.intp]
    tails: Array
    top: NDArray[np.intp]


@dataclass(frozen=True)
class TopKEntropy:
    """The top-k entropy loss; softmax for k = 1."""

    k: int
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row."""
        return np.asarray(np.logaddexp(0.0, self._solve(_differences(scores, y)).level))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual row of the maximising x; the loss is smooth, so gamma is 0."""
        a = _differences(scores, y)
        found = self._solve(a)
        at_cap = found.capped[:, None]
        # Classes above the tail are at their cap.
        below = np.minimum(a - np.take_along_axis(found.tails, at_cap, axis=1), 0.0)
        shares = (self.k - at_cap) / self.k * np.exp(below)
        capped = np.arange(found.top.shape[1]) < at_cap
        highest = np.where(capped, 1.0 / self.k, np.take_along_axis(shares, found.top, axis=1))
        np.put_along_axis(shares, found.top, highest, axis=1)
        return dual_rows(expit(found.level)[:, None] * shares, y)

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return -sum x log x - p log p of each row."""
        x = np.maximum(others_of(-alpha, y), 0.0)
        return np.asarray(entr(x).sum(axis=1) + entr(np.maximum(0.0, 1.0 - x.sum(axis=1))))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row leaves the top-k simplex."""
        x = others_of(-alpha, y)
        total = x.sum(axis=1)
        own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
        amounts = [np.abs(own - total), -x.min(axis=1), total - 1.0, x.max(axis=1) - total / self.k]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def _solve(self, a: Array) -> _Entropic:
        """Find the optimal s = sum x.

        With u classes at their cap s / k, the others have (k - u) / k times their softmax, and the maximum
        over s is log(1 + e^G_u); the right u is the least for which the others stay below the cap.
        """
        count = min(self.k, a.shape[1])
        # Softmax needs only the highest class, without a partition.
        top = np.argpartition(a, -count, axis=1)[:, -count:] if count > 1 else a.argmax(axis=1)[:, None]
        top = np.take_along_axis(top, np.argsort(-np.take_along_axis(a, top, axis=1), axis=1), axis=1)
        ranked, others = np.take_along_axis(a, top, axis=1), a.copy()
        np.put_along_axis(others, top, -np.inf, axis=1)
        rest = logsumexp(others, axis=1) if count < a.shape[1] else np.full(len(a), -np.inf)
        from_last = np.column_stack([rest, ranked[:, ::-1]])
        tails = np.logaddexp.accumulate(from_last, axis=1)[:, :0:-1]
        u = np.arange(count)
        free = (self.k - u) / self.k
        sums = np.column_stack([np.zeros(len(a)), np.cumsum(ranked, axis=1)[:, :-1]])
        levels = sums / self.k + free * (tails - np.log(free)) + u / self.k * np.log(self.k)
        # The last u leaves one class with share 1 / k, so one always exists.
        keeps = free * np.exp(ranked - tails) <= (1.0 + 1e-13) / self.k
        capped = np.argmax(keeps, axis=1)
        return _Entropic(levels[np.arange(len(a)), capped], capped, tails, top)


def _differences(scores: Array, y: Labels) -> Array:
    """Return s_j - s_y of the others, (r, m - 1)."""
    own = np.take_along_axis(scores, y[:, None].astype(np.int64), axis=1)
    return others_of(scores - own, y)
