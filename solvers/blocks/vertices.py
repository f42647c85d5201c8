"""Vertices of a tile: found from its scores, multiplied with its features, mixed into its dual rows.

A hinge over ranks gives rows with at most L + 1 non-zeros, kept as ranked classes; every other loss, and
every smoothed one, gives dense rows: its negative gradients.  Both add each row times its weight.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from topline.solvers.blocks import jit
from topline.solvers.blocks.duals import BlockDuals, is_uniform
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.crew import ALONE, Crew
from topline.solvers.losses import ranking
from topline.solvers.losses.form import LossForm
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: With fewer non-zeros of U than one in this many, adding them one by one beats a dense product.
_FEW_NONZEROS = 12
#: Rows of a tile sampled before all are counted.
_LOOKED_AT = 16
#: Rows of a tile sampled for open classes.
_OPENNESS_ROWS = 32
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

    def find(self, scores: FloatArray, y: IntArray, weights: Float64Array, sums: Float64Array) -> None:
        """Rank the classes of each row; the scores are overwritten."""
        self._y, self._weights = y, weights
        ranked, counts = self._found()

        def rank(part: slice, sums: Float64Array) -> None:
            ranking.rank_rows(
                scores[part], y[part], weights[part], self._rule, ranked[part], counts[part], sums
            )

        self._crew.add_rows(rank, len(y), scores.shape[1], sums)

    def losses(self, scores: FloatArray, y: IntArray, out: Float64Array) -> None:
        """Write the loss of each row to `out`; the scores are overwritten."""
        shape = len(y), len(self._rule.rho)
        ranked, counts = np.empty(shape, dtype=np.int32), np.empty(len(y), dtype=np.int32)
        sums = np.zeros(ranking.N_SUMS)
        ranking.rank_rows(scores, y, np.ones(len(y)), self._rule, ranked, counts, sums, out)

    def write(self, out: FloatArray) -> None:
        """Write the vertices to `out` (b, m): a whole step from 0."""
        out[:] = 0.0
        jit.commit_rows(out, self._y, self._rule.rho, *self._found(), 1.0, 1.0)

    def mix_later(self, duals: BlockDuals, A: FloatArray, tile: int, rows: slice, round_: int) -> float:
        """Copy the vertices to the duals, and return sum w_i <alpha_i, u_i>."""
        ranked, counts = self._found()
        duals.found_ranked(tile, rows, ranked, counts, round_)
        return float(
            jit.alpha_dot_u(A, self._y, self._weights, self._rule.rho, ranked, counts, self._rule.own_share)
        )

    def accumulate(self, X: Rows, product: Float64Array) -> None:
        """Add sum w_i x_i u_i^T to `product` (m, d)."""
        found = (self._y, self._weights, self._rule.rho, *self._found())
        if is_sparse(X):
            jit.accumulate_csr((X.data, X.indices, X.indptr), *found, product)
        else:
            jit.accumulate_dense(X, *found, product)

    def _found(self) -> tuple[IntArray, IntArray]:
        rows = len(self._y)
        return self._ranked[:rows], self._counts[:rows]


class DenseVertices:
    """u_i = -grad Phi_gamma(s_i), or a negative subgradient for gamma = 0; written over the scores."""

    def __init__(self, problem: Problem, *, smoothed: bool, crew: Crew = ALONE) -> None:
        self._form, self._crew = problem.form, crew
        self._gammas = (problem.smoothing, problem.smoothing_own) if smoothed else (0.0, 0.0)
        self._U: Any = None
        self._weights: Any = None

    def find(self, scores: FloatArray, y: IntArray, weights: Float64Array, sums: Float64Array) -> None:
        """Find the gradient of each row; the scores are overwritten by U."""
        self._U, self._weights = scores, weights

        def find(part: slice, sums: Float64Array) -> None:
            here = scores[part]
            gradient_rows(self._form, here, y[part], weights[part], self._gammas, here, sums)

        self._crew.add_rows(find, len(y), scores.shape[1], sums)

    def losses(self, scores: FloatArray, y: IntArray, out: Float64Array) -> None:
        """Write the loss of each row to `out`; the scores are overwritten."""
        sums = np.zeros(ranking.N_SUMS)
        gradient_rows(self._form, scores, y, np.ones(len(y)), self._gammas, scores, sums, out)

    def write(self, out: FloatArray) -> None:
        """Write the gradients to `out` (b, m)."""
        out[:] = self._U

    def mix_later(self, duals: BlockDuals, A: FloatArray, tile: int, rows: slice, round_: int) -> float:
        """Store U - A with the duals, and return sum w_i <alpha_i, u_i>."""
        duals.found_dense(tile, rows, self._U, A, round_)
        products = np.einsum("ij,ij->i", A, self._U, dtype=np.float64)
        return float(products @ self._weights)

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
        jit.accumulate_nonzeros(X, U, weights, product)
        return
    if not full:
        some = U.any(axis=1)
        if not some.all():
            X, U, weights = X[some], U[some], weights[some]
    if not is_uniform(weights):
        U = U * weights[:, None].astype(U.dtype)
    crew.add_product(U, X, product)


def openness(form: LossForm, U: FloatArray, weights: Float64Array) -> tuple[Float64Array, float]:
    """Return an estimate of o_j = sum_i w_i o_ij for every class j of a tile (b, m), from some rows.

    The second value estimates the sum of w_i (sum_j o_ij)^2 over the rows.
    """
    some = slice(None, None, max(len(U) // _OPENNESS_ROWS, 1))
    sizes = open_sizes(form, U[some])
    return openness_of(sizes, weights[some] * (len(U) / len(sizes)))


def open_sizes(form: LossForm, U: FloatArray) -> FloatArray:
    """Return the o_ij of the rows of U (b, m): |u_ij| - u_ij^2 unless the family has its own."""
    if form.family.open_sizes is not None:
        return form.family.open_sizes(form, U)
    sizes = np.abs(U)
    sizes -= sizes * sizes
    return np.maximum(sizes, 0.0, out=sizes)


def openness_of(sizes: FloatArray, weights: Float64Array) -> tuple[Float64Array, float]:
    """Return the weighted sums over rows of sizes (b, m) and of the squared sum of each row."""
    return np.asarray(weights @ sizes), float(weights @ sizes.sum(axis=1, dtype=np.float64) ** 2)


#: Either kind, in buffers that tiles share.
Vertices: TypeAlias = RankedVertices | DenseVertices


def vertices_of(problem: Problem, rows: int, *, smoothed: bool, crew: Crew = ALONE) -> Vertices:
    """Return the kind of vertices of a problem; `smoothed` requests those of Phi_gamma itself."""
    if problem.form.sparse_vertices and not (smoothed and problem.smoothing > 0):
        return RankedVertices(problem, rows, crew)
    return DenseVertices(problem, smoothed=smoothed, crew=crew)
