"""Units of a dataset: what their features have to be, and how they are laid out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse

from topline.storage.arrays import ChunkPlan, Span
from topline.storage.arrays.writer import ArraySpec
from topline.storage.errors import FormatError

_NAMED_ROWS = 5


def dense_spec(rows: int, d: int, dtype: np.dtype[Any], chunk_rows: int) -> ArraySpec:
    """Return how the features of a dense unit are laid out, whatever dataset it is in: as one shard."""
    chunk = max(1, min(rows, chunk_rows))
    return ArraySpec(ChunkPlan(rows, chunk, -(-rows // chunk) * chunk), (d,), dtype)


def dense_unit(X: ArrayLike, span: Span, d: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `X` as a contiguous (span.rows, d) array of `dtype`.

    Raises `FormatError` naming rows for what cannot be.
    """
    if issparse(X):
        raise FormatError("a dense dataset takes dense rows; use CsrDatasetWriter for sparse ones")
    array = np.asarray(X)
    _check_shape(array.shape, span, d)
    _check_kind(array.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        stored = np.ascontiguousarray(array, dtype=dtype)
    finite = np.isfinite(stored)
    if not finite.all():
        _refuse(~finite.all(axis=1), np.isfinite(array).all(axis=1), span, dtype)
    return stored


def csr_unit(
    X: Any, span: Span, d: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return `indptr` (int64, from 0), `indices` (int32, sorted in each row) and `data` of a sparse unit."""
    source: Any = X  # SciPy's stubs would narrow X itself to a class that csr_matrix does not take
    if not issparse(X):
        raise FormatError("a sparse dataset takes SciPy sparse matrices; use DatasetWriter for dense rows")
    matrix: Any = csr_matrix(source)
    _check_shape(matrix.shape, span, d)
    _check_kind(matrix.dtype)
    if not (matrix.has_canonical_format and matrix.has_sorted_indices):
        matrix = matrix.copy()
        matrix.sum_duplicates()
    with np.errstate(over="ignore", invalid="ignore"):
        data = np.ascontiguousarray(matrix.data, dtype=dtype)
    finite = np.isfinite(data)
    if not finite.all():
        row_of = np.repeat(np.arange(span.rows), np.diff(matrix.indptr))
        bad, good_before = np.zeros(span.rows, bool), np.ones(span.rows, bool)
        bad[row_of[~finite]] = True
        good_before[row_of[~np.isfinite(matrix.data)]] = False
        _refuse(bad, good_before, span, dtype)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), data


def _check_shape(shape: tuple[int, ...], span: Span, d: int) -> None:
    if shape != (span.rows, d):
        raise FormatError(f"the unit of {span} takes an array of shape {(span.rows, d)}, not {tuple(shape)}")


def _check_kind(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biuf":
        raise FormatError(f"features are real numbers, not {dtype}")


def _refuse(bad: NDArray[np.bool_], good_before: NDArray[np.bool_], span: Span, dtype: np.dtype[Any]) -> None:
    """Name the rows whose stored form would not be finite, and whether the conversion is to blame."""
    rows = np.flatnonzero(bad)
    named = ", ".join(str(span.start + row) for row in rows[:_NAMED_ROWS])
    more = " and others" if len(rows) > _NAMED_ROWS else ""
    if good_before[rows].all():
        raise FormatError(
            f"{len(rows)} of the {span.rows} rows {span.start}-{span.stop - 1} are too large for {dtype}"
            f" (row {named}{more}); store them as float32 or scale them"
        )
    raise FormatError(
        f"{len(rows)} of the {span.rows} rows {span.start}-{span.stop - 1} hold NaN or infinity"
        f" (row {named}{more}); fix or reject them before they are stored"
    )
