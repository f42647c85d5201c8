"""Plain stochastic dual coordinate ascent on one block: every row once, in a random order.

Lapin's algorithm 1 (thesis, section 5.2): the scores of one row, the exact update of its dual row, and the
weights carry the change before the next row is looked at.  Nothing is cached, tiled or visited twice.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from solvers.ascent_kernels import add_change
from solvers.problem import Problem
from solvers.projections.columns import column_kind, column_update_two, margins_or_empty
from solvers.projections.workspace import column_workspace
from solvers.rows import Rows, RowSource, as_rows, held_in_memory, slab_bounds
from solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows that are gathered in the order of their visits at once.
_GATHERED_ROWS = 512


class SdcaPass:
    """One pass over the rows of one block, for as long as it lives.

    Parameters
    ----------
    problem : what is solved.
    y : (rows,) labels.
    weights : (rows,) weights of the examples.
    W : (d, m) weights from which the pass starts.
    spread : factor >= 1 on the curvature, for a block that moves while others do.
    dtype : precision of products.
    sparse : whether the features are a CSR matrix.
    """

    def __init__(
        self,
        problem: Problem,
        y: IntArray,
        weights: Float64Array,
        W: Float64Array,
        spread: float,
        dtype: np.dtype[Any],
        *,
        sparse: bool,
    ) -> None:
        form = problem.form
        self._y, self._weights, self._dtype = y, weights, dtype
        self._loss = column_kind(form), form.rho, margins_or_empty(form)
        self._gammas = problem.smoothing, problem.smoothing_own
        self._scale = problem.scale * spread
        self._sparse = sparse
        # Scores of a dense row are m inner products along memory, those of a sparse one a sum of rows of W.
        self._W = np.array(W if sparse else W.T, dtype=dtype, order="C")
        self._product = np.zeros(self._W.shape)

    @property
    def product(self) -> Float64Array:
        """Sum of w_i x_i (change of beta_i)^T so far, (d, m)."""
        return np.ascontiguousarray(self._product if self._sparse else self._product.T)

    def run(self, X: RowSource, A: FloatArray, delta: FloatArray, random: np.random.Generator) -> None:
        """Visit every row of X (rows, d) once and add to `delta` (rows, m) what its dual row changes by.

        Rows are read slab by slab where X is not in memory; the order of slabs, and of the rows in one, is
        random.
        """
        whole = held_in_memory(X)
        slabs = [(0, len(A))] if whole else list(slab_bounds(X, _GATHERED_ROWS))
        for slab in random.permutation(len(slabs)):
            start, stop = slabs[int(slab)]
            values = X[start:stop]
            order = random.permutation(stop - start)
            for low in range(0, len(order), _GATHERED_ROWS):
                chosen = order[low : low + _GATHERED_ROWS]
                self._visit(as_rows(values[chosen], self._dtype), start + chosen, A, delta)

    def _visit(self, X: Rows, rows: Int64Array, A: FloatArray, delta: FloatArray) -> None:
        kind, rho, margins = self._loss
        shared = (
            rows, self._y, self._weights, A, delta, self._scale, *self._gammas, kind, rho, margins,
            self._W, self._product,
        )  # fmt: skip
        if self._sparse:
            visit_csr(X.data, X.indices, X.indptr, *shared)
        else:
            visit_dense(X, *shared)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def visit_dense(
    X: FloatArray,
    rows: Int64Array,
    y: IntArray,
    weights: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    gamma: float,
    gamma_own: float,
    kind: int,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    product: Float64Array,
) -> None:
    """Update the dual rows of X (t, d) one by one, each at the weights that the one before left.

    Parameters
    ----------
    X : rows in the order of their visits.
    rows : (t,) their places in y, weights, A and delta.
    A, delta : (rows, m) dual rows at the start of the round and their change so far, which is updated.
    scale : 1/(lam n), times the safety of a block that moves at the same time as others.
    gamma, gamma_own : smoothing of the other classes and of the own one.
    kind, rho, margins : the loss, as `column_update_two` takes it.
    W, product : (m, d), kept up to date.
    """
    m = A.shape[1]
    work, index_work = column_workspace(m)
    alpha = np.empty(m)
    change = np.empty((1, m))
    scores = np.empty(m, dtype=W.dtype)
    for t in range(len(rows)):
        x = X[t]
        norm = 0.0
        for f in range(len(x)):
            norm += np.float64(x[f]) * np.float64(x[f])
        np.dot(W, x, scores)
        i = rows[t]
        own = scale * weights[i] * norm
        _update_row(
            scores, i, y[i], own, gamma, gamma_own, kind, rho, margins, A, delta, alpha, change[0], work,
            index_work,
        )  # fmt: skip
        for j in range(m):
            change[0, j] *= weights[i]
        add_change(X[t : t + 1], change, scale, product, W)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def visit_csr(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    rows: Int64Array,
    y: IntArray,
    weights: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    gamma: float,
    gamma_own: float,
    kind: int,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    product: Float64Array,
) -> None:
    """Do the same for sparse rows, with W and product (d, m)."""
    m = A.shape[1]
    work, index_work = column_workspace(m)
    alpha, scores, change = np.empty(m), np.empty(m), np.empty(m)
    for t in range(len(rows)):
        low, high = indptr[t], indptr[t + 1]
        norm = 0.0
        scores[:] = 0.0
        for p in range(low, high):
            x = np.float64(data[p])
            norm += x * x
            for j in range(m):
                scores[j] += x * W[indices[p], j]
        i = rows[t]
        own = scale * weights[i] * norm
        _update_row(
            scores, i, y[i], own, gamma, gamma_own, kind, rho, margins, A, delta, alpha, change, work,
            index_work,
        )  # fmt: skip
        for p in range(low, high):
            v = weights[i] * data[p]
            for j in range(m):
                product[indices[p], j] += v * change[j]
                W[indices[p], j] += scale * v * change[j]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def _update_row(
    scores: FloatArray,
    i: int,
    label: int,
    own: float,
    gamma: float,
    gamma_own: float,
    kind: int,
    rho: Float64Array,
    margins: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    alpha: Float64Array,
    change: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> None:
    """Replace dual row i by the maximiser of the dual in it; `change` (m,) receives what it changes by."""
    for j in range(len(alpha)):
        # The row's own part is taken out of its scores.
        change[j] = np.float64(scores[j]) - own * (np.float64(A[i, j]) + np.float64(delta[i, j]))
    column_update_two(
        kind, change, label, own + gamma, own + gamma_own, rho, margins, alpha, work, index_work, -1.0
    )
    for j in range(len(alpha)):
        before = np.float64(delta[i, j])
        # What is stored is what counts: the change is taken after rounding to A's precision.
        delta[i, j] = alpha[j] - A[i, j]
        change[j] = np.float64(delta[i, j]) - before
