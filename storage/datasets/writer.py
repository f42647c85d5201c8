"""Writing a dataset: whole units into a staging folder, then one commit that makes it visible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from topline.storage.arrays import ChunkPlan
from topline.storage.arrays.writer import (
    ArraySpec,
    packed_array,
    packed_group,
    packed_metadata,
    packed_shard,
    packed_strings,
)
from topline.storage.datasets.info import (
    DatasetInfo,
    dataset_folder,
    dataset_log,
    find_by_key,
    info_of_commit,
)
from topline.storage.datasets.labels import (
    LabelSetTable,
    check_class_names,
    check_labels_and_splits,
    check_rejected,
    split_counts,
)
from topline.storage.datasets.manifest import conform, dump_manifest, with_labels_and_splits
from topline.storage.datasets.units import Part, dense_unit, finished_part, part_units, write_part
from topline.storage.errors import FormatError, IncompleteError, MismatchError
from topline.storage.fingerprint import canonical_json, digest_bytes
from topline.storage.records import now, plain
from topline.storage.schema import (
    CLASS_NAMES,
    DATASET_ENCODING,
    FEATURES,
    FILES_LIST,
    GROUP,
    LABEL_SET_INDICES,
    LABEL_SET_INDPTR,
    LABELS,
    MANIFEST,
    SAMPLE_IDS,
    SPLIT,
    STAGING,
    STAGING_ENCODING,
    STRINGS_ENCODING,
    encoding,
    feature_dtype,
    part_path,
)
from topline.storage.stores import Store
from topline.storage.stores.files import PackedFile, dump_entries, put_files
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join

_NAMED_UNITS = 5


@dataclass(frozen=True)
class DatasetWriter:
    """Writer of one dense dataset; pickles to other processes, which may write different units at once.

    `committed` is the dataset of the same key if it exists already: then there is nothing to write.
    """

    layout: ClassVar[str] = "dense"

    store: Store
    key: str
    d: int
    dtype: np.dtype[Any]
    plan: ChunkPlan
    attributes: Mapping[str, Any] = field(hash=False)
    committed: DatasetInfo | None = None

    @classmethod
    def begin(
        cls,
        store: Store,
        key: str,
        n_rows: int,
        d: int,
        dtype: Any,
        plan: ChunkPlan,
        attributes: Mapping[str, Any],
    ) -> Self:
        """Begin the dataset `key`, or continue with its staging.

        `attributes` is the features' specification and becomes `DatasetInfo.features`.  Raises
        `MismatchError` if the staging of that key has another shape, type or specification.
        """
        if n_rows < 1 or d < 1:
            raise FormatError(f"a dataset has rows and columns, not shape ({n_rows}, {d})")
        if plan.n_rows != n_rows:
            raise FormatError(f"a dataset of {n_rows} rows is not cut by a plan for {plan.n_rows}")
        canonical_json(dict(attributes))
        writer = cls(store, key, d, feature_dtype(dtype), plan, attributes, find_by_key(store, key))
        if writer.committed is None:
            writer._claim()
        return writer

    @property
    def folder(self) -> str:
        """Where the dataset is staged, and stays once it is committed."""
        return dataset_folder(self.key)

    def done_units(self) -> frozenset[int]:
        """Return the units that are written whole.

        Their manifest part is there and their files have its sizes.
        """
        if self.committed is not None:
            return frozenset(range(self.plan.units))
        units = part_units(self.store, self.folder)
        return frozenset(unit for unit in units if finished_part(self.store, self.folder, unit))

    def write_unit(self, unit: int, X: Any, part: pa.Table) -> None:
        """Write the rows of `unit` and then, as its mark of completion, its part of the manifest.

        `X` is (rows of the unit, d) of real numbers, `part` has a row for each.  Rows whose status is
        "rejected" have zero features.  `FormatError` for a misaligned shape and for NaN, infinity or
        overflow of float16.  Writing a unit again is harmless; once the key is committed it does nothing.
        """
        span = self.plan.bounds(unit)
        table = conform(part)
        if table.num_rows != span.rows:
            raise FormatError(f"the unit of {span} takes {span.rows} manifest rows, not {table.num_rows}")
        arrays = self._checked(unit, X)
        rejected = np.flatnonzero(pc.equal(table["status"], "rejected").to_numpy())
        if self._nonzero_rows(arrays, rejected):
            raise FormatError(f"a rejected row of the unit of {span} has features other than 0")
        packed = list(self._packed_unit(unit, arrays))
        entries = tuple(file.entry for file in packed)
        begun = self.store.exists(join(self.folder, part_path(unit)))
        earlier = finished_part(self.store, self.folder, unit)
        if self._is_committed() or (earlier and earlier.entries == entries and earlier.table.equals(table)):
            return
        # A unit that changes must not look finished while its files are being replaced.  A part that was not
        # there is left alone: it is a writer's who was faster, and may be committing by now.
        if begun:
            self.store.delete(join(self.folder, part_path(unit)))
        put_files(self.store, self.folder, packed)
        write_part(self.store, self.folder, unit, table, entries, arrays[-1].size)

    def commit(
        self,
        labels: ArrayLike,
        split: ArrayLike,
        class_names: Sequence[str],
        manifest: pa.Table | None = None,
        label_sets: LabelSetTable | None = None,
    ) -> DatasetInfo:
        """Make the dataset visible, in one step; without `manifest` the units' parts are joined.

        `labels` (n_rows,) are 0..m-1, or -1 exactly where `split` is "rejected" (3); with `label_sets` they
        are numbers of sets.  The manifest's label, class_name and split columns are set from the arrays.
        A key that is committed already gives that dataset.  Raises `IncompleteError` if units are missing,
        `FormatError` for bad labels.
        """
        earlier = self.committed or find_by_key(self.store, self.key)
        if earlier is not None:
            return earlier
        names = check_class_names(class_names)
        if label_sets is not None:
            label_sets = LabelSetTable.checked(label_sets.indptr, label_sets.indices, len(names))
        y, s = check_labels_and_splits(labels, split, self.plan.n_rows, len(names), label_sets)
        parts = self._finished_parts()
        table = pa.concat_tables([part.table for part in parts]) if manifest is None else conform(manifest)
        if table.num_rows != self.plan.n_rows:
            raise FormatError(f"the manifest has {table.num_rows} rows, and the dataset {self.plan.n_rows}")
        check_rejected(table, s)
        entries = [entry for part in parts for entry in (*part.entries, part.entry)]
        shown = names if label_sets is None else label_sets.names(names)
        packed = self._packed_rest(y, s, names, with_labels_and_splits(table, y, s, shown), label_sets)
        entries += put_files(self.store, self.folder, packed)
        listing = dump_entries(entries)
        self.store.write_bytes(join(self.folder, FILES_LIST), listing)
        nonzeros = sum(part.nonzeros for part in parts) if self.layout == "csr" else None
        sets = None if label_sets is None else len(label_sets)
        return self._publish(names, split_counts(s), digest_bytes(listing), nonzeros, sets)

    def abandon(self) -> None:
        """Delete the staging, unless it is committed."""
        if find_by_key(self.store, self.key) is None:
            self.store.delete_tree(self.folder)

    def _claim(self) -> None:
        """Write the staging's description, or find the same one there."""
        wanted = {**encoding(STAGING_ENCODING), **plain(self._description())}
        path = join(self.folder, STAGING)
        if self.store.put_if_absent(path, sealed(path, wanted)):
            return
        found = unsealed(self.store, path)
        differing = sorted(name for name in wanted if found.get(name) != wanted[name])
        if differing:
            raise MismatchError(
                f"{join(self.store.url, self.folder)} was begun with other {' and '.join(differing)};"
                " abandon it or give this dataset another key"
            )

    def _description(self) -> dict[str, Any]:
        """Return what all writers of the key agree on."""
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
        """Return whether the key is committed by now; the log is read only once its files are listed."""
        if self.committed is None and self.store.exists(join(self.folder, FILES_LIST)):
            return find_by_key(self.store, self.key) is not None
        return self.committed is not None

    def _finished_parts(self) -> list[Part]:
        found = [finished_part(self.store, self.folder, unit) for unit in range(self.plan.units)]
        missing = [unit for unit, part in enumerate(found) if part is None]
        if missing:
            named = ", ".join(str(unit) for unit in missing[:_NAMED_UNITS])
            more = f" and {len(missing) - _NAMED_UNITS} more" if len(missing) > _NAMED_UNITS else ""
            raise IncompleteError(
                f"{len(missing)} of {self.plan.units} units ({named}{more}) of"
                f" {join(self.store.url, self.folder)} are not written; run the same command again"
            )
        return [part for part in found if part is not None]

    def _packed_rest(
        self,
        y: NDArray[np.int32],
        s: NDArray[np.int8],
        names: Sequence[str],
        table: pa.Table,
        label_sets: LabelSetTable | None,
    ) -> Iterator[PackedFile]:
        """Yield what there is besides the units."""
        strings = encoding(STRINGS_ENCODING)
        yield self._packed_metadata()
        yield from packed_array(LABELS, y)
        if label_sets is not None:
            yield from packed_array(LABEL_SET_INDPTR, label_sets.indptr)
            yield from packed_array(LABEL_SET_INDICES, label_sets.indices)
        yield from packed_array(SPLIT, s)
        yield from packed_strings(SAMPLE_IDS, table["sample_id"].to_pylist(), strings)
        yield from packed_strings(CLASS_NAMES, names, strings)
        yield packed_group(GROUP, encoding(DATASET_ENCODING))
        yield PackedFile(MANIFEST, dump_manifest(table))

    def _publish(
        self,
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
            folder=self.folder,
            nonzeros=nonzeros,
            label_sets=label_sets,
        )
        log = dataset_log(self.store)
        return info_of_commit(log.record(log.append(info.to_json(), unique="key")))

    @property
    def _spec(self) -> ArraySpec:
        return ArraySpec(self.plan, (self.d,), self.dtype)

    def _checked(self, unit: int, X: Any) -> tuple[NDArray[Any], ...]:
        """Return the arrays that are stored of a unit, its numbers last."""
        return (dense_unit(X, self.plan.bounds(unit), self.d, self.dtype),)

    def _nonzero_rows(self, arrays: tuple[NDArray[Any], ...], rows: NDArray[Any]) -> bool:
        return bool(arrays[0][rows].any())

    def _packed_unit(self, unit: int, arrays: tuple[NDArray[Any], ...]) -> Iterator[PackedFile]:
        yield packed_shard(FEATURES, self._spec, unit, arrays[0])

    def _packed_metadata(self) -> PackedFile:
        return packed_metadata(FEATURES, self._spec)
