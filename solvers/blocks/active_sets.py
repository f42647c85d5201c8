"""Active sets of vertices, one for every example: what their points are worth, and their change, compiled.

A vertex is a list of classes, as `topline.solvers.losses.ranking` finds it: the class at place p has -rho_p,
the own class minus the sum of the others.  With a_j = delta_j + s_j - s_y its value <grad, v> is sum_p rho_p
a_[p] (a_y = 0).  The set of row i is `lists[i, s, :lengths[i, s]]` with `shares[i, s]` for s < used[i], and
one dense point `base[i]` with `base_share[i]`, which need not be there while all of these are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.jit_cache import jit

#: What a row does: nothing, go towards its vertex, away from a point of its set, or from that to the vertex.
REST, TOWARDS, AWAY, SWAP = range(4)
#: A share that subtracting its own leaves.
_ROUNDING = 1e-15
#: The place of the dense point among those of a set.
BASE = -1


@jit(fastmath={"contract"})
def value_of(a: Any, rho: Any, labels: Any, count: int) -> float:
    """Return <grad, v> of a vertex."""
    total = 0.0
    for p in range(count):
        total += rho[p] * a[labels[p]]
    return total


@jit(fastmath={"contract"})
def value_of_point(a: Any, point: Any, own: int) -> float:
    """Return <grad, alpha> of a dense point, whose classes sum to 0."""
    total = 0.0
    for j in range(len(a)):
        if j != own:
            total -= point[j] * a[j]
    return total


@jit(fastmath={"contract"})
def add_vertex(target: Any, factor: float, rho: Any, labels: Any, count: int, own: int) -> None:
    """Add a multiple of a vertex."""
    others = 0.0
    for p in range(count):
        if labels[p] != own:
            target[labels[p]] -= factor * rho[p]
            others += rho[p]
    target[own] += factor * others


@jit(fastmath={"contract"})
def worst_of(
    a: Any, own: int, rho: Any, lists: Any, lengths: Any, shares: Any, used: int, base: Any, base_share: float
) -> tuple[int, float, float]:
    """Return the place of the point in a set with the smallest <grad, v>, that value, and its share."""
    place, least, share = BASE, np.inf, 0.0
    if base_share > 0.0:
        least, share = value_of_point(a, base, own), base_share
    for s in range(used):
        value = value_of(a, rho, lists[s], lengths[s])
        if value < least:
            place, least, share = s, value, shares[s]
    return place, least, share


@jit(fastmath={"contract"})
def rest_of(base_share: float, shares: Any, used: int, place: int) -> float:
    """Return the share of all points of a set but one: 1 minus its own, with all digits."""
    total = 0.0 if place == BASE else base_share
    for s in range(used):
        if s != place:
            total += shares[s]
    return total


@jit(fastmath={"contract"})
def put_in_order(rho: Any, labels: Any, count: int, own: int) -> int:
    """Write a vertex so that equal vertices are equal lists; return its new length.

    Classes of equal rank weights are sorted, and an own class that could as well be last is left out.
    """
    start = 0
    while start < count:
        stop = start + 1
        while stop < count and rho[stop] == rho[start]:
            stop += 1
        if stop > start + 1:
            labels[start:stop] = np.sort(labels[start:stop])
        start = stop
    last = count - 1
    while last >= 0 and labels[last] != own and rho[last] == rho[count - 1]:
        last -= 1
    if last < 0 or labels[last] != own or rho[last] != rho[count - 1]:
        return count
    for p in range(last, count - 1):
        labels[p] = labels[p + 1]
    return count - 1


@jit(fastmath={"contract"})
def take_step(
    step: float,
    y: Any,
    rho: Any,
    ranked: Any,
    counts: Any,
    moves: Any,
    leaving: Any,
    reach: Any,
    lists: Any,
    lengths: Any,
    shares: Any,
    used: Any,
    base: Any,
    base_share: Any,
) -> None:
    """Change the sets as A changes by `step` times the directions that were chosen last."""
    for i in range(len(y)):
        move, place, length, left = moves[i], leaving[i], step * reach[i], 0.0
        if move == REST or length == 0.0:
            continue
        if move != TOWARDS:
            lost = length if move == SWAP else length * rest_of(base_share[i], shares[i], used[i], place)
            left = (base_share[i] if place == BASE else shares[i, place]) - lost
            # At the end of its way the point is out, but for rounding.
            left = left if left > _ROUNDING else 0.0
        if move != SWAP:
            # Away from v is A + length (A - v), towards u is A + length (u - A).
            kept = 1.0 - length if move == TOWARDS else 1.0 + length
            base_share[i] *= kept
            for s in range(used[i]):
                shares[i, s] *= kept
        if move != TOWARDS:
            if place == BASE:
                base_share[i] = left
            else:
                shares[i, place] = left
        used[i] = _drop_empty(lists[i], lengths[i], shares[i], used[i])
        if move != AWAY:
            used[i] = _take_in(
                length, ranked[i], counts[i], y[i], rho, lists[i], lengths[i], shares[i], used[i], base, i,
                base_share,
            )  # fmt: skip


@jit(fastmath={"contract"})
def _drop_empty(lists: Any, lengths: Any, shares: Any, used: int) -> int:
    """Close the gaps of points without a share; return the number of those that are left."""
    kept = 0
    for s in range(used):
        if shares[s] > 0.0:
            if kept < s:
                lists[kept], lengths[kept], shares[kept] = lists[s], lengths[s], shares[s]
            kept += 1
    return kept


@jit(fastmath={"contract"})
def _take_in(
    gained: float,
    labels: Any,
    count: int,
    own: int,
    rho: Any,
    lists: Any,
    lengths: Any,
    shares: Any,
    used: int,
    base: Any,
    i: int,
    base_share: Any,
) -> int:
    """Give a vertex a share of the set of row i; in a full set the smallest one joins the dense point."""
    for s in range(used):
        if lengths[s] == count and np.all(lists[s, :count] == labels[:count]):
            shares[s] += gained
            return used
    place = used
    if used == len(shares):
        place = int(np.argmin(shares))
        whole = base_share[i] + shares[place]
        base[i] *= base_share[i] / whole
        add_vertex(base[i], shares[place] / whole, rho, lists[place], lengths[place], own)
        base_share[i] = whole
    lists[place, :count] = labels[:count]
    lengths[place], shares[place] = count, gained
    return max(used, place + 1)


@jit(fastmath={"contract"})
def _violations(scores: Any, own: int, margins: Any, a: Any) -> None:
    """Write a_j = delta_j + s_j - s_y of one row."""
    own_score = np.float64(scores[own])
    for j in range(len(a)):
        a[j] = np.float64(scores[j]) - own_score + (margins[own, j] if margins.shape[0] > 0 else 1.0)
    a[own] = 0.0


@jit(fastmath={"contract"})
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


@jit(fastmath={"contract"})
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


@jit(fastmath={"contract"})
def add_rows(X: Any, change: Any, weights: Any, product: Any) -> None:
    """Add sum_i w_i change_i x_i^T to `product` (m, d), for dense rows X (b, d); change (b, m) is sparse."""
    for i in range(X.shape[0]):
        for j in range(change.shape[1]):
            v = weights[i] * change[i, j]
            if v != 0.0:
                target = product[j]
                for f in range(X.shape[1]):
                    target[f] += v * X[i, f]


@jit(fastmath={"contract"})
def add_rows_csr(data: Any, indices: Any, indptr: Any, change: Any, weights: Any, product: Any) -> None:
    """Do the same for CSR rows."""
    for i in range(change.shape[0]):
        for j in range(change.shape[1]):
            v = weights[i] * change[i, j]
            if v != 0.0:
                for p in range(indptr[i], indptr[i + 1]):
                    product[j, indices[p]] += v * data[p]
