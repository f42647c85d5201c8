"""Units of a dataset: what their features have to be, and the part file that marks one as done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse

from topline.storage.arrays import Span
from topline.storage.datasets.manifest import dump_manifest, load_manifest
from topline.storage.errors import FormatError, IntegrityError, NotFoundError
from topline.storage.fingerprint import digest_bytes
from topline.storage.schema import PARTS, part_path
from topline.storage.stores import FileEntry, Store
from topline.storage.stores.files import PackedFile, put_file
from topline.storage.stores.urls import join

_NAMED_ROWS = 5


@dataclass(frozen=True)
class Part:
    """What the part file of `unit` says: manifest rows, feature files, stored numbers; `entry` is itself."""

    unit: int
    table: pa.Table
    entries: tuple[FileEntry, ...]
    nonzeros: int
    entry: FileEntry


def write_part(
    store: Store, folder: str, unit: int, table: pa.Table, entries: Sequence[FileEntry], nonzeros: int
) -> None:
    """Write the part file, which marks `unit` as done."""
    files = json.dumps([entry.to_json() for entry in entries])
    extra = {"unit": str(unit), "files": files, "nonzeros": str(nonzeros)}
    put_file(store, folder, PackedFile(part_path(unit), dump_manifest(table, extra)))


def read_part(store: Store, folder: str, unit: int) -> Part:
    """Return the part of `unit`; `NotFoundError` if there is none, `IntegrityError` if it cannot be read."""
    path = part_path(unit)
    place = join(store.url, folder, path)
    data = store.read_bytes(join(folder, path))
    table, extra = load_manifest(data, place)
    try:
        entries = tuple(FileEntry.from_json(record) for record in json.loads(extra["files"]))
        found, nonzeros = int(extra["unit"]), int(extra["nonzeros"])
    except (KeyError, ValueError, FormatError) as error:
        raise IntegrityError(f"{place} is damaged: it does not say which files it stands for") from error
    if found != unit:
        raise IntegrityError(f"{place} is damaged: it is the part of unit {found}")
    return Part(unit, table, entries, nonzeros, FileEntry(path, len(data), digest_bytes(data)))


def finished_part(store: Store, folder: str, unit: int) -> Part | None:
    """Return the part of `unit` if all files that it names have their sizes: then the unit is done.

    Otherwise None: whatever the reason, the fix is to write the unit again.
    """
    try:
        part = read_part(store, folder, unit)
        sizes_fit = all(store.size(join(folder, entry.path)) == entry.size for entry in part.entries)
    except (NotFoundError, IntegrityError):
        return None
    return part if sizes_fit else None


def part_units(store: Store, folder: str) -> list[int]:
    """Return the units that have a part file, done or not."""
    stems = [
        name.removesuffix(".parquet") for name in store.list(join(folder, PARTS)) if name.endswith(".parquet")
    ]
    return [int(stem) for stem in stems if stem.isdecimal()]


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
