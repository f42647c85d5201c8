"""Features by rows: what the solvers require of X, and how they read it, ahead of use.

NumPy arrays, memory maps, Zarr and HDF5 arrays and SciPy CSR matrices satisfy `RowSource` as they are.

While one slab is processed, the next one is read.  Each thread reads one slab and ends, so no thread has to
be stopped: a caller that gives up waits for the slab under way.  At most three slabs are in memory.

When several threads visit rows at the same time (`SharedScan`) each slab is read once for all.  A reader
lists the slabs it still wants, in any order.  Once every reader waits, the slab that most of them want is
read and given to each of them, and the likeliest next one is read meanwhile.  The order depends only on the
requests and on the number of earlier scans, so it is reproducible.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array

_MAGNITUDE = np.uint32(0x7FFF)
_SIGN = np.uint32(0x8000)
#: Difference in mantissa bits between a single and a half.
_SHIFT = np.uint32(13)
#: Shifted values from here on are infinite or NaN.
_INFINITE = np.uint32(0x0F800000)
_EXPONENT = np.uint32(0x7F800000)
#: 2^(127 - 15): the exponents of singles count from 127, those of halves from 15.
_RESCALE = np.float32(2.0**112)


def widened(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return the same values in single precision, C-contiguous; nothing is rounded."""
    halves = np.ascontiguousarray(halves)
    singles = np.empty(halves.shape, dtype=np.float32)
    _widen(halves.reshape(-1).view(np.uint16), singles.reshape(-1))
    return singles


@jit
def _widen(halves: NDArray[np.uint16], singles: NDArray[np.float32]) -> Any:
    """Shift the bits into place and let one product move the exponent, subnormal numbers included."""
    for i in range(halves.size):
        half = np.uint32(halves[i])
        bits = np.uint32((half & _MAGNITUDE) << _SHIFT)
        if bits >= _INFINITE:
            bits |= _EXPONENT
        bits |= (half & _SIGN) << np.uint32(16)
        singles[i] = np.uint32(bits).view(np.float32) * _RESCALE


#: Rows in memory: a C-contiguous float array or a CSR matrix.
Rows: TypeAlias = Any

#: Keeps features and scores of a tile in a core's second-level cache between the two products that use them,
_TILE_BYTES = 5 << 18
#: unless the tile would have fewer rows than this: W, or a product as large, is then fetched too often.
_GOOD_TILE_ROWS = 512
_MOST_TILE_BYTES = 12 << 20
_MIN_TILE_ROWS = 64
_MAX_TILE_ROWS = 4096
#: Bytes, in working precision, read at once from a source outside memory.
_SLAB_BYTES = 1 << 24


