"""Losses over ranks, their dual domains and envelopes in float64, independent of the solvers.

The certificate must not repeat a mistake of the solvers, so nothing here comes from them, directly or not:
losses are full sorts, domains are closed forms, and the envelope is one bracketed root per row over SciPy's
isotonic regression.  With a = delta_y + s - s_y 1 sorted decreasingly, own class included or left out,

    top-k side      Phi = max(0, sum_j rho_j a_[j])       Usunier side    Phi = sum_j rho_j max(0, a_[j])

and a dual row is alpha_j = -x_j (j != y), alpha_y = sum_j x_j.  The envelope takes gamma/2 |x|^2 +
gamma_own/2 (sum_j x_j)^2 off the dual.  Sources: Tajima et al., arXiv:2008.08894, eq. 2.5-2.8 and 2.13-2.14;
Hirohashi and Kato 2020, lemma 1; Lapin's thesis, eq. 5.3 and prop. 6.2; the domains without the own class are
derived by dropping beta_y from { t beta : beta in the permutahedron of rho, 0 <= t <= 1 }.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression

Array = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]

HINGE_PER_RANK = {
    "max_hinge": False,
    "structured_hinge": False,
    "topk_hinge": False,
    "topk_others_hinge": False,
    "weighted_topk_hinge": False,
    "usunier_hinge": True,
    "weighted_usunier_hinge": True,
}


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
    own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
    return np.asarray(0.5 * (gamma * squares + (gamma_own - gamma) * own**2))


def envelope(loss: CertifiedLoss, scores: Array, y: Labels, gamma: float, gamma_own: float) -> Array:
    """Return Phi_gamma(s; y) of each row, by Fenchel-Young equality at its gradient; Phi for gamma = 0."""
    if gamma == 0.0:
        return loss.values(scores, y)
    u = loss.gradient(scores, y, gamma, gamma_own)
    linear = np.einsum("ij,ij->i", u, scores)
    return np.asarray(loss.conjugate(u, y) - linear - penalties(u, y, gamma, gamma_own))


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
        rho = np.zeros(m)
        if "rho" in loss:
            given = np.asarray(loss["rho"], dtype=np.float64)
            rho[: len(given)] = given
        elif "k" in loss:
            rho[: int(loss["k"])] = 1.0 / int(loss["k"])
        else:
            rho[0] = 1.0
        margins = np.asarray(loss["margins"], dtype=np.float64) if "margins" in loss else None
        return cls(rho, margins, HINGE_PER_RANK[name], name != "topk_others_hinge")

    @property
    def radius(self) -> float:
        """The sum of the rank weights, which is the largest alpha_y."""
        return float(self.rho.sum())

    def shifted(self, scores: Array, y: Labels) -> Array:
        """Return a = delta_y + s - s_y 1 for each row of `scores` (r, m)."""
        own = np.take_along_axis(scores, y[:, None].astype(np.int64), axis=1)
        a = scores - own
        if self.margins is not None:
            return np.asarray(self.margins[y] + a)
        a += 1.0
        np.put_along_axis(a, y[:, None].astype(np.int64), 0.0, axis=1)
        return a

    def values(self, scores: Array, y: Labels) -> Array:
        """Return Phi(s; y) of each row of `scores` (r, m)."""
        ranked = -np.sort(-self._sorted_part(self.shifted(scores, y), y), axis=1)
        rho = self.rho[: ranked.shape[1]]
        if self.hinge_per_rank:
            return np.asarray(np.maximum(ranked, 0.0) @ rho, dtype=np.float64)
        return np.asarray(np.maximum(ranked @ rho, 0.0))

    def conjugate(self, alpha: Array, y: Labels) -> Array:
        """Return -Phi*(-alpha) = -<delta_y, alpha> of each row of `alpha` (r, m), inside the domain."""
        if self.margins is None:
            own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
            return np.asarray(own - alpha.sum(axis=1))
        return np.asarray(-np.einsum("ij,ij->i", self.margins[y], alpha))

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Return by how much each row of `alpha` (r, m) leaves the domain, relative to sum rho; 0 if not."""
        others = others_of(-alpha, y)
        own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
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

    def _sorted_part(self, a: Array, y: Labels) -> Array:
        return a if self.own_in_sort else others_of(a, y)

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
                above = _falling(ranked - t * self.rho[:-1])
                v = np.maximum(above, np.minimum(0.0, _falling(ranked - t * self.rho[1:])))
                return float(self.rho @ -np.sort(-np.append(v, 0.0))), ranked - v
            place = int(np.searchsorted(-ranked, -t * total))
            full = np.insert(ranked, place, t * total)
            v = _falling(full - t * self.rho)
            return float(self.rho @ v - total * v[place]), np.delete(full - v, place)

        x = np.zeros_like(p)
        x[order] = project(_scale(lambda t: project(t)[0]))[1]
        return np.maximum(x, 0.0)

    def _others_column(self, p: Array, share: float) -> Array:
        """Do the same over the domain whose sort excludes the own class: H(t) = <rho, v> - share R^2 t."""
        order = np.argsort(-p, kind="stable")
        ranked, rho, total = p[order], self.rho[:-1], self.radius
        t = _scale(lambda t: float(rho @ _falling(ranked - t * rho) - share * total**2 * t))
        x = np.zeros_like(p)
        x[order] = ranked - _falling(ranked - t * rho)
        return np.maximum(x, 0.0)

    def _usunier_column(self, p: Array, share: float) -> Array:
        """Minimise |x - p|^2 + share (sum x)^2 over the Usunier side's domain; p (m-1,).

        The upper bounds are p's projection on the permutahedron of the others; the squared sum then only
        shifts: x = clip(p - tau, 0, bounds) with tau = share sum x.
        """
        order = np.argsort(-p, kind="stable")
        bounds = np.empty_like(p)
        ranked = p[order]
        bounds[order] = ranked - _falling(ranked - self.rho[:-1])

        def clipped(tau: float) -> Array:
            return np.minimum(np.maximum(p - tau, 0.0), bounds)

        highest = share * float(clipped(0.0).sum())
        if highest <= 0.0:
            return np.maximum(clipped(0.0), 0.0)
        root = brentq(lambda tau: share * clipped(tau).sum() - tau, 0.0, highest, xtol=1e-15)
        return clipped(float(root))


def _falling(z: Array) -> Array:
    """Return the non-increasing regression of z."""
    return np.asarray(isotonic_regression(z, increasing=False).x)


def _scale(slope: Callable[[float], float]) -> float:
    """Return t in [0, 1] at which a falling slope changes sign, or the end nearest to it."""
    if slope(0.0) <= 0.0:
        return 0.0
    return 1.0 if slope(1.0) >= 0.0 else float(brentq(slope, 0.0, 1.0, xtol=1e-15))


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
