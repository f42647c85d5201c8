"""Datasets: written by units, seen in one step, read by any rows."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import re
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
from tests.storage.test_integrity import flip_first, lose
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
    read_catalog,
    remove_dataset,
    staged,
)
from topline.storage.datasets.contents import conform
from topline.storage.errors import FormatError, IncompleteError, IntegrityError, MismatchError, NotFoundError
from topline.storage.schema import mark_path
from topline.storage.stores import Store
from topline.storage.stores.sealed import unsealed
from topline.storage.verification import verify_store

PLAN = ChunkPlan(n_rows=101, chunk_rows=8, shard_rows=32)
RANGES = [(0, 101), (0, 0), (5, 6), (7, 9), (31, 33), (32, 64), (20, 90), (96, 101), (100, 101), (101, 101)]

NO_NUMBERS = (np.nan, np.inf, -np.inf)

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
@pytest.mark.parametrize(
    ("dtype", "bad", "wrong", "said"),
    [
        *(
            ("float32", x, [40, 45], "2 of the 32 rows 32-63 hold NaN or infinity (row 40, 45)")
            for x in NO_NUMBERS
        ),
        ("float16", 7e4, range(33, 40), "7 of the 32 rows 32-63 are too large for float16 (row 33, "),
    ],
)
def test_numbers_that_cannot_be_stored_are_refused_by_row(
    local_store: Store, layout: str, dtype: str, bad: float, wrong: Any, said: str
) -> None:
    X = dense(101, 6)
    X[wrong, 2] = X[wrong[-1]] = bad
    rows = csr_matrix(X) if layout == "csr" else X
    writer = begin(local_store, rows, PLAN, dtype=dtype)
    with pytest.raises(FormatError, match=re.escape(said)):
        writer.write_unit(1, rows[32:64], part(32, 64))
    assert writer.done_units() == frozenset()
    writer.write_unit(0, rows[:32], part(0, 32))
    assert writer.done_units() == {0}


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


SMALL_PLAN = ChunkPlan(n_rows=100, chunk_rows=8, shard_rows=32)

# Hundreds of requests to a server in Python: seconds.
SLOW_S3 = pytest.param("s3", marks=pytest.mark.slow)


def grown(store: Store, X: object, cuts: tuple[int, ...], key: str) -> DatasetInfo:
    """A dataset of the first rows of X in units of other sizes."""
    rows = X[: cuts[-1]]
    plan = ChunkPlan(cuts[-1], 8, 32)
    kind = DatasetWriter if isinstance(X, np.ndarray) else CsrDatasetWriter
    writer = kind.begin(store, key, rows.shape[1], "float32", plan, {"backbone": "test"}, cuts=cuts)
    for unit in range(writer.units):
        span = writer.bounds(unit)
        writer.write_unit(unit, rows[span.start : span.stop], part(span.start, span.stop))
    return writer.commit(*assignments(cuts[-1]), CLASSES)


def feature_files(store: Store) -> set[str]:
    return {path for path in store.walk("units") if not path.endswith(".json")}


@pytest.mark.parametrize("any_store", ["local", "memory", SLOW_S3], indirect=True)
@pytest.mark.parametrize("make", [dense, sparse])
def test_a_version_of_one_more_row_costs_that_row(any_store: Store, make: object) -> None:
    X = make(101, 6)
    first = grown(any_store, X, (0, 32, 64, 96, 100), "one")
    before = feature_files(any_store)
    second = grown(any_store, X, (0, 32, 64, 96, 100, 101), "two")
    assert len(feature_files(any_store) - before) == len(before) / 4, "one unit's files"
    assert before < feature_files(any_store)
    for info in (first, second):
        dataset = Dataset(any_store, info)
        assert dataset.sample_ids() == [f"image-{row}" for row in range(info.n_rows)]
        for start, stop in ((0, info.n_rows), (95, info.n_rows), (31, 33), (99, 100), (50, 50)):
            found, wanted = dataset.rows(start, stop), X[start:stop]
            if make is sparse:
                found, wanted = found.toarray(), wanted.toarray()
            np.testing.assert_array_equal(found, wanted)
    assert verify_store(any_store) == []


def test_other_labels_and_another_key_share_everything(local_store: Store) -> None:
    X = dense(100, 6)
    first = write_dataset(local_store, X, SMALL_PLAN, key="one")
    shared = set(local_store.walk("units")) | set(local_store.walk("manifests"))
    writer = begin(local_store, X, SMALL_PLAN, key="two")
    write_units(writer, X)
    second = writer.commit(np.zeros(100, np.int32), np.zeros(100, np.int8), ("only",))
    assert set(local_store.walk("units")) | set(local_store.walk("manifests")) == shared
    assert Dataset(local_store, first).manifest()["class_name"].to_pylist()[:2] == ["ant", "bee"]
    assert Dataset(local_store, second).manifest()["class_name"].to_pylist()[:2] == ["only", "only"]


def test_the_same_numbers_in_another_layout_are_other_contents(local_store: Store) -> None:
    X = dense(96, 6)
    first = write_dataset(local_store, X, ChunkPlan(96, 8, 32), key="one")
    second = write_dataset(local_store, X, ChunkPlan(96, 16, 32), key="two")
    assert unit_of(local_store, first, 0) != unit_of(local_store, second, 0)
    assert manifest_of(local_store, first, 0) == manifest_of(local_store, second, 0)


def test_a_shared_unit_that_is_damaged_is_mended_by_writing_it_again(local_store: Store) -> None:
    X = dense(100, 6)
    first = write_dataset(local_store, X, SMALL_PLAN, key="one")
    second = write_dataset(local_store, X, SMALL_PLAN, key="two")
    place = f"{unit_of(local_store, first, 1)}/c/0/0"
    for damage in (flip_first, lose):
        damage(local_store, place)
        for info in (first, second):
            with pytest.raises(IntegrityError, match=rf"features of dataset {info.id}: shard 1 .*rows 32-"):
                Dataset(local_store, info).rows(0, 100)
        (finding,) = verify_store(local_store)
        assert finding.path == place
        writer = begin(local_store, X, SMALL_PLAN, key=f"mended {damage.__name__}")
        write_units(writer, X)
        assert verify_store(local_store)[0].harmless
        writer.abandon()
        assert verify_store(local_store) == []


def test_a_manifest_is_checked_a_unit_at_a_time(local_store: Store) -> None:
    info = write_dataset(local_store, dense(100, 6), SMALL_PLAN, key="one")
    dataset = Dataset(local_store, info)
    dataset.check_manifest()
    place = manifest_of(local_store, info, 1)
    flip_first(local_store, place)
    with pytest.raises(IntegrityError, match=r"is damaged.*rows 32-"):
        dataset.check_manifest()
    lose(local_store, place)
    with pytest.raises(IntegrityError, match=r"is missing.*rows 32-"):
        dataset.check_manifest()


def test_cuts_are_agreed_on(local_store: Store) -> None:
    X = dense(100, 6)
    grown(local_store, X, (0, 50, 100), "done")
    assert staged(local_store, "begun") is None
    kinds = {"d": 6, "dtype": "float32", "plan": SMALL_PLAN, "attributes": {}}
    writer = DatasetWriter.begin(local_store, "begun", cuts=(0, 1, 100), base="d0001", **kinds)
    found = staged(local_store, "begun")
    assert (found["cuts"], found["base"], writer.bounds(1).rows) == ([0, 1, 100], "d0001", 99)
    with pytest.raises(MismatchError, match="begun with other cuts"):
        DatasetWriter.begin(local_store, "begun", cuts=(0, 2, 100), base="d0001", **kinds)
    for cuts in ((0, 0, 100), (0, 99), (1, 100)):
        with pytest.raises(FormatError, match="units are cut at 0 <"):
            DatasetWriter.begin(local_store, "other", cuts=cuts, **kinds)


def test_what_is_removed_is_out_of_sight_and_its_number_stays_taken(local_store: Store) -> None:
    X = dense(100, 6)
    first, second = (write_dataset(local_store, X, SMALL_PLAN, key=key) for key in ("one", "two"))
    open_one = Dataset(local_store, first)
    remove_dataset(local_store, first, "nobody needs it", "a test")
    assert list_datasets(local_store) == [second]
    assert find_by_key(local_store, "one") is None
    assert read_catalog(local_store).removed[first.id].reason == "nobody needs it"
    with pytest.raises(NotFoundError, match=rf"{first.id} was removed .*nobody needs it; it has {second.id}"):
        Dataset.open(local_store, first.id)
    np.testing.assert_array_equal(open_one.rows(0, 100), X)
    again = write_dataset(local_store, X, SMALL_PLAN, key="one")
    assert (again.seq, again.folder != first.folder, Dataset.open(local_store).info) == (4, True, again)
    assert check_dataset(Dataset.open(local_store), deep=True) == []
    assert [(f.path, f.harmless) for f in verify_store(local_store)] == [(first.folder, True)]
    remove_dataset(local_store, again, "again", "a test")
    assert Dataset.open(local_store).info == second
    local_store.delete_tree(first.folder)
    with pytest.raises(NotFoundError, match=r"was removed .*nobody needs it"):
        Dataset(local_store, first)