@runtime_checkable
class RowSource(Protocol):
    """Features, one example per row.

    Examples
    --------
    >>> import numpy as np
    >>> from topline.solvers.core.rows import RowSource
    >>> isinstance(np.zeros((3, 2), dtype=np.float32), RowSource)
    True
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, d)."""
        ...

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the stored values."""
        ...

    def __getitem__(self, rows: slice, /) -> Any:
        """Return the rows of a slice, as an array (rows, d) or a CSR matrix."""
        ...


#: Rows that cost no reading, or are views of one array or stay in memory once they are read.
Held: TypeAlias = Literal["at_hand", "in_place", "kept"]


class RowRange:
    """A contiguous run of the rows of another source, read on demand."""

    def __init__(self, source: RowSource, start: int, stop: int) -> None:
        self._source = source
        self._start = start
        self.shape = (stop - start, int(source.shape[1]))
        self.dtype = source.dtype
        #: Whether the source lies in memory, and whether slices are CSR matrices.
        self.in_memory, self.sparse = held_in_memory(source), gives_sparse(source)

    @property
    def cuts(self) -> Sequence[int] | None:
        """Where stored pieces of the source end, in row numbers of this range; None if unknown."""
        cuts = _piece_ends(self._source)
        if cuts is None:
            return None
        stop = self._start + self.shape[0]
        return [0, *(c - self._start for c in cuts if self._start < c < stop), self.shape[0]]

    def take(self, rows: Int64Array) -> Any:
        """Return rows by their numbers, which the source keeps."""
        return taken_rows(self._source, self._start + rows)

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        if is_sparse(self._source) and start <= stop:
            return _matrix_rows(self._source, self._start + start, self._start + stop)
        return self._source[self._start + start : self._start + stop]


def _matrix_rows(X: Any, start: int, stop: int) -> Any:
    """Return rows start..stop-1 of a sparse matrix, in CSR form as a matrix over the same entries.

    Slicing would copy them, which is necessary where entries are stored in parts: SciPy may sum those in
    place.
    """
    if stop - start == X.shape[0]:
        return X
    if X.format != "csr" or not X.has_canonical_format:
        return X[start:stop]
    entries = slice(X.indptr[start], X.indptr[stop])
    # The constructor would copy a small part of an array.
    part = type(X)((stop - start, X.shape[1]), dtype=X.dtype)
    part.data, part.indices = X.data[entries], X.indices[entries]
    part.indptr = X.indptr[start : stop + 1] - X.indptr[start]
    part.has_canonical_format = True
    return part


def compute_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the precision of products: float64 for float64 and wide integers, else float32.

    Raises InvalidProblemError for a dtype other than real numbers.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "fiub":
        raise InvalidProblemError(f"the features have dtype {kind}; give real numbers")
    exact_in_float32 = kind.itemsize <= 2 or kind == np.float32
    return np.dtype(np.float32 if exact_in_float32 else np.float64)


def tile_rows(d: int, m: int, itemsize: int) -> int:
    """Return the number of rows of a tile: a power of two that fits the cache."""
    row_bytes = itemsize * (d + m)
    wanted = max(_TILE_BYTES // row_bytes, min(_GOOD_TILE_ROWS, _MOST_TILE_BYTES // row_bytes), 1)
    return int(min(max(1 << (wanted.bit_length() - 1), _MIN_TILE_ROWS), _MAX_TILE_ROWS))


def held_in_memory(X: RowSource) -> bool:
    """Return whether slices cost no reading: arrays, CSR matrices, and sources whose `in_memory` says so."""
    if isinstance(X, np.ndarray):
        return not isinstance(X, np.memmap)
    return is_sparse(X) or bool(getattr(X, "in_memory", False))


def rows_are(how: Held, X: RowSource, start: int, stop: int) -> bool:
    """Return whether rows start..stop-1 are in memory, or their source says so; memory maps are at hand."""
    if isinstance(X, RowRange):
        return rows_are(how, X._source, X._start + start, X._start + stop)
    says: Callable[[int, int], bool] | None = getattr(X, how, None)
    mapped = how == "at_hand" and isinstance(X, np.ndarray)
    return mapped or held_in_memory(X) or (says is not None and says(start, stop))


def taken_rows(X: RowSource, rows: Int64Array) -> Any:
    """Return rows of a source that keeps them, by their numbers in any order."""
    take: Callable[[Int64Array], Any] | None = getattr(X, "take", None)
    return X[0 : int(X.shape[0])][rows] if take is None or isinstance(X, np.ndarray) else take(rows)


def slab_bounds(X: RowSource, rows: int, most_rows: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the runs of rows to read at once: whole stored pieces, if any, else multiples of `rows`.

    A source declares pieces of one size by `chunks`, or the end of each by `cuts`.  Small pieces are read
    together, up to `most_rows`.
    """
    cuts, most = _piece_ends(X), _fitting_rows(X)
    most = most if most_rows is None else min(most, most_rows)
    if cuts is None:
        yield from cut_rows(int(X.shape[0]), 0, rows * max(most // rows, 1))
        return
    start = 0
    for stop, following in zip(cuts[1:], [*cuts[2:], math.inf], strict=True):
        if following - start > most:
            yield start, stop
            start = stop


def is_sparse(values: Any) -> bool:
    """Return whether values are a SciPy sparse matrix or array."""
    return bool(sparse.issparse(values))


def without_repeats(X: Any) -> Any:
    """Return a CSR matrix with each entry stored once, in order: X itself, or a copy.

    SciPy's sums, |x|^2 of stored values and their mean would treat repeated entries as separate.
    """
    if X.has_canonical_format:
        return X
    summed = X.copy()
    summed.sum_duplicates()
    return summed


def gives_sparse(X: RowSource) -> bool:
    """Return whether slices of a source are CSR matrices."""
    return is_sparse(X) or bool(getattr(X, "sparse", False))


def as_rows(values: Any, dtype: np.dtype[Any]) -> Rows:
    """Return values as a CSR matrix or C-contiguous array of the given float type."""
    if is_sparse(values):
        return values.tocsr().astype(dtype, copy=False)
    if dtype == np.float32 and isinstance(values, np.ndarray) and values.dtype == np.float16:
        return widened(values)
    return np.ascontiguousarray(values, dtype=dtype)


def stacked(parts: Sequence[Rows]) -> Rows:
    """Return runs of rows stacked into one."""
    if len(parts) == 1:
        return parts[0]
    return sparse.vstack(parts, format="csr") if is_sparse(parts[0]) else np.concatenate(parts)


def squared_norms(values: Rows) -> Float64Array:
    """Return |x_i|^2 of each row, (rows,) float64."""
    if is_sparse(values):
        wide = values.astype(np.float64, copy=False)
        return np.asarray(wide.multiply(wide).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", values, values, dtype=np.float64))


def squares_above(values: Rows) -> Float64Array:
    """Return bounds of |x_i|^2 (rows,), above it by the rounding of a sum in the precision of the rows."""
    d = int(values.shape[1])
    precision = None if is_sparse(values) else np.finfo(values.dtype)
    # The terms are positive: however they are added up, no more is lost than one after the other.
    if precision is None or d * float(precision.eps) >= 0.5:
        return squared_norms(values)
    squares = np.vecdot(values, values).astype(np.float64)
    return np.asarray(squares * (1.0 + d * float(precision.eps)) + d * float(precision.tiny))


def most_terms(values: Rows) -> int:
    """Return the most non-zeros of a row: the terms of its products."""
    return int(np.diff(values.indptr).max(initial=0)) if is_sparse(values) else int(values.shape[1])


def nonfinite_rows(values: Rows) -> np.ndarray[Any, Any]:
    """Return the positions of rows that hold NaN or infinity."""
    if is_sparse(values):
        bad = np.flatnonzero(~np.isfinite(values.data))
        return np.unique(np.searchsorted(np.asarray(values.indptr), bad, side="right") - 1)
    # One sum is far cheaper than a mask; single values are examined only if it is not finite.
    with np.errstate(all="ignore"):
        total = float(values.sum(dtype=np.float64))
    if np.isfinite(total):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(~np.isfinite(values).all(axis=1))


def refuse_nonfinite(values: Rows, first: int = 0) -> None:
    """Refuse rows that hold NaN or infinity; `first` is the number of the first row."""
    bad = first + nonfinite_rows(values)
    if bad.size:
        rows = ", ".join(map(str, bad[:5].tolist()))
        more = f" and {bad.size - 5} more near them" if bad.size > 5 else ""
        raise NonFiniteError(
            f"the features of rows {rows}{more} hold NaN or infinity; fix or drop these rows"
        )


def cut_rows(n_rows: int, first_row: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) that cut n_rows at the multiples of `rows` counted from -first_row."""
    start = 0
    while start < n_rows:
        stop = min(n_rows, ((first_row + start) // rows + 1) * rows - first_row)
        yield start, stop
        start = stop


def _fitting_rows(X: RowSource) -> int:
    return max(_SLAB_BYTES // max(int(X.shape[1]) * compute_dtype(X.dtype).itemsize, 1), 1)


def _piece_ends(X: RowSource) -> Sequence[int] | None:
    """Return where stored pieces end, from 0 to the number of rows; None if X does not say.

    Chunks of several slabs count as unknown: they are too large to hold, so each slab decodes them again.
    """
    cuts: Sequence[int] | None = getattr(X, "cuts", None)
    chunks: tuple[int, ...] | None = getattr(X, "chunks", None)
    if cuts is not None or not chunks:
        return cuts
    if chunks[0] > 4 * _fitting_rows(X):
        return None
    return [*range(0, int(X.shape[0]), int(chunks[0])), int(X.shape[0])]


def read_slabs(
    X: RowSource, bounds: Iterable[tuple[int, int]], dtype: np.dtype[Any] | None = None
) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows start:stop of X) for each of `bounds`, in their order.

    The rows are floats of `dtype`, or as they are stored.
    """

    def convert(values: Any) -> Rows:
        return values if dtype is None else as_rows(values, dtype)

    spans = list(bounds)
    if all(rows_are("at_hand", X, start, stop) for start, stop in spans):
        for start, stop in spans:
            yield start, stop, convert(X[start:stop])
        return
    coming: list[ComingSlab] = []
    try:
        for number, (start, stop) in enumerate(spans):
            rows = (coming.pop() if coming else ComingSlab(X, start, stop, convert)).take()
            if number + 1 < len(spans):
                coming.append(ComingSlab(X, *spans[number + 1], convert))
            yield start, stop, rows
            del rows
    finally:
        for slab in coming:
            slab.drop()


class ComingSlab:
    """A slab that a thread is reading."""

    def __init__(
        self, X: RowSource, start: int, stop: int, convert: Callable[[Any], Rows] = lambda values: values
    ) -> None:
        self._source, self._bounds, self._convert = X, (start, stop), convert
        self._rows: Rows = None
        self._error: BaseException | None = None
        # NumPy keeps its disabled warnings in the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._read,), name="topline-read-ahead")
        self._thread.start()

    def _read(self) -> None:
        start, stop = self._bounds
        try:
            self._rows = self._convert(self._source[start:stop])
        except BaseException as error:  # noqa: BLE001  it is raised where the slab is asked for
            self._error = error

    def take(self) -> Rows:
        """Return the rows, or raise the exception of their reading."""
        self._thread.join()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it holds this frame, which holds it
        return self._rows

    def drop(self) -> None:
        """Wait for the thread to end, unless it is the current one, disposing of a dropped reader."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


Slab = tuple[int, int]


class _Served(NamedTuple):
    slab: Slab
    rows: Any = None
    error: BaseException | None = None


class SharedScan(RowRange):
    """Rows of a source, by default all, for readers that visit them together; a plain source without any."""

    def __init__(self, source: RowSource, start: int = 0, stop: int | None = None) -> None:
        super().__init__(source, start, int(source.shape[0]) if stop is None else stop)
        self._turn = threading.Condition()
        self._readers = 0
        self._wanted: dict[int, set[Slab]] = {}
        self._served: dict[int, _Served] = {}
        self._coming: tuple[Slab, ComingSlab] | None = None
        self._scans = 0
        #: Number of slabs read for readers together.
        self.slabs_read = 0

    def begin(self, readers: int) -> None:
        """Expect `readers` readers, each a thread that will call `leave`."""
        with self._turn:
            self._readers, self._scans = readers, self._scans + 1

    def leave(self) -> None:
        """Remove one reader."""
        with self._turn:
            self._readers -= 1
            self._serve_if_all_wait()
            if self._readers == 0 and self._coming is not None:
                self._coming[1].drop()
                self._coming = None

    def scan(self, wanted: Iterable[Slab], dtype: np.dtype[Any]) -> Iterator[tuple[int, int, Rows]]:
        """Yield (start, stop, rows as floats of `dtype`) of each wanted slab, in any order."""
        left = set(wanted)
        while left:
            served = self._next(left)
            if served.error is not None:
                raise served.error
            left.discard(served.slab)
            yield *served.slab, as_rows(served.rows, dtype)

    @property
    def shared(self) -> bool:
        """Whether there are readers that visit the rows together."""
        return self._readers > 0

    def _next(self, left: set[Slab]) -> _Served:
        me = threading.get_ident()
        with self._turn:
            self._wanted[me] = set(left)
            self._serve_if_all_wait()
            self._turn.wait_for(lambda: me in self._served)
            return self._served.pop(me)

    def _serve_if_all_wait(self) -> None:
        """Read the next slab for the readers that want it, once every reader waits."""
        if self._served or not self._wanted or len(self._wanted) < self._readers:
            return
        slab = self._best(self._wanted)
        try:
            served = _Served(slab, self._read(slab))
        except Exception as error:  # noqa: BLE001 - each of the readers raises it
            served = _Served(slab, error=error)
        for reader in [reader for reader, left in self._wanted.items() if slab in left]:
            del self._wanted[reader]
            self._served[reader] = served
        self._turn.notify_all()

    def _read(self, slab: Slab) -> Any:
        """Return the rows of a slab, and start to read the likeliest next one."""
        coming, self._coming = self._coming, None
        known = coming is not None and coming[0] == slab
        rows = coming[1].take() if coming is not None and known else self[slab[0] : slab[1]]
        self.slabs_read += 1
        after = {reader: left - {slab} for reader, left in self._wanted.items()}
        if any(after.values()):
            following = self._best(after)
            self._coming = following, ComingSlab(self, *following)
        return rows

    def _best(self, wanted: Mapping[int, set[Slab]]) -> Slab:
        """Return the slab that most readers want; ties go to the one under way, else to a random one."""
        often = Counter(slab for left in wanted.values() for slab in left)
        most = max(often.values())
        equal = sorted(slab for slab, count in often.items() if count == most)
        if self._coming is not None and self._coming[0] in equal:
            return self._coming[0]
        return equal[int(np.random.default_rng((self._scans, len(equal))).integers(len(equal)))]


def read_together(
    X: RowSource, bounds: Iterable[Slab], dtype: np.dtype[Any]
) -> Iterator[tuple[int, int, Rows]] | None:
    """Return the slabs of rows that are read for several readers at once; None for other rows."""
    return X.scan(bounds, dtype) if isinstance(X, SharedScan) and X.shared else None
