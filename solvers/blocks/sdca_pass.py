"""Plain stochastic dual coordinate ascent on one block: every row once, in a random order.

Lapin's algorithm 1 (thesis, section 5.2): the scores of one row, the exact update of its dual row, and the
weights carry the change before the next row is looked at.  Nothing is cached, tiled or visited twice.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numba as nb
import numpy as np

from topline.solvers.blocks.ascent_jit import add_change, change_sums
from topline.solvers.blocks.ascent_rows import BlockRows
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.read_ahead import stored_slabs
from topline.solvers.core.requests import SdcaRequest
from topline.solvers.core.rows import Rows, as_rows, held_in_memory, is_sparse, slab_bounds
from topline.solvers.projections.columns import column_update
from topline.solvers.projections.ordering import column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows that are gathered in the order of their visits at once.
_GATHERED_ROWS = 512


class BlockSdca(BlockRows):
    """Passes over the rows of one block.

    The parameters are those of `BlockRows`.
    """

    @cached_property
    def _slabs(self) -> list[tuple[int, int]]:
        return [(0, len(self.y))] if held_in_memory(self.X) else list(slab_bounds(self.X, _GATHERED_ROWS))

    def run(self, request: SdcaRequest, A: FloatArray, delta: FloatArray) -> BlockStats:
        """Write to `delta` (rows, m) the change of A (rows, m) that one pass finds, and sum it.

        The order of slabs, and of the rows in one, is random; the result depends on the request and on A
        alone.
        """
        delta[:] = 0.0
        clock = Clock()
        random = np.random.default_rng((request.seed, request.round, self.index))
        dtype = np.dtype(np.float64) if request.exact else self.dtype
        weights = _Weights(request.W, dtype)
        slabs = [self._slabs[int(slab)] for slab in random.permutation(len(self._slabs))]
        for start, stop, values in stored_slabs(self.X, slabs):
            rows = random.permutation(stop - start)
            for low in range(0, len(rows), _GATHERED_ROWS):
                chosen = rows[low : low + _GATHERED_ROWS]
                X = as_rows(values[chosen], dtype)
                clock.product()
                self._visit(X, start + chosen, A, delta, weights, self.problem.scale * request.safety_factor)
                clock.row_work()
        kind, _, margins = self.loss
        linear, cross, square, alpha_sq, changed = change_sums(
            kind, self.y, self.weights, A, delta, margins, self.problem.own_share
        )
        clock.row_work()
        return BlockStats(
            rows=len(A),
            product=weights.product,
            conjugate_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            active=changed,
            visited=len(A),
            seconds_products=clock.products,
            seconds_kernels=clock.per_row,
        )

    def _visit(
        self, X: Rows, rows: Int64Array, A: FloatArray, delta: FloatArray, weights: _Weights, scale: float
    ) -> None:
        problem = self.problem
        state = weights.laid_out(X)
        shared = (
            rows, self.y, self.weights, A, delta, scale, problem.smoothing, problem.smoothing_own,
            *self.loss, *state,
        )  # fmt: skip
        if is_sparse(X):
            visit_csr(X.data, X.indices, X.indptr, *shared)
        else:
            visit_dense(X, *shared)


class _Weights:
    """W as a pass moves it, and the sum of w_i x_i (change of beta_i)^T, laid out for the rows that come."""

    def __init__(self, W: Float64Array, dtype: np.dtype[Any]) -> None:
        self._start, self._dtype = W, dtype
        self._sparse = False
        self._state: tuple[FloatArray, Float64Array] | None = None

    def laid_out(self, X: Rows) -> tuple[FloatArray, Float64Array]:
        """Return both, (m, d) for dense rows and (d, m) for sparse ones.

        Scores of a dense row are m inner products along memory, those of a sparse one a sum of rows of W.
        """
        if self._state is None:
            self._sparse = is_sparse(X)
            W = np.array(self._start if self._sparse else self._start.T, dtype=self._dtype, order="C")
            self._state = W, np.zeros(W.shape)
        return self._state

    @property
    def product(self) -> Float64Array:
        """The sum, (d, m)."""
        if self._state is None:
            return np.zeros(self._start.shape)
        product = self._state[1]
        return product if self._sparse else np.ascontiguousarray(product.T)


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
    kind, rho, margins : the loss, as `column_update` takes it.
    W, product : (m, d), kept up to date.
    """
    m = A.shape[1]
    work, index_work = column_workspace(m)
    alpha = np.empty(m)
    change = np.empty((1, m))
    scores = np.empty(m, dtype=W.dtype)
    for t in range(len(rows)):
        i = rows[t]
        if weights[i] == 0.0:
            continue
        x = X[t]
        norm = 0.0
        for f in range(len(x)):
            norm += np.float64(x[f]) * np.float64(x[f])
        np.dot(W, x, scores)
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
        i = rows[t]
        if weights[i] == 0.0:
            continue
        low, high = indptr[t], indptr[t + 1]
        norm = 0.0
        scores[:] = 0.0
        for p in range(low, high):
            x = np.float64(data[p])
            norm += x * x
            for j in range(m):
                scores[j] += x * W[indices[p], j]
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
    column_update(
        kind, change, label, own + gamma, own + gamma_own, rho, margins, alpha, work, index_work, -1.0
    )
    for j in range(len(alpha)):
        before = np.float64(delta[i, j])
        # What is stored is what counts: the change is taken after rounding to A's precision.
        delta[i, j] = alpha[j] - A[i, j]
        change[j] = np.float64(delta[i, j]) - before
