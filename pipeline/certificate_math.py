"""Losses, dual domains and Moreau envelopes in float64, written apart from the solvers' own.

The certificate must not repeat the solver's mistakes, so nothing here comes from `solvers`: losses are full
sorts, domains are closed forms, and the envelope is one bracketed root per row over SciPy's isotonic
regression.  With a = delta_y + s - s_y 1 sorted decreasingly, own class included,

    top-k side      Phi = max(0, sum_j rho_j a_[j])       Usunier side    Phi = sum_j rho_j max(0, a_[j])

and a dual row is alpha_j = -x_j (j != y), alpha_y = sum_j x_j.  Sources: Tajima et al., arXiv:2008.08894,
eq. 2.5-2.8 and 2.13-2.14; Hirohashi and Kato 2020, lemma 1; the domains without the own class are derived by
dropping beta_y from { t beta : beta in the permutahedron of rho, 0 <= t <= 1 }.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, isotonic_regression

from pipeline.errors import InputError

Array = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]

HINGE_PER_RANK = {
    "max_hinge": False,
    "structured_hinge": False,
    "topk_hinge": False,
    "weighted_topk_hinge": False,
    "usunier_hinge": True,
    "weighted_usunier_hinge": True,
}


@dataclass(frozen=True)
class RankedLoss:
    """A loss for m classes: rank weights `rho` (m,), `margins` (m, m), and where its hinge sits."""

    rho: Array
    margins: Array
    hinge_per_rank: bool

    @classmethod
    def from_record(cls, loss: Mapping[str, Any], m: int) -> RankedLoss:
        """Read a model record's loss; `InputError` for a loss that is not known here."""
        name = str(loss.get("name"))
        if name not in HINGE_PER_RANK:
            raise InputError(
                f"the certificate of loss {name!r} is not known; known: {sorted(HINGE_PER_RANK)}"
            )
        rho = np.zeros(m)
        if "rho" in loss:
            given = np.asarray(loss["rho"], dtype=np.float64)
            rho[: len(given)] = given
        elif "k" in loss:
            rho[: int(loss["k"])] = 1.0 / int(loss["k"])
        else:
            rho[0] = 1.0
        margins = 1.0 - np.eye(m)
        if "margins" in loss:
            margins = np.asarray(loss["margins"], dtype=np.float64)
        return cls(rho, margins, HINGE_PER_RANK[name])

    def shifted(self, scores: Array, y: Labels) -> Array:
        """Give a = delta_y + s - s_y 1 for each row of `scores` (r, m)."""
        own = np.take_along_axis(scores, y[:, None].astype(np.int64), axis=1)
        return self.margins[y] + scores - own

    def values(self, scores: Array, y: Labels) -> Array:
        """Phi(s; y) of each row of `scores` (r, m)."""
        ranked = -np.sort(-self.shifted(scores, y), axis=1)
        if self.hinge_per_rank:
            return np.asarray(np.maximum(ranked, 0.0) @ self.rho, dtype=np.float64)
        return np.asarray(np.maximum(ranked @ self.rho, 0.0))

    def linear(self, alpha: Array, y: Labels) -> Array:
        """-Phi*(-alpha) = -<delta_y, alpha> of each row of `alpha` (r, m), inside the domain."""
        return np.asarray(-np.einsum("ij,ij->i", self.margins[y], alpha), dtype=np.float64)

    def violations(self, alpha: Array, y: Labels) -> Array:
        """Amount by which each row of `alpha` (r, m) leaves the domain, as a share of sum rho; 0 for none."""
        others = _others(-alpha, y)
        own = np.take_along_axis(alpha, y[:, None].astype(np.int64), axis=1)[:, 0]
        total = float(self.rho.sum())
        amounts = [np.abs(own - others.sum(axis=1)) / total, -others.min(axis=1) / total]
        largest = np.cumsum(-np.sort(-others, axis=1), axis=1)
        weights = np.cumsum(self.rho)[:-1]
        if self.hinge_per_rank:
            amounts.append((largest - weights).max(axis=1) / total)
        else:
            # The least t for which the j largest sum to at most t (rho_1 + ... + rho_j); a larger t only
            # tightens the lower bounds: the j smallest sum to at least t (rho_m + ... + rho_{m-j+1}).
            t = np.maximum((largest / weights).max(axis=1), 0.0)
            smallest = np.cumsum(np.sort(others, axis=1), axis=1)
            tails = np.cumsum(self.rho[::-1])[:-1]
            amounts += [t - 1.0, (t[:, None] * tails - smallest).max(axis=1) / total]
        return np.asarray(np.maximum(np.max(amounts, axis=0), 0.0))

    def envelope(self, scores: Array, y: Labels, gamma: float) -> Array:
        """Moreau envelope of each row: max over the domain of <b, x> - gamma/2 (|x|^2 + (sum x)^2).

        b_j = delta_j + s_j - s_y, j != y.  A row without loss has the value 0 and costs nothing.
        """
        b = _others(self.shifted(scores, y), y)
        column = self._usunier_column if self.hinge_per_rank else self._topk_column
        values = np.zeros(len(scores))
        for row in np.flatnonzero(self.values(scores, y) > 0.0):
            x = column(b[row] / gamma)
            values[row] = b[row] @ x - 0.5 * gamma * (x @ x + x.sum() ** 2)
        return values

    def _topk_column(self, p: Array) -> Array:
        """Minimise |x - p|^2 + (sum x)^2 over the top-k side's domain; p (m-1,).

        For fixed t, the own class takes the value p_y = t R and beta is the projection of p on t times the
        permutahedron: one isotonic regression v.  The optimal t is the root of H(t) = <rho, v> - R v_y.
        """
        order = np.argsort(-p, kind="stable")
        ranked, total = p[order], float(self.rho.sum())

        def project(t: float) -> tuple[float, Array]:
            place = int(np.searchsorted(-ranked, -t * total))
            full = np.insert(ranked, place, t * total)
            v = isotonic_regression(full - t * self.rho, increasing=False).x
            return float(self.rho @ v - total * v[place]), np.delete(full - v, place)

        if project(0.0)[0] <= 0.0:
            return np.zeros_like(p)
        t = 1.0 if project(1.0)[0] >= 0.0 else float(brentq(lambda s: project(s)[0], 0.0, 1.0, xtol=1e-15))
        x = np.empty_like(p)
        x[order] = project(t)[1]
        return np.maximum(x, 0.0)

    def _usunier_column(self, p: Array) -> Array:
        """Minimise |x - p|^2 + (sum x)^2 over the Usunier side's domain; p (m-1,).

        The upper bounds are p's projection on the permutahedron of the others; the squared sum then only
        shifts: x = clip(p - tau, 0, bounds) with tau = sum x.
        """
        order = np.argsort(-p, kind="stable")
        bounds = np.empty_like(p)
        ranked = p[order]
        bounds[order] = ranked - isotonic_regression(ranked - self.rho[:-1], increasing=False).x

        def clipped(tau: float) -> Array:
            return np.minimum(np.maximum(p - tau, 0.0), bounds)

        highest = float(clipped(0.0).sum())
        if highest <= 0.0:
            return np.zeros_like(p)
        return clipped(float(brentq(lambda tau: clipped(tau).sum() - tau, 0.0, highest, xtol=1e-15)))


def _others(rows: Array, y: Labels) -> Array:
    """`rows` (r, m) without the entry of the own class, (r, m - 1)."""
    keep = np.ones(rows.shape, dtype=bool)
    keep[np.arange(len(rows)), y] = False
    return rows[keep].reshape(len(rows), rows.shape[1] - 1)
