"""Directions of all examples inside their active sets, compiled, and their product with the features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from topline.solvers.blocks.active_sets import (
    AWAY,
    BASE,
    REST,
    SWAP,
    TOWARDS,
    add_vertex,
    put_in_order,
    rest_of,
    value_of,
    value_of_point,
    worst_of,
)

_FLAGS: dict[str, Any] = {"nogil": True, "cache": True, "fastmath": {"contract"}, "error_model": "numpy"}


@njit(**_FLAGS)
def _violations(scores: Any, own: int, margins: Any, a: Any) -> None:
    """Write a_j = delta_j + s_j - s_y of one row."""
    own_score = np.float64(scores[own])
    for j in range(len(a)):
        a[j] = np.float64(scores[j]) - own_score + (margins[own, j] if margins.shape[0] > 0 else 1.0)
    a[own] = 0.0


@njit(**_FLAGS)
def _write_direction(
    row: Any,
    move: int,
    place: int,
    removed: float,
    own: int,
    rho: Any,
    vertex: Any,
    count: int,
    alpha: Any,
    lists: Any,
    lengths: Any,
    shares: Any,
    used: int,
    base: Any,
    base_share: float,
) -> None:
    """Add the direction of one row to `row`: what comes, minus `removed` times the point that leaves."""
    if move == AWAY:
        # Not alpha - v: next to v the difference would have no digits.
        if place != BASE and base_share > 0.0:
            row += base_share * base
        for s in range(used):
            if s != place:
                add_vertex(row, shares[s], rho, lists[s], lengths[s], own)
    else:
        add_vertex(row, 1.0, rho, vertex, count, own)
    if move == TOWARDS:
        row -= alpha
    elif place == BASE:
        row -= removed * base
    else:
        add_vertex(row, -removed, rho, lists[place], lengths[place], own)


@njit(**_FLAGS)
def choose_directions(
    scores: Any,
    y: Any,
    weights: Any,
    bends: Any,
    smoothing: float,
    smoothing_own: float,
    rho: Any,
    margins: Any,
    swap: bool,
    ranked: Any,
    counts: Any,
    lists: Any,
    lengths: Any,
    shares: Any,
    used: Any,
    base: Any,
    base_share: Any,
    A: Any,
    change: Any,
    moves: Any,
    leaving: Any,
    reach: Any,
) -> None:
    """Write the direction of every row to `change` (b, m), and how it comes about to the last three.

    `ranked` and `counts` hold the vertices at the scores (b, m).  A row goes as far as would be best for it
    alone were the curvature along its scores `bends[i]`, and at most to where it leaves its polytope.
    """
    a = np.empty(scores.shape[1])
    for i in range(scores.shape[0]):
        own, row = y[i], change[i]
        row[:] = 0.0
        moves[i] = REST
        _violations(scores[i], own, margins, a)
        counts[i] = put_in_order(rho, ranked[i], counts[i], own)
        top = value_of(a, rho, ranked[i], counts[i])
        here = value_of_point(a, A[i], own)
        # Where there is no dense point its share is 0, and nobody looks at it.
        point = base[i] if base_share[i] > 0.0 else A[i]
        place, least, share = worst_of(
            a, own, rho, lists[i], lengths[i], shares[i], used[i], point, base_share[i]
        )
        rest = rest_of(base_share[i], shares[i], used[i], place)
        slope, longest, removed, move = top - here, 1.0, 1.0, TOWARDS
        if swap:
            slope, longest, move = top - least, share, SWAP
        elif here - least > slope and rest > 0.0:
            slope, longest, removed, move = here - least, share / rest, rest, AWAY
        if not slope > 0.0 or weights[i] == 0.0:
            continue
        _write_direction(
            row, move, place, removed, own, rho, ranked[i], counts[i], A[i], lists[i], lengths[i], shares[i],
            used[i], point, base_share[i],
        )  # fmt: skip
        square = smoothing_own * row[own] * row[own]
        for j in range(len(row)):
            square += row[j] * row[j] * (bends[i] if j == own else bends[i] + smoothing)
        moves[i], leaving[i] = move, place
        reach[i] = longest if slope >= square * longest else slope / square
        row *= reach[i]


@njit(**_FLAGS)
def add_rows(X: Any, change: Any, weights: Any, product: Any) -> None:
    """Add sum_i w_i change_i x_i^T to `product` (m, d), for dense rows X (b, d); change (b, m) is sparse."""
    for i in range(X.shape[0]):
        for j in range(change.shape[1]):
            v = weights[i] * change[i, j]
            if v != 0.0:
                target = product[j]
                for f in range(X.shape[1]):
                    target[f] += v * X[i, f]


@njit(**_FLAGS)
def add_rows_csr(data: Any, indices: Any, indptr: Any, change: Any, weights: Any, product: Any) -> None:
    """Do the same for CSR rows."""
    for i in range(change.shape[0]):
        for j in range(change.shape[1]):
            v = weights[i] * change[i, j]
            if v != 0.0:
                for p in range(indptr[i], indptr[i + 1]):
                    product[j, indices[p]] += v * data[p]
