"""Features by rows: what the solvers ask of X, and how they read it.

NumPy arrays, memory maps, Zarr and HDF5 arrays and SciPy CSR matrices satisfy `RowSource` as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from scipy import sparse

from solvers.errors import InvalidProblemError
from solvers.typing import FloatArray

#: Rows as they are computed with: a C-contiguous float array or a CSR matrix.
Rows: TypeAlias = Any

#: A tile of features and its scores stay in a core's second-level cache between the two products that use it.
_TILE_BYTES = 5 << 18
_MIN_TILE_ROWS = 64
_MAX_TILE_ROWS = 4096
#: Bytes read at once from a source that is stored in chunks.
_SLAB_BYTES = 1 << 25


@runtime_checkable
class RowSource(Protocol):
    """Features, one example per row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, d)."""
        ...

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the stored values."""
        ...

    def __getitem__(self, rows: slice, /) -> Any:
        """Give the rows of a slice, as an array (rows, d) or a CSR matrix."""
        ...


class RowRange:
    """A contiguous run of the rows of another source, read only when asked for."""

    def __init__(self, source: RowSource, start: int, stop: int) -> None:
        self._source = source
        self._start = start
        self.shape = (stop - start, int(source.shape[1]))
        self.dtype = source.dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Chunk shape of the source, None where it has none."""
        return getattr(self._source, "chunks", None)

    @property
    def cuts(self) -> Sequence[int] | None:
        """Where stored pieces of the source end, in row numbers of this range; None where it does not say."""
        cuts: Sequence[int] | None = getattr(self._source, "cuts", None)
        if cuts is None:
            return None
        stop = self._start + self.shape[0]
        return [0, *(c - self._start for c in cuts if self._start < c < stop), self.shape[0]]

    @property
    def in_memory(self) -> bool:
        """Whether the source lies in memory."""
        return held_in_memory(self._source)

    @property
    def sparse(self) -> bool:
        """Whether slices are CSR matrices."""
        return gives_sparse(self._source)

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        return self._source[self._start + start : self._start + stop]


def compute_dtype(dtype: Any) -> np.dtype[Any]:
    """Give the precision of products: float64 for float64 and wide integers, else float32.

    InvalidProblemError for what is not real numbers.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "fiub":
        raise InvalidProblemError(f"the features have dtype {kind}; give real numbers")
    exact_in_float32 = kind.itemsize <= 2 or kind == np.float32
    return np.dtype(np.float32 if exact_in_float32 else np.float64)


def tile_rows(d: int, m: int, itemsize: int) -> int:
    """Give the number of rows of a tile: a power of two that fits the cache."""
    fitting = max(_TILE_BYTES // (itemsize * (d + m)), 1)
    return int(min(max(1 << (fitting.bit_length() - 1), _MIN_TILE_ROWS), _MAX_TILE_ROWS))


def iterate_tiles(X: RowSource, first_row: int, rows: int) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows start:stop of X) with float32 or float64 values.

    Tiles end where a row number counted from `first_row` is a multiple of `rows`, whatever the block, so that
    results hardly depend on how rows are cut into blocks.
    """
    dtype = compute_dtype(X.dtype)
    for low, high in _cuts(X.shape[0], first_row, _slab_rows(X, rows)):
        slab = X[low:high]
        for start, stop in _cuts(high - low, first_row + low, rows):
            yield low + start, low + stop, as_rows(slab[start:stop], dtype)


def held_in_memory(X: RowSource) -> bool:
    """Say whether slices cost no reading: arrays, CSR matrices, and sources whose `in_memory` says so."""
    if isinstance(X, np.ndarray):
        return not isinstance(X, np.memmap)
    return is_sparse(X) or bool(getattr(X, "in_memory", False))


def slab_bounds(X: RowSource, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of rows to read at once: whole pieces where X is stored in pieces, multiples of `rows`.

    A source says by `chunks` that its pieces are of one size, or by `cuts` where each of them ends.
    """
    cuts: Sequence[int] | None = getattr(X, "cuts", None)
    if cuts is None:
        yield from _cuts(X.shape[0], 0, _slab_rows(X, rows))
        return
    most = _SLAB_BYTES // max(int(X.shape[1]) * np.dtype(X.dtype).itemsize, 1)
    start = 0
    for stop, following in zip(cuts[1:], [*cuts[2:], math.inf], strict=True):
        if following - start > most:
            yield start, stop
            start = stop


def is_sparse(values: Any) -> bool:
    """Say whether values are a SciPy sparse matrix or array."""
    return bool(sparse.issparse(values))


def gives_sparse(X: RowSource) -> bool:
    """Say whether slices of a source are CSR matrices."""
    return is_sparse(X) or bool(getattr(X, "sparse", False))


def as_rows(values: Any, dtype: np.dtype[Any]) -> Rows:
    """Give values as a CSR matrix or C-contiguous array of the given float type."""
    if is_sparse(values):
        return values.tocsr().astype(dtype, copy=False)
    return np.ascontiguousarray(values, dtype=dtype)


def count_tiles(n_rows: int, first_row: int, rows: int) -> int:
    """Give the number of tiles that `iterate_tiles` yields."""
    return (first_row + n_rows - 1) // rows - first_row // rows + 1


def nonfinite_rows(values: Rows) -> np.ndarray[Any, Any]:
    """Give the positions of rows that hold NaN or infinity."""
    if is_sparse(values):
        bad = np.flatnonzero(~np.isfinite(values.data))
        return np.unique(np.searchsorted(np.asarray(values.indptr), bad, side="right") - 1)
    # One sum is far cheaper than a mask; only if it is not finite are single values looked at.
    if np.isfinite(_total(values)):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(values).all(axis=1))


def _total(values: FloatArray) -> float:
    with np.errstate(all="ignore"):
        return float(values.sum(dtype=np.float64))


def _slab_rows(X: RowSource, rows: int) -> int:
    """Rows to read at once: whole tiles and whole chunks, for a chunk that is cut is decoded twice.

    Where no small number of rows is both, whole tiles win and a chunk at the edge of a slab is read again.
    """
    chunks: tuple[int, ...] | None = getattr(X, "chunks", None)
    if not chunks:
        return rows
    row_bytes: int = max(int(X.shape[1]) * np.dtype(X.dtype).itemsize, 1)
    fitting = max(_SLAB_BYTES // row_bytes, 1)
    whole = math.lcm(rows, int(chunks[0]))
    unit: int = whole if whole <= 4 * fitting else rows
    return unit * max(fitting // unit, 1)


def _cuts(n_rows: int, first_row: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) that cut n_rows at the multiples of `rows` counted from -first_row."""
    start = 0
    while start < n_rows:
        stop = min(n_rows, ((first_row + start) // rows + 1) * rows - first_row)
        yield start, stop
        start = stop
