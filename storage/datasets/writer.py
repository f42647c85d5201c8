"""Writing a dataset: complete units into a staging folder, then one commit that makes it visible.

A staging folder says what the writers of one key have agreed on.  Features of a unit are checked here, and
laid out as one shard of rows or as the arrays of a sparse matrix.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix, issparse

from topline.storage.arrays import ChunkPlan, Span
from topline.storage.arrays.groups import (
    ArraySpec,
    packed_array,
    packed_group,
    packed_metadata,
    packed_shard,
    packed_strings,
)
from topline.storage.datasets.contents import (
    PackedUnit,
    UnitRef,
    conform,
    dump_overrides,
    dump_units,
    finished_unit,
    marked_units,
    overrides_of,
    shared_columns,
    unit_table,
    write_mark,
)
from topline.storage.datasets.info import (
    DatasetInfo,
    dataset_folder,
    dataset_log,
    find_by_key,
    folder_to_write,
    info_of_commit,
    read_catalog,
)
from topline.storage.datasets.labels import (
    LabelSetTable,
    RowFacts,
    check_class_names,
    check_labels_and_splits,
    check_rejected,
    dump_edits,
    split_counts,
)
from topline.storage.errors import FormatError, IncompleteError, IntegrityError, MismatchError, NotFoundError
from topline.storage.records import canonical_json, digest_bytes, now, plain
from topline.storage.schema import (
    CLASS_NAMES,
    CSR_ARRAYS,
    CSR_ENCODING,
    DATASET_ENCODING,
    EDITS,
    FILES_LIST,
    GROUP,
    LABEL_SET_INDICES,
    LABEL_SET_INDPTR,
    LABELS,
    MARKS,
    OVERRIDES,
    SPLIT,
    STAGING,
    STAGING_ENCODING,
    STRINGS_ENCODING,
    UNITS_LIST,
    encoding,
    feature_dtype,
)
from topline.storage.stores import Store
from topline.storage.stores.files import PackedFile, dump_entries, put_files
from topline.storage.stores.lease import hold_while
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join


def claim(owner: object, store: Store, folder: str, description: Mapping[str, Any]) -> None:
    """Write a staging's description and hold it for `owner`; `MismatchError` if another differs."""
    wanted = {**encoding(STAGING_ENCODING), **plain(description)}
    if _begin(owner, store, folder, wanted):
        return
    found = unsealed(store, join(folder, STAGING))
    differing = sorted(name for name in wanted if found.get(name) != wanted[name])
    if differing:
        raise MismatchError(
            f"{join(store.url, folder)} was begun with other {' and '.join(differing)};"
            " abandon it or give this dataset another key"
        )


def _begin(owner: object, store: Store, folder: str, description: Mapping[str, Any]) -> bool:
    """Hold a folder's staging record as long as `owner` lives; return whether it is new."""
    path = join(folder, STAGING)
    while True:
        begun = store.put_if_absent(path, sealed(path, {**description, "begun": now()}))
        hold_while(owner, store, path)
        # It can be removed as abandoned just before it is held.
        if store.exists(path):
            return begun


def staged(store: Store, key: str) -> Mapping[str, Any] | None:
    """Return the description that the writers of an uncommitted dataset agreed on; None before the first."""
    path = join(folder_to_write(store, key, read_catalog(store)), STAGING)
    return unsealed(store, path) if store.exists(path) else None


def discard_staged(store: Store, key: str) -> None:
    """Delete the staging of a key unless committed; pruning removes what its units refer to."""
    catalog = read_catalog(store)
    if catalog.of_key(key) is None:
        store.delete_tree(folder_to_write(store, key, catalog))


def folder_for(owner: object, store: Store, folder: str, listing: bytes) -> str:
    """Return the folder for the files that `listing` lists, with that list in it.

    The first writer to commit takes the staging's own `folder`.  A writer with other files (two machines may
    compute features that differ in the last bits) takes one beside it, so that nobody replaces what another
    publishes.  On a local disk retention spares it as long as `owner` lives.
    """
    if store.put_if_absent(join(folder, FILES_LIST), listing) or _lists(store, folder) == listing:
        return folder
    beside = f"{folder}-{digest_bytes(listing)[:8]}"
    _begin(owner, store, beside, encoding(STAGING_ENCODING))
    store.write_bytes(join(beside, FILES_LIST), listing)
    return beside


def listed_units(store: Store, folder: str) -> list[UnitRef]:
    """Return the units of a dataset in this folder, committed or not; `IntegrityError` if unreadable."""
    path = join(folder, UNITS_LIST)
    try:
        return [UnitRef.from_json(unit) for unit in json.loads(store.read_bytes(path))]
    except NotFoundError:
        return []
    except (ValueError, TypeError, LookupError, AttributeError, FormatError) as error:
        raise IntegrityError(f"{join(store.url, path)} is damaged: {error}") from error


