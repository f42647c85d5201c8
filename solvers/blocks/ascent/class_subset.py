"""Sweeps that touch a few classes of each row: those with mass, and those most likely to gain some.

Most rows have mass in two or three classes, however many there are.  While all others stay at 0, the update
of a hinge over ranks is exactly that of a problem with only these classes, and needs only their scores.  One
product with W before the stages of a round chooses them.  The first sweep of the next round, over all
classes, corrects omissions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from topline.solvers.blocks.ascent.rows import BlockRows, DualWindow, Portion
from topline.solvers.blocks.ascent.sweeps import ClassLists
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.losses import LossForm
from topline.solvers.projections.columns import ColumnProblem, column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Classes without mass included for their high scores; with ranks at least one more.
_SPARE = 3
#: Average share of the classes above which a row is faster swept whole; the second for rows swept in tiles,
#: which share the loads of W and run on threads.
_FEW, _FEW_OF_TILES = 0.6, 0.05
#: Dual entries, or multiplications of scores, per batch, and the least number of rows scored at once.
_LOOKED_AT, _LEAST_LISTED = 1 << 22, 2048


def spare_classes(form: LossForm) -> int:
    """Return how many classes without mass are included, 0 for a loss that needs all classes."""
    if form.family.ranks is None or form.margins is not None:
        return 0
    # With the own class there are more than ranks, so that no rank goes to an omitted class.
    return max(_SPARE, len(form.rho) + 1)


def room_for_lists(
    rows: Int64Array, block: BlockRows, duals: DualWindow, *, tiled: bool = False
) -> ClassLists | None:
    """Return room for the class lists of some ascending rows of a block; None if they are not short.

    The limit is lower for rows swept in tiles.
    """
    spare = spare_classes(block.problem.form)
    if not spare:
        return None
    m, n = block.problem.m, len(block.y)
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    step = max(_LOOKED_AT // m, 1)
    for low in range(0, n, step):
        high = min(low + step, n)
        first, last = np.searchsorted(rows, (low, high))
        if first < last:
            A, delta = duals.read((low, high))
            inside = rows[first:last] - low
            count_classes(inside, block.y[low:high], A, delta, spare, starts[first : last + 1])
    np.cumsum(starts, out=starts)
    if starts[-1] > (_FEW_OF_TILES if tiled else _FEW) * m * len(rows):
        return None
    place = np.zeros(n, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return ClassLists(place, starts, np.empty(starts[-1], dtype=np.int32))


def fill_lists(
    lists: ClassLists,
    portions: Iterable[Portion],
    block: BlockRows,
    duals: DualWindow,
    W: FloatArray,
    apart: Float64Array | None,
) -> None:
    """Write the classes of the ascending rows in `portions`, by their scores at W (d, m).

    `apart` (m,) is the part of W along the deflated direction, None without one.
    """
    step = max(_LEAST_LISTED, _LOOKED_AT // W.size)
    for X, places, rows, slab in portions:
        A, delta = duals.read(slab)
        for low in range(0, len(rows), step):
            some = rows[low : low + step]
            scores = X[places[low : low + step]] @ W
            if apart is not None:
                scores += np.outer(block.along[some], apart).astype(scores.dtype)
            first = lists.place[some[0]]
            starts = lists.starts[first : first + len(some) + 1]
            choose_classes(scores, some - slab[0], block.y[slice(*slab)], A, delta, starts, lists.classes)


@jit
def count_classes(
    rows: Int64Array, y: IntArray, A: FloatArray, delta: FloatArray, spare: int, starts: Int64Array
) -> None:
    """Write the number of classes of row rows[t] to starts[t + 1]."""
    m = A.shape[1]
    for t in range(len(rows)):
        i = rows[t]
        count = 1 + spare
        for j in range(m):
            if j != y[i] and np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                count += 1
        starts[t + 1] = min(count, m)


@jit
def choose_classes(
    scores: FloatArray,
    rows: Int64Array,
    y: IntArray,
    A: FloatArray,
    delta: FloatArray,
    starts: Int64Array,
    classes: IntArray,
) -> None:
    """Write the classes of some rows: the own one, those with mass, and the highest-scoring others.

    `scores` (t, m) are of the rows rows[t], whose classes go to classes[starts[t] : starts[t + 1]].
    """
    for t in range(len(rows)):
        i, at, end = rows[t], starts[t], starts[t + 1]
        classes[at] = y[i]
        at += 1
        for j in range(scores.shape[1]):
            if j != y[i] and np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                classes[at] = j
                at += 1
        spare = at
        for j in range(scores.shape[1]):
            if j == y[i] or np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                continue
            if at == end and (spare == end or not scores[t, j] > scores[t, classes[end - 1]]):
                continue
            p = min(at, end - 1)
            while p > spare and scores[t, classes[p - 1]] < scores[t, j]:
                classes[p] = classes[p - 1]
                p -= 1
            classes[p] = j
            at = min(at + 1, end)


def project_in_lists(Z: Float64Array, places: Int64Array, lists: ClassLists, form: LossForm) -> None:
    """Replace rows of Z (t, m) by the nearest points of their domains in the listed classes.

    Row t has the list places[t]; its other classes are 0 and stay so.
    """
    column = form.column_where(alike=True)
    _project(Z, places, lists, column, form.rho, form.table, form.family.own_margin)


@jit
def _project(
    Z: Float64Array,
    places: Int64Array,
    lists: ClassLists,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    own_margin: float,
) -> None:
    m = Z.shape[1]
    owned = *column_workspace(m), room(m), room(m)
    work, index_work, all_q, all_alpha = borrowed(owned)
    for t in range(Z.shape[0]):
        first = lists.starts[places[t]]
        few = lists.starts[places[t] + 1] - first
        q, alpha = all_q[:few], all_alpha[:few]
        for e in range(few):
            q[e] = -Z[t, lists.classes[first + e]] - (own_margin if e == 0 else 1.0)
        column(ColumnProblem(q, 0, 1.0, 1.0, rho, margins, alpha, work, index_work, False))
        for e in range(few):
            Z[t, lists.classes[first + e]] = alpha[e]
    keep(owned)
