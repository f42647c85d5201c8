"""Training rows: the right rows, whole batches, each chunk decoded once a pass, whatever is cached."""

from __future__ import annotations

import itertools
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import issparse

from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from topline.pipeline.rows import Transforms, partition
from topline.pipeline.rows.partition import CachedRows, TrainingRows, nbytes
from topline.solvers.core.answers import iterate_tiles
from topline.solvers.core.rows import RowRange, rows_are
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, LabelSetTable, empty_manifest
from topline.storage.stores import open_store

# 700 rows in shards of 64 are 11 batches of one shard; in shards of 256 they are 3, so runs of chunks of 16.
PLANS = {"many shards": ChunkPlan(700, 16, 64), "few shards": ChunkPlan(700, 16, 256)}


def dense(rows: Any) -> np.ndarray[Any, Any]:
    return rows.toarray() if issparse(rows) else np.asarray(rows)


def expected(dataset: Dataset, split: int = 0) -> np.ndarray[Any, Any]:
    everything = dense(dataset.rows(0, dataset.info.n_rows)).astype(np.float32)
    return everything[dataset.split() == split]


@pytest.fixture(
    params=[(name, layout) for name in PLANS for layout in ("float32", "float16", "csr")], ids=str
)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    name, layout = request.param
    if layout == "csr":
        return small_dataset(tmp_path, plan=PLANS[name], sparse=True)
    return small_dataset(tmp_path, plan=PLANS[name], dtype=layout)


@pytest.mark.parametrize("budget", [0, 9_000, 1 << 30])
@pytest.mark.sampled(2)
def test_any_slice_gives_the_rows_of_the_split_in_order(dataset: Dataset, budget: int) -> None:
    rows = CachedRows(TrainingRows(dataset), budget)
    truth = expected(dataset)
    assert rows.shape == truth.shape
    for start, stop in [(0, len(truth)), (0, 0), (3, 4), (40, 200), (len(truth) - 1, len(truth)), (17, 18)]:
        assert np.array_equal(dense(rows[start:stop]), truth[start:stop])
        assert rows[start:stop].dtype == rows.dtype
    for start, stop, tile in rows.tiles():
        assert tile.dtype == np.float32
        assert np.array_equal(dense(tile), truth[start:stop])


def test_rows_travel_and_read_the_same(dataset: Dataset) -> None:
    rows = TrainingRows(dataset, "test", Transforms.fit(("l2", "bias"), list))
    copy = pickle.loads(pickle.dumps(rows))
    assert np.array_equal(dense(copy[0 : len(copy)]), dense(rows[0 : len(rows)]))
    assert rows.shape[1] == dataset.info.d + 1


def cached_bytes(rows: CachedRows) -> int:
    return sum(nbytes(held) for held in rows._cache.values())


def read_spans(rows: TrainingRows, monkeypatch: pytest.MonkeyPatch, tile: int) -> list[tuple[int, int]]:
    """Spans that a pass in tiles asks the dataset for."""
    spans: list[tuple[int, int]] = []
    original = Dataset.rows

    def counted(self: Dataset, start: int, stop: int) -> Any:
        spans.append((start, stop))
        return original(self, start, stop)

    monkeypatch.setattr(Dataset, "rows", counted)
    for start in range(0, len(rows), tile):
        rows[start : start + tile]
    monkeypatch.undo()
    return spans


