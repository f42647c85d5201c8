"""Exact column updates tile by tile, on several threads, for large W.

A row-by-row sweep cannot be shared, because every row starts from the weights left by the row before it.  But
the scores of a tile can be computed before the tile ahead of it is updated, if that tile's changes are then
added through the inner products of the rows of both.  So one thread updates the rows of a tile, exactly and
in order, while others carry the changes of the tile before it into W and compute the scores of the tile after
it, each for some of the classes.  An idle thread takes the next chunk.

The assignment of chunks to threads changes no number: the result is bitwise the same for any number of
threads.  A single thread gains as well: four rows share the loads of four classes, and W is loaded once per
tile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from topline.solvers.blocks.ascent.sweeps import (
    AHEAD,
    Scratch,
    SweptPart,
    fetch_duals,
    scratch_for,
    sizes,
    update_row,
)
from topline.solvers.crew import Crew
from topline.solvers.jit_cache import JitFunction, borrowed, fetch, jit, keep
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows and classes that share their loads: 4 x 4 sums fill the registers of a core.
GROUP = 4
#: A row with at least one changed class in this many is stored densely, for contiguous loops.
_WHOLE = 2
#: The classes over this are the rows of a tile, as each costs inner products with 1.5 tiles; then bounds.
_TILE_SHARE = 6
_TILE_ROWS = (4, 64)
#: Multiplications of a sweep's scores below which one thread finishes before the others could help.
_SHARED = 1 << 28
#: Sweeps after which the slower number of threads is tried again.
_RETRY = 24
#: Chunks of classes per tile.
_CHUNKS = 16
#: Indices of the counters: updated tiles, and from `_FIRST` on, `_APART` apart so that no two share a cache
#: line, chunks of a tile taken and chunks done.
_UPDATED, _FIRST, _APART = 0, 8, 8
_OVER = 1 << 40  # a count above all that anybody waits for
#: Reads of a counter before the thread starts to yield its core between reads.
_SPINS = 2000
_COUNTERS = types.Array(types.int64, 1, "C")


class _Tiles(NamedTuple):
    """State shared by threads: X, W, scores and inner products of two tiles, and the changes of two tiles.

    `order` (rows,) are the places in X of all rows, after an empty tile; `every` lists all classes.  Row p
    changes counts[slot, p] classes, `classes` by `steps`; a row that changes all or none has its steps at the
    classes' own places.
    """

    X: FloatArray
    W: FloatArray
    every: Int64Array
    per_chunk: int
    order: Int64Array
    scores: FloatArray
    inner: FloatArray
    counts: Int64Array
    classes: IntArray
    steps: FloatArray
    counters: Int64Array


class _Spare(NamedTuple):
    """Scratch space of one thread."""

    at: Int64Array
    who: Int64Array
    much: Float64Array


class _Rows(NamedTuple):
    """Four rows of X: those at places[first], ..., places[first + 3]."""

    X: FloatArray
    places: Int64Array
    first: int


class ThreadChoice:
    """All threads or one: whichever took less time per row when last tried.  No result depends on it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._since: dict[int, int] = {}

    def of(self, most: int) -> int:
        """Return how many of `most` threads the next sweep uses."""
        for number in (most, 1):
            if number not in self._seconds or self._since[number] >= _RETRY:
                return number
        return min((most, 1), key=lambda number: self._seconds[number])

    def note(self, number: int, seconds: float) -> None:
        """Record the seconds per row of a sweep."""
        for other in self._since:
            self._since[other] += 1
        self._seconds[number], self._since[number] = seconds, 0


