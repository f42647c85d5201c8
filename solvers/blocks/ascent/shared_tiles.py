"""Exact column updates tile by tile, on several threads: what a sweep does where W is not small.

Row by row a sweep cannot be shared, for every row starts from the weights that the row before it left.  But
the scores of a tile of rows can be taken before the tile ahead of it is updated, if what that tile then
changes is added through the inner products of the rows of both.  So one thread updates the rows of a tile,
exactly and in their order, while others carry what the tile before it has changed into W and take the scores
of the tile after it, each for some of the classes.  Whoever has nothing else to do takes the next chunk.

Which thread takes which chunk changes no number: the result is bitwise the same for any number of threads.
One thread alone gains as well: four rows share the loads of four classes, and W is fetched once a tile.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.atomics import add_and_get_old, wait_until
from topline.solvers.blocks.ascent.rows import SweptPart, borrowed_part
from topline.solvers.blocks.ascent.sweeps import AHEAD, update_row
from topline.solvers.blocks.ascent.thread_choice import Helpers, ThreadChoice
from topline.solvers.blocks.tile_products import GROUP, carry_tile, carry_whole_tile, dots, keep_steps
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.jit_prefetch import fetch
from topline.solvers.projections.ordering import column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows of a tile: a share of the classes, for each row costs inner products with those of 1.5 tiles; at least
#: and at most so many.
_TILE_SHARE = 6
_TILE_ROWS = (4, 64)
#: Multiplications of a sweep's scores below which one thread is done before the others are of use.
_SHARED = 1 << 28
#: Chunks that the classes of a tile are cut into.
_CHUNKS = 16
#: Places of the counters: tiles that are updated, and from `_FIRST` on, each `_APART` places, so that no two
#: share a cache line, chunks of a tile that are taken and chunks that are done.
_UPDATED, _FIRST, _APART = 0, 8, 8
_OVER = 1 << 40  # a count above all that anybody waits for


class _Tiles(NamedTuple):
    """What threads share: W, the scores and inner products of two tiles, and what two tiles have changed.

    `order` (rows,) are the places in X of all rows, behind a tile that is none; `every` counts the classes.
    Row p changes counts[slot, p] classes, `classes` by `steps`; those of a row that changes all, or none, are
    in their own places.
    """

    W: FloatArray
    every: Int64Array
    per_chunk: int
    order: Int64Array
    scores: FloatArray
    inner: FloatArray
    counts: Int64Array
    classes: IntArray
    steps: Float64Array
    counters: Int64Array


class _Spare(NamedTuple):
    """Room of one thread."""

    at: Int64Array
    who: Int64Array
    much: Float64Array


class TiledWeights:
    """Weights (m, d) that threads sweep with.

    Parameters
    ----------
    start : (m, d) the weights to begin with.
    dtype : their precision, float32 or float64.
    apart : (m,) what goes to W along the direction kept apart, updated in place.
    threads : how many work at the same time, where `choice` finds that it pays; `helpers` are the others.
    """

    def __init__(
        self,
        start: FloatArray,
        dtype: np.dtype[Any],
        apart: Float64Array,
        threads: int,
        choice: ThreadChoice,
        helpers: Helpers,
    ) -> None:
        m, d = start.shape
        self._threads, self._apart, self._choice, self._helpers = threads, apart, choice, helpers
        padded = -(-m // GROUP) * GROUP
        self._padded: FloatArray = np.zeros((padded, d), dtype=dtype)
        self.W: FloatArray = self._padded[:m]
        self.W[:] = start
        #: Rows of a tile.
        self.rows = t = int(np.clip(m // _TILE_SHARE // GROUP * GROUP, *_TILE_ROWS))
        self._scores, self._inner = (np.empty((2, t, width), dtype=dtype) for width in (padded, 2 * t))
        self._counts, self._steps = np.zeros((2, t), dtype=np.int64), np.zeros((2, t, padded))
        self._classes = np.empty((2, t, m), dtype=np.int32)

    def sweep(
        self, part: SweptPart, loss: tuple[JitFunction, Float64Array, Float64Array], rises: Float64Array
    ) -> None:
        """Replace the dual rows of a part one by one by the maximisers of the dual in that row."""
        n, t = len(part.rows), self.rows
        if n == 0:
            return
        tiles = -(-n // t)
        order = np.empty((tiles + 1) * t, dtype=np.int64)
        order[:t], order[t : t + n], order[t + n :] = part.places[0], part.places, part.places[-1]
        self._counts[:] = 0
        classes = len(self._padded)
        shared = _Tiles(
            self._padded, np.arange(classes), GROUP * max(classes // (GROUP * _CHUNKS), 1), order,
            self._scores, self._inner, self._counts, self._classes, self._steps,
            np.zeros(_FIRST + 2 * _APART * tiles, dtype=np.int64),
        )  # fmt: skip
        # Without a tile they do nothing, but are compiled or loaded before a thread waits for another.
        _help(part, none := shared._replace(order=order[:t]))
        _lead(part, none, *loss, self._apart, rises)
        most = min(self._threads, tiles) if n * self._padded.size >= _SHARED else 1
        threads, began = self._choice.of(most), time.perf_counter()
        # Nobody waits for a helper to begin: on a busy machine the first thread does its chunks meanwhile.
        begun: list[Future[None]] = []
        try:
            pools = (self._helpers.pool(threads - 1) for _ in range(1, threads))
            begun.extend(pool.submit(_help, part, shared) for pool in pools)
            _lead(part, shared, *loss, self._apart, rises)
        finally:
            # Also after Ctrl-C: no helper waits for tiles that nobody updates.
            shared.counters[:] = _OVER
            wait([helper for helper in begun if not helper.cancel()])
        if most > 1:
            self._choice.note(threads, (time.perf_counter() - began) / n)


@jit
def _spare(tiles: _Tiles) -> _Spare:
    t = tiles.counts.shape[1]
    return _Spare(np.empty(t, np.int64), np.empty(t + GROUP, np.int64), np.empty(t + GROUP))


@jit
def _borrowed_tiles(tiles: _Tiles) -> _Tiles:
    """Return the same tiles, of which no use is counted."""
    return _Tiles(
        borrowed(tiles.W), borrowed(tiles.every), tiles.per_chunk, borrowed(tiles.order),
        borrowed(tiles.scores), borrowed(tiles.inner), borrowed(tiles.counts), borrowed(tiles.classes),
        borrowed(tiles.steps), borrowed(tiles.counters),
    )  # fmt: skip


@jit
def _help(shared_part: SweptPart, shared: _Tiles) -> None:
    """Do chunks of one tile after the other, each as soon as the tile two before it is updated."""
    part, tiles, spare = borrowed_part(shared_part), _borrowed_tiles(shared), _spare(shared)
    for k in range(len(tiles.order) // tiles.counts.shape[1] - 1):
        # Neither W nor a step changes while others still need it as it is.
        wait_until(tiles.counters, _UPDATED, k - 1)
        if k > 0:
            _wait_for_chunks(k - 1, tiles)
        _do_chunks(k, part, tiles, spare)
    keep((shared_part, shared))


@jit
def _lead(
    shared_part: SweptPart,
    shared: _Tiles,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    apart: Float64Array,
    rises: Float64Array,
) -> None:
    """Update the rows of one tile after the other, and do chunks while the next tile is not ready."""
    part, tiles, spare = borrowed_part(shared_part), _borrowed_tiles(shared), _spare(shared)
    t, m = tiles.counts.shape[1], tiles.classes.shape[2]
    n_tiles = len(tiles.order) // t - 1
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    q, alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    changed, steps = np.empty(m, dtype=np.int64), room(m)
    for k in range(n_tiles):
        _do_chunks(k, part, tiles, spare)
        _wait_for_chunks(k, tiles)
        for p in range(t):
            _fetch_ahead(k, p + AHEAD, part, tiles)
            i = part.rows[min(k * t + p, len(part.rows) - 1)]
            if k * t + p >= len(part.rows) or part.weights[i] == 0.0:
                keep_steps(k % 2, p, 0, changed, steps, tiles.counts, tiles.classes, tiles.steps)
                if k * t + p < len(part.rows):
                    rises[i] = -1.0
                continue
            _scores_now(k, p, part.along[i], tiles, apart, q)
            norm = part.norms[i] - part.kept_apart * part.along[i] * part.along[i]
            n_changed, rise = update_row(
                i, part.y[i], part.scale * part.weights[i], norm, part.gamma, part.gamma_own, column, rho,
                margins, part.A, part.delta, q, alpha, work, index_work, changed, steps,
            )  # fmt: skip
            rises[i] = rise * part.weights[i]
            for e in range(n_changed):
                apart[changed[e]] -= part.kept_apart * steps[e] * part.along[i]
            keep_steps(k % 2, p, n_changed, changed, steps, tiles.counts, tiles.classes, tiles.steps)
        add_and_get_old(tiles.counters, _UPDATED, 1)
    for k in range(max(n_tiles - 2, 0), n_tiles):
        _carry(k, 0, tiles.W.shape[0], part, tiles, spare)
    keep((owners, shared_part, shared))


@jit
def _fetch_ahead(k: int, p: int, part: SweptPart, tiles: _Tiles) -> None:
    """Begin to fetch the dual row of row p of tile k, and its scores, which other threads have written."""
    t = tiles.counts.shape[1]
    i = part.rows[min(k * t + p, len(part.rows) - 1)]
    fetch(part.A, i, part.A.shape[1] * part.A.itemsize)
    fetch(part.delta, i, part.A.shape[1] * part.delta.itemsize)
    if p < t:
        row = tiles.scores.shape[2] * tiles.scores.itemsize
        fetch(tiles.scores, k % 2, row, p * row)
        row = tiles.inner.shape[2] * tiles.inner.itemsize
        fetch(tiles.inner, k % 2, row, p * row)


@jit
def _scores_now(k: int, p: int, along: float, tiles: _Tiles, apart: Float64Array, q: Float64Array) -> None:
    """Write the scores of row p of tile k: at W two tiles ago, and what rows have changed since then."""
    t, here, before = tiles.counts.shape[1], k % 2, 1 - k % 2
    for j in range(len(q)):
        q[j] = tiles.scores[here, p, j] + apart[j] * along
    for r in range(t + p):
        slot, row = (before, r) if r < t else (here, r - t)
        inner = np.float64(tiles.inner[here, p, r])
        if tiles.counts[slot, row] == len(q):
            for j in range(len(q)):
                q[j] += inner * tiles.steps[slot, row, j]
            continue
        for e in range(tiles.counts[slot, row]):
            q[tiles.classes[slot, row, e]] += inner * tiles.steps[slot, row, e]


@jit
def _do_chunks(k: int, part: SweptPart, tiles: _Tiles, spare: _Spare) -> None:
    """Do chunks of tile k until all are taken: inner products of four rows, or scores of some classes."""
    chunks = _n_chunks(tiles)
    place = _FIRST + 2 * _APART * k
    while True:
        c = add_and_get_old(tiles.counters, place, 1)
        if c >= chunks:
            return
        if c < tiles.counts.shape[1] // GROUP:
            _inner_products(k, GROUP * c, part, tiles)
        else:
            _scores(k, (c - tiles.counts.shape[1] // GROUP) * tiles.per_chunk, part, tiles, spare)
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
    """Write those of rows p..p+3 of tile k with the tile before it and the rows up to them."""
    t = tiles.counts.shape[1]
    first = (k + 1) * t
    for r in range(0, t + p + GROUP, GROUP):
        dots(part.X, tiles.order, k * t + r, part.X, tiles.order, first + p, tiles.inner, k % 2, p, r)
    for e in range(k * t + p, min(k * t + p + GROUP, len(part.rows))):
        i = part.rows[e]
        if part.norms[i] < 0.0:
            square = along = 0.0
            for f in range(part.X.shape[1]):
                x = np.float64(part.X[tiles.order[t + e], f])
                square += x * x
                along += x * part.u[f]
            part.norms[i], part.along[i] = square, along


@jit
def _scores(k: int, low: int, part: SweptPart, tiles: _Tiles, spare: _Spare) -> None:
    """Write the scores of tile k for a chunk of classes, once these have what tile k - 2 has changed."""
    t = tiles.counts.shape[1]
    high = min(low + tiles.per_chunk, tiles.W.shape[0])
    if k >= 2:
        _carry(k - 2, low, high, part, tiles, spare)
    for j in range(low, high, GROUP):
        for p in range(0, t, GROUP):
            dots(tiles.W, tiles.every, j, part.X, tiles.order, (k + 1) * t + p, tiles.scores, k % 2, p, j)


@jit
def _carry(k: int, low: int, high: int, part: SweptPart, tiles: _Tiles, spare: _Spare) -> None:
    """Add what tile k has changed to the classes low..high-1."""
    first, slot = (k + 1) * tiles.counts.shape[1], k % 2
    whole, m = True, tiles.classes.shape[2]
    for p in range(tiles.counts.shape[1]):
        whole = whole and (tiles.counts[slot, p] == 0 or tiles.counts[slot, p] == m)
    if whole:
        carry_whole_tile(tiles.W, low, high, part.X, tiles.order, first, tiles.steps, slot)
        return
    carry_tile(
        tiles.W, low, high, part.X, tiles.order, first, tiles.counts, tiles.classes, tiles.steps, slot,
        spare.at, spare.who, spare.much,
    )  # fmt: skip
