"""The certificate of the average top-k risk, from W and the points at which training found its vertices.

Nothing here comes from the solvers: losses are sorted here, and every number is float64.
Let Phi_i(V) be the losses at a point V, p_i = 1/k for the k largest (the last perhaps a fraction of it) and 0
for others, and u_i = -grad Phi_i(V).  Then the rows p_i u_i and p are dual feasible for any V, and since the
dual is concave, any points V_t with weights w_t >= 0 that sum to at most 1 bound the risk's optimum:

    D = sum_t w_t sum_i p_ti (-Phi*(-u_ti)) - lam/2 |W_D|^2,   W_D = (1/lam) sum_t w_t sum_i p_ti x_i u_ti^T

for the dual is concave.  Source: Fan et al., NIPS 2017, lemma 1; the dual is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.certification.formulas import RankedLoss, envelope, penalties
from topline.pipeline.certification.sums import CertificateSums

Array: TypeAlias = NDArray[np.float64]
#: A pass over the training rows: features (r, d), labels (r,) and an unused value.
Pass: TypeAlias = Callable[[], Iterator[tuple[Any, NDArray[Any], Any]]]

# Arrays of a stored model: the points (T, d, m) of training's vertices, and their shares (T,).
CUT_POINTS, CUT_SHARES = "cut_points", "cut_shares"
# Basis of a certificate with stored cuts.
CUTS = "W and its cuts"
# Without cuts: the W of the dual point (d, m), if it is not the model's.
DUAL_W = "dual_W"
# Bytes of losses of several points in memory at once.
_LOSS_BYTES = 1 << 26


def top_weights(losses: Array, k: float) -> Array:
    """Return p (n,): 1/k for the k largest losses (first among equals), the fraction left for the next."""
    p = np.zeros(len(losses))
    count = min(math.ceil(k), len(losses))
    order = np.argsort(-losses, kind="stable")[:count]
    p[order] = np.clip(k - np.arange(count), 0.0, 1.0) / k
    return p


def add_top(
    sums: CertificateSums, k: float, n: int, tiles: Pass, W: Array, points: Array, shares: Array
) -> None:
    """Add the risk of k losses at W (d, m), and the dual point of `points` (T, d, m) and `shares` (T,)."""
    at_W = _largest_losses(sums, k, n, tiles, W[None])[0]
    sums.rows, sums.loss_sum = n, n * float(top_weights(at_W, k) @ at_W)
    together = _points_at_once(n)
    for first in range(0, len(points), together):
        group = slice(first, first + together)
        losses = _largest_losses(sums, k, n, tiles, points[group])
        # Sums of n p_i, as those of other risks.
        weights = [n * share * top_weights(row, k) for share, row in zip(shares[group], losses, strict=True)]
        _add_vertices(sums, tiles, points[group], weights)


def passes(points: int, n: int, *, smoothed: bool) -> int:
    """Return the number of passes of `add_top`."""
    groups = -(-points // _points_at_once(n))
    of_losses = 2 if smoothed else 1
    return of_losses + groups * (of_losses + 1)


def _points_at_once(n: int) -> int:
    return max(1, _LOSS_BYTES // (8 * n))


def _largest_losses(sums: CertificateSums, k: float, n: int, tiles: Pass, points: Array) -> Array:
    """Return each row's loss at each point, (T, n); -1 for rows that are not among the k largest.

    An envelope lies below its loss by at most gamma radius^2: only rows that may be among the largest are
    evaluated.
    """
    everyone = np.ones((len(points), n), dtype=bool)
    losses = _losses(sums.loss.values, tiles, points, everyone)
    if sums.gamma == 0.0:
        return losses
    slack = sums.gamma * sums.loss.radius**2 if isinstance(sums.loss, RankedLoss) else np.inf
    least = -np.partition(-losses, math.ceil(k) - 1, axis=1)[:, math.ceil(k) - 1]

    def smoothed(scores: Array, y: NDArray[Any]) -> Array:
        return envelope(sums.loss, scores, y, sums.gamma, sums.gamma_own)

    return _losses(smoothed, tiles, points, losses >= least[:, None] - slack)


def _losses(
    values: Callable[[Array, NDArray[Any]], Array], tiles: Pass, points: Array, wanted: NDArray[np.bool_]
) -> Array:
    """Return the values of the wanted rows at each point, (T, n), and -1 for others."""
    losses, start = np.full(wanted.shape, -1.0), 0
    for X, y, _ in tiles():
        for t, point in enumerate(points):
            chosen = np.flatnonzero(wanted[t, start : start + len(y)])
            if len(chosen):
                rows = X if len(chosen) == len(y) else X[chosen]
                losses[t, start + chosen] = values(np.asarray(rows @ point), y[chosen])
        start += len(y)
    return losses


def _add_vertices(sums: CertificateSums, tiles: Pass, points: Array, weights: list[Array]) -> None:
    """Add the vertices at each point of the rows with a weight there."""
    start = 0
    for X, y, _ in tiles():
        for point, of_point in zip(points, weights, strict=True):
            here = of_point[start : start + len(y)]
            chosen = np.flatnonzero(here)
            if not len(chosen):
                continue
            rows, labels, p = X[chosen], y[chosen], here[chosen]
            U = sums.loss.gradient(np.asarray(rows @ point), labels, sums.gamma, sums.gamma_own)
            sums.product += np.asarray(rows.T @ (U * p[:, None]))
            sums.conjugate += float(p @ sums.loss.conjugate(U, labels))
            sums.penalty += float(p @ penalties(U, labels, sums.gamma, sums.gamma_own))
        start += len(y)
