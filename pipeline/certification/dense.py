"""The other losses of the certificate: one-vs-all, softmax, top-k entropies; independent of the solvers too.

    one-vs-all       Phi = sum_j phi(z_j s_j), z_j = 1 for own classes, of which a row may have several, and
                     -1 elsewhere; a dual row is alpha_j = z_j a_j, 0 <= a_j <= 1
    top-k entropy    Phi = max of <a, x> - sum x log x - p log p, p = 1 - sum x, over x in the top-k simplex
                     {x >= 0, sum x <= 1, x_j <= sum x / k}; softmax is k = 1

The truncated top-k entropy with k > 1 is not convex: there is nothing to certify its models with.  Source:
Lapin's thesis, sections 6.2.1 and 6.2.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr, expit, logsumexp

from topline.pipeline.certification.formulas import (
    HINGE_PER_RANK,
    Array,
    CertifiedLoss,
    Labels,
    RankedLoss,
    dual_rows,
    others_of,
)
from topline.pipeline.certification.multilabel import MultilabelHinge, MultilabelSoftmax, OwnClasses
from topline.pipeline.errors import InputError
from topline.storage.datasets import LabelSetTable


def certified_loss(
    record: Mapping[str, Any], m: int, label_sets: LabelSetTable | None = None
) -> CertifiedLoss:
    """Read a model record's loss; `InputError` for one that is not known here, or has no dual problem.

    With `label_sets` labels are numbers of these.
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
        """Phi(s; y) of each row."""
        return np.asarray(np.maximum(0.0, 1.0 - self.own.signs(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
        """Return z_j a_j: a is the slack over gamma, cut to [0, 1]; with gamma = 0 a corner."""
        signs = self.own.signs(y)
        slack = 1.0 - signs * scores
        if gamma == 0.0:
            return np.asarray(signs * (slack > 0.0))
        weights = np.where(signs > 0.0, gamma_own, gamma)
        return np.asarray(signs * np.clip(slack / weights, 0.0, 1.0))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Sum of a."""
        return np.asarray((self.own.signs(y) * alpha).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which the a leave [0, 1]."""
        a = self.own.signs(y) * alpha
        return np.asarray(np.maximum(np.maximum(-a, a - 1.0).max(axis=1), 0.0))


@dataclass(frozen=True, eq=False)
class OneVsAllLogistic:
    """phi(z) = log(1 + exp(-z))."""

    own: OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        """Phi(s; y) of each row."""
        return np.asarray(np.logaddexp(0.0, -self.own.signs(y) * scores).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return z_j / (1 + exp(z_j s_j)); it is smooth as it is, so gamma is 0."""
        signs = self.own.signs(y)
        return np.asarray(signs * expit(-signs * scores))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Sum of the binary entropies of a."""
        a = np.clip(self.own.signs(y) * alpha, 0.0, 1.0)
        return np.asarray((entr(a) + entr(1.0 - a)).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which the a leave [0, 1]."""
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
        """Phi(s; y) of each row."""
        return np.asarray(np.logaddexp(0.0, self._solve(_differences(scores, y)).level))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual row of the maximising x; it is smooth as it is, so gamma is 0."""
        a = _differences(scores, y)
        found = self._solve(a)
        at_cap = found.capped[:, None]
        # What is above the tail is at its cap.
        below = np.minimum(a - np.take_along_axis(found.tails, at_cap, axis=1), 0.0)
        shares = (self.k - at_cap) / self.k * np.exp(below)
        capped = np.arange(found.top.shape[1]) < at_cap
        highest = np.where(capped, 1.0 / self.k, np.take_along_axis(shares, found.top, axis=1))
        np.put_along_axis(shares, found.top, highest, axis=1)
        return dual_rows(expit(found.level)[:, None] * shares, y)

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """-sum x log x - p log p of each row."""
        x = np.maximum(others_of(-alpha, y), 0.0)
        return np.asarray(entr(x).sum(axis=1) + entr(np.maximum(0.0, 1.0 - x.sum(axis=1))))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which each row leaves the top-k simplex."""
        x = others_of(-alpha, y)
        total = x.sum(axis=1)
        own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
        amounts = [np.abs(own - total), -x.min(axis=1), total - 1.0, x.max(axis=1) - total / self.k]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def _solve(self, a: Array) -> _Entropic:
        """Find the optimal s = sum x.

        With u classes at their cap s / k the rest is (k - u) / k times softmax of the rest, and the maximum
        over s is log(1 + e^G_u); the u that counts is the least whose rest keeps below the cap.
        """
        count = min(self.k, a.shape[1])
        # A softmax needs the highest class alone, for which nothing needs to be partitioned.
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
        # The last u has one class of share 1 / k for itself, so there always is one.
        keeps = free * np.exp(ranked - tails) <= (1.0 + 1e-13) / self.k
        capped = np.argmax(keeps, axis=1)
        return _Entropic(levels[np.arange(len(a)), capped], capped, tails, top)


def _differences(scores: Array, y: Labels) -> Array:
    """s_j - s_y of the others, (r, m - 1)."""
    own = np.take_along_axis(scores, y[:, None].astype(np.int64), axis=1)
    return others_of(scores - own, y)
