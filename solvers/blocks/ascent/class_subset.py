"""Sweeps that touch a few classes of each row: those with mass, and those most likely to come to have some.

Most rows have mass in two or three classes, however many there are.  While all others stay at 0, the update
of a hinge over ranks is that of a problem with as many classes, exactly, and takes the scores of these alone.
Which they are, one product with W says before the stages of a round.  A class that is missed shows in the
first sweep of the next round, which takes all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import carry_dense
from topline.solvers.blocks.ascent.rows import BlockRows, DualWindow, Portion
from topline.solvers.blocks.ascent.sweeps import AHEAD, fetch_dense
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.losses import LossForm
from topline.solvers.projections.ordering import column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Classes without mass that are taken along, those of the highest scores; with ranks at least one more.
_SPARE = 3
#: A row that takes more than this share of the classes on average is faster swept whole; the second share
#: holds where tiles of rows share the loads of W, and threads the tiles.
_FEW, _FEW_OF_TILES = 0.6, 0.05
#: Numbers of dual rows, or multiplications of scores, that are looked at together; scores of so many rows at
#: least.
_LOOKED_AT, _LEAST_LISTED = 1 << 22, 2048


class FewClasses(NamedTuple):
    """The classes that sweeps touch: of row i of the block those at starts[place[i]]..starts[place[i] + 1].

    The first of them is the own one.
    """

    place: Int64Array
    starts: Int64Array
    classes: IntArray


def spare_classes(form: LossForm) -> int:
    """Return how many classes without mass are taken along, 0 for a loss that is not one of fewer classes."""
    if form.family.ranks is None or form.margins is not None:
        return 0
    # With the own one they are more than there are ranks, so that none goes to a class that is left out.
    return max(_SPARE, len(form.rho) + 1)


def room_for_few(
    rows: Int64Array, block: BlockRows, duals: DualWindow, *, tiled: bool = False
) -> FewClasses | None:
    """Return room for the classes of some rows, which rise, of a block; None where they are not few.

    They are fewer where rows are swept in tiles.
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
    return FewClasses(place, starts, np.empty(starts[-1], dtype=np.int32))


