"""Sweeps of exact column updates: each row at the weights left by the previous row.

Rows are visited singly, not in tiles: while W lies in a core's caches the scores of one row, m inner products
of length d, take about as long in a loop as their share of a BLAS product, the change is carried into W along
the few classes that change, and neither Gram matrices nor stale scores are needed.

A tile holds rows and their weights W in a suitable layout.  `scores`, `class_score`, `sizes`, `carry` and
`fetch_row`, all that depends on it, are chosen by the type of the tile when a sweep is compiled.  One sweep
serves rows of any layout, all classes or listed ones, and repeated visits to the moving rows without
returning to the interpreter: with few short rows a sweep takes less time than a call.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.jit_cache import ByType, JitFunction, borrowed, fetch, jit, keep
from topline.solvers.projections.columns import ColumnProblem, column_workspace, room
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
    tile: DenseTile | KernelTile,
    place: int,
    changed: Int64Array,
    steps: Float64Array,
    n_changed: int,
    _spare: FloatArray,
) -> None:
    rows, W = tile
    for k in range(n_changed):
        # Read before the loop, which is vectorised only then.
        j, step = changed[k], W.dtype.type(steps[k])
        for f in range(rows.shape[1]):
            W[j, f] += step * rows[place, f]


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
def _dense_fetch(tile: DenseTile | KernelTile, place: int) -> None:
    rows, _ = tile
    fetch(rows, place, rows.shape[1] * rows.itemsize)


@jit
def _csr_fetch(tile: CsrTile, place: int) -> None:
    low, high = tile.indptr[place], tile.indptr[place + 1]
    if low < high:
        fetch(tile.data, low, (high - low) * tile.data.itemsize)
        fetch(tile.indices, low, (high - low) * tile.indices.itemsize)


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
carry = _by_tile(_dense_carry, _csr_carry, _dense_carry)
#: (tile, place) prefetches the row at a place.
fetch_row = _by_tile(_dense_fetch, _csr_fetch, _dense_fetch)


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


#: Rows between the visited one and the one prefetched, where a visit takes the scores of a row, and where it
#: takes a few numbers of A.
AHEAD, FAR_AHEAD = 3, 16
#: A row whose rise is below this share of the mean has not moved.
STILL = 0.01


class ClassLists(NamedTuple):
    """The classes that sweeps touch: of row i of the block those at starts[place[i]]..starts[place[i] + 1].

    The first of them is the own one.  Empty lists mean all classes.
    """

    place: Int64Array
    starts: Int64Array
    classes: IntArray


ALL_CLASSES = ClassLists(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))


class SweptPart(NamedTuple):
    """Rows to visit, and the arrays that a sweep over them reads and writes.

    Attributes
    ----------
    tile : features and weights; a row scores W x + apart <x, u>, and W moves as if no row were shrunk.
    places, rows : for each visit the row's place in the tile, and its number in the arrays of the block
        below.
    lists : the classes touched.
    y, weights : labels, and how often a row counts.
    norms, along : |x_i|^2 and <x_i, u>, norms -1 where neither is known yet.
    u, kept_apart : unit vector (d,) along which examples are shrunk by sqrt(1 - kept_apart); 0 for none.
    apart : (m,) component of the weights along u for every class; kept up to date.
    A, delta : dual rows (of a row with weight 1) at the start of the round and their change so far, which is
        updated.
    rises : written for the visited rows: c/2 |change|^2, a lower bound of the rise of the dual, and below 0
        for a row that stays at a vertex of its domain.
    scale : s, the factor from a change of A to a change of scores; s = 1/(lam n) times the safety factor of a
        block that moves at the same time as others.
    gamma, gamma_own : smoothing of the other classes and of the own one.
    rho, margins : `rho` and `table` of the form of the loss.
    """

    tile: RowTile
    places: Int64Array
    rows: Int64Array
    lists: ClassLists
    y: IntArray
    weights: Float64Array
    norms: Float64Array
    along: Float64Array
    u: Float64Array
    kept_apart: float
    apart: Float64Array
    A: FloatArray
    delta: FloatArray
    rises: Float64Array
    scale: float
    gamma: float
    gamma_own: float
    rho: Float64Array
    margins: Float64Array


class Scratch(NamedTuple):
    """Scratch space for one row: column update workspace, scores, new values, and changed classes."""

    work: Float64Array
    index_work: Int64Array
    q: Float64Array
    alpha: Float64Array
    changed: Int64Array
    steps: Float64Array


class Swept(NamedTuple):
    """Summary of repeated sweeps.

    Attributes
    ----------
    sweeps, visited : their number, and visits; one to a few classes counts as their share.
    risen, last : rise of the dual, in all and in the last sweep.
    still : the rise below which a row has not moved.
    """

    sweeps: int
    visited: float
    risen: float
    last: float
    still: float


@jit
def scratch_for(m: int) -> Scratch:
    """Return scratch space for rows of m classes."""
    work, index_work = column_workspace(m)
    return Scratch(work, index_work, room(m), room(m), np.empty(m, dtype=np.int64), room(m))


@jit
def update_row(
    part: SweptPart, column: JitFunction, i: int, first: int, label: int, q: Float64Array, scratch: Scratch
) -> int:
    """Replace dual row i, whose scores are in q, by the maximiser of the dual in it.

    If classes are listed, q has those of the entries from `first` on; `label` is the place of the own one.
    Writes the changed classes, and the change of their weights along x_i, to `scratch`; returns their number.
    """
    A, delta, classes = part.A, part.delta, part.lists.classes
    alpha, along = scratch.alpha[: len(q)], part.along[i]
    weighted = part.scale * part.weights[i]
    own = weighted * (part.norms[i] - part.kept_apart * along * along)
    # Remove the row's own contribution from its scores.
    if len(classes) > 0:
        for e in range(len(q)):
            j = classes[first + e]
            q[e] -= own * (np.float64(A[i, j]) + np.float64(delta[i, j]))
    else:
        for j in range(len(q)):
            q[j] -= own * (np.float64(A[i, j]) + np.float64(delta[i, j]))
    _, _, vertex = column(
        ColumnProblem(
            q, np.int64(label), own + part.gamma, own + part.gamma_own, part.rho, part.margins, alpha,
            scratch.work, scratch.index_work, A.itemsize == 4,
        )
    )  # fmt: skip
    n_changed, square = store_row(part, i, first, alpha, scratch)
    still = vertex and n_changed == 0
    part.rises[i] = -1.0 if still else 0.5 * (own + part.gamma_own) * square * part.weights[i]
    return n_changed


@jit
def store_row(
    part: SweptPart, i: int, first: int, alpha: Float64Array, scratch: Scratch
) -> tuple[int, float]:
    """Store alpha as dual row i as `update_row` does; return the number of changed classes and |change|^2."""
    A, delta, apart, changed, steps = part.A, part.delta, part.apart, scratch.changed, scratch.steps
    classes, few = part.lists.classes, len(part.lists.classes) > 0
    weighted, along = part.scale * part.weights[i], part.along[i]
    n_changed, square = 0, 0.0
    for e in range(len(alpha)):
        j = classes[first + e] if few else e
        before = delta[i, j]
        if alpha[e] == np.float64(A[i, j]) + np.float64(before):
            continue
        # The change is computed as stored, after rounding to A's precision.
        delta[i, j] = alpha[e] - A[i, j]
        change = np.float64(delta[i, j]) - np.float64(before)
        if change != 0.0:
            square += change * change
            changed[n_changed], steps[n_changed] = j, weighted * change
            apart[j] -= part.kept_apart * steps[n_changed] * along
            n_changed += 1
    return n_changed, square


@jit
def _sweep(part: SweptPart, column: JitFunction, places: Int64Array, rows: Int64Array) -> tuple[float, float]:
    """Replace dual rows one by one by the maximisers of the dual in that row; return its rise, and visits."""
    tile, apart, rises = part.tile, part.apart, part.rises
    weights, norms, along = part.weights, part.norms, part.along
    starts, classes, few = part.lists.starts, part.lists.classes, len(part.lists.classes) > 0
    m = len(apart)
    owned = scratch_for(m), np.empty(m, dtype=tile.W.dtype)
    scratch, row_scores = borrowed(owned)
    q = scratch.q
    risen, touched = 0.0, 0
    for t in range(len(rows)):
        i, place = rows[t], places[t]
        if t + AHEAD < len(rows):
            fetch_row(tile, places[t + AHEAD])
            fetch_duals(part.A, part.delta, rows[t + AHEAD])
        if weights[i] == 0.0:
            rises[i] = -1.0
            continue
        if norms[i] < 0.0:
            norms[i], along[i] = sizes(tile, place, part.u)
        first, count, label = 0, m, part.y[i]
        if few:
            listed = part.lists.place[i]
            first, count, label = starts[listed], starts[listed + 1] - starts[listed], 0
            for e in range(count):
                j = classes[first + e]
                q[e] = class_score(tile, place, j) + apart[j] * along[i]
        else:
            scores(tile, place, row_scores)
            for j in range(m):
                q[j] = row_scores[j] + apart[j] * along[i]
        n_changed = update_row(part, column, i, first, label, q[:count], scratch)
        carry(tile, place, scratch.changed, scratch.steps, n_changed, row_scores)
        risen += max(rises[i], 0.0)
        touched += count
    keep(owned)
    return risen, touched / m


@jit
def fetch_duals(A: FloatArray, delta: FloatArray, i: int) -> None:
    """Prefetch row i of A and delta."""
    fetch(A, i, A.shape[1] * A.itemsize)
    fetch(delta, i, A.shape[1] * delta.itemsize)


@jit
def fetch_listed(A: FloatArray, delta: FloatArray, place: int, lists: ClassLists, i: int) -> None:
    """Prefetch the classes that sweeps touch, of row i, which lies at a place of A and delta."""
    if len(lists.classes) == 0:
        fetch_duals(A, delta, place)
        return
    for e in range(lists.starts[lists.place[i]], lists.starts[lists.place[i] + 1]):
        fetch(A, place, A.itemsize, lists.classes[e] * A.itemsize)
        fetch(delta, place, delta.itemsize, lists.classes[e] * delta.itemsize)


@jit
def draw_moving(
    rows: Int64Array,
    places: Int64Array,
    rises: Float64Array,
    still: float,
    random: Int64Array,
    drawn: Int64Array,
    drawn_places: Int64Array,
) -> int:
    """Write the rows that rose by more than `still` at their last visit, in random order; return how many.

    `random` (1,) is the state of a xorshift generator (G. Marsaglia, J. Stat. Softw. 8, 2003), not 0.
    """
    count = 0
    x = random[0]
    for t in range(len(rows)):
        if not rises[rows[t]] > still:
            continue
        x ^= x << 13
        x ^= (x >> 7) & 0x1FFFFFFFFFFFFFF
        x ^= x << 17
        # Inside-out shuffle: the new row is swapped with one before it, or with itself.
        k = (((x >> 32) & 0x7FFFFFFF) * (count + 1)) >> 31
        drawn[count], drawn_places[count] = drawn[k], drawn_places[k]
        drawn[k], drawn_places[k] = rows[t], places[t]
        count += 1
    random[0] = x
    return count


def moving(rows: Int64Array, rises: Float64Array, still: float, random: Int64Array) -> Int64Array:
    """Return the rows that `draw_moving` draws."""
    drawn, places = np.empty_like(rows), np.empty_like(rows)
    return drawn[: draw_moving(rows, rows, rises, still, random, drawn, places)]


@jit
def repeated_sweeps(
    owned: SweptPart, column: JitFunction, sweeps: int, most: float, random: Int64Array
) -> Swept:
    """Sweep up to `sweeps` times, until `most` rows have been visited or none moves.

    The first sweep visits the rows of the part in their order, each later one the rows that moved in the last
    sweep, in an order drawn by `draw_moving`.
    """
    part = borrowed(owned)
    places, rows = part.places, part.rows
    drawn, drawn_places = np.empty_like(rows), np.empty_like(places)
    risen = last = visited = still = 0.0
    done = 0
    while done < sweeps:
        if done > 0:
            count = draw_moving(part.rows, part.places, part.rises, still, random, drawn, drawn_places)
            count = min(count, int(min(most - visited, float(count))))
            if count <= 0:
                break
            rows, places = drawn[:count], drawn_places[:count]
        last, visits = _sweep(part, column, places, rows)
        done += 1
        risen += last
        visited += visits
        still = STILL * last / max(len(rows), 1)
    return Swept(done, visited, risen, last, still)
