"""Products of a tile of rows: inner products with W four by four, what goes to W, weighted Gram matrices."""

from __future__ import annotations

import numpy as np

from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows and classes that share their loads: 4 x 4 sums fill the registers of a core.
GROUP = 4
#: A row of which one class in so many changes is kept as one of which all do: loops then go along memory.
_WHOLE = 2
#: Gram matrices from which on, and columns up to which, the products of all pairs of columns are made once.
_MANY_GRAMS, _FEW_COLUMNS = 12, 128
#: Columns up to which rows that are in few of the matrices are added one by one.
_NARROW = 48
#: Rows whose pairs stay in the cache between their making and their use.
_ROWS_OF_PAIRS = 256


@jit(fastmath={"reassoc", "contract"})
def dots(
    W: FloatArray,
    w_places: Int64Array,
    w_first: int,
    X: FloatArray,
    x_places: Int64Array,
    x_first: int,
    out: FloatArray,
    slot: int,
    p: int,
    j: int,
) -> None:
    """Write the inner products of four rows of X with four of W to out[slot, p : p + 4, j : j + 4].

    The rows are those at places[first], ..., places[first + 3]; sums are of the type of `out`.
    """
    zero = out.dtype.type(0.0)
    # Not by slices: each would be counted as a reference, which threads that share the arrays wait for.
    a0, a1, a2, a3 = w_places[w_first], w_places[w_first + 1], w_places[w_first + 2], w_places[w_first + 3]
    b0, b1, b2, b3 = x_places[x_first], x_places[x_first + 1], x_places[x_first + 2], x_places[x_first + 3]
    s00 = s01 = s02 = s03 = zero
    s10 = s11 = s12 = s13 = zero
    s20 = s21 = s22 = s23 = zero
    s30 = s31 = s32 = s33 = zero
    for f in range(X.shape[1]):
        w0, w1 = out.dtype.type(W[a0, f]), out.dtype.type(W[a1, f])
        w2, w3 = out.dtype.type(W[a2, f]), out.dtype.type(W[a3, f])
        x = out.dtype.type(X[b0, f])
        s00 += x * w0
        s01 += x * w1
        s02 += x * w2
        s03 += x * w3
        x = out.dtype.type(X[b1, f])
        s10 += x * w0
        s11 += x * w1
        s12 += x * w2
        s13 += x * w3
        x = out.dtype.type(X[b2, f])
        s20 += x * w0
        s21 += x * w1
        s22 += x * w2
        s23 += x * w3
        x = out.dtype.type(X[b3, f])
        s30 += x * w0
        s31 += x * w1
        s32 += x * w2
        s33 += x * w3
    out[slot, p, j], out[slot, p, j + 1], out[slot, p, j + 2], out[slot, p, j + 3] = s00, s01, s02, s03
    p += 1
    out[slot, p, j], out[slot, p, j + 1], out[slot, p, j + 2], out[slot, p, j + 3] = s10, s11, s12, s13
    p += 1
    out[slot, p, j], out[slot, p, j + 1], out[slot, p, j + 2], out[slot, p, j + 3] = s20, s21, s22, s23
    p += 1
    out[slot, p, j], out[slot, p, j + 1], out[slot, p, j + 2], out[slot, p, j + 3] = s30, s31, s32, s33


@jit
def keep_steps(
    slot: int,
    p: int,
    n_changed: int,
    changed: Int64Array,
    change: Float64Array,
    counts: Int64Array,
    classes: IntArray,
    steps: Float64Array,
) -> None:
    """Keep what row p of a tile changes, the first `n_changed` of `changed` by `change`, for `carry_tile`."""
    m = classes.shape[2]
    whole = n_changed == 0 or _WHOLE * n_changed >= m
    counts[slot, p] = m if whole and n_changed > 0 else n_changed
    if whole:
        for j in range(m):
            classes[slot, p, j], steps[slot, p, j] = j, 0.0
    for e in range(n_changed):
        at = changed[e] if whole else e
        classes[slot, p, at], steps[slot, p, at] = changed[e], change[e]


@jit(fastmath={"contract"})
def carry_tile(
    W: FloatArray,
    low: int,
    high: int,
    X: FloatArray,
    places: Int64Array,
    first: int,
    counts: Int64Array,
    classes: IntArray,
    steps: Float64Array,
    slot: int,
    at: Int64Array,
    who: Int64Array,
    much: Float64Array,
) -> None:
    """Add what a tile has changed to the classes low..high-1 of W, four rows at a time.

    Row p of the tile lies at places[first + p]; it changes the classes classes[slot, p, :counts[slot, p]],
    which rise, by `steps` along it.  `at` (t,), `who` and `much` (t + 4,) are room.
    """
    t = counts.shape[1]
    for p in range(t):
        at[p] = _first_from(low, counts[slot, p], classes, slot, p)
    for j in range(low, high):
        n = 0
        for p in range(t):
            e = at[p]
            if e < counts[slot, p] and classes[slot, p, e] == j:
                who[n], much[n] = places[first + p], steps[slot, p, e]
                at[p] = e + 1
                n += 1
        while n % GROUP:
            who[n], much[n] = who[0], 0.0
            n += 1
        for e in range(0, n, GROUP):
            b0, b1, b2, b3 = who[e], who[e + 1], who[e + 2], who[e + 3]
            c0, c1 = W.dtype.type(much[e]), W.dtype.type(much[e + 1])
            c2, c3 = W.dtype.type(much[e + 2]), W.dtype.type(much[e + 3])
            for f in range(W.shape[1]):
                W[j, f] += (c0 * X[b0, f] + c1 * X[b1, f]) + (c2 * X[b2, f] + c3 * X[b3, f])