class TiledWeights:
    """Weights (m, d) swept by several threads.

    Parameters
    ----------
    start : (m, d) the initial weights.
    dtype : their precision, float32 or float64.
    crew : the threads that work in parallel if `choice` finds that it pays.
    """

    def __init__(self, start: FloatArray, dtype: np.dtype[Any], crew: Crew, choice: ThreadChoice) -> None:
        m, d = start.shape
        self._crew, self._choice = crew, choice
        padded = -(-m // GROUP) * GROUP
        self._padded: FloatArray = np.zeros((padded, d), dtype=dtype)
        self.W: FloatArray = self._padded[:m]
        self.W[:] = start
        #: Rows of a tile.
        self.rows = t = int(np.clip(m // _TILE_SHARE // GROUP * GROUP, *_TILE_ROWS))
        self._scores, self._inner = (np.empty((2, t, width), dtype=dtype) for width in (padded, 2 * t))
        self._counts, self._steps = np.zeros((2, t), dtype=np.int64), np.zeros((2, t, padded), dtype=dtype)
        self._classes = np.empty((2, t, m), dtype=np.int32)

    def sweep(self, X: FloatArray, part: SweptPart, column: JitFunction) -> None:
        """Replace the dual rows of a part of X one by one by the maximisers of the dual in that row."""
        n, t = len(part.rows), self.rows
        if n == 0:
            return
        tiles = -(-n // t)
        order = np.empty((tiles + 1) * t, dtype=np.int64)
        order[:t], order[t : t + n], order[t + n :] = part.places[0], part.places, part.places[-1]
        self._counts[:] = 0
        classes = len(self._padded)
        shared = _Tiles(
            X, self._padded, np.arange(classes), GROUP * max(classes // (GROUP * _CHUNKS), 1), order,
            self._scores, self._inner, self._counts, self._classes, self._steps,
            np.zeros(_FIRST + 2 * _APART * tiles, dtype=np.int64),
        )  # fmt: skip
        # Calls without a tile only compile or load the functions, before a thread waits for another.
        _help(part, none := shared._replace(order=order[:t]))
        _lead(part, none, column)
        most = min(self._crew.threads, tiles) if n * self._padded.size >= _SHARED else 1
        threads, began = self._choice.of(most), time.perf_counter()
        # No thread waits for a helper to start: on a busy machine the first thread does its chunks meanwhile.
        begun: list[Future[None]] = []
        try:
            begun.extend(self._crew.pool.submit(_help, part, shared) for _ in range(1, threads))
            _lead(part, shared, column)
        finally:
            # Also after Ctrl-C, so that no helper waits for tiles that will not be updated.
            shared.counters[:] = _OVER
            wait([helper for helper in begun if not helper.cancel()])
        if most > 1:
            self._choice.note(threads, (time.perf_counter() - began) / n)


@jit
def _spare(tiles: _Tiles) -> _Spare:
    t = tiles.counts.shape[1]
    return _Spare(np.empty(t, np.int64), np.empty(t + GROUP, np.int64), np.empty(t + GROUP))


@jit
def _help(owned_part: SweptPart, owned_tiles: _Tiles) -> None:
    """Do chunks tile by tile, each once the tile two before it is updated."""
    part, tiles, spare = borrowed(owned_part), borrowed(owned_tiles), _spare(owned_tiles)
    for k in range(len(tiles.order) // tiles.counts.shape[1] - 1):
        # Neither W nor a step may change while other threads need it.
        wait_until(tiles.counters, _UPDATED, k - 1)
        if k > 0:
            _wait_for_chunks(k - 1, tiles)
        _do_chunks(k, part, tiles, spare)


@jit
def _lead(owned_part: SweptPart, owned_tiles: _Tiles, column: JitFunction) -> None:
    """Update rows tile by tile, and do chunks while the next tile is not ready."""
    part, tiles, spare = borrowed(owned_part), borrowed(owned_tiles), _spare(owned_tiles)
    t, rows = tiles.counts.shape[1], part.rows
    n_tiles = len(tiles.order) // t - 1
    owned = scratch_for(len(part.apart))
    scratch = borrowed(owned)
    for k in range(n_tiles):
        _do_chunks(k, part, tiles, spare)
        _wait_for_chunks(k, tiles)
        for p in range(t):
            _fetch_ahead(k, p + AHEAD, part, tiles)
            i = rows[min(k * t + p, len(rows) - 1)]
            n_changed = 0
            if k * t + p < len(rows) and part.weights[i] > 0.0:
                _scores_now(k, p, part.along[i], tiles, part.apart, scratch.q)
                n_changed = update_row(part, column, i, 0, part.y[i], scratch.q, scratch)
            elif k * t + p < len(rows):
                part.rises[i] = -1.0
            _keep_steps(tiles, k % 2, p, n_changed, scratch)
        add_and_get_old(tiles.counters, _UPDATED, 1)
    for k in range(max(n_tiles - 2, 0), n_tiles):
        _carry(k, 0, tiles.W.shape[0], tiles, spare)
    keep(owned)


@jit
def _fetch_ahead(k: int, p: int, part: SweptPart, tiles: _Tiles) -> None:
    """Prefetch the dual row of row p of tile k, and its scores, which other threads have written."""
    t = tiles.counts.shape[1]
    fetch_duals(part.A, part.delta, part.rows[min(k * t + p, len(part.rows) - 1)])
    if p < t:
        row = tiles.scores.shape[2] * tiles.scores.itemsize
        fetch(tiles.scores, k % 2, row, p * row)
        row = tiles.inner.shape[2] * tiles.inner.itemsize
        fetch(tiles.inner, k % 2, row, p * row)


@jit
def _scores_now(k: int, p: int, along: float, tiles: _Tiles, apart: Float64Array, q: Float64Array) -> None:
    """Write the scores of row p of tile k: those at W two tiles ago plus the changes of rows since then."""
    t, here = tiles.counts.shape[1], k % 2
    for j in range(len(q)):
        q[j] = tiles.scores[here, p, j] + apart[j] * along
    for r in range(0, t + p, GROUP):
        slot, row = (1 - here, r) if r < t else (here, r - t)
        _add_changes(tiles, slot, row, min(GROUP, t + p - r), tiles.inner[here, p, r : r + GROUP], q)


@jit(fastmath={"contract"})
def _add_changes(tiles: _Tiles, slot: int, row: int, n: int, inner: FloatArray, q: Float64Array) -> None:
    """Add the changes of the first n of four rows of a tile to scores q, times their inner products."""
    counts, classes, steps, m = tiles.counts, tiles.classes, tiles.steps, len(q)
    whole = 0
    for e in range(n):
        whole += counts[slot, row + e] == m
    if whole == GROUP:
        a, b, c, d = inner[0], inner[1], inner[2], inner[3]
        for j in range(m):
            first = a * steps[slot, row, j] + b * steps[slot, row + 1, j]
            q[j] += np.float64(first + (c * steps[slot, row + 2, j] + d * steps[slot, row + 3, j]))
        return
    for e in range(n):
        factor = inner[e]
        if counts[slot, row + e] == m:
            for j in range(m):
                q[j] += np.float64(factor * steps[slot, row + e, j])
            continue
        for i in range(counts[slot, row + e]):
            q[classes[slot, row + e, i]] += np.float64(factor * steps[slot, row + e, i])


@jit
def _keep_steps(tiles: _Tiles, slot: int, p: int, n_changed: int, scratch: Scratch) -> None:
    """Store the change of row p of a tile: the first `n_changed` classes of `scratch`, by its steps."""
    counts, classes, steps = tiles.counts, tiles.classes, tiles.steps
    m = classes.shape[2]
    whole = n_changed == 0 or _WHOLE * n_changed >= m
    counts[slot, p] = m if whole and n_changed > 0 else n_changed
    if whole:
        for j in range(m):
            classes[slot, p, j] = j
            steps[slot, p, j] = scratch.steps[j] if n_changed == m else 0.0
    if n_changed == m:
        return
    for e in range(n_changed):
        at = scratch.changed[e] if whole else e
        classes[slot, p, at], steps[slot, p, at] = scratch.changed[e], scratch.steps[e]


@jit
def _do_chunks(k: int, part: SweptPart, tiles: _Tiles, spare: _Spare) -> None:
    """Do chunks of tile k until all are taken: inner products of four rows, or scores of some classes."""
    chunks, groups = _n_chunks(tiles), tiles.counts.shape[1] // GROUP
    place = _FIRST + 2 * _APART * k
    while True:
        c = add_and_get_old(tiles.counters, place, 1)
        if c >= chunks:
            return
        if c < groups:
            _inner_products(k, GROUP * c, part, tiles)
        else:
            _scores(k, (c - groups) * tiles.per_chunk, tiles, spare)
        add_and_get_old(tiles.counters, place + _APART, 1)


@jit
def _n_chunks(tiles: _Tiles) -> int:
    rows, classes = tiles.counts.shape[1], len(tiles.every)
    return int(rows // GROUP + -(-classes // tiles.per_chunk))


@jit
def _wait_for_chunks(k: int, tiles: _Tiles) -> None:
    wait_until(tiles.counters, _FIRST + 2 * _APART * k + _APART, _n_chunks(tiles))


@jit
def _inner_products(k: int, p: int, part: SweptPart, tiles: _Tiles) -> None:
    """Write the inner products of rows p..p+3 of tile k with the tile before it and the rows up to them."""
    t, order = tiles.counts.shape[1], tiles.order
    rows = _Rows(tiles.X, order, (k + 1) * t + p)
    for r in range(0, t + p + GROUP, GROUP):
        _dots(_Rows(tiles.X, order, k * t + r), rows, tiles.inner, k % 2, p, r)
    for e in range(k * t + p, min(k * t + p + GROUP, len(part.rows))):
        i = part.rows[e]
        if part.norms[i] < 0.0:
            part.norms[i], part.along[i] = sizes(part.tile, order[t + e], part.u)


@jit
def _scores(k: int, low: int, tiles: _Tiles, spare: _Spare) -> None:
    """Write the scores of tile k for a chunk of classes, after adding the changes of tile k - 2 to these."""
    t = tiles.counts.shape[1]
    high = min(low + tiles.per_chunk, tiles.W.shape[0])
    if k >= 2:
        _carry(k - 2, low, high, tiles, spare)
    for j in range(low, high, GROUP):
        classes = _Rows(tiles.W, tiles.every, j)
        for p in range(0, t, GROUP):
            _dots(classes, _Rows(tiles.X, tiles.order, (k + 1) * t + p), tiles.scores, k % 2, p, j)


@jit
def _carry(k: int, low: int, high: int, tiles: _Tiles, spare: _Spare) -> None:
    """Add the changes of tile k to the classes low..high-1."""
    whole, m = True, tiles.classes.shape[2]
    for p in range(tiles.counts.shape[1]):
        whole = whole and (tiles.counts[k % 2, p] == 0 or tiles.counts[k % 2, p] == m)
    if whole:
        _carry_whole(k, low, high, tiles)
    else:
        _carry_listed(k, low, high, tiles, spare)


@jit(fastmath={"contract"})
def _carry_listed(k: int, low: int, high: int, tiles: _Tiles, spare: _Spare) -> None:
    """Add the changes of tile k in some classes of each row, four rows at a time."""
    X, W, places, slot = tiles.X, tiles.W, tiles.order, k % 2
    counts, classes, steps = tiles.counts, tiles.classes, tiles.steps
    at, who, much = spare
    t = counts.shape[1]
    first = (k + 1) * t
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
def _carry_whole(k: int, low: int, high: int, tiles: _Tiles) -> None:
    """Add the dense changes of tile k, four classes at a time."""
    X, W, places, steps, slot = tiles.X, tiles.W, tiles.order, tiles.steps, k % 2
    first = (k + 1) * steps.shape[1]
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


@jit(fastmath={"reassoc", "contract"})
def _dots(left: _Rows, right: _Rows, out: FloatArray, slot: int, p: int, j: int) -> None:
    """Write inner products of four rows each to the square of `out`, in its type, from out[slot, p, j] on."""
    W, w_places, w_first = left
    X, x_places, x_first = right
    zero = out.dtype.type(0.0)
    # Slices would count references, on which threads that share the arrays contend.
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


#: The intrinsic decorator as seen from compiled functions, which do not pass the typing context.
_compiled: Any = intrinsic
_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _load(typing_context: Any, counters: Any, place: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 8)

    return types.int64(_COUNTERS, types.intp), generate


def _add(typing_context: Any, counters: Any, place: Any, number: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(_COUNTERS, types.intp, types.int64), generate


#: Return the counter at a place, with acquire semantics for whatever was written before its last increment.
load: Callable[[Int64Array, int], int] = _compiled(_load)
#: Add a number to the counter at a place; return the old value.
add_and_get_old: Callable[[Int64Array, int, int], int] = _compiled(_add)


@jit
def wait_until(counters: Int64Array, place: int, least: int) -> None:
    """Wait until a counter has reached a number."""
    spins = 0
    while load(counters, place) < least:
        spins += 1
        if spins > _SPINS:
            _sched_yield()
