"""Per-row work with the vertex of a round, compiled: the product X^T U, the update of A, and single losses.

U comes as `ranked` and `counts` of `topline.solvers.losses.ranking`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.jit_cache import jit

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
    """Add two weighted rows of X, from column `low` on, to target."""
    v0, v1 = values[0], values[1]
    x0, x1 = X[rows[0], low : low + len(target)], X[rows[1], low : low + len(target)]
    for f in range(len(target)):
        target[f] += v0 * x0[f] + v1 * x1[f]


@jit(fastmath={"contract"})
def _add_one(target: Any, X: Any, low: Any, rows: Any, values: Any) -> None:
    """Add one weighted row of X, from column `low` on, to target."""
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


@jit(fastmath={"contract"})
def commit_rows(A: Any, y: Any, rho: Any, ranked: Any, counts: Any, step: float, shrink: float) -> None:
    """Apply A <- shrink ((1 - step) A + step U) to the rows A (b, m)."""
    keep = shrink * (1.0 - step)
    gain = shrink * step
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            A[i, j] = keep * A[i, j]
        others = 0.0
        for j in range(counts[i]):
            c = ranked[i, j]
            if c != y[i]:
                A[i, c] -= gain * rho[j]
                others += rho[j]
        A[i, y[i]] += gain * others


@jit(fastmath={"contract"})
def lift_scores(scores: Any, A: Any, y: Any, smoothing: float, smoothing_own: float) -> None:
    """Add smoothing * A to the scores, both (b, m); the own class has the factor `smoothing_own`."""
    # If all classes have the same smoothing, y may number label sets.
    alike = smoothing_own == smoothing
    for i in range(A.shape[0]):
        own = 0.0 if alike else scores[i, y[i]] + smoothing_own * A[i, y[i]]
        for j in range(A.shape[1]):
            scores[i, j] += smoothing * A[i, j]
        if not alike:
            scores[i, y[i]] = own


@jit(fastmath={"contract"})
def alpha_dot_u(A: Any, y: Any, weights: Any, rho: Any, ranked: Any, counts: Any, own_share: float) -> float:
    """Return sum_i w_i <alpha_i, u_i>, where the own class counts `own_share` times."""
    total = 0.0
    for i in range(A.shape[0]):
        others = 0.0
        for j in range(counts[i]):
            c = ranked[i, j]
            if c != y[i]:
                total -= weights[i] * rho[j] * A[i, c]
                others += rho[j]
        total += weights[i] * own_share * others * A[i, y[i]]
    return total


@jit(fastmath={"contract"})
def sum_of_squares(A: Any, y: Any, weights: Any, own_share: float) -> float:
    """Return sum_i w_i |alpha_i|^2 in float64, where the own class counts `own_share` times."""
    total = 0.0
    for i in range(A.shape[0]):
        row = 0.0
        for j in range(A.shape[1]):
            row += np.float64(A[i, j]) * np.float64(A[i, j])
        if own_share != 1.0:
            row += (own_share - 1.0) * np.float64(A[i, y[i]]) * np.float64(A[i, y[i]])
        total += weights[i] * row
    return total
