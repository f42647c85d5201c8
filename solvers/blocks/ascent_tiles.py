"""Exact column updates tile by tile: what a sweep does where W is too large for a core's caches.

Row by row every visit would fetch all of W from memory.  Here one product gives the scores of a tile of rows;
the tile's Gram matrix keeps them right while its rows are updated one after the other; and the changes of the
tile go to W together, class by class, or by a second product where most classes change.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.blocks.ascent_sweeps import update_row
from topline.solvers.blocks.jit import add_by_class
from topline.solvers.jit_cache import jit
from topline.solvers.projections.ordering import column_workspace
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows of a tile at least and at most: a larger one fetches W less often, and pays more for its Gram matrix.
_TILE_ROWS = (128, 512)
#: A product that adds every class costs as much as so many classes, of m, one at a time.
_SHARE_OF_CLASSES = 12


class TiledWeights:
    """Weights W (m, d) in float64 with a copy to multiply with, and what a sweep over tiles does to them.

    Parameters
    ----------
    W : (m, d) float64, updated in place.
    dtype : precision of products.
    u, kept_apart : the direction kept apart and by how much it shrinks squares, as for `sweep_dense`.
    apart : (m,) what goes to W along u, updated in place.
    """

    def __init__(
        self,
        W: Float64Array,
        dtype: np.dtype[Any],
        u: Float64Array,
        kept_apart: float,
        apart: Float64Array,
    ) -> None:
        self.W, self._dtype = W, dtype
        self._copy: FloatArray = W if dtype == W.dtype else W.astype(dtype)
        self._u, self._kept_apart, self._apart = u.astype(dtype), kept_apart, apart
        m = len(W)
        #: Rows of a tile: about half of m, for then its Gram matrix costs a fourth of its scores.
        self.rows = int(np.clip(m // 2, *_TILE_ROWS))
        self._scores = np.empty((self.rows, m), dtype=dtype)
        self._counts = np.empty(self.rows, dtype=np.int64)
        self._classes = np.empty((self.rows, m), dtype=np.int32)
        self._steps = np.empty((self.rows, m))

    def refresh(self) -> None:
        """Take over W where somebody else has moved it."""
        if self._copy is not self.W:
            self._copy[:] = self.W

    def products(self, X: FloatArray) -> tuple[FloatArray, FloatArray, Float64Array]:
        """Return scores (t, m), inner products (t, t) of the shrunk rows and their parts along u (t,)."""
        scores = np.dot(X, self._copy.T, out=self._scores[: len(X)])
        gram = X @ X.T
        along = np.zeros(len(X))
        if self._kept_apart:
            along = (X @ self._u).astype(np.float64)
            scores += np.outer(along, self._apart).astype(self._dtype)
            gram -= np.asarray(self._kept_apart * np.outer(along, along), dtype=self._dtype)
        return scores, gram, along

    @property
    def changes(self) -> tuple[Int64Array, IntArray, Float64Array]:
        """Where `update_tile` writes the changes of a tile, which wait for `carry`."""
        return self._counts, self._classes, self._steps

    def carry(self, X: FloatArray, along: Float64Array) -> None:
        """Add what has changed to W."""
        t, m = len(X), len(self.W)
        counts = self._counts[:t]
        if self._kept_apart:
            _carry_apart(counts, self._classes, self._steps, self._kept_apart * along, self._apart)
        if _SHARE_OF_CLASSES * int(counts.sum()) <= t * m:
            _carry_classes(X, counts, self._classes, self._steps, self.W, self._copy)
            return
        changes = np.zeros((t, m), dtype=self._dtype)
        _scatter(counts, self._classes, self._steps, changes)
        self.W += changes.T @ X
        self.refresh()


@jit
def update_tile(
    scores: FloatArray,
    gram: FloatArray,
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
    rises: Float64Array,
    counts: Int64Array,
    classes: IntArray,
    steps: Float64Array,
) -> None:
    """Replace the dual rows of a tile one by one by the maximisers of the dual in that row.

    Parameters
    ----------
    scores : (t, m) scores of the tile's rows at the weights that the tile started from.
    gram : (t, t) inner products of its rows.
    rows : (t,) their places in y, weights, A, delta and rises, which are as for `sweep_dense`.
    counts, classes, steps : written: classes[p, :counts[p]] are those of row p that have changed, by
        steps[p, :counts[p]] along x_p in W.
    """
    t, m = scores.shape
    work, index_work = column_workspace(m)
    q, alpha = np.empty(m), np.empty(m)
    changed, changes = np.empty(m, dtype=np.int64), np.empty(m)
    for p in range(t):
        i = rows[p]
        counts[p] = 0
        if weights[i] == 0.0:
            rises[i] = -1.0
            continue
        for j in range(m):
            q[j] = scores[p, j]
        for r in range(p):
            inner = np.float64(gram[p, r])
            for k in range(counts[r]):
                q[classes[r, k]] += inner * steps[r, k]
        counts[p], rise = update_row(
            i, y[i], scale * weights[i], max(np.float64(gram[p, p]), 0.0), gamma, gamma_own, kind, rho,
            margins, A, delta, q, alpha, work, index_work, changed, changes,
        )  # fmt: skip
        rises[i] = rise * weights[i]
        for k in range(counts[p]):
            classes[p, k], steps[p, k] = changed[k], changes[k]


@jit
def _carry_apart(
    counts: Int64Array, classes: IntArray, steps: Float64Array, shares: Float64Array, apart: Float64Array
) -> None:
    """Take the shares (t,) of the steps away from what goes to W along the direction kept apart."""
    for p in range(len(counts)):
        for k in range(counts[p]):
            apart[classes[p, k]] -= steps[p, k] * shares[p]


@jit
def _scatter(counts: Int64Array, classes: IntArray, steps: Float64Array, out: FloatArray) -> None:
    """Write the steps to an array (t, m) of zeros."""
    for p in range(len(counts)):
        for k in range(counts[p]):
            out[p, classes[p, k]] = steps[p, k]


@jit
def _carry_classes(
    X: FloatArray,
    counts: Int64Array,
    classes: IntArray,
    steps: Float64Array,
    W: Float64Array,
    copy: FloatArray,
) -> None:
    """Add the steps along the rows of X (t, d) to W (m, d) and its copy, one class after the other."""
    m = len(W)
    first = np.zeros(m + 1, dtype=np.int64)
    for p in range(len(counts)):
        for k in range(counts[p]):
            first[classes[p, k] + 1] += 1
    for j in range(m):
        first[j + 1] += first[j]
    rows, values = np.empty(first[m], dtype=np.int64), np.empty(first[m])
    next_entry = first[:m].copy()
    for p in range(len(counts)):
        for k in range(counts[p]):
            e = next_entry[classes[p, k]]
            rows[e], values[e] = p, steps[p, k]
            next_entry[classes[p, k]] += 1
    add_by_class(X, first, rows, values, W)
    for j in range(m):
        if first[j] < first[j + 1]:
            copy[j] = W[j]
