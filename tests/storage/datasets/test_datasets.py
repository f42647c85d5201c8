"""Datasets: written by units, seen in one step, read by any rows."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from scipy.sparse import csr_matrix, vstack

from tests.storage.samples import (
    CLASSES,
    assignments,
    begin,
    bucket_when_slow,
    dense,
    manifest_of,
    part,
    sparse,
    unit_of,
    write_dataset,
    write_units,
    zarr_store,
)
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import (
    MANIFEST_SCHEMA,
    CsrDatasetWriter,
    Dataset,
    DatasetInfo,
    DatasetWriter,
    check_dataset,
    find_by_key,
    list_datasets,
)
from topline.storage.datasets.manifest import conform
from topline.storage.errors import FormatError, IncompleteError, MismatchError, NotFoundError
from topline.storage.schema import mark_path
from topline.storage.stores import Store
from topline.storage.stores.sealed import unsealed

PLAN = ChunkPlan(n_rows=101, chunk_rows=8, shard_rows=32)
RANGES = [(0, 101), (0, 0), (5, 6), (7, 9), (31, 33), (32, 64), (20, 90), (96, 101), (100, 101), (101, 101)]

#: A bucket is read with every layout and every type, and not with both of both.
SEEN_ELSEWHERE = [("s3", "dense", "float32"), ("s3", "csr", "float16")]


def as_dense(rows: Any) -> Any:
    return rows.toarray() if isinstance(rows, csr_matrix) else rows


@pytest.mark.parametrize(
    ("any_store", "layout", "dtype"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in SEEN_ELSEWHERE else ())
        for case in product(["local", "memory", "s3"], ["dense", "csr"], ["float16", "float32"])
    ],
    indirect=["any_store"],
)
def test_what_is_written_is_read(any_store: Store, layout: str, dtype: str) -> None:
    X = dense(101, 6) if layout == "dense" else sparse(101, 6)
    info = write_dataset(any_store, X, PLAN, dtype=dtype)
    dataset = Dataset.open(any_store)
    expected = as_dense(X).astype(dtype)
    for start, stop in RANGES:
        rows = dataset.rows(start, stop)
        assert rows.shape == (stop - start, 6)
        assert rows.dtype == (dtype if layout == "dense" else "float32")
        np.testing.assert_array_equal(as_dense(rows), expected[start:stop])
    labels, split = assignments(101)
    np.testing.assert_array_equal(dataset.labels(), labels)
    np.testing.assert_array_equal(dataset.split(), split)
    assert dataset.labels().dtype == np.int32
    assert dataset.split().dtype == np.int8
    assert dataset.sample_ids() == [f"image-{row}" for row in range(101)]
    assert dataset.class_names == dataset.stored_class_names() == CLASSES
    assert info == dataset.info
    assert info.counts == {"train": 51, "val": 25, "test": 25, "rejected": 0}
    assert (info.n_rows, info.d, info.m, info.dtype, info.layout) == (101, 6, 3, dtype, layout)
    assert info.nonzeros == (X.nnz if layout == "csr" else None)
    assert check_dataset(dataset, deep=True) == []


@bucket_when_slow
def test_every_zarr_reader_sees_the_same_numbers(any_store: Store) -> None:
    X = dense(101, 6)
    info = write_dataset(any_store, X, PLAN)
    group = zarr.open_group(zarr_store(any_store, f"{info.folder}/arrays"), mode="r")
    units = [
        zarr.open_array(zarr_store(any_store, unit_of(any_store, info, unit)), mode="r")[:]
        for unit in range(PLAN.units)
    ]
    np.testing.assert_array_equal(np.concatenate(units), X)
    np.testing.assert_array_equal(group["labels"][:], assignments(101)[0])
    assert group.attrs["encoding-type"] == "topline-dataset"
    assert sorted(name for name, _ in group.members()) == ["class_names", "labels", "split"]
    ids = pq.read_table(io.BytesIO(any_store.read_bytes(manifest_of(any_store, info, 1))))["sample_id"]
    assert ids.to_pylist()[7] == "image-39"


def test_every_zarr_reader_sees_the_sparse_units(local_store: Store) -> None:
    X = sparse(101, 6)
    info = write_dataset(local_store, X, PLAN)
    units = [
        zarr.open_group(zarr_store(local_store, unit_of(local_store, info, unit)), mode="r")
        for unit in range(PLAN.units)
    ]
    stacked = vstack(
        [csr_matrix((u["data"][:], u["indices"][:], u["indptr"][:]), u.attrs["shape"]) for u in units]
    )
    assert (stacked != X).nnz == 0
    assert units[0]["indptr"].dtype == np.int64
    assert units[0]["indices"].dtype == np.int32


@bucket_when_slow
def test_nobody_sees_it_before_the_commit(any_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(any_store, X, PLAN)
    for unit in range(PLAN.units):
        write_units(writer, X, [unit])
        assert list_datasets(any_store) == []
        assert find_by_key(any_store, "key") is None
        with pytest.raises(NotFoundError, match="holds no datasets yet"):
            Dataset.open(any_store)
    info = writer.commit(*assignments(101), CLASSES)
    assert list_datasets(any_store) == [info] == [find_by_key(any_store, "key")]


@bucket_when_slow
def test_writing_goes_on_where_it_stopped(any_store: Store) -> None:
    X = dense(101, 6)
    first = begin(any_store, X, PLAN)
    assert first.done_units() == frozenset()
    write_units(first, X, [2, 0])
    second = begin(any_store, X, PLAN)
    assert second.done_units() == {0, 2}
    with pytest.raises(IncompleteError, match=r"2 of 4 units \(1, 3\) .*run the same command again"):
        second.commit(*assignments(101), CLASSES)
    write_units(second, X, [1, 3])
    info = second.commit(*assignments(101), CLASSES)
    assert second.done_units() == {0, 1, 2, 3}
    np.testing.assert_array_equal(Dataset.open(any_store, info.id).rows(0, 101), X)


def test_a_unit_may_be_written_again(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    write_units(writer, np.zeros_like(X))
    write_units(writer, X)
    write_units(writer, X, [1])
    writer.commit(*assignments(101), CLASSES)
    np.testing.assert_array_equal(Dataset.open(local_store).rows(0, 101), X)
    assert check_dataset(Dataset.open(local_store), deep=True) == []


def test_a_unit_whose_file_was_cut_or_lost_is_not_done(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    write_units(writer, X)
    marks = [unsealed(local_store, f"{writer.folder}/{mark_path(unit)}") for unit in range(4)]
    shard = f"units/{marks[1]['features']}/c/0/0"
    local_store.write_bytes(shard, local_store.read_bytes(shard)[:-1])
    local_store.delete(f"units/{marks[2]['features']}/c/0/0")
    local_store.write_bytes(f"{writer.folder}/{mark_path(3)}", b"no more")
    assert writer.done_units() == {0}


@bucket_when_slow
def test_the_same_key_gives_the_first_dataset(any_store: Store) -> None:
    X = dense(101, 6)
    first = write_dataset(any_store, X, PLAN)
    again = begin(any_store, X, PLAN)
    assert again.committed == first
    assert again.done_units() == {0, 1, 2, 3}
    write_units(again, X + 1)
    assert again.commit(*assignments(101), CLASSES) == first
    assert len(list_datasets(any_store)) == 1
    np.testing.assert_array_equal(Dataset.open(any_store).rows(0, 101), X)


@pytest.mark.parametrize("change", ["d", "dtype", "plan", "features", "layout"])
def test_staging_of_another_make_is_refused_by_name(local_store: Store, change: str) -> None:
    X = dense(101, 6)
    begin(local_store, X, PLAN)
    changed: dict[str, Any] = {"d": 6, "dtype": "float32", "plan": PLAN, "features": {"backbone": "test"}}
    others = {"d": 7, "dtype": "float16", "plan": ChunkPlan(101, 8, 16), "features": {"backbone": "b"}}
    names = {"plan": "shard_rows"}
    kind = CsrDatasetWriter if change == "layout" else DatasetWriter
    if change in others:
        changed[change] = others[change]
    with pytest.raises(MismatchError, match=names.get(change, change)):
        kind.begin(local_store, "key", changed["d"], changed["dtype"], changed["plan"], changed["features"])


def test_abandoned_staging_is_gone_and_a_dataset_stays(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN, key="other")
    write_units(writer, X)
    writer.abandon()
    assert local_store.list("datasets") == []
    info = write_dataset(local_store, X, PLAN)
    begin(local_store, X, PLAN).abandon()
    assert check_dataset(Dataset.open(local_store, info.id), deep=True) == []


@pytest.mark.parametrize("rows", [31, 33, 5, 0])
def test_a_misaligned_write_is_refused(local_store: Store, rows: int) -> None:
    writer = begin(local_store, dense(101, 6), PLAN)
    with pytest.raises(FormatError, match=r"rows 32-63"):
        writer.write_unit(1, dense(rows, 6), part(32, 64))
    with pytest.raises(FormatError, match=r"32 manifest rows, not"):
        writer.write_unit(1, dense(32, 6), part(32, 32 + rows))
    with pytest.raises(FormatError, match=r"shape \(32, 6\), not \(32, 7\)"):
        writer.write_unit(1, dense(32, 7), part(32, 64))
    with pytest.raises(FormatError, match="unit 4"):
        writer.write_unit(4, dense(32, 6), part(32, 64))
    assert writer.done_units() == frozenset()


@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused_by_row(local_store: Store, layout: str, bad: float) -> None:
    X = dense(101, 6)
    X[40, 2] = X[45] = bad
    rows = csr_matrix(X) if layout == "csr" else X
    writer = begin(local_store, rows, PLAN)
    with pytest.raises(FormatError, match=r"2 of the 32 rows 32-63 hold NaN or infinity \(row 40, 45\)"):
        writer.write_unit(1, rows[32:64], part(32, 64))
    assert writer.done_units() == frozenset()
    writer.write_unit(0, rows[:32], part(0, 32))
    assert writer.done_units() == {0}


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_numbers_too_large_for_float16_are_refused_by_row(local_store: Store, layout: str) -> None:
    X = dense(101, 6)
    X[33:40, 1] = 70_000
    rows = csr_matrix(X) if layout == "csr" else X
    writer = begin(local_store, rows, PLAN, dtype="float16")
    with pytest.raises(
        FormatError, match=r"7 of .* too large for float16 \(row 33, 34, 35, 36, 37 and others\)"
    ):
        writer.write_unit(1, rows[32:64], part(32, 64))
    assert writer.done_units() == frozenset()


def test_layouts_and_types_that_do_not_fit(local_store: Store) -> None:
    with pytest.raises(FormatError, match="float16 or float32, not float64"):
        DatasetWriter.begin(local_store, "k", 6, "float64", PLAN, {})
    with pytest.raises(FormatError, match="rows and columns"):
        DatasetWriter.begin(local_store, "k", 6, "float32", ChunkPlan(0, 1, 1), {})
    with pytest.raises(FormatError, match="use CsrDatasetWriter"):
        begin(local_store, dense(101, 6), PLAN).write_unit(0, sparse(32, 6), part(0, 32))
    with pytest.raises(FormatError, match="use DatasetWriter"):
        begin(local_store, sparse(101, 6), PLAN, key="s").write_unit(0, dense(32, 6), part(0, 32))
    with pytest.raises(FormatError, match="real numbers"):
        begin(local_store, dense(101, 6), PLAN).write_unit(0, np.full((32, 6), 1j), part(0, 32))


@bucket_when_slow
def test_rejected_rows_keep_their_place(any_store: Store) -> None:
    X = dense(101, 6)
    X[[3, 50]] = 0
    labels, split = assignments(101)
    labels[[3, 50]], split[[3, 50]] = -1, 3
    status = np.where(split == 3, "rejected", "ok")
    error = [None if word == "ok" else "not an image" for word in status]
    writer = begin(any_store, X, PLAN)
    for unit in range(PLAN.units):
        span = PLAN.bounds(unit)
        rows = slice(span.start, span.stop)
        writer.write_unit(unit, X[rows], part(span.start, span.stop, status=status[rows], error=error[rows]))
    info = writer.commit(labels, split, CLASSES)
    dataset = Dataset.open(any_store)
    assert info.counts["rejected"] == 2
    assert not dataset.rows(3, 4).any()
    row = dataset.manifest().slice(50, 1).to_pylist()[0]
    assert row["status"] == "rejected"
    assert row["error"] == "not an image"
    assert row["class_name"] is None
    assert row["label"] == -1
    assert row["split"] == "rejected"
    assert check_dataset(dataset, deep=True) == []


def test_rejected_rows_that_are_not(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    status = ["rejected", *["ok"] * 31]
    with pytest.raises(FormatError, match="features other than 0"):
        writer.write_unit(0, X[:32], part(0, 32, status=status))
    X[0] = 0
    write_units(writer, X)
    writer.write_unit(0, X[:32], part(0, 32, status=status))
    with pytest.raises(FormatError, match=r"row 0 \(image-0\) is rejected"):
        writer.commit(*assignments(101), CLASSES)


@pytest.mark.parametrize(
    ("row", "label", "split", "message"),
    [
        (7, 3, 0, r"3 in row 7 is a label out of range: 3 classes have labels 0\.\.2"),
        (7, -1, 0, r"-1 in row 7 is a label out of range"),
        (9, 1, 3, r"1 in row 9 is the label of a rejected row"),
        (9, 1, 5, r"5 in row 9 is not a split"),
    ],
)
def test_labels_out_of_range(local_store: Store, row: int, label: int, split: int, message: str) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    write_units(writer, X)
    y, s = assignments(101)
    y[row], s[row] = label, split
    with pytest.raises(FormatError, match=message):
        writer.commit(y, s, CLASSES)
    with pytest.raises(FormatError, match="integers"):
        writer.commit(y.astype(float), s, CLASSES)
    with pytest.raises(FormatError, match="one for each row"):
        writer.commit(y[:-1], s, CLASSES)
    assert list_datasets(local_store) == []


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", ""), ("a", 3)])
def test_class_names_that_do_not_name(local_store: Store, names: Any) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    write_units(writer, X)
    with pytest.raises(FormatError, match="class"):
        writer.commit(*assignments(101), names)


def test_the_manifest_agrees_with_the_arrays_whatever_it_said(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    said = {"label": pa.array([9] * 101, pa.int32()), "split": ["nonsense"] * 101}
    for unit in range(PLAN.units):
        span = PLAN.bounds(unit)
        own = part(span.start, span.stop, width=[5] * span.rows)
        writer.write_unit(unit, X[span.start : span.stop], own)
    with pytest.raises(FormatError, match="another height than the units were written with"):
        writer.commit(*assignments(101), CLASSES, part(0, 101, width=[5] * 101, height=[5] * 101))
    status = ["duplicate" if row == 40 else "ok" for row in range(101)]
    table = part(0, 101, width=[5] * 101, status=status, **said)
    writer.commit(*assignments(101), CLASSES, table)
    manifest = Dataset.open(local_store).manifest()
    assert manifest.schema.equals(MANIFEST_SCHEMA)
    assert manifest["label"].to_pylist() == assignments(101)[0].tolist()
    assert manifest["class_name"].to_pylist()[:3] == list(CLASSES)
    assert manifest["split"].to_pylist()[:4] == ["train", "train", "val", "test"]
    assert manifest["width"].to_pylist() == [5] * 101
    assert manifest["status"].to_pylist() == status


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"sample_id": ["a"], "colour": ["red"]}, "no column 'colour'"),
        ({"path": ["a"]}, "no sample_id"),
        ({"sample_id": ["a"], "size": ["big"]}, "'size' is string"),
        ({"sample_id": ["a"], "status": ["lost"]}, "not 'lost'"),
    ],
)
def test_manifests_of_another_form(table: dict[str, list[str]], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        conform(pa.table(table))


def test_datasets_are_found_by_id(local_store: Store) -> None:
    first = write_dataset(local_store, dense(101, 6), PLAN, key="one")
    second = write_dataset(local_store, dense(101, 6, seed=1), PLAN, key="two")
    assert (first.seq, second.seq) == (1, 2)
    assert first.id.startswith("d0001-")
    assert first.digest != second.digest
    assert Dataset.open(local_store).info == second
    assert Dataset.open(local_store, first.id).info == first
    with pytest.raises(NotFoundError, match=f"no dataset d0009; it has {first.id}, {second.id}"):
        Dataset.open(local_store, "d0009")


def test_the_record_as_json(local_store: Store) -> None:
    info = write_dataset(local_store, dense(101, 6), PLAN)
    assert DatasetInfo.from_json(info.to_json()) == info
    with pytest.raises(FormatError, match="format version 99"):
        DatasetInfo.from_json({**info.to_json(), "encoding-version": "99"})
    with pytest.raises(FormatError, match="not a topline-dataset"):
        DatasetInfo.from_json({})


def _sum_of_rows(dataset: Dataset, start: int, stop: int) -> float:
    return float(dataset.rows(start, stop).sum(dtype=np.float64))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_it_is_read_from_other_processes(local_store: Store, method: str) -> None:
    X = dense(101, 6)
    write_dataset(local_store, X, PLAN)
    dataset = Dataset.open(local_store)
    expected = _sum_of_rows(dataset, 10, 90)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_sum_of_rows, (dataset, 10, 90)) == expected


@bucket_when_slow
def test_it_is_read_from_many_threads(any_store: Store) -> None:
    X = dense(101, 6)
    write_dataset(any_store, X, PLAN)
    dataset = pickle.loads(pickle.dumps(Dataset.open(any_store)))
    spans = [(start, start + 11) for start in range(0, 90, 3)]
    with ThreadPoolExecutor(4) as pool:
        for (start, stop), rows in zip(spans, pool.map(lambda span: dataset.rows(*span), spans), strict=True):
            np.testing.assert_array_equal(rows, X[start:stop])


def test_writers_travel_to_other_processes(local_store: Store) -> None:
    X = dense(101, 6)
    writer = begin(local_store, X, PLAN)
    copy = pickle.loads(pickle.dumps(writer))
    assert copy == writer
    write_units(copy, X)
    assert writer.done_units() == {0, 1, 2, 3}


def test_a_sparse_matrix_with_twin_entries_is_summed(local_store: Store) -> None:
    twins = csr_matrix((np.ones(3, np.float32), np.array([2, 2, 0]), np.array([0, 2, 3])), shape=(2, 4))
    writer = begin(local_store, twins, ChunkPlan(2, 2, 2))
    writer.write_unit(0, twins, part(0, 2))
    writer.commit([0, 1], [0, 0], CLASSES)
    np.testing.assert_array_equal(
        Dataset.open(local_store).rows(0, 2).toarray(), [[0, 0, 2, 0], [1, 0, 0, 0]]
    )
    assert twins.nnz == 3, "the caller's matrix is left alone"


def test_a_sparse_unit_without_entries(local_store: Store) -> None:
    X = csr_matrix((101, 6), dtype=np.float32)
    info = write_dataset(local_store, X, PLAN)
    assert info.nonzeros == 0
    assert Dataset.open(local_store).rows(5, 80).nnz == 0
    assert check_dataset(Dataset.open(local_store), deep=True) == []
