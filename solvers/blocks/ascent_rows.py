"""Rows of a block as ascent visits them: where they lie as they are, or a few converted at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from topline.solvers.core.dual_rows import DualStore
from topline.solvers.core.problem import Problem
from topline.solvers.core.read_ahead import read_slabs
from topline.solvers.core.rows import (
    Rows,
    RowSource,
    as_rows,
    held_in_memory,
    is_sparse,
    slab_bounds,
    stacked,
)
from topline.solvers.projections.columns import column_kind, margins_or_empty
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows that are gathered and converted at once.
_GATHERED_ROWS = 512
#: Rows that are gathered to be visited many times take at most this share of the block,
_HELD_SHARE = 0.25
#: or so many bytes.
_HELD_BYTES = 1 << 21
#: Dual rows that are opened together.
_OPENED_BYTES = 1 << 24


class BlockRows:
    """Rows of one block, and how sweeps over them are seeded and rounded.

    Parameters
    ----------
    problem : what is solved.
    X : (rows, d) features of the block.
    y, weights : (rows,) labels, and how often each row counts.
    index : place of the block among all blocks; it seeds the random orders.
    dtype : precision of products, where a request does not ask for float64.
    """

    def __init__(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        weights: Float64Array,
        index: int,
        dtype: np.dtype[Any],
    ) -> None:
        form = problem.form
        self.problem, self.X, self.y, self.weights = problem, X, y, weights
        self.index, self.dtype = index, dtype
        self.loss = column_kind(form), form.rho, margins_or_empty(form)


class Portion(NamedTuple):
    """Rows of the block to visit one after the other: `places` says where each lies in X.

    `slab` are the first row of the run that they are taken from, and the one after its last.
    """

    X: Rows
    places: Int64Array
    rows: Int64Array
    slab: tuple[int, int]


class DualWindow:
    """Dual rows A of a block and their change delta, of one slab at a time.

    What is changed in `delta` (rows of the slab, m) is kept when the next slab is opened, or by `close`.
    """

    def __init__(self, A: DualStore, delta: DualStore) -> None:
        self._A, self._delta = A, delta
        self._slab: tuple[int, int] | None = None
        self.A: FloatArray = np.empty((0, A.shape[1]))
        self.delta: FloatArray = np.empty((0, A.shape[1]))

    def open(self, slab: tuple[int, int]) -> None:
        """Open the rows slab[0]..slab[1]-1."""
        if slab != self._slab:
            self.close()
            self.A, self.delta = self._A.read(*slab), self._delta.read(*slab)
            self._slab = slab

    def read(self, slab: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
        """Return rows of A and delta only to be looked at, while no slab is open."""
        return self._A.read(*slab), self._delta.read(*slab)

    def close(self) -> None:
        """Keep what was changed."""
        if self._slab is not None:
            self._delta.write(*self._slab, self.delta)
        self._slab = None


class RowFeed:
    """The rows of a block in any order.

    Parameters
    ----------
    X : (rows, d) features of the block.
    dtype : their type as they come out, float32 or float64.
    opened : entries of a dual row, where the dual rows are opened slab by slab: features that lie in memory
        are then cut into slabs as well, and the dual rows of one are no burden.
    """

    def __init__(self, X: RowSource, dtype: np.dtype[Any], *, opened: int | None = None) -> None:
        self._X = X
        self._dtype = dtype
        self._n = int(X.shape[0])
        self.opened = opened
        whole = held_in_memory(X) and opened is None
        #: Rows of which the dual rows are opened together; a stored piece of X may have more.
        self._window = None if opened is None else max(_OPENED_BYTES // (dtype.itemsize * opened), 1)
        self._slabs = [(0, self._n)] if whole else list(slab_bounds(X, _GATHERED_ROWS, self._window))

    def shuffled(self, rows: Int64Array, random: np.random.Generator) -> Iterator[Portion]:
        """Yield the given rows, slab by slab, in a random order of slabs and of rows in a slab."""
        if len(self._slabs) == 1:
            yield from self._portions(self._slabs[0], self._X[0 : self._n], random.permutation(rows))
            return
        rows = np.sort(rows)
        chosen = {}
        for slab in random.permutation(len(self._slabs)):
            start, stop = self._slabs[slab]
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
            if len(inside):
                chosen[start, stop] = random.permutation(inside)
        for start, stop, values in read_slabs(self._X, chosen, self._dtype):
            yield from self._portions((start, stop), values, chosen[start, stop])

    def _portions(self, slab: tuple[int, int], values: Any, rows: Int64Array) -> Iterator[Portion]:
        start, stop = slab
        step = stop - start if self._window is None else self._window
        for low in range(start, stop, step):
            window = low, min(low + step, stop)
            inside = rows if window == slab else rows[(rows >= low) & (rows < window[1])]
            if self._ready(values):
                yield Portion(values, inside - start, inside, window)
                continue
            for first in range(0, len(inside), _GATHERED_ROWS):
                part = inside[first : first + _GATHERED_ROWS]
                yield Portion(as_rows(values[part - start], self._dtype), np.arange(len(part)), part, window)

    def _ready(self, values: Any) -> bool:
        """Whether compiled functions can work on values as they are."""
        if is_sparse(values):
            return bool(values.format == "csr" and values.dtype == self._dtype)
        return isinstance(values, np.ndarray) and values.dtype == self._dtype and values.flags.c_contiguous

    def held(self, rows: Int64Array) -> HeldRows | None:
        """Gather rows for many visits; None where they are too many and do not lie in memory as they are."""
        everything = None
        if len(self._slabs) == 1:
            everything = self._X[0 : self._n]
            if self._ready(everything):
                return HeldRows(everything, rows, rows, self._n)
        bytes_ = len(rows) * int(self._X.shape[1]) * self._dtype.itemsize
        if bytes_ > _HELD_BYTES and len(rows) > _HELD_SHARE * self._n:
            return None
        parts = []
        rows = np.sort(rows)
        for start, stop in self._slabs:
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
            if len(inside):
                values = self._X[start:stop] if everything is None else everything
                parts.append(as_rows(values[inside - start], self._dtype))
        return HeldRows(stacked(parts), np.arange(len(rows)), rows, self._n)


class HeldRows:
    """Rows in memory, ready to compute with: row `rows[t]` of a block of n rows is row `places[t]` of X."""

    def __init__(self, X: Rows, places: Int64Array, rows: Int64Array, n: int) -> None:
        self.X, self.places, self.rows = X, places, rows
        self.block = 0, n

    def shuffled(self, chosen: Int64Array, random: np.random.Generator) -> Portion:
        """Return chosen positions among these rows in a random order."""
        order = random.permutation(chosen)
        return Portion(self.X, self.places[order], self.rows[order], self.block)
