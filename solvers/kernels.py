"""Per-row work of a round, compiled: ranking, accumulation of X^T U, and the update of A.

A vertex row u_i is never stored as numbers.  It is `ranked[i, :counts[i]]`, the classes of the largest a_j in
order: the class at place j has u = -rho_j, the own class has minus the sum of the others, and its own place, if it
has one, counts for nothing.  So U has at most len(rho) + 1 non-zeros a row (Tajima et al., eq. 2.19).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

#: Columns of X that are accumulated at once: a class's sums stay in the first-level cache.
COLUMN_STRIP = 1024
#: From this many ranks on, sorting all classes is faster than inserting into a short list.
SORT_FROM = 48

#: Positions in the array of sums that `rank_rows` adds to.
LOSS, B_U, U_SQ, ALPHA_U, ACTIVE = range(5)
N_SUMS = 5

_FLAGS: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": {"contract"}, "error_model": "numpy"}


@njit(**_FLAGS)
def _insert_largest(a: Any, values: Any, classes: Any) -> None:
    """Put the len(values) largest of a in decreasing order; ties keep the lower class first."""
    size = len(values)
    for j in range(size):
        place = j
        while place > 0 and a[j] > values[place - 1]:
            values[place] = values[place - 1]
            classes[place] = classes[place - 1]
            place -= 1
        values[place] = a[j]
        classes[place] = j
    least = values[size - 1]
    for j in range(size, len(a)):
        if a[j] > least:
            place = size - 1
            while place > 0 and a[j] > values[place - 1]:
                values[place] = values[place - 1]
                classes[place] = classes[place - 1]
                place -= 1
            values[place] = a[j]
            classes[place] = j
            least = values[size - 1]


@njit(**_FLAGS)
def _sort_largest(a: Any, values: Any, classes: Any) -> None:
    """Do what `_insert_largest` does, by a stable sort of all classes."""
    order = np.argsort(-a, kind="mergesort")
    for place in range(len(values)):
        classes[place] = order[place]
        values[place] = a[order[place]]


@njit(**_FLAGS)
def rank_rows(
    scores: Any, y: Any, rho: Any, hinge_first: bool, margins: Any, ranked: Any, counts: Any, sums: Any
) -> None:
    """Find u_i for every row of scores (b, m) and add the row's scalars to `sums`.

    `margins` is (m, m) or (0, 0) for 1 - e_y.  Writes `ranked` (b, L) and `counts` (b,).  Adds sum Phi, sum
    b(u_i), sum |u_i|^2 and the number of rows with u_i != 0.
    """
    m = scores.shape[1]
    size = len(rho)
    a = np.empty(m)
    values = np.empty(size)
    for i in range(scores.shape[0]):
        own = y[i]
        own_score = np.float64(scores[i, own])
        if margins.shape[0] > 0:
            for j in range(m):
                a[j] = margins[own, j] + (np.float64(scores[i, j]) - own_score)
        else:
            for j in range(m):
                a[j] = 1.0 + (np.float64(scores[i, j]) - own_score)
            a[own] = 0.0
        if size < SORT_FROM:
            _insert_largest(a, values, ranked[i])
        else:
            _sort_largest(a, values, ranked[i])
        loss = 0.0
        count = size
        if hinge_first:
            count = 0
            while count < size and values[count] > 0.0:
                loss += rho[count] * values[count]
                count += 1
        else:
            for j in range(size):
                loss += rho[j] * values[j]
            if loss <= 0.0:
                loss = 0.0
                count = 0
        counts[i] = count
        sums[LOSS] += loss
        others = 0.0
        for j in range(count):
            c = ranked[i, j]
            if c != own:
                others += rho[j]
                sums[U_SQ] += rho[j] * rho[j]
                sums[B_U] += rho[j] * (margins[own, c] if margins.shape[0] > 0 else 1.0)
        if others > 0.0:
            sums[U_SQ] += others * others
            sums[ACTIVE] += 1.0


@njit(**_FLAGS)
def _group_by_class(y: Any, rho: Any, ranked: Any, counts: Any, m: int) -> tuple[Any, Any, Any]:
    """List the non-zeros of U class by class: (first entry of each class, rows, values)."""
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
                entry_values[next_entry[c]] = -rho[j]
                next_entry[c] += 1
                total += rho[j]
        if total > 0.0:
            entry_rows[next_entry[y[i]]] = i
            entry_values[next_entry[y[i]]] = total
            next_entry[y[i]] += 1
    return first, entry_rows, entry_values


@njit(**_FLAGS)
def accumulate_dense(X: Any, y: Any, rho: Any, ranked: Any, counts: Any, product: Any) -> None:
    """Add X^T U to `product` (m, d) float64, for the rows X (b, d).

    Entries are taken class by class and column strip by column strip: the sums of a class stay in cache
    while its rows pass by, four at a time, so that each sum is loaded and stored once for four rows.
    """
    m, d = product.shape
    first, rows, values = _group_by_class(y, rho, ranked, counts, m)
    for low in range(0, d, COLUMN_STRIP):
        high = min(low + COLUMN_STRIP, d)
        for c in range(m):
            target = product[c, low:high]
            e = first[c]
            while e + 4 <= first[c + 1]:
                v0, v1, v2, v3 = values[e], values[e + 1], values[e + 2], values[e + 3]
                x0, x1 = X[rows[e], low:high], X[rows[e + 1], low:high]
                x2, x3 = X[rows[e + 2], low:high], X[rows[e + 3], low:high]
                for f in range(high - low):
                    target[f] += (v0 * x0[f] + v1 * x1[f]) + (v2 * x2[f] + v3 * x3[f])
                e += 4
            while e < first[c + 1]:
                v0 = values[e]
                x0 = X[rows[e], low:high]
                for f in range(high - low):
                    target[f] += v0 * x0[f]
                e += 1


@njit(**_FLAGS)
def accumulate_csr(
    data: Any, indices: Any, indptr: Any, y: Any, rho: Any, ranked: Any, counts: Any, product: Any
) -> None:
    """Add X^T U to `product` (m, d) float64, for CSR rows."""
    first, rows, values = _group_by_class(y, rho, ranked, counts, product.shape[0])
    for c in range(product.shape[0]):
        for e in range(first[c], first[c + 1]):
            value = values[e]
            for p in range(indptr[rows[e]], indptr[rows[e] + 1]):
                product[c, indices[p]] += value * data[p]


@njit(**_FLAGS)
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


@njit(**_FLAGS)
def lift_scores(scores: Any, A: Any, smoothing: float) -> None:
    """Add smoothing * A to the scores, both (b, m)."""
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            scores[i, j] += smoothing * A[i, j]


@njit(**_FLAGS)
def alpha_dot_u(A: Any, y: Any, rho: Any, ranked: Any, counts: Any) -> float:
    """Give sum_i <alpha_i, u_i>."""
    total = 0.0
    for i in range(A.shape[0]):
        others = 0.0
        for j in range(counts[i]):
            c = ranked[i, j]
            if c != y[i]:
                total -= rho[j] * A[i, c]
                others += rho[j]
        total += others * A[i, y[i]]
    return total


@njit(**_FLAGS)
def sum_of_squares(A: Any) -> float:
    """Give |A|_F^2 in float64, adding row by row."""
    total = 0.0
    for i in range(A.shape[0]):
        row = 0.0
        for j in range(A.shape[1]):
            row += np.float64(A[i, j]) * np.float64(A[i, j])
        total += row
    return total
