"""Losses, their dual domains and envelopes in float64, independent of the solvers.

The certificate must not repeat a mistake of the solvers, so nothing here comes from them, directly or not:
losses are full sorts, domains are closed forms, and the envelope is one bracketed root per row over SciPy's
isotonic regression.  With a = delta_y + s - s_y 1 sorted decreasingly, own class included or left out,

    top-k side      Phi = max(0, sum_j rho_j a_[j])       Usunier side    Phi = sum_j rho_j max(0, a_[j])

and a dual row is alpha_j = -x_j (j != y), alpha_y = sum_j x_j.  The envelope takes gamma/2 |x|^2 +
gamma_own/2 (sum_j x_j)^2 off the dual.  Sources: Tajima et al., arXiv:2008.08894, eq. 2.5-2.8 and 2.13-2.14;
Hirohashi and Kato 2020, lemma 1; Lapin's thesis, eq. 5.3 and prop. 6.2; the domains without the own class are
derived by dropping beta_y from { t beta : beta in the permutahedron of rho, 0 <= t <= 1 }.

The losses that are no rank losses, and those of label sets:

    one-vs-all       Phi = sum_j phi(z_j s_j), z_j = 1 for own classes, of which a row may have several, and
                     -1 elsewhere; a dual row is alpha_j = z_j a_j, 0 <= a_j <= 1
    top-k entropy    Phi = max of <a, x> - sum x log x - p log p, p = 1 - sum x, over x in the top-k simplex
                     {x >= 0, sum x <= 1, x_j <= sum x / k}; softmax is k = 1
    ldr_kl           Phi = T log sum_j exp(a_j / T), a_y = 0; -Phi*(-alpha) = sum x + T (entropy of x and p)
    sum exponential  Phi = sum_{j != y} exp(s_j - s_y); x >= 0, and -Phi*(-alpha) = sum x - x log x
    polyhedral       Phi = max over r of (mean of the r highest s) + 1 - min(k, r) / r, minus s_y; with p in
                     the simplex, alpha = e_y - p, -Phi*(-alpha) = 1 - (the sum of the k largest p)

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression
from scipy.sparse import csr_matrix
from scipy.special import entr, expit, logsumexp, softmax

from topline.pipeline.errors import InputError
from topline.storage.datasets import LabelSetTable

Array = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]

_TOP_K_SIDE = ("max_hinge", "structured_hinge", "topk_hinge", "topk_others_hinge", "weighted_topk_hinge")
HINGE_PER_RANK = {**dict.fromkeys(_TOP_K_SIDE, False), "usunier_hinge": True, "weighted_usunier_hinge": True}


class CertifiedLoss(Protocol):
    """A loss as certificates use it; rows are scores (r, m) or dual rows (r, m) of the labels y (r,)."""

    @property
    def radius(self) -> float:
        """Size of a dual row, the unit of violations."""
        ...

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row."""
        ...

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
        """Return u = -grad Phi_gamma(s; y) of each row, a dual row in the domain."""
        ...

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return -Phi*(-alpha) of each dual row, inside the domain."""
        ...

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each dual row leaves the domain, relative to `radius`; 0 if it does not."""
        ...


