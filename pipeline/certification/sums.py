"""Sums over the training rows for certificates, independent of the solvers.

*Precision.*  All is in float64, except that large products may be in float32 (`Rounding`).

*Kernels.*  With C = A / (lam n), the scores of a row x are sum_j k(x, x_j) c_j over the rows with c_j != 0,
and |W|^2 is the sum of <c_i, scores of x_i>: the sums of a linear model with the scores as features and
identity weights.  Rows and coefficients are read in parts.

*The average top-k risk*, from W and the points at which training found its vertices.  Let Phi_i(V) be the
losses at a point V, p_i = 1/k for the k largest (the last perhaps a fraction of it) and 0 for others, and
u_i = -grad Phi_i(V).  Then the rows p_i u_i and p are dual feasible for any V, and since the dual is concave,
any points V_t with weights w_t >= 0 that sum to at most 1 bound the risk's optimum:

    D = sum_t w_t sum_i p_ti (-Phi*(-u_ti)) - lam/2 |W_D|^2,   W_D = (1/lam) sum_t w_t sum_i p_ti x_i u_ti^T

Source: Fan et al., NIPS 2017, lemma 1; the dual is derived from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.certification.formulas import (
    CertifiedLoss,
    RankedLoss,
    envelope,
    penalties,
    value_and_gradient,
)
from topline.pipeline.errors import InputError

Array: TypeAlias = NDArray[np.float64]
# Dual rows are convex combinations of vertices, in the precision of their array.
FEASIBLE = {8: 1e-9, 4: 2e-5}
# Bytes of scores per call of a loss.  Its formulas make many arrays of that size, and the system clears large
# ones page by page: that took most of the time at 10,000 classes.
_SCORE_BYTES = 1 << 18


# Unit roundoff of float32, relative rounding of the bounds themselves, and what sizes count at least, so that
# rounding covers what underflow takes.
_UNIT, _SLACK, _TINY = 2.0**-24, 1.02, 1e-20


@dataclass
class Rounding:
    """What bounds the rounding of products in float32, where A is minus the gradients at `W` (d, m).

    For any W and A = (alpha_i), with the scores s_i = W^T x_i,

        P(W) - D(A) = (1/n) sum (w_i (Phi(s_i) + Phi*(-beta_i)) + <alpha_i, s_i>) + lam/2 |W(A) - W|^2.

    Let beta_i = -grad Phi(t_i) at computed scores t_i, off by up to e_i in each class.  Then the terms of
    row i exceed those with t_i in the place of s_i by at most L/2 e_i^2 (`curvature`): t_i is stationary.

    A float32 sum of t products is off by at most gamma_t = t u / (1 - t u) times the sum of their sizes, in
    any order (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).  By Cauchy
    and Schwarz e_i <= gamma_d |x_i| max_j |w_j|.  By Minkowski's inequality column j of W(A) is off by at
    most c_j = gamma_r sum_i |x_i| |alpha_ij| / (lam n) for tiles of r rows, which raises |W(A) - W|^2 by at
    most sum_j c_j (2 |W(A)_j - W_j| + c_j).

    Attributes
    ----------
    cross, squares : sum <alpha_i, t_i> and sum w_i |x_i|^2.
    sizes : (m,) sum |x_i| |alpha_ij|.
    most_rows : of a tile.
    """

    W: NDArray[np.float64]
    curvature: float
    cross: float = 0.0
    squares: float = 0.0
    sizes: Any = 0.0
    most_rows: int = 0

    def part(self) -> Rounding:
        """Return the bound of no rows."""
        return Rounding(self.W, self.curvature)

    def take(self, part: Rounding) -> None:
        """Add the rows of a part."""
        self.cross, self.squares = self.cross + part.cross, self.squares + part.squares
        self.sizes, self.most_rows = self.sizes + part.sizes, max(self.most_rows, part.most_rows)

    def add(self, norms: Array, alpha: Array, scores: Array) -> None:
        """Add rows of these lengths (r,), dual rows alpha (r, m) and computed scores."""
        self.cross += float(np.vdot(alpha, scores))
        self.sizes = self.sizes + norms @ np.maximum(np.abs(alpha), _TINY)

    def gap(self, excess: float, W_dual: Array, lam: float, n: int) -> tuple[float, float]:
        """Return P - D by that identity, and its bound; `excess` is sum w_i (Phi(s_i) + Phi*(-beta_i)).

        The squares of both sides apart would not cancel their rounding.
        """
        apart = float(np.linalg.norm(W_dual - self.W))
        return (excess + self.cross) / n + 0.5 * lam * apart**2, self.bound(W_dual, lam, n)

    def bound(self, W_dual: Array, lam: float, n: int) -> float:
        """Return by how much the gap may exceed that by the sums, with W(A) as computed."""
        apart = W_dual - self.W
        longest = math.sqrt(float(np.einsum("ij,ij->j", self.W, self.W).max()))
        squares = (_gamma(len(self.W)) * longest + _TINY) ** 2 * self.squares
        off = _gamma(self.most_rows) * self.sizes / (lam * n)
        columns = np.sqrt(np.einsum("ij,ij->j", apart, apart))
        return _SLACK * (0.5 * self.curvature * squares / n + lam * float(off @ (columns + 0.5 * off)))


def _gamma(terms: int) -> float:
    """Return gamma of a float32 sum of products whose factors are rounded too."""
    rounded = (terms + 4) * _UNIT
    return rounded / (1.0 - rounded) if rounded < 1.0 else math.inf


def _lengths_above(X: Any) -> Array:
    """Return bounds of |x_i| of dense float32 rows (r, d): their float32 sums, and what these may lack."""
    return np.asarray(np.sqrt(np.vecdot(X, X).astype(np.float64) * (1.0 + 2.0 * _gamma(X.shape[1])) + _TINY))


# The sums over rows of `CertificateSums`, besides the product.
_TOTALS = ("rows", "loss_sum", "shifted_sum", "conjugate", "penalty", "outside", "mass")


@dataclass
class CertificateSums:
    """Totals of one pass; means are taken at the end.

    `weights` (n,) are the rows' weights, None for 1.  `product` is X^T A, initially 0 if the pass must find a
    dual point, None if b replaces it.  That point is `share` times minus the gradients at the weights `point`
    (d, m), by default W; its b is `share` times theirs, a lower bound.  With `rounding` rows and W come in
    float32.
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
    rounding: Rounding | None = None

    def part(self) -> CertificateSums:
        """Return sums of the same kind that another thread adds other rows to; for `take`."""
        part = replace(
            self,
            product=None if self.product is None else np.zeros_like(self.product),
            rounding=None if self.rounding is None else self.rounding.part(),
        )
        for name in _TOTALS:
            setattr(part, name, type(getattr(self, name))())
        return part

    def take(self, part: CertificateSums) -> None:
        """Add the sums of a part."""
        for name in _TOTALS:
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.infeasibility = max(self.infeasibility, part.infeasibility)
        self.tolerance = max(self.tolerance, part.tolerance)
        if self.product is not None and part.product is not None:
            self.product += part.product
        if self.rounding is not None and part.rounding is not None:
            self.rounding.take(part.rounding)

    # Where float32 overflows no gap is finite, and float64 decides.
    @np.errstate(over="ignore", invalid="ignore")
    def add(self, first: int, X: Any, y: NDArray[Any], A: NDArray[Any] | None, W: NDArray[Any]) -> None:
        """Add rows X (r, d) from row `first` on, with labels y (r,) and any dual variables A (r, m)."""
        scores = np.asarray(X @ W)
        self.rows += len(y)
        weights = np.ones(len(y)) if self.weights is None else self.weights[first : first + len(y)]
        elsewhere = self.product is not None and self.point is not None and A is None
        points = np.asarray(X @ self.point) if elsewhere else scores
        alpha = np.empty_like(scores)
        if self.rounding is not None:
            norms = _lengths_above(X)
            self.rounding.squares += float(weights @ np.square(norms))
            self.rounding.most_rows = max(self.rounding.most_rows, len(y))
        for few in _row_slices(scores):
            wide, labels, gammas = scores[few].astype(np.float64, copy=False), y[few], self._gammas
            rows = None if A is None else A[few]
            if self.product is None or A is not None or elsewhere:
                losses = envelope(self.loss, wide, labels, *gammas)
            else:
                losses, rows = value_and_gradient(self.loss, wide, labels, *gammas)
            self.loss_sum += float(weights[few] @ losses)
            if elsewhere:
                rows = self.loss.gradient(points[few], labels, *gammas)
            if self.product is not None and rows is not None:
                found = alpha[few] = self._add_duals(wide, rows, labels, weights[few], stored=A is not None)
                if self.rounding is not None:
                    self.rounding.add(norms[few], found, wide)
        if self.product is not None:
            self.product += np.asarray(X.T @ alpha)

    @property
    def _gammas(self) -> tuple[float, float]:
        return self.gamma, self.gamma_own

    def _add_duals(
        self,
        scores: NDArray[np.float64],
        rows: NDArray[Any],
        y: NDArray[Any],
        weights: NDArray[np.float64],
        *,
        stored: bool,
    ) -> NDArray[np.float64]:
        """Add dual rows, those of A if they were `stored`, else minus gradients; return them weighted."""
        if not stored:
            beta, counted = rows, self.share * weights
            alpha: NDArray[np.float64] = beta * counted[:, None]
        else:
            counted = weights
            alpha = rows.astype(np.float64)
            beta = alpha / np.where(weights > 0.0, weights, np.inf)[:, None]
            amounts = self.loss.violations(beta, y)
            # An example of weight 0 has alpha_i = 0.
            amounts[weights == 0.0] = np.abs(alpha[weights == 0.0]).sum(axis=1)
            self.tolerance = max(self.tolerance, FEASIBLE[rows.dtype.itemsize])
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
    step = max(1, _SCORE_BYTES // (8 * scores.shape[1])) if scores.size else 1
    for start in range(0, len(scores), step):
        yield slice(start, start + step)


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


# The kernel whose values the rows hold.
PRECOMPUTED = "precomputed"

# Bytes of kernel values in memory at once.
TILE_BYTES = 1 << 25
# Distances from inner products have this error relative to |x|^2 + |y|^2; where it moves an exponent by more
# than FINE, they are computed from differences, unless the value vanishes anyway.
ROUNDING, FINE, VANISHES = 8.0 * float(np.finfo(np.float64).eps), 1e-9, 50.0


class Parts:
    """Parts of the rows that carry a model; those beyond `room` bytes are read again each time."""

    def __init__(self, read: Callable[[int], tuple[Any, Array]], count: int, room: int) -> None:
        self._read, self._count, self._room = read, count, room
        self._held: list[tuple[Any, Array]] = []

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        yield from self._held
        for number in range(len(self._held), self._count):
            rows, C = self._read(number)
            self._room -= 8 * (rows.shape[0] * rows.shape[1] + C.size)
            if self._room > 0 and number == len(self._held):
                self._held.append((rows, C))
            yield rows, C


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The rows (s, d) in float64 that carry a model, with their coefficients (s, m), in parts."""

    record: Mapping[str, Any]
    parts: Iterable[tuple[Any, Array]]
    m: int

    def scores(self, X: Any) -> Array:
        """Return the scores (r, m) of rows X (r, d); raise `InputError` for an unknown kernel."""
        scores = np.zeros((X.shape[0], self.m))
        for rows, C in self.parts:
            step = max(1, TILE_BYTES // (8 * max(1, rows.shape[0])))
            for start in range(0, X.shape[0], step):
                tile = slice(start, start + step)
                scores[tile] += kernel_values(self.record, X[tile], rows) @ C
        return scores


def kernel_values(record: Mapping[str, Any], X: Any, Y: Any) -> Array:
    """Return k(x, y) of rows X and Y in float64; raise `InputError` for an unknown kernel."""
    parameters = dict(record)
    name = parameters.pop("name", None)
    if name not in KERNELS:
        raise InputError(f"the kernel {name!r} is not known here: the known ones are {sorted(KERNELS)}")
    return np.asarray(KERNELS[name](X, Y, **parameters), dtype=np.float64)


def unit_rows(numbers: NDArray[np.int64], n: int) -> Any:
    """Return the rows of these numbers of the n x n identity matrix."""
    ones = np.ones(len(numbers))
    return sparse.csr_matrix((ones, numbers, np.arange(len(numbers) + 1)), shape=(len(numbers), n))


def _linear(X: Any, Y: Any) -> Array:
    products: Any = X @ Y.T
    return np.asarray(products.toarray() if hasattr(products, "toarray") else products, dtype=np.float64)


def _rbf(X: Any, Y: Any, gamma: float) -> Array:
    left, right = _squares(X), _squares(Y)
    squares = _linear(X, Y)
    squares *= 2.0
    np.subtract(left[:, None] + right, squares, out=squares)
    if gamma * ROUNDING * (left.max(initial=0.0) + right.max(initial=0.0)) > FINE:
        _take_differences(X, Y, gamma, ROUNDING * (left[:, None] + right), squares)
    np.maximum(squares, 0.0, out=squares)
    squares *= -gamma
    return np.asarray(np.exp(squares, out=squares))


def _take_differences(X: Any, Y: Any, gamma: float, rounding: Array, squares: Array) -> None:
    """Replace relevant squared distances with too much rounding, in place."""
    wrong = np.argwhere((gamma * rounding > FINE) & (gamma * (squares - rounding) < VANISHES))
    for i in np.unique(wrong[:, 0]):
        near = wrong[wrong[:, 0] == i, 1]
        squares[i, near] = _squares(Y[near] - X[np.full(len(near), i)])


def _squares(X: Any) -> Array:
    squares: Any = X.multiply(X) if hasattr(X, "multiply") else np.square(X)
    return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def _chi2(X: Any, Y: Any, gamma: float) -> Array:
    from sklearn.metrics.pairwise import additive_chi2_kernel  # scikit-learn takes a second to import

    return np.asarray(np.exp(gamma * additive_chi2_kernel(X, Y)))


def _laplacian(X: Any, Y: Any, gamma: float) -> Array:
    from sklearn.metrics.pairwise import manhattan_distances

    return np.asarray(np.exp(-gamma * manhattan_distances(X, Y)))


def _intersection(X: Any, Y: Any) -> Array:
    # min(x, y) = (x + y - |x - y|) / 2 for non-negative features.
    from sklearn.metrics.pairwise import manhattan_distances

    return np.asarray(0.5 * (X.sum(axis=1)[:, None] + Y.sum(axis=1) - manhattan_distances(X, Y)))


def _groups(X: Any, Y: Any, groups: Iterable[Mapping[str, Any]]) -> Iterable[Array]:
    for group in groups:
        features = slice(group["start"], group["stop"])
        yield group["weight"] * kernel_values(group["kernel"], X[:, features], Y[:, features])


# Formula of each kernel, by its name in a model's record.
KERNELS: dict[str, Callable[..., Array]] = {
    "linear": _linear,
    "rbf": _rbf,
    "polynomial": lambda X, Y, degree, gamma, coef0: (gamma * _linear(X, Y) + coef0) ** degree,
    "chi2": _chi2,
    "laplacian": _laplacian,
    "intersection": _intersection,
    "sum": lambda X, Y, groups: reduce(np.add, _groups(X, Y, groups)),
    "product": lambda X, Y, groups: reduce(np.multiply, _groups(X, Y, groups)),
    # X holds the values with all training rows, and Y selects some of them by rows of the identity.
    PRECOMPUTED: _linear,
}
