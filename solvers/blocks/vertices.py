"""Vertices of a tile: found from its scores, multiplied with its features, mixed into its dual rows.

A hinge over ranks gives rows with at most L + 1 non-zeros, kept as ranked classes; every other loss, and
every smoothed one, gives dense rows: its negative gradients.  Both add each row times its weight.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from topline.solvers.blocks.block import BlockDuals
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, is_sparse, squared_norms
from topline.solvers.crew import ALONE, Crew
from topline.solvers.jit_cache import jit
from topline.solvers.losses import LossForm, ranking
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.projections.columns import largest_values
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Columns of X accumulated at once: a class's sums stay in the first-level cache.
COLUMN_STRIP = 2048


@jit(fastmath={"contract"})
def _group_by_class(y: Any, weights: Any, rho: Any, ranked: Any, counts: Any, m: int) -> tuple[Any, Any, Any]:
    """List the non-zeros of U class by class: (first entry of each class, rows, values times weights)."""
    rows = len(y)
    first = np.zeros(m + 1, dtype=np.int64)
    for i in range(rows):
        others = 0
        for j in range(counts[i]):
            if ranked[i, j] != y[i]:
                first[ranked[i, j] + 1] += 1
                others += 1
        if others > 0:
            first[y[i] + 1] += 1
    for c in range(m):
        first[c + 1] += first[c]
    next_entry = first[:m].copy()
    entry_rows = np.empty(first[m], dtype=np.int64)
    entry_values = np.empty(first[m])
    for i in range(rows):
        total = 0.0
        for j in range(counts[i]):
            c = ranked[i, j]
            if c != y[i]:
                entry_rows[next_entry[c]] = i
                entry_values[next_entry[c]] = -weights[i] * rho[j]
                next_entry[c] += 1
                total += rho[j]
        if total > 0.0:
            entry_rows[next_entry[y[i]]] = i
            entry_values[next_entry[y[i]]] = weights[i] * total
            next_entry[y[i]] += 1
    return first, entry_rows, entry_values


@jit(fastmath={"contract"})
def _add_four(target: Any, X: Any, low: Any, rows: Any, values: Any) -> None:
    """Add four weighted rows of X, from column `low` on, to target, which is loaded and stored only once."""
    v0, v1, v2, v3 = values[0], values[1], values[2], values[3]
    high = low + len(target)
    x0, x1 = X[rows[0], low:high], X[rows[1], low:high]
    x2, x3 = X[rows[2], low:high], X[rows[3], low:high]
    for f in range(len(target)):
        target[f] += (v0 * x0[f] + v1 * x1[f]) + (v2 * x2[f] + v3 * x3[f])


@jit(fastmath={"contract"})
def _add_two(target: Any, X: Any, low: Any, rows: Any, values: Any) -> None:
    v0, v1 = values[0], values[1]
    x0, x1 = X[rows[0], low : low + len(target)], X[rows[1], low : low + len(target)]
    for f in range(len(target)):
        target[f] += v0 * x0[f] + v1 * x1[f]


@jit(fastmath={"contract"})
def _add_one(target: Any, X: Any, low: Any, rows: Any, values: Any) -> None:
    v0, x0 = values[0], X[rows[0], low : low + len(target)]
    for f in range(len(target)):
        target[f] += v0 * x0[f]


@jit(fastmath={"contract"})
def add_by_class(X: Any, first: Any, rows: Any, values: Any, product: Any) -> None:
    """Add to `product` (m, d) float64, for each class c, values[e] times row rows[e] of X (b, d).

    The entries e of class c are first[c] .. first[c + 1] - 1.  Columns are processed in strips, so that the
    sums of a class stay in the first-level cache.
    """
    m, d = product.shape
    for low in range(0, d, COLUMN_STRIP):
        for c in range(m):
            target = product[c, low : low + COLUMN_STRIP]
            e = first[c]
            while e + 4 <= first[c + 1]:
                _add_four(target, X, low, rows[e : e + 4], values[e : e + 4])
                e += 4
            if e + 2 <= first[c + 1]:
                _add_two(target, X, low, rows[e : e + 2], values[e : e + 2])
                e += 2
            if e < first[c + 1]:
                _add_one(target, X, low, rows[e : e + 1], values[e : e + 1])


def add_rows_by_class(X: FloatArray, y: IntArray, weights: Float64Array, totals: Float64Array) -> None:
    """Add the rows of X (b, d), each times its weight, to the totals (m, d) of their classes."""
    rows = np.argsort(y, kind="stable")
    first = np.searchsorted(y[rows], np.arange(len(totals) + 1))
    add_by_class(X, first, rows, weights[rows], totals)


@jit(fastmath={"contract"})
def accumulate_dense(X: Any, y: Any, weights: Any, rho: Any, ranked: Any, counts: Any, product: Any) -> None:
    """Add sum w_i u_i x_i^T to `product` (m, d) float64, for the rows X (b, d)."""
    first, entry_rows, values = _group_by_class(y, weights, rho, ranked, counts, product.shape[0])
    add_by_class(X, first, entry_rows, values, product)


@jit(fastmath={"contract"})
def group_nonzeros(A: Any, weights: Any) -> tuple[Any, Any, Any]:
    """List the non-zeros of A (b, m) class by class, as `add_by_class` takes them."""
    rows, m = A.shape
    first = np.zeros(m + 1, dtype=np.int64)
    for i in range(rows):
        for c in range(m):
            if A[i, c] != 0.0:
                first[c + 1] += 1
    for c in range(m):
        first[c + 1] += first[c]
    next_entry = first[:m].copy()
    entry_rows, values = np.empty(first[m], dtype=np.int64), np.empty(first[m])
    for i in range(rows):
        for c in range(m):
            if A[i, c] != 0.0:
                entry_rows[next_entry[c]], values[next_entry[c]] = i, weights[i] * A[i, c]
                next_entry[c] += 1
    return first, entry_rows, values


@jit(fastmath={"contract"})
def accumulate_nonzeros(X: Any, A: Any, weights: Any, product: Any) -> None:
    """Add sum w_i x_i a_i^T to `product` (m, d) float64 for sparse rows A (b, m), entry by entry."""
    first, rows, values = group_nonzeros(A, weights)
    add_by_class(X, first, rows, values, product)


@jit(fastmath={"contract"})
def accumulate_csr(csr: Any, y: Any, weights: Any, rho: Any, ranked: Any, counts: Any, product: Any) -> None:
    """Add sum w_i u_i x_i^T to `product` (m, d) float64, for CSR rows: data, indices and indptr."""
    data, indices, indptr = csr
    first, rows, values = _group_by_class(y, weights, rho, ranked, counts, product.shape[0])
    for c in range(product.shape[0]):
        for e in range(first[c], first[c + 1]):
            value = values[e]
            for p in range(indptr[rows[e]], indptr[rows[e] + 1]):
                product[c, indices[p]] += value * data[p]


@jit
def _write_ranked(out: Any, y: Any, rho: Any, ranked: Any, counts: Any) -> None:
    """Write vertices to the rows of `out` (b, m)."""
    out[:] = 0.0
    for i in range(out.shape[0]):
        others = 0.0
        for j in range(counts[i]):
            c = ranked[i, j]
            if c != y[i]:
                out[i, c] = -rho[j]
                others += rho[j]
        out[i, y[i]] = others


#: With fewer non-zeros of U than one in this many, adding them one by one beats a dense product.
_FEW_NONZEROS = 12
#: Rows of a tile sampled before all are counted.
_LOOKED_AT = 16
#: A dense product of up to this many terms takes a fraction of a millisecond in float64, and no compilation.
_SMALL_PRODUCT = 1 << 21


class RankedVertices:
    """Vertices of one tile after another, of the hinges over ranks (`topline.solvers.losses.ranking`)."""

    def __init__(self, problem: Problem, rows: int, crew: Crew) -> None:
        form = problem.form
        self._crew = crew
        self._rule = ranking.RankRule(form.rho, *form.ranks, problem.own_share, form.table)
        self._ranked = np.empty((rows, len(form.rho)), dtype=np.int32)
        self._counts = np.empty(rows, dtype=np.int32)
        self._y: Any = None
        self._weights: Any = None
        #: The ranked classes of the tile, and how many of each row.
        self._found = self._ranked, self._counts

    def find(self, scores: FloatArray, y: IntArray, weights: Float64Array, sums: Float64Array) -> None:
        """Rank the classes of each row; the scores are overwritten."""
        ranked, counts = self._ranked[: len(y)], self._counts[: len(y)]
        self._y, self._weights, self._found = y, weights, (ranked, counts)

        self._crew.add_rows(
            lambda part, sums: ranking.rank_rows(
                scores[part], y[part], weights[part], self._rule, ranked[part], counts[part], sums
            ),
            len(y), scores.shape[1], sums,
        )  # fmt: skip

    def write(self, out: FloatArray) -> None:
        """Write the vertices to `out` (b, m)."""
        _write_ranked(out, self._y, self._rule.rho, *self._found)

    def mix_later(self, duals: BlockDuals, A: FloatArray, tile: int, rows: slice, round_: int) -> float:
        """Store U - A with the duals, and return sum w_i <alpha_i, u_i>."""
        U = np.empty(A.shape)
        self.write(U)
        duals.found(tile, rows, U, A, round_)
        return duals.products(A, U, rows)

    def accumulate(self, X: Rows, product: Float64Array) -> None:
        """Add sum w_i x_i u_i^T to `product` (m, d)."""
        found = (self._y, self._weights, self._rule.rho, *self._found)
        if is_sparse(X):
            accumulate_csr((X.data, X.indices, X.indptr), *found, product)
        else:
            accumulate_dense(X, *found, product)


class DenseVertices:
    """u_i = -grad Phi_gamma(s_i), or a negative subgradient for gamma = 0; written over the scores."""

    def __init__(self, problem: Problem, *, smoothed: bool, crew: Crew = ALONE) -> None:
        self._form, self._crew = problem.form, crew
        self._gammas = problem.gammas if smoothed else (0.0, 0.0)
        self._U: Any = None
        self._weights: Any = None

    def find(self, scores: FloatArray, y: IntArray, weights: Float64Array, sums: Float64Array) -> None:
        """Find the gradient of each row; the scores are overwritten by U."""
        self._U, self._weights = scores, weights

        def find(part: slice, sums: Float64Array) -> None:
            here = scores[part]
            gradient_rows(self._form, here, y[part], weights[part], self._gammas, here, sums)

        self._crew.add_rows(find, len(y), scores.shape[1], sums)

    def write(self, out: FloatArray) -> None:
        """Write the gradients to `out` (b, m)."""
        out[:] = self._U

    def mix_later(self, duals: BlockDuals, A: FloatArray, tile: int, rows: slice, round_: int) -> float:
        """Store U - A with the duals, and return sum w_i <alpha_i, u_i>."""
        duals.found(tile, rows, self._U, A, round_)
        return duals.products(A, self._U, rows)

    def accumulate(self, X: Rows, product: Float64Array) -> None:
        """Add sum w_i x_i u_i^T to `product` (m, d)."""
        accumulate_rows(X, self._U, self._weights, product, self._crew)


def accumulate_rows(
    X: Rows, U: FloatArray, weights: Float64Array, product: Float64Array, crew: Crew = ALONE
) -> None:
    """Add sum w_i x_i u_i^T to `product` (m, d).

    If U is sparse its non-zeros are added one by one; a small dense product is in float64.
    """
    # A few sampled rows without zeros, as from an entropy, stand for all.
    full = bool(U[:: max(len(U) // _LOOKED_AT, 1)].all())
    if not is_sparse(X) and not full and U.size * X.shape[1] <= _SMALL_PRODUCT:
        product += (U * weights[:, None]).T @ X.astype(np.float64)
        return
    if not is_sparse(X) and not full and _FEW_NONZEROS * np.count_nonzero(U) < U.size:
        accumulate_nonzeros(X, U, weights, product)
        return
    if not full:
        some = U.any(axis=1)
        if not some.all():
            X, U, weights = X[some], U[some], weights[some]
    if (weights != 1.0).any():
        U = U * weights[:, None].astype(U.dtype)
    crew.add_product(U, X, product)


def sizes_of_entries(U: FloatArray, factors: Float64Array) -> Float64Array:
    """Return sum_i f_i |u_ij| (m,) over the rows of U (b, m), summed in the precision of U."""
    return np.asarray(np.abs(U).T @ factors.astype(U.dtype), dtype=np.float64)


def open_sizes(form: LossForm, U: FloatArray) -> FloatArray:
    """Return the o_ij of the rows of U (b, m): |u_ij| - u_ij^2 unless the family has its own."""
    if form.family.open_sizes is not None:
        return form.family.open_sizes(form, U)
    sizes = np.abs(U)
    sizes -= sizes * sizes
    return np.maximum(sizes, 0.0, out=sizes)


#: Either kind, in buffers that tiles share.
Vertices: TypeAlias = RankedVertices | DenseVertices


def vertices_of(problem: Problem, rows: int, *, smoothed: bool, crew: Crew = ALONE) -> Vertices:
    """Return the kind of vertices of a problem; `smoothed` requests those of Phi_gamma itself."""
    if problem.form.sparse_vertices and not (smoothed and problem.smoothing > 0):
        return RankedVertices(problem, rows, crew)
    return DenseVertices(problem, smoothed=smoothed, crew=crew)


#: Error of a score in units of rounding of |x_i| |w_j|, as the sum may cancel.
_ROUNDINGS = 4.0


def can_vanish(form: LossForm) -> bool:
    """Return whether `least_stretch` knows the loss: a hinge of single labels, over ranks or one-vs-all."""
    return (form.family.ranks is not None or form.family.binary_hinges) and form.label_sets is None


def slack_of(X: Rows, W: FloatArray) -> tuple[Float64Array, Float64Array]:
    """Return e (b,) and f (m,): the scores X W, in the precision of W (d, m), have errors up to e_i f_j."""
    sizes = np.sqrt(np.einsum("ij,ij->j", W, W, dtype=np.float64))
    rounding = _ROUNDINGS * float(np.finfo(W.dtype).eps)
    return rounding * np.sqrt(squared_norms(X)), sizes


def least_stretch(
    form: LossForm,
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    slack: tuple[Float64Array, Float64Array],
    least: float,
) -> float:
    """Return the least c >= `least` at which the loss at c s_i is 0 for all rows of scores (b, m).

    `slack` comes from `slack_of`.  Returns inf if there is none; rows of weight 0 are ignored.  With a table
    of margins, and for hinges cut before they are summed, every margin counts.
    """
    ranks = form.family.ranks
    if ranks is None:
        return float(_stretched_apart(scores, y, weights, slack, least))
    summed = not ranks.hinge_first and form.margins is None
    rho = form.rho if summed else np.ones(1)
    return float(_stretched(scores, y, weights, slack, form.table, rho, ranks.own_in_sort, least))


@jit
def _stretched_apart(
    scores: FloatArray, y: IntArray, weights: Float64Array, slack: tuple[Float64Array, Float64Array], c: float
) -> float:
    """Raise c until every class is ahead of 0 by 1 on its own rows, and behind by 1 on all others."""
    off, sizes = slack
    for i in range(len(y)):
        if weights[i] == 0.0:
            continue
        for j in range(scores.shape[1]):
            score = np.float64(scores[i, j])
            ahead = (score if j == y[i] else -score) - off[i] * sizes[j]
            if not ahead > 0.0:
                return np.inf
            c = max(c, 1.0 / ahead)
    return c


@jit
def _stretched(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    slack: tuple[Float64Array, Float64Array],
    margins: Float64Array,
    rho: Float64Array,
    own_in_sort: bool,
    c: float,
) -> float:
    """Raise c row by row, by Newton steps on the sum over ranks, which is convex in c."""
    off, sizes = slack
    every = np.empty(scores.shape[1])
    behind = np.empty(len(rho))
    for i in range(len(y)):
        if weights[i] == 0.0:
            continue
        others = _behind(scores, i, y[i], margins, off[i], sizes, every)
        held = min(others, len(rho))
        largest_values(every, others, held, -1, behind)
        while True:
            value = slope = 0.0
            for r in range(held):
                violation = 1.0 + c * behind[r]
                rank = r + 1 if own_in_sort and violation <= 0.0 else r
                if rank < len(rho):
                    value += rho[rank] * violation
                    slope -= rho[rank] * behind[r]
            if value <= 0.0:
                break
            if not slope > 0.0:
                return np.inf
            longer = c + value / slope
            if not longer > c:
                break
            c = longer
    return c


@jit
def _behind(
    scores: FloatArray,
    i: int,
    label: int,
    margins: Float64Array,
    off: float,
    sizes: Float64Array,
    every: Float64Array,
) -> int:
    """Write how far the own class is behind each of the others, in margins; return their number.

    With a margin of 0 a tie is enough.
    """
    held = 0
    own = np.float64(scores[i, label])
    for j in range(scores.shape[1]):
        if j == label:
            continue
        other = np.float64(scores[i, j])
        by = float(other - own + off * (sizes[label] + sizes[j]))
        if margins.size:
            if margins[label, j] == 0.0:
                if own >= other:
                    continue
                by = np.inf
            else:
                by /= margins[label, j]
        # A selection would pass over what is no number.
        every[held] = np.inf if np.isnan(by) else by
        held += 1
    return held
