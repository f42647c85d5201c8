"""Rows in each layout with the weights that score them: the only code of a sweep that depends on the layout.

A tile holds rows and their weights W in a suitable layout.  `scores`, `class_score`, `sizes`, `carry` and
`fetch_row` are chosen by the type of the tile when a sweep is compiled; a new layout is a new tile with these
five.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.jit_cache import ByType, jit
from topline.solvers.jit_pointers import fetch
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Sparse rows add their change to all classes at once unless fewer than one class in this many changes.
_FEW = 8


class DenseTile(NamedTuple):
    """Dense rows X (r, d) and W (m, d): scores are inner products along memory."""

    X: FloatArray
    W: FloatArray


class CsrTile(NamedTuple):
    """Sparse rows, as CSR arrays, and W (d, m): the scores of a row are a sum of rows of W."""

    data: FloatArray
    indices: IntArray
    indptr: IntArray
    W: FloatArray


class KernelTile(NamedTuple):
    """Rows with known kernel values K (r, r), and their scores W (m, r), kept up to date."""

    K: FloatArray
    W: FloatArray


RowTile: TypeAlias = DenseTile | CsrTile | KernelTile


def tile_of(X: Rows, W: FloatArray) -> DenseTile | CsrTile:
    """Return a tile of rows, with weights in their layout."""
    return CsrTile(X.data, X.indices, X.indptr, W) if is_sparse(X) else DenseTile(X, W)


@jit(fastmath={"reassoc", "contract"})
def _dense_scores(tile: DenseTile, place: int, out: FloatArray) -> None:
    # Four classes at a time share the loads of x.  Arrays are indexed by row and column throughout: taking a
    # row out as an array counts references, which takes as long as the scores of a short row.
    X, W = tile
    m, d = W.shape
    zero = W.dtype.type(0.0)
    whole = m - m % 4
    for j in range(0, whole, 4):
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        for f in range(d):
            v = X[place, f]
            s0 += W[j, f] * v
            s1 += W[j + 1, f] * v
            s2 += W[j + 2, f] * v
            s3 += W[j + 3, f] * v
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
    for j in range(whole, m):
        s0 = zero
        for f in range(d):
            s0 += W[j, f] * X[place, f]
        out[j] = s0


@jit(fastmath={"contract"})
def _csr_scores(tile: CsrTile, place: int, out: FloatArray) -> None:
    data, indices, indptr, W = tile
    out[:] = 0.0
    for p in range(indptr[place], indptr[place + 1]):
        f = indices[p]
        v = data[p]
        for j in range(len(out)):
            out[j] += v * W[f, j]


@jit
def _kernel_scores(tile: KernelTile, place: int, out: FloatArray) -> None:
    for j in range(len(out)):
        out[j] = tile.W[j, place]


@jit(fastmath={"reassoc", "contract"})
def _dense_class_score(tile: DenseTile, place: int, j: int) -> float:
    X, W = tile
    total = W.dtype.type(0.0)
    for f in range(X.shape[1]):
        total += W[j, f] * X[place, f]
    return np.float64(total)


@jit(fastmath={"contract"})
def _csr_class_score(tile: CsrTile, place: int, j: int) -> float:
    data, indices, indptr, W = tile
    total = W.dtype.type(0.0)
    for p in range(indptr[place], indptr[place + 1]):
        total += data[p] * W[indices[p], j]
    return np.float64(total)


@jit
def _kernel_class_score(tile: KernelTile, place: int, j: int) -> float:
    return np.float64(tile.W[j, place])


@jit
def _dense_sizes(tile: DenseTile, place: int, u: Float64Array) -> tuple[float, float]:
    square = inner = 0.0
    for f in range(tile.X.shape[1]):
        x = np.float64(tile.X[place, f])
        square += x * x
        inner += x * u[f]
    return square, inner


@jit
def _csr_sizes(tile: CsrTile, place: int, u: Float64Array) -> tuple[float, float]:
    square = inner = 0.0
    for p in range(tile.indptr[place], tile.indptr[place + 1]):
        x = np.float64(tile.data[p])
        square += x * x
        inner += x * u[tile.indices[p]]
    return square, inner


@jit
def _kernel_sizes(tile: KernelTile, place: int, u: Float64Array) -> tuple[float, float]:  # noqa: ARG001
    return np.float64(tile.K[place, place]), 0.0


@jit(fastmath={"contract"})
def _dense_carry(
    tile: DenseTile, place: int, changed: Int64Array, steps: Float64Array, n_changed: int, _spare: FloatArray
) -> None:
    X, W = tile
    for k in range(n_changed):
        # Read before the loop, which is vectorised only then.
        j, step = changed[k], W.dtype.type(steps[k])
        for f in range(X.shape[1]):
            W[j, f] += step * X[place, f]


@jit(fastmath={"contract"})
def _csr_carry(
    tile: CsrTile, place: int, changed: Int64Array, steps: Float64Array, n_changed: int, spare: FloatArray
) -> None:
    data, indices, indptr, W = tile
    m = W.shape[1]
    if _FEW * n_changed > m:
        # With more than a few classes, contiguous access is faster.
        spare[:] = 0.0
        for k in range(n_changed):
            spare[changed[k]] = steps[k]
        for p in range(indptr[place], indptr[place + 1]):
            f = indices[p]
            v = data[p]
            for j in range(m):
                W[f, j] += v * spare[j]
    elif n_changed > 0:
        for p in range(indptr[place], indptr[place + 1]):
            f = indices[p]
            for k in range(n_changed):
                W[f, changed[k]] += steps[k] * data[p]


@jit
def _kernel_carry(
    tile: KernelTile, place: int, changed: Int64Array, steps: Float64Array, n_changed: int, _spare: FloatArray
) -> None:
    K, W = tile
    for k in range(n_changed):
        j, step = changed[k], W.dtype.type(steps[k])
        for r in range(W.shape[1]):
            W[j, r] += step * K[place, r]


@jit
def _dense_fetch(tile: DenseTile, place: int) -> None:
    fetch(tile.X, place, tile.X.shape[1] * tile.X.itemsize)


@jit
def _csr_fetch(tile: CsrTile, place: int) -> None:
    low, high = tile.indptr[place], tile.indptr[place + 1]
    if low < high:
        fetch(tile.data, low, (high - low) * tile.data.itemsize)
        fetch(tile.indices, low, (high - low) * tile.indices.itemsize)


@jit
def _kernel_fetch(tile: KernelTile, place: int) -> None:
    fetch(tile.K, place, tile.K.shape[1] * tile.K.itemsize)


def _by_tile(dense: Any, csr: Any, kernel: Any) -> Any:
    return ByType({DenseTile: dense, CsrTile: csr, KernelTile: kernel})


#: (tile, place, out) writes the scores of the row at a place to `out` (m,), in the precision of W.
scores = _by_tile(_dense_scores, _csr_scores, _kernel_scores)
#: (tile, place, j) gives its score for class j, summed in the precision of W.
class_score = _by_tile(_dense_class_score, _csr_class_score, _kernel_class_score)
#: (tile, place, u) gives |x|^2 and <x, u> of the row at a place.
sizes = _by_tile(_dense_sizes, _csr_sizes, _kernel_sizes)
#: (tile, place, changed, steps, n_changed, spare) adds x times the first steps to the scores of the changed
#: classes; `spare` (m,), of the type of W, is scratch space.
carry = _by_tile(_dense_carry, _csr_carry, _kernel_carry)
#: (tile, place) prefetches the row at a place.
fetch_row = _by_tile(_dense_fetch, _csr_fetch, _kernel_fetch)


@jit
def add_rows(tile: RowTile, places: Int64Array, changes: FloatArray, factors: Float64Array) -> None:
    """Add sum_t f_t x_t change_t^T to the weights of a tile; changes (t, m), mostly zero."""
    m = changes.shape[1]
    changed, steps, spare = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m, dtype=tile.W.dtype)
    for t in range(len(places)):
        n_changed = 0
        for j in range(m):
            if changes[t, j] != 0.0:
                changed[n_changed] = j
                steps[n_changed] = factors[t] * np.float64(changes[t, j])
                n_changed += 1
        carry(tile, places[t], changed, steps, n_changed, spare)