def _lists(store: Store, folder: str) -> bytes | None:
    """Return a folder's list of files; None if the writer of another has just removed it."""
    try:
        return store.read_bytes(join(folder, FILES_LIST))
    except NotFoundError:
        return None


def check_cuts(cuts: tuple[int, ...], n_rows: int) -> None:
    """Raise `FormatError` unless the cuts of units rise from 0 to the number of rows."""
    if cuts[:1] != (0,) or cuts[-1] != n_rows or any(a >= b for a, b in pairwise(cuts)):
        raise FormatError(f"units are cut at 0 < ... < {n_rows}, not at {cuts}")


_NAMED = 5


def dense_spec(rows: int, d: int, dtype: np.dtype[Any], chunk_rows: int) -> ArraySpec:
    """Return the layout of a dense unit's features in any dataset: one shard."""
    chunk = max(1, min(rows, chunk_rows))
    return ArraySpec(ChunkPlan(rows, chunk, -(-rows // chunk) * chunk), (d,), dtype)


def dense_unit(X: ArrayLike, span: Span, d: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return `X` as a contiguous (span.rows, d) array of `dtype`; `FormatError` naming invalid rows."""
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
    """Raise an error naming the rows whose stored form is not finite, and whether conversion is to blame."""
    rows = np.flatnonzero(bad)
    named = ", ".join(str(span.start + row) for row in rows[:_NAMED])
    more = " and others" if len(rows) > _NAMED else ""
    if good_before[rows].all():
        raise FormatError(
            f"{len(rows)} of the {span.rows} rows {span.start}-{span.stop - 1} are too large for {dtype}"
            f" (row {named}{more}); store them as float32 or scale them"
        )
    raise FormatError(
        f"{len(rows)} of the {span.rows} rows {span.start}-{span.stop - 1} hold NaN or infinity"
        f" (row {named}{more}); fix or reject them before they are stored"
    )


@dataclass(frozen=True)
class DatasetWriter:
    """Writer of one dense dataset; pickles to other processes, which may write different units at once.

    `committed` is the dataset of the same key, if it exists: then nothing is written.  Unit u holds the rows
    cuts[u]..cuts[u + 1] - 1; contents shared with another dataset of the store are stored once.  Of all
    writers with the same `race`, in any `folder`, one commits.
    """

    layout: ClassVar[str] = "dense"

    store: Store
    key: str
    d: int
    dtype: np.dtype[Any]
    plan: ChunkPlan
    attributes: Mapping[str, Any] = field(hash=False)
    cuts: tuple[int, ...]
    race: str
    folder: str
    committed: DatasetInfo | None = None

    @classmethod
    def begin(
        cls,
        store: Store,
        key: str,
        d: int,
        dtype: Any,
        plan: ChunkPlan,
        attributes: Mapping[str, Any],
        *,
        cuts: Sequence[int] | None = None,
        base: str | None = None,
    ) -> Self:
        """Begin the dataset `key` of shape (plan.n_rows, d), or continue its staging.

        `attributes` is the features' specification and becomes `DatasetInfo.features`.  `cuts` cut the rows
        into units, by default those of `plan`; `base` is the dataset whose order of rows they follow.  Raises
        `MismatchError` if the staging of that key has another shape, type or specification.
        """
        if plan.n_rows < 1 or d < 1:
            raise FormatError(f"a dataset has rows and columns, not shape ({plan.n_rows}, {d})")
        canonical_json(dict(attributes))
        bounds = tuple(plan.unit_bounds() if cuts is None else cuts)
        check_cuts(bounds, plan.n_rows)
        catalog = read_catalog(store)
        race, folder = dataset_folder(key, catalog.generation(key)), folder_to_write(store, key, catalog)
        committed = catalog.of_key(key)
        writer = cls(store, key, d, feature_dtype(dtype), plan, attributes, bounds, race, folder, committed)
        if writer.committed is None:
            writer._claim(base)
        return writer

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.cuts) - 1

    def bounds(self, unit: int) -> Span:
        """Return the rows of `unit`; `FormatError` if there is no such unit."""
        if not 0 <= unit < self.units:
            raise FormatError(f"unit {unit} is not one of the {self.units} units of {self.folder}")
        return Span(self.cuts[unit], self.cuts[unit + 1])

    def done_units(self) -> frozenset[int]:
        """Return the complete units: everything their mark names is stored with its size."""
        if self._is_committed():
            return frozenset(range(self.units))
        marked = marked_units(self.store, self.folder)
        return frozenset(unit for unit in marked if finished_unit(self.store, self.folder, unit))

    def manifest_of(self, unit: int) -> pa.Table:
        """Return the manifest rows of a complete unit; `IncompleteError` otherwise."""
        ref = finished_unit(self.store, self.folder, unit)
        if ref is None:
            raise self._incomplete([unit])
        return unit_table(self.store, ref, self.folder)

    def write_unit(self, unit: int, X: Any, part: pa.Table) -> None:
        """Write the rows of `unit`, unless the store has the same ones already.

        `X` is (rows of the unit, d) of real numbers, `part` has a row for each.  Rows with status "rejected"
        have zero features.  `FormatError` for a wrong shape and for NaN, infinity or overflow of float16.
        Rewriting a unit is harmless; once the key is committed it does nothing.
        """
        span = self.bounds(unit)
        table = shared_columns(conform(part))
        if table.num_rows != span.rows:
            raise FormatError(f"the unit of {span} takes {span.rows} manifest rows, not {table.num_rows}")
        arrays = self._checked(unit, X)
        rejected = np.flatnonzero(pc.equal(table["status"], "rejected").to_numpy())
        if self._nonzero_rows(arrays, rejected):
            raise FormatError(f"a rejected row of the unit of {span} has features other than 0")
        packed = PackedUnit.of(self._packed_unit(arrays), table)
        ref = packed.ref((span.start, span.stop), self._nonzeros(arrays))
        if self._is_committed() or finished_unit(self.store, self.folder, unit) == ref:
            return
        write_mark(self.store, self.folder, unit, ref)
        packed.put(self.store)

    def commit(
        self,
        labels: ArrayLike,
        split: ArrayLike,
        class_names: Sequence[str],
        manifest: pa.Table | None = None,
        label_sets: LabelSetTable | None = None,
        facts: RowFacts | None = None,
    ) -> DatasetInfo:
        """Make the dataset visible in one step; without `manifest` the units' parts are joined.

        `labels` (n_rows,) are 0..m-1, or -1 exactly where `split` is "rejected" (3); with `label_sets` they
        number sets.  The manifest's label, class_name and split columns are set from the arrays.  `facts` are
        further facts of its rows.  If the key is already committed, that dataset is returned.  Raises
        `IncompleteError` if units are missing, `FormatError` for bad labels.
        """
        if self.committed is not None:
            return self.committed
        earlier = find_by_key(self.store, self.key)
        if earlier is not None:
            # A unit marked while another writer committed the key leaves a useless mark.
            self.store.delete_tree(join(self.folder, MARKS))
            return earlier
        names = check_class_names(class_names)
        if label_sets is not None:
            label_sets = LabelSetTable.checked(label_sets.indptr, label_sets.indices, len(names))
        y, s = check_labels_and_splits(labels, split, self.plan.n_rows, len(names), label_sets)
        units = self._finished_units()
        if units is None:
            # Another writer has committed the key and removed its marks.
            return self.commit(labels, split, class_names, manifest, label_sets, facts)
        table = pa.concat_tables([unit_table(self.store, unit, self.folder) for unit in units])
        overrides = None if manifest is None else overrides_of(table, conform(manifest))
        check_rejected(table if manifest is None else conform(manifest), s)
        packed = [*self._packed_rest(y, s, names, label_sets), PackedFile(UNITS_LIST, dump_units(units))]
        facts = facts or RowFacts()
        for name, values in facts.checked(self.plan.n_rows).arrays().items():
            packed += packed_array(name, values)
        if overrides is not None:
            packed.append(PackedFile(OVERRIDES, dump_overrides(overrides)))
        if facts.edits is not None:
            packed.append(PackedFile(EDITS, dump_edits(facts.edits)))
        listing = dump_entries(file.entry for file in packed)
        folder = folder_for(self, self.store, self.folder, listing)
        put_files(self.store, folder, packed)
        nonzeros = sum(unit.nonzeros or 0 for unit in units) if self.layout == "csr" else None
        sets = None if label_sets is None else len(label_sets)
        info = self._publish(folder, names, split_counts(s), digest_bytes(listing), nonzeros, sets)
        self.store.delete_tree(join(self.folder, MARKS))
        for own in {folder, self.folder} - {info.folder}:
            self.store.delete_tree(own)
        return info

    def abandon(self) -> None:
        """Delete the staging, unless it is committed."""
        discard_staged(self.store, self.key)

    def _claim(self, base: str | None) -> None:
        """Write the staging's description, or check the existing one."""
        cuts = None if self.cuts == tuple(self.plan.unit_bounds()) else list(self.cuts)
        claim(self, self.store, self.folder, {**self._description(), "base": base, "cuts": cuts})

    def _description(self) -> dict[str, Any]:
        """Return the description that all writers of the key must agree on."""
        return {
            "key": self.key,
            "n_rows": self.plan.n_rows,
            "d": self.d,
            "dtype": self.dtype.name,
            "layout": self.layout,
            "chunk_rows": self.plan.chunk_rows,
            "shard_rows": self.plan.shard_rows,
            "features": dict(self.attributes),
        }

    def _is_committed(self) -> bool:
        """Return whether the key is committed by now; reads the log only if its files are listed."""
        if self.committed is None and self.store.exists(join(self.folder, FILES_LIST)):
            return find_by_key(self.store, self.key) is not None
        return self.committed is not None

    def _finished_units(self) -> list[UnitRef] | None:
        """Return all units, None if the key is committed by now; `IncompleteError` if any is missing."""
        found = [finished_unit(self.store, self.folder, unit) for unit in range(self.units)]
        missing = [unit for unit, ref in enumerate(found) if ref is None]
        if missing and find_by_key(self.store, self.key) is not None:
            return None
        if missing:
            raise self._incomplete(missing)
        return [ref for ref in found if ref is not None]

    def _incomplete(self, missing: Sequence[int]) -> IncompleteError:
        named = ", ".join(str(unit) for unit in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        return IncompleteError(
            f"{len(missing)} of {self.units} units ({named}{more}) of"
            f" {join(self.store.url, self.folder)} are not written; run the same command again"
        )

    def _packed_rest(
        self,
        y: NDArray[np.int32],
        s: NDArray[np.int8],
        names: Sequence[str],
        label_sets: LabelSetTable | None,
    ) -> Iterator[PackedFile]:
        """Yield all files except the units'."""
        yield from packed_array(LABELS, y)
        if label_sets is not None:
            yield from packed_array(LABEL_SET_INDPTR, label_sets.indptr)
            yield from packed_array(LABEL_SET_INDICES, label_sets.indices)
        yield from packed_array(SPLIT, s)
        yield from packed_strings(CLASS_NAMES, names, encoding(STRINGS_ENCODING))
        yield packed_group(GROUP, encoding(DATASET_ENCODING))

    def _publish(
        self,
        folder: str,
        names: tuple[str, ...],
        counts: Mapping[str, int],
        digest: str,
        nonzeros: int | None,
        label_sets: int | None,
    ) -> DatasetInfo:
        """Append the record that makes the dataset visible; the first one of the key wins."""
        info = DatasetInfo(
            **self._description(),
            id="",
            seq=0,
            m=len(names),
            class_names=names,
            counts=counts,
            created=now(),
            digest=digest,
            folder=folder,
            nonzeros=nonzeros,
            label_sets=label_sets,
        )
        log = dataset_log(self.store)
        record = {**info.to_json(), "staging": self.race}
        return info_of_commit(log.record(log.append(record, unique="staging")))

    def _checked(self, unit: int, X: Any) -> tuple[NDArray[Any], ...]:
        """Return the arrays stored for a unit, its values last."""
        return (dense_unit(X, self.bounds(unit), self.d, self.dtype),)

    def _nonzero_rows(self, arrays: tuple[NDArray[Any], ...], rows: NDArray[Any]) -> bool:
        return bool(arrays[0][rows].any())

    def _nonzeros(self, arrays: tuple[NDArray[Any], ...]) -> int | None:  # noqa: ARG002 - dense
        return None

    def _packed_unit(self, arrays: tuple[NDArray[Any], ...]) -> Iterator[PackedFile]:
        (X,) = arrays
        spec = dense_spec(len(X), self.d, self.dtype, self.plan.chunk_rows)
        yield packed_shard("", spec, 0, X)
        yield packed_metadata("", spec)


class CsrDatasetWriter(DatasetWriter):
    """Writer of one sparse dataset; `X` of a unit is a SciPy sparse matrix of finite numbers.

    Every unit is a Zarr group of its own with the arrays indptr (int64, from 0), indices (int32) and data, so
    that units can be written in any order, again, and by different processes.  For `ChunkPlan.choose` use the
    mean number of stored entries per row as d.
    """

    layout: ClassVar[str] = "csr"

    def _checked(self, unit: int, X: Any) -> tuple[NDArray[Any], ...]:
        return csr_unit(X, self.bounds(unit), self.d, self.dtype)

    def _nonzero_rows(self, arrays: tuple[NDArray[Any], ...], rows: NDArray[Any]) -> bool:
        return bool(np.diff(arrays[0])[rows].any())

    def _nonzeros(self, arrays: tuple[NDArray[Any], ...]) -> int:
        return int(arrays[-1].size)

    def _packed_unit(self, arrays: tuple[NDArray[Any], ...]) -> Iterator[PackedFile]:
        for name, array in zip(CSR_ARRAYS, arrays, strict=True):
            yield from packed_array(name, array)
        yield packed_group("", {**encoding(CSR_ENCODING), "shape": [len(arrays[0]) - 1, self.d]})
