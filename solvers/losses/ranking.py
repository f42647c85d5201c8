"""Compiled ranking of classes: for every row of scores, the vertex u_i and its scalars.

A vertex row is stored as `ranked[i, :counts[i]]`, the classes of the largest a_j in order: the class at place
j has u = -rho_j and the own class minus the sum of the others; if the own class takes a place itself, that
place is skipped.  So U has at most len(rho) + 1 non-zeros per row (Tajima et al., eq. 2.19).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topline.solvers.jit_cache import borrowed, jit, keep
from topline.solvers.projections.columns import room, sort_decreasing
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Running maxima of `_largest_by_lanes`: the float32 lanes of a wide register.
LANES = 16
#: From this many ranks on, sorting all classes is faster than insertion into a short list.
SORT_FROM = 48

#: Positions in the sums that `rank_rows` adds to; whoever holds A adds ALPHA_U.
LOSS, B_U, U_SQ, ALPHA_U, ACTIVE = range(5)
N_SUMS = 5

#: Placeholder for losses that are not requested.
_NOT_ASKED = np.empty(0)


@jit(fastmath={"contract"})
def _insert(key: Any, label: Any, keys: Any, labels: Any, filled: int) -> None:
    """Insert a key after keys of at least its value, in a list whose first `filled` places are taken."""
    place = min(filled, len(keys) - 1)
    while place > 0 and key > keys[place - 1]:
        keys[place] = keys[place - 1]
        labels[place] = labels[place - 1]
        place -= 1
    keys[place] = key
    labels[place] = label


@jit(fastmath={"contract"})
def _largest_by_insertion(row: Any, keys: Any, labels: Any) -> None:
    """Write the len(keys) largest of a row in decreasing order; ties go to the lower class."""
    if len(keys) == 1:
        _largest(row, keys, labels)
        return
    for j in range(len(keys)):
        _insert(row[j], j, keys, labels, j)
    for j in range(len(keys), len(row)):
        if not row[j] <= keys[-1]:
            _insert(row[j], j, keys, labels, len(keys))


@jit(fastmath={"contract"})
def _largest(row: Any, keys: Any, labels: Any) -> None:
    """Write the largest of a row without data-dependent branches."""
    key, label = row[0], 0
    for j in range(1, len(row)):
        higher = not row[j] <= key
        key = row[j] if higher else key
        label = j if higher else label
    keys[0], labels[0] = key, label


@jit(fastmath={"contract"})
def _collect(row: Any, bound: float, low: int, high: int, candidates: Any, found: int) -> int:
    """Append the classes low..high-1 whose key reaches the bound; return the new number of candidates."""
    for j in range(low, high):
        candidates[found] = j
        found += row[j] >= bound
    return found


@jit(fastmath={"contract"})
def _lower_bound(row: Any, keys: Any, lanes: Any) -> None:
    """Write the len(keys) largest of LANES running maxima of the row to keys, in decreasing order."""
    for lane in range(LANES):
        lanes[lane] = row[lane]
    for low in range(LANES, len(row) - LANES + 1, LANES):
        for lane in range(LANES):
            # Numba's max handles NaN and does not vectorise.
            key = row[low + lane]
            lanes[lane] = key if key > lanes[lane] else lanes[lane]  # noqa: FURB136
    keys[:] = -np.inf
    for lane in range(LANES):
        key = np.float64(lanes[lane])
        for place in range(len(keys)):
            listed = keys[place]
            higher = key > listed
            keys[place] = key if higher else listed
            key = listed if higher else key


@jit(fastmath={"contract"})
def _largest_by_lanes(row: Any, keys: Any, labels: Any, lanes: Any, candidates: Any) -> None:
    """Write the few largest of a long row, almost without data-dependent branches.

    The len(keys)-th largest of LANES running maxima is a lower bound that few other keys pass.
    """
    _lower_bound(row, keys, lanes)
    # Stored in the row's own precision, so that comparisons need no conversion.
    lanes[0] = keys[-1]
    bound = lanes[0]
    found = 0
    whole = len(row) - len(row) % LANES
    for low in range(0, whole, LANES):
        passing = 0
        for lane in range(LANES):
            passing += row[low + lane] >= bound
        if passing > 0:
            found = _collect(row, bound, low, low + LANES, candidates, found)
    found = _collect(row, bound, whole, len(row), candidates, found)
    keys[:] = -np.inf
    labels[:] = 0
    for e in range(found):
        label = candidates[e]
        key = np.float64(row[label])
        higher = False
        for place in range(len(keys)):
            listed, listed_label = keys[place], labels[place]
            # A displaced entry came before its equals, so it stays in front of them.
            higher = higher | (key > listed)
            keys[place] = key if higher else listed
            labels[place] = label if higher else listed_label
            key = listed if higher else key
            label = listed_label if higher else label


class RankRule(NamedTuple):
    """How a hinge over ranks finds its vertices.

    `rho` (L,) are the rank weights, `own_share` is the weight of the own class in |u_i|^2, and `margins` are
    (m, m), or (0, 0) for 1 - e_y.  Violations may be cut at 0 before they are summed (`hinge_first`), and the
    own class may take a rank (`own_in_sort`); otherwise L < m.
    """

    rho: Float64Array
    hinge_first: bool
    own_in_sort: bool
    own_share: float
    margins: Float64Array


class _Rows(NamedTuple):
    """Labels, weights and outputs of `rank_rows`."""

    y: IntArray
    weights: Float64Array
    ranked: IntArray
    counts: IntArray
    sums: Float64Array
    losses: Float64Array


def rank_rows(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    rule: RankRule,
    ranked: IntArray,
    counts: IntArray,
    sums: Float64Array,
    losses: Float64Array = _NOT_ASKED,
) -> None:
    """Find u_i for every row of scores (b, m) and add the row's scalars to `sums`; overwrites the scores.

    Writes `ranked` (b, L) and `counts` (b,).  Adds w_i times Phi, b(u_i) and |u_i|^2, and the number of rows
    with u_i != 0.  `losses` (b,), if given, receives the loss of each row.
    """
    m, size = scores.shape[1], len(rule.rho)
    # Only the function that is called gets compiled.
    if size >= SORT_FROM:
        rank = _rank_by_sort
    elif size > LANES or m < 2 * LANES:
        rank = _rank_by_insertion
    else:
        rank = _rank_by_lanes
    rank(scores, rule, _Rows(y, weights, ranked, counts, sums, losses))


@jit(fastmath={"contract"})
def _rank_by_insertion(scores: Any, rule: Any, rows: Any) -> None:
    """Rank rows by insertion into a list."""
    owners = room(len(rule.rho)), scores, rule, rows
    keys, scores, rule, rows = borrowed(owners[0]), borrowed(scores), borrowed(rule), borrowed(rows)
    for i in range(scores.shape[0]):
        own_score = _prepare_row(scores[i], rows.y[i], rule)
        _largest_by_insertion(scores[i], keys, rows.ranked[i])
        _write_row(i, keys, own_score, rule, rows)
    keep(owners)


@jit(fastmath={"contract"})
def _rank_by_lanes(scores: Any, rule: Any, rows: Any) -> None:
    """Rank rows for few ranks of many classes."""
    spare = np.empty(LANES, dtype=scores.dtype), np.empty(scores.shape[1] + 1, dtype=np.int32)
    owners = room(len(rule.rho)), spare, scores, rule, rows
    keys, lanes, candidates = borrowed(owners[0]), borrowed(spare[0]), borrowed(spare[1])
    scores, rule, rows = borrowed(scores), borrowed(rule), borrowed(rows)
    for i in range(scores.shape[0]):
        own_score = _prepare_row(scores[i], rows.y[i], rule)
        _largest_by_lanes(scores[i], keys, rows.ranked[i], lanes, candidates)
        _write_row(i, keys, own_score, rule, rows)
    keep(owners)


@jit(fastmath={"contract"})
def _rank_by_sort(scores: Any, rule: Any, rows: Any) -> None:
    """Rank rows for many ranks, by a stable sort of all classes."""
    keys, m = room(len(rule.rho)), scores.shape[1]
    values, order = room(m), np.empty(m, dtype=np.int64)
    for i in range(scores.shape[0]):
        row, labels = scores[i], rows.ranked[i]
        own_score = _prepare_row(row, rows.y[i], rule)
        for j in range(m):
            values[j], order[j] = row[j], j
        sort_decreasing(values, order, m)
        for place in range(len(keys)):
            keys[place], labels[place] = values[place], order[place]
        _write_row(i, keys, own_score, rule, rows)


@jit(fastmath={"contract"})
def _prepare_row(row: Any, own: int, rule: Any) -> float:
    """Turn the scores of a row into keys in the order of its a_j; return the score of its own class."""
    own_score = np.float64(row[own])
    # Subtract the common margin 1 from the own class instead.
    if rule.margins.shape[0] == 0:
        row[own] -= 1.0
    else:
        for j in range(len(row)):
            row[j] += rule.margins[own, j]
    if not rule.own_in_sort:
        row[own] = -np.inf
    return own_score


@jit(fastmath={"contract"})
def _write_row(i: int, keys: Any, own_score: float, rule: Any, rows: Any) -> None:
    """Write the loss and the number of listed classes with mass, and add to the sums."""
    rho, margins, sums, labels = rule.rho, rule.margins, rows.sums, rows.ranked[i]
    own, weight = rows.y[i], rows.weights[i]
    size = len(rho)
    uniform = margins.shape[0] == 0
    lost = np.isnan(own_score) or not keys[size - 1] > -np.inf
    loss = _loss_of_row(keys, labels, own, own_score, 1.0 if uniform else 0.0, rho)
    count = size
    if rule.hinge_first:
        count, loss = 0, 0.0 * loss
        while count < size and keys[count] > 0.0:
            loss += rho[count] * keys[count]
            count += 1
    elif loss <= 0.0:
        count, loss = 0, 0.0
    rows.counts[i] = count
    if lost:
        loss = np.nan
    if len(rows.losses):
        rows.losses[i] = loss
    sums[LOSS] += weight * loss
    others = 0.0
    for j in range(count):
        if labels[j] != own:
            others += rho[j]
            sums[U_SQ] += weight * rho[j] * rho[j]
            sums[B_U] += weight * rho[j] * (1.0 if uniform else margins[own, labels[j]])
    sums[U_SQ] += weight * rule.own_share * others * others
    sums[ACTIVE] += others > 0.0


@jit(fastmath={"contract"})
def _loss_of_row(keys: Any, labels: Any, own: Any, own_score: float, margin: float, rho: Any) -> float:
    """Return sum_j rho_j a_[j] of the listed classes, a_j = margin + key - own score; keys become a_[j]."""
    total = 0.0
    for j in range(len(rho)):
        a = 0.0 if labels[j] == own else margin + (keys[j] - own_score)
        keys[j] = a
        total += rho[j] * a
    return total
