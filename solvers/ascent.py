"""Dual ascent on one block: random tiles of rows, exact column updates inside each tile.

A visit of a tile costs one BLAS product, the scores X_t W before its column updates, and a sparse one,
X_t^T dA after them;
between the two the tile's Gram matrix keeps its scores right.  Which rows share a tile is fixed, so that Gram
matrices can be kept.  The order of tiles, and of the rows inside one, is random in every sweep: in a fixed
order the method takes many times the rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers.ascent_kernels import add_change, add_change_csr, change_sums, sweep_tile
from solvers.block_stats import BlockStats
from solvers.clock import Clock
from solvers.orders import AscentOrder
from solvers.problem import Problem
from solvers.projections.columns import column_kind, margins_or_empty
from solvers.rows import Rows, RowSource, as_rows, held_in_memory, is_sparse, slab_bounds
from solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows of a tile: a larger one solves more exactly, but pays t^2 d for its Gram matrix.
_TILE_ROWS = 128
#: A block of up to so many rows that is read at once is one tile, its Gram matrix the whole kernel.
_WHOLE_ROWS = 4096
#: Column sweeps a visit over a tile that is a whole block, where further sweeps need no product with X.
_WHOLE_SWEEPS = 4
#: Bytes of Gram matrices that a block keeps.
_GRAM_BYTES = 1 << 27
#: Change of an alpha (whose row sums to at most the sum of the rank weights) below which a row rests.
_STILL = 1e-5


class BlockAscent:
    """Sweeps over the rows of one block.

    Parameters
    ----------
    problem : what is solved.
    X : (rows, d) features of the block.
    y, weights : (rows,) labels, and how often each row counts.
    index : place of the block among all blocks; it seeds the random orders.
    dtype : precision of products, where an order does not ask for float64.
    """

    def __init__(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        weights: Float64Array,
        index: int,
        dtype: np.dtype[Any],
    ) -> None:
        self.problem = problem
        self.y, self.weights = y, weights
        self._dtype = dtype
        self._X = X
        self._index = index
        self._slabs = [(0, len(y))] if held_in_memory(X) else list(slab_bounds(X, _TILE_ROWS))
        whole = len(self._slabs) == 1 and len(y) <= _WHOLE_ROWS
        self.sweeps_a_visit = _WHOLE_SWEEPS if whole else 1
        self._tiles = [self._cut(number) for number in range(len(self._slabs))]
        self._grams: dict[tuple[int, int], FloatArray] = {}
        self._gram_bytes = 0
        self._made_for: tuple[np.dtype[Any], float | None] | None = None

    def run(self, order: AscentOrder, A: FloatArray, delta: FloatArray) -> BlockStats:
        """Write to `delta` (rows, m) the change of A (rows, m) that the sweeps find, and sum it.

        The result depends on the order and on A alone.
        """
        delta[:] = 0.0
        random = np.random.default_rng((order.seed, order.round, self._index))
        work = _Work(self, order, A, delta, random, self._precision(order))
        for sweep in range(order.sweeps):
            for slab in random.permutation(len(self._slabs)):
                self._sweep_slab(work, int(slab), first=sweep == 0)
        return work.stats()

    def _precision(self, order: AscentOrder) -> np.dtype[Any]:
        """Give the precision of an order's products; Gram matrices made for another order are dropped."""
        dtype = np.dtype(np.float64) if order.exact else self._dtype
        made_for = dtype, None if order.shared is None else order.shared.kappa
        if self._made_for != made_for:
            self._grams.clear()
            self._gram_bytes, self._made_for = 0, made_for
        return dtype

    def gram(self, key: tuple[int, int], X: Rows) -> FloatArray:
        """Give X X^T (t, t) of the tile with this key, from memory where it was kept."""
        kept = self._grams.get(key)
        if kept is not None:
            return kept
        product = X @ X.T
        gram = np.ascontiguousarray(product.toarray() if is_sparse(product) else product)
        if self._gram_bytes + gram.nbytes <= _GRAM_BYTES:
            self._grams[key] = gram
            self._gram_bytes += gram.nbytes
        return gram

    def _sweep_slab(self, work: _Work, slab: int, *, first: bool) -> None:
        start, stop = self._slabs[slab]
        if not (first or work.moved[start:stop].any()):
            return
        rows = self._X[start:stop]
        for number in work.random.permutation(len(self._tiles[slab])):
            tile = self._tiles[slab][number]
            chosen = np.arange(len(tile)) if first else np.flatnonzero(work.moved[start + tile])
            if len(chosen):
                # Converted tile by tile: a block that lies in memory is one slab.
                work.visit((slab, int(number)), work.rows(rows[tile]), start + tile, chosen)

    def _cut(self, slab: int) -> list[Int64Array]:
        """Cut the rows of a slab, in an order that is random once and for all, into tiles."""
        start, stop = self._slabs[slab]
        rows = np.random.default_rng((self._index, slab)).permutation(stop - start)
        if self.sweeps_a_visit > 1:
            return [rows]
        # Rows of a tile in memory order: the gather then reads forward.
        return [np.sort(rows[low : low + _TILE_ROWS]) for low in range(0, len(rows), _TILE_ROWS)]


