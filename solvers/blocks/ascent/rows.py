"""Inputs of dual ascent's sweeps: the rows of a block in any order, and their dual rows.

Rows in memory form one run to draw from, even if stored in pieces or in another type: a visit in random order
gathers and converts a few rows at a time.  Only rows that have to be read, or whose dual rows have to be
opened, come slab by slab.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topline.solvers.blocks.ascent.shared_tiles import ThreadChoice
from topline.solvers.blocks.block import Block
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_rows import DualStore, PackedStore
from topline.solvers.core.rows import (
    Rows,
    RowSource,
    as_rows,
    cut_rows,
    gives_sparse,
    is_sparse,
    read_slabs,
    read_together,
    rows_are,
    slab_bounds,
    stacked,
    taken_rows,
)
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Numbers of A processed together.
_LOOKED_AT = 1 << 22


def unknown_norms(rows: int) -> tuple[Float64Array, Float64Array]:
    """Return |x_i|^2 (rows,) of the rows of a block, -1 before the first visit, and <x_i, u>.

    Blocks of the same rows may share them while u = 0: every writer writes the same values.
    """
    return np.full(rows, -1.0), np.zeros(rows)


class BlockRows:
    """The rows of one block, and values that sweeps compute for them once."""

    def __init__(self, block: Block) -> None:
        self.problem, self.X, self.weights = block.problem, block.X, block.weights
        self.y: IntArray = block.y
        self.index, self.dtype = block.index, block.dtype
        #: The loss for compiled functions.
        self.column = self.problem.form.column_where(
            alike=self.problem.smoothing_own == self.problem.smoothing
        )
        self._direction: Float64Array | None = None
        self._undirected = block.norms or unknown_norms(len(block.y))
        #: |x_i|^2 (rows,), -1 where unknown, and <x_i, u> where it is known.
        self.norms, self.along = self._undirected

    @cached_property
    def thread_choice(self) -> ThreadChoice:
        """The choice between one thread and several for sweeps over these rows."""
        return ThreadChoice()

    def keep_apart(self, shared: DeflatedDirection | None) -> tuple[Float64Array, float]:
        """Return the deflated direction of a request, and by how much it shrinks squares along it."""
        if shared is None:
            self._direction, (self.norms, self.along) = None, self._undirected
            return np.zeros(self.problem.d), 0.0
        if self._direction is None or not np.array_equal(shared.u, self._direction):
            self._direction, (self.norms, self.along) = shared.u, unknown_norms(len(self.y))
        return self._direction, 1.0 - shared.kappa


def rows_with_mass(A: DualStore) -> NDArray[np.bool_]:
    """Return which rows of A (rows, m) are not 0, reading a few at a time."""
    rows, m = A.shape
    step = max(_LOOKED_AT // m, 1)
    parts = [A[low : low + step].any(axis=1) for low in range(0, rows, step)]
    return np.concatenate(parts)


class Portion(NamedTuple):
    """Rows of the block to visit in order: `places` says where each lies in X.

    `slab` gives the first row of the run that they come from, and the one after its last.
    """

    X: Rows
    places: Int64Array
    rows: Int64Array
    slab: tuple[int, int]


class DualWindow:
    """Dual rows A of a block and their change delta, one slab at a time; the last `most` stay open.

    Changes in `delta` (rows of the slab, m) are stored when more slabs are opened, or by `close`.
    """

    def __init__(self, A: DualStore, delta: DualStore, most: int = 1) -> None:
        self._A, self._delta, self._most = A, delta, most
        self._opened: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        self.A: FloatArray = np.empty((0, A.shape[1]))
        self.delta: FloatArray = np.empty((0, A.shape[1]))

    def open(self, slab: tuple[int, int]) -> None:
        """Open the rows slab[0]..slab[1]-1."""
        found = self._opened.pop(slab, None)
        if found is None:
            if len(self._opened) >= self._most:
                self._keep(next(iter(self._opened)))
            found = self._A[slice(*slab)], self._delta[slice(*slab)]
        # Ordered by last use.
        self._opened[slab] = found
        self.A, self.delta = found

    @property
    def dense(self) -> tuple[FloatArray, FloatArray] | None:
        """A and delta, if each is one array in memory."""
        A, delta = self._A, self._delta
        return None if isinstance(A, PackedStore) or isinstance(delta, PackedStore) else (A, delta)

    def open_whole(self) -> bool:
        """Open all rows if they are one array in memory; return whether they are."""
        if self.dense is None:
            return False
        self.open((0, self._A.shape[0]))
        return True

    def read(self, slab: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
        """Return rows of A and delta read-only, while no slab is open."""
        return self._A[slice(*slab)], self._delta[slice(*slab)]

    def changed(self) -> Int64Array:
        """Return the rows that have a change, while no slab is open."""
        return np.flatnonzero(rows_with_mass(self._delta))

    def close(self) -> None:
        """Store the changes."""
        for slab in list(self._opened):
            self._keep(slab)

    def _keep(self, slab: tuple[int, int]) -> None:
        _, delta = self._opened.pop(slab)
        self._delta[slice(*slab)] = delta


#: Rows gathered and converted at once: the larger of this many dense ones and some bytes.
_GATHERED_ROWS = 512
_GATHERED_SPARSE_ROWS = 4096
_GATHERED_BYTES = 1 << 21
#: Limit in bytes for rows held for repeated visits; others are read again.
_HELD_BYTES = 1 << 26
#: Twice the bytes of dual rows opened for one slab.
_OPENED_BYTES = 1 << 24
#: Slabs whose rows are interleaved, parts of each, and least rows of a part, which threads share: if all rows
#: share a direction, sweeping a whole slab in sequence gains little.
MIXED, _PARTS, _PART_ROWS = 3, 8, 512
#: A sweep over few rows of slabs that have to be opened costs like one over this share of them.
_LEAST_SHARE = 0.25


def swept_bytes(rows: int, d: int, m: int, *, packed: bool) -> int:
    """Return the bytes that sweeps of one head take over float32 rows that are read, beside one slab of them.

    `packed` dual variables are opened, with their change, and packed again; with array storage, rows visited
    repeatedly are held.
    """
    return 4 * min(_OPENED_BYTES, 4 * rows * m) if packed else min(_HELD_BYTES, 4 * rows * d)


class RowFeed:
    """The rows of a block in any order.

    Parameters
    ----------
    X : (rows, d) features of the block.
    dtype : type of the rows produced, float32 or float64.
    opened : entries of a dual row, if dual rows are opened slab by slab: features in memory are then also cut
        into slabs with few enough dual rows.
    """

    def __init__(self, X: RowSource, dtype: np.dtype[Any], *, opened: int | None = None) -> None:
        self._X = X
        self._dtype = dtype
        self._n = int(X.shape[0])
        self.opened = opened
        #: Rows whose dual rows are opened together; a stored piece of X may have more.
        self._window = None if opened is None else _window(dtype.itemsize * opened)
        #: Whether rows are drawn from all of the block at once.
        self.whole = opened is None and rows_are("kept", X, 0, self._n)
        self._slabs = [] if self.whole else self._cut()

    def shuffled(self, rows: Int64Array, random: np.random.Generator) -> Iterator[Portion]:
        """Yield the rows in a random order of slabs, some of them interleaved (others in each sweep)."""
        if self.whole:
            yield from self.drawn(random.permutation(rows))
            return
        if len(self._slabs) == 1:
            chosen = {self._slabs[0]: random.permutation(rows)}
        else:
            chosen = {
                slab: random.permutation(inside)
                for slab, inside in self._by_slab(rows, random.permutation(len(self._slabs)))
            }
        together = read_together(self._X, chosen, self._dtype)
        if together is not None:
            for start, stop, values in together:
                yield from self._portions((start, stop), values, chosen[start, stop])
            return
        yield from self._in_turns(read_slabs(self._X, chosen, self._dtype), chosen)

    def dealt(self, rows: Int64Array, shares: int, random: np.random.Generator) -> list[Int64Array]:
        """Return the given rows in random order, cut into at most `shares` non-empty shares.

        Rows in slabs are dealt in whole slabs.
        """
        if self.whole:
            return np.array_split(random.permutation(rows), min(shares, len(rows))) if len(rows) else []
        slabs = [inside for _, inside in self._by_slab(rows, random.permutation(len(self._slabs)))]
        cuts = np.linspace(0, len(slabs), min(shares, len(slabs)) + 1).astype(np.int64)
        return [np.concatenate([rows[:0], *slabs[low:high]]) for low, high in pairwise(cuts)]

    def in_order(self, rows: Int64Array) -> Iterator[Portion]:
        """Yield the given rows in the order of the block."""
        rows = np.sort(rows)
        if self.whole:
            yield from self.drawn(rows)
            return
        chosen = dict(self._by_slab(rows, np.arange(len(self._slabs))))
        for start, stop, values in read_slabs(self._X, chosen, self._dtype):
            yield from self._portions((start, stop), values, chosen[start, stop])

    def cost(self, visits: float) -> float:
        """Return the cost of `visits` visits in one sweep, in visits of rows in memory."""
        return visits if self.whole else max(visits, _LEAST_SHARE * self._n)

    def held(self, rows: Int64Array) -> RowFeed:
        """Return rows, in the order of the block, for repeated visits: in memory if they are or fit there."""
        bytes_ = len(rows) * int(self._X.shape[1]) * self._dtype.itemsize
        if self.whole or self.opened is not None or bytes_ > _HELD_BYTES:
            return self
        chosen = dict(self._by_slab(rows, np.arange(len(self._slabs))))
        together = read_together(self._X, chosen, self._dtype)
        slabs = together or read_slabs(self._X, chosen, self._dtype)
        if gives_sparse(self._X):
            slabs = iter(sorted(slabs, key=lambda slab: slab[0]))
            values = stacked([part[chosen[start, stop] - start] for start, stop, part in slabs])
        else:
            values = np.empty((len(rows), int(self._X.shape[1])), dtype=self._dtype)
            for start, stop, part in slabs:
                low = int(np.searchsorted(rows, start))
                inside = chosen[start, stop] - start
                np.take(part, inside, axis=0, out=values[low : low + len(inside)])
        return HeldRows(values, rows, self._n)

    @property
    def in_place(self) -> bool:
        """Whether any requested rows come as one portion."""
        return self.whole and self._held[1]

    def _cut(self) -> list[tuple[int, int]]:
        """Return the slabs: for rows in memory the rows opened at once, else those read at once."""
        if self._window is not None and rows_are("kept", self._X, 0, self._n):
            return list(cut_rows(self._n, 0, self._window))
        return list(slab_bounds(self._X, _GATHERED_ROWS, self._window))

    def _by_slab(self, rows: Int64Array, order: Int64Array) -> Iterator[tuple[tuple[int, int], Int64Array]]:
        """Yield the slabs that have some of the rows, in the given order, and these rows sorted."""
        rows = np.sort(rows)
        for slab in order:
            start, stop = self._slabs[slab]
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
            if len(inside):
                yield (start, stop), inside

    def drawn(self, rows: Int64Array) -> Iterator[Portion]:
        """Yield rows from memory in the given order, in place if possible, else gathered."""
        block = 0, self._n
        values, ready = self._held
        if ready:
            yield Portion(values, rows, rows, block)
            return
        step = _GATHERED_SPARSE_ROWS
        if not gives_sparse(self._X):
            row_bytes = self._dtype.itemsize * max(int(self._X.shape[1]), 1)
            step = max(_GATHERED_ROWS, _GATHERED_BYTES // row_bytes)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            taken = taken_rows(self._X, part) if values is None else values[part]
            yield Portion(as_rows(taken, self._dtype), np.arange(len(part)), part, block)

    @cached_property
    def _held(self) -> tuple[Any, bool]:
        """All rows as one array, if they are one, else None; and whether no conversion is needed."""
        if not rows_are("in_place", self._X, 0, self._n):
            return None, False
        values = self._X[0 : self._n]
        if is_sparse(values):
            return values, bool(values.format == "csr" and values.dtype == self._dtype)
        ready = isinstance(values, np.ndarray) and values.dtype == self._dtype
        return values, ready and values.flags.c_contiguous

    def _portions(self, slab: tuple[int, int], values: Rows, rows: Int64Array) -> Iterator[Portion]:
        """Yield rows of a slab that was read, one window of dual rows at a time."""
        start, stop = slab
        step = stop - start if self._window is None else self._window
        for low in range(start, stop, step):
            window = low, min(low + step, stop)
            inside = rows if window == slab else rows[(rows >= low) & (rows < window[1])]
            yield Portion(values, inside - start, inside, window)

    def _in_turns(
        self, slabs: Iterator[tuple[int, int, Rows]], chosen: Mapping[tuple[int, int], Int64Array]
    ) -> Iterator[Portion]:
        """Yield the chosen rows of the slabs, interleaving parts of `MIXED` slabs at a time.

        Slabs start one by one, so that the next is read while parts of the others are visited.
        """
        mixed: list[deque[Portion]] = []
        turns, more = 0, True
        while mixed or more:
            while more and turns <= 0 and len(mixed) < MIXED:
                slab = next(slabs, None)
                more = slab is not None
                if slab is not None and len(chosen[slab[:2]]):
                    mixed.append(self._parts(slab, chosen[slab[:2]]))
                    turns = len(mixed[-1]) // MIXED
                del slab
            turns -= 1
            for parts in mixed:
                yield parts.popleft()
            mixed = [parts for parts in mixed if parts]

    def _parts(self, slab: tuple[int, int, Rows], rows: Int64Array) -> deque[Portion]:
        start, stop, values = slab
        found: deque[Portion] = deque()
        for portion in self._portions((start, stop), values, rows):
            if len(portion.rows):
                parts = min(max(len(portion.rows) // _PART_ROWS, 1), _PARTS)
                cut = np.array_split(portion.places, parts), np.array_split(portion.rows, parts)
                found.extend(portion._replace(places=p, rows=r) for p, r in zip(*cut, strict=True))
        return found


class HeldRows(RowFeed):
    """Rows of a block of n rows, read for repeated visits: row `rows[t]` is row t of X; rows ascend."""

    def __init__(self, X: Rows, rows: Int64Array, n: int) -> None:
        super().__init__(X, X.dtype)
        self._rows, self._block = rows, (0, n)

    def drawn(self, rows: Int64Array) -> Iterator[Portion]:
        """Yield some of these rows in the given order."""
        yield Portion(self._X, np.searchsorted(self._rows, rows), rows, self._block)


def _window(row_bytes: int) -> int:
    """Return the number of rows of a window: whole runs of packed rows if possible."""
    rows = max(_OPENED_BYTES // (2 * row_bytes), 1)
    return rows - rows % _GATHERED_ROWS if rows > _GATHERED_ROWS else rows