def penalties(alpha: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
    """Return the smoothing's penalty of each dual row: gamma/2 |x|^2 + gamma_own/2 alpha_y^2."""
    squares = np.einsum("ij,ij->i", alpha, alpha)
    if gamma_own == gamma:
        return np.asarray(0.5 * gamma * squares)
    own = _own_entries(alpha, y)[:, 0]
    return np.asarray(0.5 * (gamma * squares + (gamma_own - gamma) * own**2))


def envelope(loss: CertifiedLoss, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
    """Return Phi_gamma(s; y) of each row, by Fenchel-Young equality at its gradient; Phi for gamma = 0."""
    if gamma == 0.0:
        return loss.values(scores, y)
    return value_and_gradient(loss, scores, y, gamma, gamma_own)[0]


def value_and_gradient(
    loss: CertifiedLoss, scores: Array, y: Labels, gamma: float, gamma_own: float
) -> tuple[Array, Array]:
    """Return Phi_gamma(s; y) and u = -grad Phi_gamma(s; y) of each row, which cost little more than u."""
    if isinstance(loss, _TopKEntropy):
        return loss.value_and_gradient(scores, y)
    u = loss.gradient(scores, y, gamma, gamma_own)
    if gamma == 0.0:
        return loss.values(scores, y), u
    linear = np.einsum("ij,ij->i", u, scores)
    return np.asarray(loss.conjugate(u, y) - linear - penalties(u, y, gamma, gamma_own)), u


def curvature(loss: CertifiedLoss) -> float | None:
    """Return an L with Phi(s + e) <= Phi(s) + <grad Phi(s), e> + L/2 max_j e_j^2; None for other losses.

    The entropy of a distribution at a temperature T is T-strongly concave in |.|_1 (Pinsker's inequality).
    """
    return 1.0 / loss.T if isinstance(loss, _TopKEntropy) else None


@dataclass(frozen=True)
class RankedLoss:
    """A hinge for m classes: rank weights `rho` (m,), `margins` (m, m) or None for 1, and its side."""

    rho: Array
    margins: Array | None
    hinge_per_rank: bool
    own_in_sort: bool = True

    @classmethod
    def from_record(cls, loss: Mapping[str, Any], m: int) -> RankedLoss:
        """Read a model record's loss, whose name is in HINGE_PER_RANK."""
        name = str(loss["name"])
        k = int(loss.get("k", 1))
        given = np.asarray(loss["rho"] if "rho" in loss else np.full(k, 1.0 / k), dtype=np.float64)
        rho = np.zeros(m)
        rho[: len(given)] = given
        margins = np.asarray(loss["margins"], dtype=np.float64) if "margins" in loss else None
        return cls(rho, margins, HINGE_PER_RANK[name], name != "topk_others_hinge")

    @property
    def radius(self) -> float:
        """The sum of the rank weights, which is the largest alpha_y."""
        return float(self.rho.sum())

    def shifted(self, scores: Array, y: Labels) -> Array:
        """Return a = delta_y + s - s_y 1 for each row of `scores` (r, m)."""
        a = scores - _own_entries(scores, y)
        if self.margins is not None:
            return np.asarray(self.margins[y] + a)
        a += 1.0
        np.put_along_axis(a, y[:, None].astype(np.int64), 0.0, axis=1)
        return a

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row of `scores` (r, m)."""
        a = self.shifted(scores, y)
        ranked = -np.sort(-(a if self.own_in_sort else others_of(a, y)), axis=1)
        rho = self.rho[: ranked.shape[1]]
        if self.hinge_per_rank:
            return np.asarray(np.maximum(ranked, 0.0) @ rho, dtype=np.float64)
        return np.asarray(np.maximum(ranked @ rho, 0.0))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return -Phi*(-alpha) = -<delta_y, alpha> of each row of `alpha` (r, m), inside the domain."""
        if self.margins is None:
            own = _own_entries(alpha, y)[:, 0]
            return np.asarray(own - alpha.sum(axis=1))
        return np.asarray(-np.einsum("ij,ij->i", self.margins[y], alpha))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row of `alpha` (r, m) leaves the domain, relative to sum rho; 0 if not."""
        others = others_of(-alpha, y)
        own = _own_entries(alpha, y)[:, 0]
        total = self.radius
        amounts = [np.abs(own - others.sum(axis=1)) / total, -others.min(axis=1) / total]
        largest = np.cumsum(-np.sort(-others, axis=1), axis=1)
        weights = np.cumsum(self.rho)[:-1]
        if self.hinge_per_rank:
            amounts.append((largest - weights).max(axis=1) / total)
        elif not self.own_in_sort:
            t = largest[:, -1] / total
            amounts += [t - 1.0, (largest - t[:, None] * weights).max(axis=1) / total]
        else:
            # The least t for which the j largest sum to at most t (rho_1 + ... + rho_j); a larger t only
            # tightens the lower bounds: the j smallest sum to at least t (rho_m + ... + rho_{m-j+1}).
            t = np.maximum((largest / weights).max(axis=1), 0.0)
            smallest = np.cumsum(np.sort(others, axis=1), axis=1)
            tails = np.cumsum(self.rho[::-1])[:-1]
            amounts += [t - 1.0, (t[:, None] * tails - smallest).max(axis=1) / total]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
        """Return the dual rows of the x maximising <b, x> - gamma/2 |x|^2 - gamma_own/2 (sum x)^2.

        b_j = delta_j + s_j - s_y, j != y.  A row without loss has x = 0, without further cost; gamma_own is
        gamma or 0.  For gamma = 0 it is a vertex of the domain.
        """
        if gamma == 0.0:
            return self._vertices(scores, y)
        b = others_of(self.shifted(scores, y), y)
        column = self._usunier_column if self.hinge_per_rank else self._topk_column
        if not self.own_in_sort:
            column = self._others_column
        x = np.zeros_like(b)
        for row in np.flatnonzero(self.values(scores, y) > 0.0):
            x[row] = column(b[row] / gamma, gamma_own / gamma)
        return dual_rows(x, y)

    def _vertices(self, scores: Array, y: Labels) -> Array:
        a = self.shifted(scores, y)
        if not self.own_in_sort:
            a[np.arange(len(y)), y] = -np.inf
        order = np.argsort(-a, axis=1)
        ranked = np.take_along_axis(a, order, axis=1)
        kept = ranked > 0.0 if self.hinge_per_rank else (self.values(scores, y) > 0.0)[:, None]
        beta = np.empty_like(a)
        np.put_along_axis(beta, order, self.rho * kept, axis=1)
        return dual_rows(others_of(beta, y), y)

    def _topk_column(self, p: Array, share: float) -> Array:
        """Minimise |x - p|^2 + share (sum x)^2 over the top-k side's domain, own class sorted; p (m-1,).

        For fixed t and share = 1 the own class has the value p_y = t R, and beta is the projection of p on t
        times the permutahedron: one isotonic regression v.  For share = 0 the own class costs nothing: v lies
        between the regressions with the first and the last m - 1 rank weights, as close to 0 as possible, and
        v_y = 0.  The optimal t is the root of H(t) = <rho, v> - R v_y.
        """
        order = np.argsort(-p, kind="stable")
        ranked, total = p[order], self.radius

        def project(t: float) -> tuple[float, Array]:
            if share == 0.0:
                above = _non_increasing(ranked - t * self.rho[:-1])
                v = np.maximum(above, np.minimum(0.0, _non_increasing(ranked - t * self.rho[1:])))
                return float(self.rho @ -np.sort(-np.append(v, 0.0))), ranked - v
            place = int(np.searchsorted(-ranked, -t * total))
            full = np.insert(ranked, place, t * total)
            v = _non_increasing(full - t * self.rho)
            return float(self.rho @ v - total * v[place]), np.delete(full - v, place)

        x = np.zeros_like(p)
        x[order] = project(_root_of_falling(lambda t: project(t)[0]))[1]
        return np.maximum(x, 0.0)

    def _others_column(self, p: Array, share: float) -> Array:
        """Do the same over the domain whose sort excludes the own class: H(t) = <rho, v> - share R^2 t."""
        order = np.argsort(-p, kind="stable")
        ranked, rho, total = p[order], self.rho[:-1], self.radius
        t = _root_of_falling(lambda t: float(rho @ _non_increasing(ranked - t * rho) - share * total**2 * t))
        x = np.zeros_like(p)
        x[order] = ranked - _non_increasing(ranked - t * rho)
        return np.maximum(x, 0.0)

    def _usunier_column(self, p: Array, share: float) -> Array:
        """Minimise |x - p|^2 + share (sum x)^2 over the Usunier side's domain; p (m-1,).

        The upper bounds are p's projection on the permutahedron of the others; the squared sum then only
        shifts: x = clip(p - tau, 0, bounds) with tau = share sum x.
        """
        order = np.argsort(-p, kind="stable")
        bounds = np.empty_like(p)
        ranked = p[order]
        bounds[order] = ranked - _non_increasing(ranked - self.rho[:-1])

        def clipped(tau: float) -> Array:
            return np.minimum(np.maximum(p - tau, 0.0), bounds)

        highest = share * float(clipped(0.0).sum())
        if highest <= 0.0:
            return np.maximum(clipped(0.0), 0.0)
        root = brentq(lambda tau: share * clipped(tau).sum() - tau, 0.0, highest, xtol=1e-15)
        return clipped(float(root))


def _non_increasing(z: Array) -> Array:
    """Return the non-increasing regression of z."""
    return np.asarray(isotonic_regression(z, increasing=False).x)


def _root_of_falling(slope: Callable[[float], float]) -> float:
    """Return t in [0, 1] at which a falling slope changes sign, or the end nearest to it."""
    if slope(0.0) <= 0.0:
        return 0.0
    return 1.0 if slope(1.0) >= 0.0 else float(brentq(slope, 0.0, 1.0, xtol=1e-15))


def _own_entries(rows: Array, y: Labels) -> Array:
    """Return the entries (r, 1) of `rows` (r, m) at their own classes."""
    return np.take_along_axis(rows, y[:, None].astype(np.int64), axis=1)


def others_of(rows: Array, y: Labels) -> Array:
    """Return `rows` (r, m) without the entry of the own class, (r, m - 1)."""
    keep = np.ones(rows.shape, dtype=bool)
    keep[np.arange(len(rows)), y] = False
    return rows[keep].reshape(len(rows), rows.shape[1] - 1)


def dual_rows(x: Array, y: Labels) -> Array:
    """Return dual rows (r, m) of x (r, m - 1): alpha_j = -x_j, alpha_y = sum x."""
    alpha = np.empty((len(x), x.shape[1] + 1))
    others = np.ones(alpha.shape, dtype=bool)
    others[np.arange(len(x)), y] = False
    alpha[others] = -x.ravel()
    alpha[~others] = x.sum(axis=1)
    return alpha


# 0 log 0 is 0, as by any finite logarithm.
_LEAST = float(np.finfo(np.float64).tiny)
# Halvings of [0, 1]: enough for float64, with a margin.
BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class _OwnClasses:
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
class _MultilabelHinge:
    """The multilabel SVM's loss."""

    own: _OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
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
class _MultilabelSoftmax:
    """The cross entropy with equal shares of a row's labels; 0 for rows without labels."""

    own: _OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
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
    """Return a record's loss, for labels numbering `label_sets`; raise `InputError` if it has no dual."""
    own = _OwnClasses(m, label_sets)
    name, k = str(record.get("name")), int(record.get("k", 1))
    if name in HINGE_PER_RANK:
        return RankedLoss.from_record(record, m)
    if name == "truncated_topk_entropy" and k > 1:
        raise InputError(
            f"the loss {name} with k = {k} is not convex: it has no dual problem, so "
            "its models have no certificate"
        )
    known: dict[str, CertifiedLoss] = {
        "one_vs_all_hinge": _OneVsAllHinge(own),
        "one_vs_all_logistic": _OneVsAllLogistic(own),
        "multilabel_hinge": _MultilabelHinge(own),
        "multilabel_softmax": _MultilabelSoftmax(own),
        "softmax": _TopKEntropy(1),
        "ldr_kl": _TopKEntropy(1, float(record.get("temperature", 1.0)), 1.0),
        "sum_exponential": _SumExponential(),
        "polyhedral_topk": _PolyhedralTopK(k),
        "topk_entropy": _TopKEntropy(k),
        "truncated_topk_entropy": _TopKEntropy(1),
    }
    if name not in known:
        names = sorted([*HINGE_PER_RANK, *known])
        raise InputError(f"the certificate of loss {name!r} is not known; known: {names}")
    return known[name]


@dataclass(frozen=True, eq=False)
class _OneVsAllHinge:
    """phi(z) = max(0, 1 - z)."""

    own: _OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
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
class _OneVsAllLogistic:
    """phi(z) = log(1 + exp(-z))."""

    own: _OwnClasses
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
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
        return _OneVsAllHinge(self.own).violations(alpha, y)


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
class _TopKEntropy:
    """The top-k entropy loss at a temperature T, with a margin; softmax for k = 1."""

    k: int
    T: float = 1.0
    margin: float = 0.0
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        return np.asarray(self.T * np.logaddexp(0.0, self._solve(self._violations(scores, y)).level))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual row of the maximising x; the loss is smooth, so gamma is 0."""
        return self.value_and_gradient(scores, y)[1]

    def value_and_gradient(self, scores: Array, y: Labels) -> tuple[Array, Array]:
        """Return Phi and the dual row of the maximising x, found once for both."""
        a = self._violations(scores, y)
        found = self._solve(a)
        at_cap = found.capped[:, None]
        # Classes above the tail are at their cap.
        below = np.minimum(a - np.take_along_axis(found.tails, at_cap, axis=1), 0.0)
        shares = (self.k - at_cap) / self.k * np.exp(below)
        capped = np.arange(found.top.shape[1]) < at_cap
        highest = np.where(capped, 1.0 / self.k, np.take_along_axis(shares, found.top, axis=1))
        np.put_along_axis(shares, found.top, highest, axis=1)
        values = np.asarray(self.T * np.logaddexp(0.0, found.level))
        return values, dual_rows(expit(found.level)[:, None] * shares, y)

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return -T (sum x log x + p log p) + margin sum x of each row."""
        x = np.maximum(others_of(-alpha, y), 0.0)
        total = x.sum(axis=1)
        entropy = entr(np.maximum(0.0, 1.0 - total)) - np.einsum("ij,ij->i", x, np.log(np.maximum(x, _LEAST)))
        return np.asarray(self.T * entropy + self.margin * total)

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row leaves the top-k simplex."""
        x = others_of(-alpha, y)
        total = x.sum(axis=1)
        own = _own_entries(alpha, y)[:, 0]
        amounts = [np.abs(own - total), -x.min(axis=1), total - 1.0, x.max(axis=1) - total / self.k]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def _violations(self, scores: Array, y: Labels) -> Array:
        """Return (margin + s_j - s_y) / T of the others, (r, m - 1)."""
        return np.asarray((_differences(scores, y) + self.margin) / self.T)

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
        rest = _log_sum_exp(others) if count < a.shape[1] else np.full(len(a), -np.inf)
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


def _log_sum_exp(a: Array) -> Array:
    """Return log sum exp of each row, which has a finite entry; SciPy's takes four times as long."""
    highest = a.max(axis=1, keepdims=True)
    terms = a - highest
    return np.asarray(highest[:, 0] + np.log(np.exp(terms, out=terms).sum(axis=1)))


@dataclass(frozen=True)
class _SumExponential:
    """The sum of exponentials, whose domain has no size."""

    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        return np.asarray(np.exp(_differences(scores, y)).sum(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return the dual row of x = exp(s_j - s_y); the loss is smooth, so gamma is 0."""
        return dual_rows(np.exp(_differences(scores, y)), y)

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return sum x - x log x of each row."""
        x = np.maximum(others_of(-alpha, y), 0.0)
        return np.asarray((x + entr(x)).sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much x leaves the positive orthant, or alpha_y its sum."""
        x, own = others_of(-alpha, y), _own_entries(alpha, y)[:, 0]
        return np.asarray(np.maximum(np.maximum(np.abs(own - x.sum(axis=1)), -x.min(axis=1)), 0.0))


@dataclass(frozen=True)
class _PolyhedralTopK:
    """The polyhedral surrogate of the top-k error."""

    k: int
    radius: ClassVar[float] = 1.0

    def values(self, scores: Array, y: Labels) -> Array:
        own = _own_entries(scores, y)
        ranks = np.arange(1, scores.shape[1] + 1)
        means = np.cumsum(-np.sort(own - scores, axis=1), axis=1) / ranks
        return np.asarray((means + 1.0 - np.minimum(self.k, ranks) / ranks).max(axis=1))

    def gradient(self, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:  # noqa: ARG002
        """Return e_y - p, p the mean of the r best classes, or for gamma > 0 of the envelope.

        There -p maximises <s + gamma e_y, p> - gamma/2 |p|^2 - (the sum of the k largest p): with the classes
        in the order of b = s + gamma e_y, p sorted is the projection on the simplex of b - e, e = (1, .., 1,
        0, ..) with k ones, made non-increasing.
        """
        own = np.arange(scores.shape[1]) == y[:, None]
        b = scores + gamma * own
        order = np.argsort(-b, axis=1, kind="stable")
        ranks = np.arange(1, b.shape[1] + 1)
        ranked = np.take_along_axis(b, order, axis=1)
        if gamma == 0.0:
            gains = np.cumsum(ranked, axis=1) / ranks - np.minimum(self.k, ranks) / ranks
            best = gains.argmax(axis=1)[:, None] + 1
            p = (ranks <= best) / best
        else:
            p = np.array([isotonic_regression(row - (ranks <= self.k), increasing=False).x for row in ranked])
            levels = (np.cumsum(p, axis=1) - gamma) / ranks
            p = np.maximum(p - levels.max(axis=1, keepdims=True), 0.0) / gamma
        rows = np.empty_like(b)
        np.put_along_axis(rows, order, -p, axis=1)
        return np.asarray(rows + own)

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return 1 - (the sum of the k largest p) of each row."""
        p = (np.arange(alpha.shape[1]) == y[:, None]) - alpha
        return np.asarray(np.sort(p, axis=1)[:, : -self.k].sum(axis=1))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row leaves the simplex."""
        return _TopKEntropy(1).violations(alpha, y)


def _differences(scores: Array, y: Labels) -> Array:
    """Return s_j - s_y of the others, (r, m - 1)."""
    return others_of(scores - _own_entries(scores, y), y)