class _Work:
    """What the visits of one order share."""

    def __init__(
        self,
        block: BlockAscent,
        order: AscentOrder,
        A: FloatArray,
        delta: FloatArray,
        random: np.random.Generator,
        dtype: np.dtype[Any],
    ) -> None:
        form = block.problem.form
        self._block = block
        self._A, self._delta = A, delta
        self.random = random
        self.dtype = dtype
        self.moved = np.ones(len(A), dtype=np.bool_)
        self._kind, self._rho, self._margins = column_kind(form), form.rho, margins_or_empty(form)
        self._gammas = block.problem.smoothing, block.problem.smoothing_own
        self._scale = block.problem.scale * order.spread
        # (m, d): a change of one alpha_ij is an axpy along a row of both.
        self._shared = order.shared
        W = order.W if self._shared is None else self._shared.unshrunk(order.W)
        self._W = np.array(W.T, dtype=dtype, order="C")
        self._product = np.zeros(self._W.shape)
        self._clock = Clock()
        self._visited = 0

    def rows(self, values: Any) -> Rows:
        """Give rows of the features as this order sees them."""
        X = as_rows(values, self.dtype)
        return X if self._shared is None else self._shared.shrunk(X)

    def visit(self, key: tuple[int, int], X: Rows, rows: Int64Array, chosen: Int64Array) -> None:
        """Update the chosen rows of a tile and carry their change into the weights of this block."""
        gram = self._block.gram(key, X)
        X = X if len(chosen) == len(rows) else X[chosen]
        scores = np.ascontiguousarray((X @ self._W.T).T if is_sparse(X) else self._W @ X.T)
        self._clock.product()
        A, delta, moved = self._A[rows], self._delta[rows], self.moved[rows]
        weights = self._block.weights[rows]
        before = delta[chosen]
        order = self.random.permutation(len(chosen))
        for _ in range(self._block.sweeps_a_visit):
            sweep_tile(
                self._kind, scores, gram, chosen, order, self._block.y[rows], A, delta, weights, self._scale,
                *self._gammas, self._rho, self._margins, _STILL, moved,
            )  # fmt: skip
            order = order[moved[chosen[order]]]
        self._delta[rows], self.moved[rows] = delta, moved
        self._clock.kernel()
        change = (delta[chosen] - before) * weights[chosen, None].astype(delta.dtype)
        if is_sparse(X):
            add_change_csr(X.data, X.indices, X.indptr, change, self._scale, self._product, self._W)
        else:
            add_change(X, change, self._scale, self._product, self._W)
        self._visited += len(chosen)
        self._clock.product()

    def stats(self) -> BlockStats:
        """Sum the change."""
        linear, cross, square, alpha_sq, changed = change_sums(
            self._kind,
            self._block.y,
            self._block.weights,
            self._A,
            self._delta,
            self._margins,
            self._block.problem.own_share,
        )
        self._clock.kernel()
        product = np.ascontiguousarray(self._product.T)
        return BlockStats(
            rows=len(self._A),
            product=product if self._shared is None else self._shared.unshrunk(product),
            b_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            active=changed,
            visited=self._visited,
            seconds_products=self._clock.products,
            seconds_kernels=self._clock.kernels,
        )
