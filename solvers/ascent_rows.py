"""Rows of a block as ascent visits them: where they lie as they are, or a few converted at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from solvers.rows import Rows, RowSource, as_rows, held_in_memory, is_sparse, slab_bounds
from solvers.typing import Int64Array

#: Rows that are gathered and converted at once.
_GATHERED_ROWS = 512
#: Rows that are gathered to be visited many times take at most this share of the block,
_HELD_SHARE = 0.25
#: or so many bytes.
_HELD_BYTES = 1 << 21


class Portion(NamedTuple):
    """Rows of the block to visit one after the other: `places` says where each lies in X."""

    X: Rows
    places: Int64Array
    rows: Int64Array


class RowFeed:
    """Gives the rows of a block in any order.

    Parameters
    ----------
    X : (rows, d) features of the block.
    dtype : their type as they come out, float32 or float64.
    """

    def __init__(self, X: RowSource, dtype: np.dtype[Any]) -> None:
        self._X = X
        self._dtype = dtype
        self._n = int(X.shape[0])
        self._slabs = [(0, self._n)] if held_in_memory(X) else list(slab_bounds(X, _GATHERED_ROWS))

    def shuffled(self, rows: Int64Array, random: np.random.Generator) -> Iterator[Portion]:
        """Yield the given rows, slab by slab, in a random order of slabs and of rows in a slab."""
        slabs = [int(slab) for slab in random.permutation(len(self._slabs))]
        if len(slabs) == 1:
            yield from self._portions(0, random.permutation(rows))
            return
        rows = np.sort(rows)
        for slab in slabs:
            start, stop = self._slabs[slab]
            inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
            if len(inside):
                yield from self._portions(slab, random.permutation(inside))

    def _portions(self, slab: int, rows: Int64Array) -> Iterator[Portion]:
        start, stop = self._slabs[slab]
        values = self._X[start:stop]
        if self._ready(values):
            yield Portion(values, rows - start, rows)
            return
        for low in range(0, len(rows), _GATHERED_ROWS):
            part = rows[low : low + _GATHERED_ROWS]
            yield Portion(as_rows(values[part - start], self._dtype), np.arange(len(part)), part)

    def _ready(self, values: Any) -> bool:
        """Whether kernels can work on values as they are."""
        if is_sparse(values):
            return bool(values.format == "csr" and values.dtype == self._dtype)
        return isinstance(values, np.ndarray) and values.dtype == self._dtype and values.flags.c_contiguous

    def held(self, rows: Int64Array) -> HeldRows | None:
        """Gather rows for many visits; None where they are too many and do not lie in memory as they are."""
        everything = None
        if len(self._slabs) == 1:
            everything = self._X[0 : self._n]
            if self._ready(everything):
                return HeldRows(everything, rows, rows)
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
        return HeldRows(_stacked(parts), np.arange(len(rows)), rows)


class HeldRows:
    """Rows in memory, ready for kernels: row `rows[t]` of the block is row `places[t]` of X."""

    def __init__(self, X: Rows, places: Int64Array, rows: Int64Array) -> None:
        self.X, self.places, self.rows = X, places, rows

    def shuffled(self, chosen: Int64Array, random: np.random.Generator) -> Portion:
        """Give chosen positions among these rows in a random order."""
        order = random.permutation(chosen)
        return Portion(self.X, self.places[order], self.rows[order])


def _stacked(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return sparse.vstack(parts, format="csr") if is_sparse(parts[0]) else np.concatenate(parts)