def list_few(
    few: FewClasses,
    portions: Iterable[Portion],
    block: BlockRows,
    duals: DualWindow,
    W: FloatArray,
    apart: Float64Array | None,
) -> None:
    """Write the classes of the rows in `portions`, which rise, by their scores at W (d, m).

    `apart` (m,) is the part of W along the direction that is kept apart, None without one.
    """
    step = max(_LEAST_LISTED, _LOOKED_AT // W.size)
    for X, places, rows, slab in portions:
        A, delta = duals.read(slab)
        for low in range(0, len(rows), step):
            some = rows[low : low + step]
            scores = X[places[low : low + step]] @ W
            if apart is not None:
                scores += np.outer(block.along[some], apart).astype(scores.dtype)
            first = few.place[some[0]]
            starts = few.starts[first : first + len(some) + 1]
            choose_classes(scores, some - slab[0], block.y[slice(*slab)], A, delta, starts, few.classes)


@jit
def count_classes(
    rows: Int64Array, y: IntArray, A: FloatArray, delta: FloatArray, spare: int, starts: Int64Array
) -> None:
    """Write to starts[t + 1] how many classes row rows[t] takes."""
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
    """Write the classes of some rows: the own one, those with mass, and of the others those that score most.

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


@jit(fastmath={"reassoc", "contract"})
def _score(W: FloatArray, j: int, X: FloatArray, place: int) -> float:
    """Return w_j x for one row of X, summed in the precision of W."""
    total = W.dtype.type(0.0)
    for f in range(X.shape[1]):
        total += W[j, f] * X[place, f]
    return np.float64(total)


@jit
def _free_point(
    W: FloatArray,
    X: FloatArray,
    place: int,
    classes: IntArray,
    first: int,
    i: int,
    A: FloatArray,
    delta: FloatArray,
    own: float,
    apart: Float64Array,
    along: float,
    q: Float64Array,
) -> None:
    """Write to `q` the scores of row i in its classes from `first` on, less what its own A + delta adds."""
    for e in range(len(q)):
        j = classes[first + e]
        score = _score(W, j, X, place) + apart[j] * along
        q[e] = score - own * (np.float64(A[i, j]) + np.float64(delta[i, j]))


@jit
def _moved(
    W: FloatArray,
    X: FloatArray,
    place: int,
    classes: IntArray,
    first: int,
    i: int,
    A: FloatArray,
    delta: FloatArray,
    weighted: float,
    apart: Float64Array,
    kept_along: float,
    alpha: Float64Array,
) -> float:
    """Take row i to `alpha` in its classes from `first` on, and W with it; return what it moved, squared."""
    square = 0.0
    for e in range(len(alpha)):
        j = classes[first + e]
        before = delta[i, j]
        if alpha[e] == np.float64(A[i, j]) + np.float64(before):
            continue
        # What is stored is what counts: the change is taken after rounding to A's precision.
        delta[i, j] = alpha[e] - A[i, j]
        change = np.float64(delta[i, j]) - np.float64(before)
        if change != 0.0:
            square += change * change
            carry_dense(W, j, X, place, weighted * change)
            apart[j] -= kept_along * (weighted * change)
    return square


@jit
def sweep_few(
    X: FloatArray,
    places: Int64Array,
    rows: Int64Array,
    listed: Int64Array,
    starts: Int64Array,
    classes: IntArray,
    weights: Float64Array,
    norms: Float64Array,
    along: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    gamma: float,
    gamma_own: float,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> tuple[float, int]:
    """Do what `sweep_dense` does in a few classes of each row; return as well how many those were in all.

    Row i has the classes classes[starts[listed[i]] : starts[listed[i] + 1]], the own one first.  Its
    square and its part along u are known.  The other arguments are those of `sweep_dense`.
    """
    m = W.shape[0]
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    all_q, all_alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    total, taken, single = 0.0, 0, A.itemsize == 4
    for t in range(len(rows)):
        i = rows[t]
        if t + AHEAD < len(rows):
            fetch_dense(X, places[t + AHEAD], A, delta, rows[t + AHEAD])
        if weights[i] == 0.0:
            rises[i] = -1.0
            continue
        first = starts[listed[i]]
        few = starts[listed[i] + 1] - first
        taken += few
        weighted = scale * weights[i]
        own = weighted * (norms[i] - kept_apart * along[i] * along[i])
        q, alpha = all_q[:few], all_alpha[:few]
        _free_point(W, X, places[t], classes, first, i, A, delta, own, apart, along[i], q)
        _, _, vertex = column(
            q, 0, own + gamma, own + gamma_own, rho, margins, alpha, work, index_work, single
        )
        kept_along = kept_apart * along[i]
        square = _moved(W, X, places[t], classes, first, i, A, delta, weighted, apart, kept_along, alpha)
        still = vertex and square == 0.0
        rises[i] = -1.0 if still else 0.5 * (own + gamma_own) * square * weights[i]
        total += max(rises[i], 0.0)
    keep(owners)
    return total, taken


@jit
def project_few(
    Z: Float64Array,
    listed: Int64Array,
    starts: Int64Array,
    classes: IntArray,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    own_margin: float,
) -> None:
    """Do what `project_rows` does in the listed classes of each row; the others, which are 0, stay so.

    Row t of Z (t, m) has the classes classes[starts[listed[t]] : starts[listed[t] + 1]], the own one first.
    """
    m = Z.shape[1]
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    all_q, all_alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    for t in range(Z.shape[0]):
        first = starts[listed[t]]
        few = starts[listed[t] + 1] - first
        q, alpha = all_q[:few], all_alpha[:few]
        for e in range(few):
            q[e] = -Z[t, classes[first + e]] - (own_margin if e == 0 else 1.0)
        column(q, 0, 1.0, 1.0, rho, margins, alpha, work, index_work, False)
        for e in range(few):
            Z[t, classes[first + e]] = alpha[e]
    keep(owners)