@pytest.mark.parametrize("tile", [7, 32, 1000])
@pytest.mark.sampled(2)
def test_a_pass_decodes_no_chunk_twice(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    spans = read_spans(TrainingRows(dataset), monkeypatch, tile)
    chunks = [c for start, stop in spans for c in range(start // 16, -(-stop // 16))]
    assert len(chunks) == len(set(chunks))


def test_what_fits_the_budget_is_read_once(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CachedRows(TrainingRows(dataset), 1 << 30)
    assert read_spans(rows, monkeypatch, 50)
    assert read_spans(rows, monkeypatch, 50) == []


def test_the_budget_holds_and_the_rest_is_streamed(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CachedRows(TrainingRows(dataset), 9_000)
    first, second = read_spans(rows, monkeypatch, 50), read_spans(rows, monkeypatch, 50)
    assert 0 < cached_bytes(rows) <= 9_000
    assert 0 < len(second) < len(first)


def test_float16_is_kept_as_stored_where_only_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path, dtype="float16")
    stored = dataset.info.counts["train"] * dataset.info.d * 2
    plain, scaled = TrainingRows(dataset), TrainingRows(dataset, transforms=Transforms.fit(("l2",), list))
    for whole, keeps_stored in [(plain, False), (scaled, True)]:
        rows = CachedRows(whole, stored)
        read_spans(rows, monkeypatch, 50)
        assert rows.keeps_stored == keeps_stored
        assert cached_bytes(rows) == stored
        assert read_spans(rows, monkeypatch, 50) == []
        assert rows.at_hand(10, len(rows)) == (not keeps_stored)
        assert np.array_equal(rows[0 : len(rows)], whole[0 : len(rows)])


def test_shards_of_any_size_are_read_in_units_of_a_few_megabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topline.pipeline.rows.partition.BATCH_BYTES", 2 * 12 * 40)
    dataset = small_dataset(tmp_path, dtype="float16")
    rows = TrainingRows(dataset)
    assert max(stop - start for start, stop in read_spans(rows, monkeypatch, 50)) <= 32
    assert np.array_equal(rows[0 : len(rows)], expected(dataset))


@pytest.mark.parametrize("dataset", [("many shards", "float16")], indirect=True, ids=str)
def test_a_pass_holds_three_units_at_most(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[weakref.ref[Any]] = []
    original = TrainingRows.raw_batch

    def counted(self: TrainingRows, batch: int) -> Any:
        rows = original(self, batch)
        given.append(weakref.ref(rows))
        assert sum(batch() is not None for batch in given) <= 3
        return rows

    monkeypatch.setattr(TrainingRows, "raw_batch", counted)
    monkeypatch.setattr("topline.solvers.core.rows._SLAB_BYTES", 1)
    rows = TrainingRows(dataset)
    tiles = [tile[:2] for tile in iterate_tiles(rows, 0, 20)]
    assert tiles[-1][1] == len(rows)
    assert len(given) == rows.batches


def test_rows_are_transformed_alike_however_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path, dtype="float16")
    rows = TrainingRows(dataset, transforms=Transforms.fit(("l2", "bias"), list))
    at_once = rows.transformed(expected(dataset))
    sizes: list[int] = []
    genuine = Transforms.apply

    def counted(transforms: Transforms, some: Any) -> Any:
        sizes.append(len(some))
        return genuine(transforms, some)

    monkeypatch.setattr(Transforms, "apply", counted)
    monkeypatch.setattr(partition, "RUN_BYTES", 4 * 13 * 5)
    for result in (rows[0 : len(rows)], np.concatenate([tile for _, _, tile in rows.tiles()])):
        assert np.array_equal(result, at_once)
    assert max(sizes) == 5
    truth = expected(dataset).astype(np.float64)
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    assert np.allclose(at_once[:, :-1], truth, atol=1e-7)
    assert np.all(at_once[:, -1] == 1.0)


def test_a_cache_counts_and_keeps_only_its_own_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path)
    whole = TrainingRows(dataset)
    cuts = whole.block_bounds()
    rows = CachedRows(whole, 1 << 30, cuts[2], cuts[4])
    rows[cuts[2] : cuts[4]]
    assert cached_bytes(rows) == (cuts[4] - cuts[2]) * dataset.info.d * 4
    rows[0 : len(rows)]
    assert cached_bytes(rows) == (cuts[4] - cuts[2]) * dataset.info.d * 4
    wider = CachedRows(whole, 1 << 30)
    wider.adopt(rows)
    assert cached_bytes(wider) == cached_bytes(rows)


def test_blocks_are_whole_units_and_cover_every_row(dataset: Dataset) -> None:
    rows = TrainingRows(dataset)
    cuts = rows.block_bounds()
    assert cuts[0] == 0
    assert cuts[-1] == len(rows)
    assert all(a < b for a, b in itertools.pairwise(cuts))
    assert len(cuts) > 8
    starts = {rows.batch_span(batch)[0] for batch in range(rows.batches)}
    assert set(cuts[:-1]) <= starts


def test_cached_rows_do_not_travel(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="send the TrainingRows"):
        pickle.dumps(CachedRows(TrainingRows(small_dataset(tmp_path)), 0))


def test_labels_counts_and_names_are_those_of_the_rows(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    wanted = np.flatnonzero(dataset.split() == 2)
    rows = TrainingRows(dataset, "test")
    assert np.array_equal(rows.indices, wanted)
    assert np.array_equal(rows.labels(), dataset.labels()[wanted])
    assert rows.solver_label_sets is None
    counts = [int(np.sum(dataset.labels()[wanted] == c)) for c in range(dataset.info.m)]
    assert rows.class_counts().tolist() == counts
    assert list(rows.label_names()) == [dataset.class_names[c] for c in dataset.labels()[wanted]]


def test_a_row_of_several_labels_counts_for_each_of_them(tmp_path: Path) -> None:
    sets = [[0, 2], [1], [], [0, 1, 2]]
    classes = [c for own in sets for c in own]
    table = LabelSetTable.checked(np.cumsum([0, *map(len, sets)]), np.array(classes), 3)
    X, labels = make_features(40, 4, 4)
    store, plan = open_store(tmp_path, create=True), ChunkPlan(40, 16, 64)
    writer = DatasetWriter.begin(store, "sets", 4, "float32", plan, {"backbone": "none"})
    for unit in range(plan.units):
        span = plan.bounds(unit)
        ids = [f"row{i}" for i in range(span.start, span.stop)]
        writer.write_unit(unit, X[span.start : span.stop], empty_manifest(ids))
    split = (np.arange(40) % 3 == 0).astype(np.int8)
    info = writer.commit(labels, split, ["ant", "bee", "cow"], label_sets=table)
    rows = TrainingRows(Dataset.open(store, info.id))
    own = labels[split == 0]
    assert rows.class_counts().tolist() == [sum(c in sets[code] for code in own) for c in range(3)]
    names = ["ant, cow", "bee", "", "ant, bee, cow"]
    assert list(rows.label_names()) == [names[code] for code in own]


@pytest.fixture
def late(tmp_path: Path) -> Dataset:
    """A dataset whose training rows are 200..399, so that whole batches before and after have none."""
    X, labels = make_features(700, 12, 5)
    split = np.where((np.arange(700) >= 200) & (np.arange(700) < 400), 0, 1).astype(np.int8)
    store = open_store(tmp_path, create=True)
    return Dataset.open(store, write_dataset(store, X, labels, split, plan=ChunkPlan(700, 16, 64)).id)


@pytest.mark.parametrize("steps", [(), ("l2", "bias")], ids=["as stored", "transformed"])
def test_batches_without_rows_are_empty(late: Dataset, steps: tuple[str, ...]) -> None:
    rows = TrainingRows(late, transforms=Transforms.fit(steps, list))
    width = 12 + len(steps) // 2
    empty = [batch for batch in range(rows.batches) if len(set(rows.batch_span(batch))) == 1]
    assert 0 in empty
    assert rows.batches - 1 in empty
    for batch in empty:
        assert rows.raw_batch(batch).shape == (0, 12)
        assert rows.read_batch(batch).shape == (0, width)
        assert rows.read_batch(batch).dtype == np.float32
    assert rows[7:7].shape == (0, width)
    assert all(stop > start for start, stop, _ in rows.tiles())
    assert rows.cuts[0] == 0
    assert rows.cuts[-1] == 200
    assert rows.cuts == sorted(set(rows.cuts))


def test_bytes_are_counted_as_they_are_read(late: Dataset) -> None:
    """Rows that lie together are read without a row beside them."""
    rows = TrainingRows(late)
    assert rows.bytes_read == 0
    rows[0 : len(rows)]
    assert rows.bytes_read == rows.nbytes == 200 * 12 * 4
    rows[len(rows) - 1 :]
    assert rows.bytes_read == rows.nbytes


def test_rows_that_lie_together_are_not_copied(late: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    original = Dataset.rows

    def counted(self: Dataset, start: int, stop: int) -> Any:
        given.append(original(self, start, stop))
        return given[-1]

    monkeypatch.setattr(Dataset, "rows", counted)
    rows = TrainingRows(late)
    for batch in range(rows.batches):
        raw = rows.raw_batch(batch)
        assert not len(raw) or raw is given[-1]
    assert len(given) > 1


@pytest.mark.parametrize("layout", ["float32", "float16", "csr"])
def test_slices_are_transformed_as_batches_are(tmp_path: Path, layout: str) -> None:
    dataset = (
        small_dataset(tmp_path, sparse=True) if layout == "csr" else small_dataset(tmp_path, dtype=layout)
    )
    truth = expected(dataset).astype(np.float64)
    truth /= np.maximum(np.linalg.norm(truth, axis=1, keepdims=True), 1e-30)
    rows = TrainingRows(dataset, transforms=Transforms.fit(("l2",), list))
    assert rows.dtype == np.float32
    for found in (rows[0 : len(rows)], rows.transformed(dataset.rows(0, 700)[dataset.split() == 0])):
        assert found.dtype == np.float32
        assert np.allclose(dense(found), truth, atol=1e-6)
    assert np.allclose(dense(rows[3:90]), truth[3:90], atol=1e-6)


def test_blocks_are_as_many_as_asked_for_at_most(dataset: Dataset) -> None:
    rows = TrainingRows(dataset)
    assert rows.block_bounds(1) == [0, len(rows)]
    for most in (2, 3, rows.batches, 10 * rows.batches):
        blocks = len(rows.block_bounds(most)) - 1
        assert blocks == min(most, rows.batches)


def test_slices_take_every_row(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path))
    with pytest.raises(IndexError, match="step 1"):
        rows[0:10:2]


def test_a_cache_holds_all_rows_where_they_just_fit(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path))
    for budget, fits in ((rows.nbytes, True), (rows.nbytes - 1, False)):
        cached = CachedRows(rows, budget)
        assert not cached.keeps_stored
        assert not cached.at_hand(0, 1)
        cached[0 : len(cached)]
        assert cached.at_hand(0, len(cached)) is fits
        assert cached.at_hand(0, 1)


def test_rows_that_just_fit_transformed_are_not_kept_as_stored(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, dtype="float16")
    scaled = TrainingRows(dataset, transforms=Transforms.fit(("l2",), list))
    assert not CachedRows(scaled, scaled.nbytes).keeps_stored
    assert CachedRows(scaled, scaled.nbytes - 1).keeps_stored
    assert not CachedRows(TrainingRows(dataset), 100).keeps_stored
    kept, wider = CachedRows(scaled, 9_000), CachedRows(scaled, scaled.nbytes)
    kept[0 : len(kept)]
    wider.adopt(kept)
    assert cached_bytes(kept) > 0
    assert cached_bytes(wider) == 0


def test_slices_across_the_end_of_a_batch(dataset: Dataset) -> None:
    rows, truth = TrainingRows(dataset), expected(dataset)
    for cut in rows.cuts[1:-1]:
        assert np.array_equal(dense(rows[cut - 1 : cut + 1]), truth[cut - 1 : cut + 1])
    assert len(rows.cuts) > 3


@pytest.mark.parametrize(("dtype", "sparse"), [("float32", False), ("float16", False), ("float32", True)])
@pytest.mark.parametrize("budget", ["all", "as stored"])
def test_kept_rows_are_taken_in_any_order(tmp_path: Path, dtype: str, sparse: bool, budget: str) -> None:
    dataset = small_dataset(tmp_path, dtype=dtype, sparse=sparse)
    steps = () if sparse else ("l2",)
    rows = TrainingRows(dataset, transforms=Transforms.fit(steps, list))
    cached = CachedRows(rows, rows.nbytes if budget == "all" or sparse else rows.nbytes // 2)
    kept = sparse or dtype == "float16" or budget == "all"
    assert cached.kept(0, len(rows)) == kept
    wanted = np.random.default_rng(0).permutation(len(rows))[:100]
    if kept:
        assert np.array_equal(dense(cached.take(wanted)), dense(rows[0 : len(rows)])[wanted])
        assert cached.take(wanted[:0]).shape == (0, rows.shape[1])
    else:
        assert cached.kept(0, 10)


def test_a_range_takes_rows_by_its_own_numbers(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path))
    part = RowRange(CachedRows(rows, rows.nbytes, 100, 300), 100, 300)
    wanted = np.array([150, 3, 199])
    assert rows_are("kept", part, 0, 200)
    assert np.array_equal(part.take(wanted), rows[100:300][wanted])
    assert not rows_are("kept", RowRange(rows, 100, 300), 0, 200)


def test_rows_that_all_fit_are_one_array_and_are_handed_on_as_such(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    rows = TrainingRows(dataset)
    n = len(rows)
    kept, parts = CachedRows(rows, rows.nbytes), CachedRows(rows, rows.nbytes // 2)
    assert kept.in_place(0, n)
    assert not parts.in_place(0, n)
    assert np.array_equal(kept[0:n], rows[0:n])
    assert np.shares_memory(kept[0:n], kept[n // 2 : n])
    later = CachedRows(rows, rows.nbytes)
    later.adopt(kept)
    assert np.shares_memory(later[0:n], kept[0:n])
    later.adopt(parts)
    assert not later.in_place(0, n)
    assert np.array_equal(later[0:n], rows[0:n])


def test_a_cache_hands_its_array_on_to_one_of_the_same_rows_only(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path))
    n, cuts = len(rows), rows.block_bounds()
    early, late = CachedRows(rows, rows.nbytes, 0, cuts[2]), CachedRows(rows, rows.nbytes, cuts[2], n)
    assert early.in_place(0, cuts[2])
    assert np.array_equal(early[0 : cuts[2]], rows[0 : cuts[2]])
    late.adopt(early)
    assert np.array_equal(late[cuts[2] : n], rows[cuts[2] : n])


def test_sparse_rows_are_of_the_type_that_their_slices_have(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path, dtype="float16", sparse=True))
    assert rows.dataset.info.dtype == "float16"
    assert rows.dtype == rows[0:3].dtype == np.float32


def test_some_of_some_rows_are_counted_among_these(dataset: Dataset) -> None:
    some = TrainingRows(dataset, only=np.arange(3, 11))
    np.testing.assert_array_equal(dense(some.at(np.array([0, 5]), None).whole()), expected(dataset)[[3, 8]])