@jit(fastmath={"contract"})
def carry_whole_tile(
    W: FloatArray,
    low: int,
    high: int,
    X: FloatArray,
    places: Int64Array,
    first: int,
    steps: Float64Array,
    slot: int,
) -> None:
    """Do what `carry_tile` does where the steps of all classes are in their places, four classes at a time.

    `steps` (2, t, classes) are those of as many classes as W has, a multiple of four.
    """
    z = W.dtype.type
    for j in range(low, high, GROUP):
        for p in range(0, steps.shape[1], GROUP):
            i0, i1 = places[first + p], places[first + p + 1]
            i2, i3 = places[first + p + 2], places[first + p + 3]
            a0, a1 = z(steps[slot, p, j]), z(steps[slot, p + 1, j])
            a2, a3 = z(steps[slot, p + 2, j]), z(steps[slot, p + 3, j])
            b0, b1 = z(steps[slot, p, j + 1]), z(steps[slot, p + 1, j + 1])
            b2, b3 = z(steps[slot, p + 2, j + 1]), z(steps[slot, p + 3, j + 1])
            c0, c1 = z(steps[slot, p, j + 2]), z(steps[slot, p + 1, j + 2])
            c2, c3 = z(steps[slot, p + 2, j + 2]), z(steps[slot, p + 3, j + 2])
            d0, d1 = z(steps[slot, p, j + 3]), z(steps[slot, p + 1, j + 3])
            d2, d3 = z(steps[slot, p + 2, j + 3]), z(steps[slot, p + 3, j + 3])
            for f in range(W.shape[1]):
                x0, x1, x2, x3 = X[i0, f], X[i1, f], X[i2, f], X[i3, f]
                W[j, f] += (a0 * x0 + a1 * x1) + (a2 * x2 + a3 * x3)
                W[j + 1, f] += (b0 * x0 + b1 * x1) + (b2 * x2 + b3 * x3)
                W[j + 2, f] += (c0 * x0 + c1 * x1) + (c2 * x2 + c3 * x3)
                W[j + 3, f] += (d0 * x0 + d1 * x1) + (d2 * x2 + d3 * x3)


@jit
def _first_from(low: int, count: int, classes: IntArray, slot: int, p: int) -> int:
    """Return the first entry of a row that changes class `low` or a later one."""
    start, stop = 0, count
    while start < stop:
        middle = (start + stop) // 2
        if classes[slot, p, middle] < low:
            start = middle + 1
        else:
            stop = middle
    return start


def add_weighted_grams(grams: Float64Array, X: Rows, weights: FloatArray) -> None:
    """Add sum_i weights[i, q] x_i x_i^T for every column q of weights (r, q) to grams (q, d, d)."""
    count, d = weights.shape[1], X.shape[1]
    few = 2 * np.count_nonzero(weights) < weights.size
    if few and d <= _NARROW and not is_sparse(X):
        _add_few(grams, X, weights)
        return
    if is_sparse(X) or few or count < _MANY_GRAMS or d > _FEW_COLUMNS:
        for q in range(count):
            grams[q] += weighted_gram(X, weights[:, q])
        return
    room = np.empty((min(_ROWS_OF_PAIRS, len(weights)), d * (d + 1) // 2), X.dtype)
    total, weights = np.zeros((count, room.shape[1])), weights.astype(X.dtype, copy=False)
    for start in range(0, len(weights), _ROWS_OF_PAIRS):
        part = X[start : start + _ROWS_OF_PAIRS]
        pairs = room[: len(part)]
        _pairs(part, pairs)
        total += weights[start : start + len(part)].T @ pairs
    rows, columns = np.tril_indices(d)
    gram = np.empty((d, d))
    for q in range(count):
        gram[rows, columns] = gram[columns, rows] = total[q]
        grams[q] += gram


def weighted_gram(X: Rows, weights: FloatArray) -> Float64Array:
    """Return sum w_i x_i x_i^T (d, d) over the rows whose weight is not 0."""
    rows = np.flatnonzero(weights)
    if not rows.size:
        return np.zeros((X.shape[1], X.shape[1]))
    part = X if len(rows) == len(weights) else X[rows]
    if not is_sparse(part) and (weights >= 0).all():
        # Of one matrix with itself BLAS computes half.
        part = part * np.sqrt(weights[rows, None]).astype(X.dtype)
        return np.asarray(part.T @ part)
    scaled = weights[rows, None].astype(X.dtype)
    product = part.multiply(scaled).T @ part if is_sparse(part) else (part * scaled).T @ part
    return np.asarray(product.toarray() if is_sparse(product) else product)


@jit
def _add_few(grams: Float64Array, X: FloatArray, weights: FloatArray) -> None:
    """Add what `add_weighted_grams` does, row by row."""
    for i in range(X.shape[0]):
        for q in range(grams.shape[0]):
            if weights[i, q] != 0.0:
                for j in range(X.shape[1]):
                    x = weights[i, q] * X[i, j]
                    for k in range(X.shape[1]):
                        grams[q, j, k] += x * X[i, k]


@jit
def _pairs(X: FloatArray, pairs: FloatArray) -> None:
    """Write x_ij x_ik for k <= j of every row to `pairs`."""
    for i in range(X.shape[0]):
        at = 0
        for j in range(X.shape[1]):
            x = X[i, j]
            for k in range(j + 1):
                pairs[i, at + k] = x * X[i, k]
            at += j + 1
