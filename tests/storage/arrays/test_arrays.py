"""Arrays in shards: the same bytes that Zarr means, and nothing read that was not written."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from tests.storage.samples import zarr_store
from topline.storage.arrays import ArrayReader, ChunkPlan, DualWriter, Span, StoredDuals
from topline.storage.arrays import duals as duals_module
from topline.storage.arrays.duals import encode, parts_in_order
from topline.storage.arrays.groups import (
    ArraySpec,
    packed_array,
    packed_metadata,
    packed_shard,
    packed_strings,
    read_checked,
    read_strings,
)
from topline.storage.arrays.shards import ChunkLayout, DamagedError, decode_chunk, decode_index, encode_shard
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.stores import FileEntry, FileSet, Store, open_store
from topline.storage.stores.files import put_files

DTYPES = ["bool", "float16", "float32", "float64"]
DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def fresh_store() -> Store:
    """An empty store for one example of a property: fixtures would be shared between them."""
    store = open_store("memory://arrays")
    store.delete_tree("folder")
    return store


def files(store: Store, entries: list[FileEntry]) -> FileSet:
    return FileSet(store, "folder", entries, "the test")


def written(store: Store, array: NDArray[Any], chunk: int, per_shard: int) -> list[FileEntry]:
    spec = ArraySpec(ChunkPlan(len(array), chunk, chunk * per_shard), array.shape[1:], array.dtype)
    spans = [(unit, spec.plan.bounds(unit)) for unit in range(spec.plan.units)]
    shards = [packed_shard("a", spec, unit, array[span.start : span.stop]) for unit, span in spans]
    return put_files(store, "folder", [*shards, packed_metadata("a", spec)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    npst.arrays(
        st.sampled_from(DTYPES),
        npst.array_shapes(min_dims=1, max_dims=3, max_side=20),
        elements=None,
        fill=st.nothing(),
    ),
    st.integers(1, 7),
    st.integers(1, 4),
    st.data(),
)
def test_any_rows_of_any_array_come_back(
    array: NDArray[Any], chunk: int, per_shard: int, data: st.DataObject
) -> None:
    store = fresh_store()
    entries = written(store, array, chunk, per_shard)
    reader = ArrayReader.open(files(store, entries), "a", "array a")
    for _ in range(3):
        start = data.draw(st.integers(0, len(array)))
        stop = data.draw(st.integers(start, len(array)))
        np.testing.assert_array_equal(reader.rows(start, stop), array[start:stop])
    theirs = zarr.open_array(zarr_store(store, "folder/a"), mode="r")
    assert theirs.dtype == array.dtype
    np.testing.assert_array_equal(theirs[:], array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_zarr_writes_with_our_metadata_is_read(local_store: Store, dtype: str) -> None:
    array = np.arange(70).reshape(14, 5).astype(dtype)
    spec = ArraySpec(ChunkPlan(14, 2, 6), (5,), array.dtype)
    put_files(local_store, "folder", [packed_metadata("a", spec)])
    theirs = zarr.open_array(zarr_store(local_store, "folder/a", read_only=False), mode="r+")
    theirs[:] = array
    entries = [
        FileEntry(path.removeprefix("folder/"), local_store.size(path), "")
        for path in local_store.walk("folder")
    ]
    reader = ArrayReader(files(local_store, entries), "a", spec, "array a")
    np.testing.assert_array_equal(reader.rows(0, 14), array)
    np.testing.assert_array_equal(reader.rows(3, 9), array[3:9])


def test_the_metadata_is_what_zarr_itself_writes(local_store: Store) -> None:
    import json

    group = zarr.open_group(zarr_store(local_store, "zarr", read_only=False), mode="w")
    group.create_array(
        "a",
        shape=(10, 3),
        chunks=(2, 3),
        shards=(4, 3),
        dtype="float32",
        fill_value=np.nan,
        compressors=[zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()],
    )
    spec = ArraySpec(ChunkPlan(10, 2, 4), (3,), np.dtype("float32"))
    assert json.loads(spec.metadata()) == json.loads(local_store.read_bytes("zarr/a/zarr.json"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_never_written_floats_are_nan(dtype: str) -> None:
    spec = ArraySpec(ChunkPlan(4, 2, 4), (), np.dtype(dtype))
    assert np.isnan(spec.fill)
    assert ArraySpec(ChunkPlan(4, 2, 4), (), np.dtype("int32")).fill == -1


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5, 0), (1,), (3, 2, 2)])
def test_shapes_at_the_edge(local_store: Store, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, np.float64)
    entries = put_files(local_store, "folder", packed_array("a", array))
    read = read_checked(files(local_store, entries), "a", "array a")
    assert read.shape == shape
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("dtype", ["object", "U3", "complex128", "datetime64[s]", "longdouble"])
def test_types_that_are_not_stored(local_store: Store, dtype: str) -> None:
    with pytest.raises(FormatError, match="not stored"):
        put_files(local_store, "folder", packed_array("a", np.zeros(3).astype(dtype)))


def test_foreign_byte_order_is_read_as_the_same_numbers(local_store: Store) -> None:
    array = np.arange(5, dtype=">f4")
    entries = put_files(local_store, "folder", packed_array("a", array))
    np.testing.assert_array_equal(read_checked(files(local_store, entries), "a", "a"), array)


def test_strings_of_any_script(local_store: Store) -> None:
    strings = ["", "plain", "Käfer", "日本語", "🐜", "a\nb", "ﷺ", ""]
    entries = put_files(local_store, "folder", packed_strings("s", strings, {"encoding-type": "test"}))
    assert read_strings(files(local_store, entries), "s", "strings") == strings
    group = zarr.open_group(zarr_store(local_store, "folder/s"), mode="r")
    raw, offsets = bytes(np.asarray(group["data"][:])), np.asarray(group["offsets"][:])
    assert raw[offsets[3] : offsets[4]].decode() == "日本語"
    assert dict(group.attrs) == {"encoding-type": "test"}


def test_an_array_larger_than_a_shard_comes_back(local_store: Store) -> None:
    width = (16 << 20) // (8 * 100)  # a shard holds somewhat under 100 rows
    array = np.random.default_rng(0).integers(0, 9, (257, width)).astype(np.float64)
    entries = put_files(local_store, "folder", packed_array("a", array))
    assert len(entries) >= 4, "several shards and the metadata"
    np.testing.assert_array_equal(read_checked(files(local_store, entries), "a", "a"), array)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_every_flipped_bit_of_a_shard_is_noticed(position: int) -> None:
    layout = ChunkLayout(rows=4, row_shape=(3,), dtype=np.dtype("float32"), per_shard=3)
    array = np.random.default_rng(1).standard_normal((10, 3)).astype(np.float32)
    shard = bytearray(encode_shard(array, layout, float("nan")))
    bit = position % (8 * len(shard))
    shard[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedError):
        decode_all(bytes(shard), layout)


def test_noise_is_stored_as_it_is_and_the_rest_is_packed(local_store: Store) -> None:
    array = np.zeros((8, 1000), np.float32)
    array[:4] = np.random.default_rng(2).standard_normal((4, 1000))
    entries = written(local_store, array, 4, 2)
    size = next(entry.size for entry in entries if "/c/" in entry.path)
    assert array.nbytes / 2 < size < array.nbytes / 2 + 300
    theirs = zarr.open_array(zarr_store(local_store, "folder/a"), mode="r")
    np.testing.assert_array_equal(theirs[:], array)
    reader = ArrayReader.open(files(local_store, entries), "a", "array a")
    np.testing.assert_array_equal(reader.rows(0, 8), array)


def decode_all(shard: bytes, layout: ChunkLayout) -> None:
    index = decode_index(shard[-layout.index_bytes :], layout, len(shard))
    for offset, length in index.tolist():
        decode_chunk(shard[offset : offset + length], np.empty(layout.chunk_shape, layout.dtype), layout)


def test_metadata_that_means_something_else_is_refused(local_store: Store) -> None:
    entries = written(local_store, np.zeros((4, 2), np.float32), 2, 2)
    text = local_store.read_bytes("folder/a/zarr.json")
    for old, new in ((b'"zstd"', b'"gzip"'), (b"float32", b"object0"), (b'"end"', b'"start"'), (b"{", b"")):
        with pytest.raises(FormatError, match=r"a/zarr\.json"):
            ArraySpec.from_metadata(text.replace(old, new), "a/zarr.json")
    local_store.write_bytes("folder/a/zarr.json", text.replace(b"float32", b"float16"))
    with pytest.raises(IntegrityError, match="SHA-256"):
        ArrayReader.open(files(local_store, entries), "a", "a")


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    chunk = draw(st.integers(1, 20))
    return ChunkPlan(draw(st.integers(0, 300)), chunk, chunk * draw(st.integers(1, 6)))


def test_a_plan_written_out() -> None:
    plan = ChunkPlan(n_rows=10, chunk_rows=2, shard_rows=4)
    assert plan.units == 3
    assert plan.chunks_per_shard == 2
    assert [plan.bounds(unit) for unit in range(3)] == [Span(0, 4), Span(4, 8), Span(8, 10)]
    assert plan.unit_bounds() == [0, 4, 8, 10]
    assert list(plan.overlapping(3, 9)) == [(0, Span(3, 4)), (1, Span(4, 8)), (2, Span(8, 9))]
    assert list(plan.overlapping(5, 5)) == []
    assert str(plan.bounds(1)) == "rows 4-7"


@given(plans())
def test_units_partition_the_rows(plan: ChunkPlan) -> None:
    rows = [
        row for unit in range(plan.units) for row in range(plan.bounds(unit).start, plan.bounds(unit).stop)
    ]
    assert rows == list(range(plan.n_rows))
    assert all(0 < plan.bounds(unit).rows <= plan.shard_rows for unit in range(plan.units))
    assert all(plan.bounds(unit).start % plan.chunk_rows == 0 for unit in range(plan.units))
    cuts = plan.unit_bounds()
    assert len(cuts) == plan.units + 1
    assert all(Span(cuts[unit], cuts[unit + 1]) == plan.bounds(unit) for unit in range(plan.units))


@given(plans(), st.data())
def test_overlapping_units_hold_the_rows_asked_for(plan: ChunkPlan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.n_rows))
    stop = data.draw(st.integers(start, plan.n_rows))
    pieces = list(plan.overlapping(start, stop))
    assert [row for _, span in pieces for row in range(span.start, span.stop)] == list(range(start, stop))
    bounds = [(plan.bounds(unit), span) for unit, span in pieces]
    assert all(whole.start <= span.start < span.stop <= whole.stop for whole, span in bounds)


@given(
    st.integers(0, 10**7),
    st.integers(0, 10**6),
    st.sampled_from([2, 4, 8]),
    st.none() | st.integers(1, 10**5),
)
def test_a_chosen_plan_keeps_to_its_sizes(n: int, d: int, itemsize: int, largest: int | None) -> None:
    plan = ChunkPlan.choose(n, d, itemsize, largest)
    row_bytes = max(1, d * itemsize)
    assert plan.n_rows == n
    assert plan.chunk_rows * row_bytes <= max(1 << 20, row_bytes), "a chunk is at most 1 MiB, or one row"
    assert plan.shard_rows * row_bytes <= max(16 << 20, row_bytes), "a shard is at most 16 MiB, or one row"
    assert plan.shard_rows < max(1, n) + plan.chunk_rows, "a shard has no chunk without rows"
    if largest is not None:
        assert plan.shard_rows <= largest


@pytest.mark.parametrize("wrong", [(10, 3, 4), (10, 0, 4), (10, 4, 0), (-1, 1, 1), (10, 4, 2)])
def test_plans_that_cut_nothing_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(FormatError):
        ChunkPlan(*wrong)


def test_rows_and_units_that_are_not_there() -> None:
    plan = ChunkPlan(10, 2, 4)
    for act in (lambda: plan.bounds(3), lambda: plan.bounds(-1)):
        with pytest.raises(FormatError):
            act()
    for start, stop in ((-1, 3), (3, 2), (0, 11)):
        with pytest.raises(FormatError, match="not within the 10 rows"):
            list(plan.overlapping(start, stop))
    with pytest.raises(FormatError, match="at least one row"):
        ChunkPlan.choose(10, 2, 4, 0)


N, M = 103, 7


def duals(dtype: Any = np.float32, share: float = 0.2, n: int = N, m: int = M) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, m)) * (rng.random((n, m)) < share)
    A[::9] = 0.0  # rows without an entry
    return A.astype(dtype)


def stored(store: Store, entries: list[FileEntry]) -> StoredDuals:
    return StoredDuals(FileSet(store, "here", entries, "the test"))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_rows_of_any_cut_come_back(
    local_store: Store, monkeypatch: pytest.MonkeyPatch, dtype: Any, share: float
) -> None:
    monkeypatch.setattr(duals_module, "PART_BYTES", 10 * M * np.dtype(dtype).itemsize)
    A = duals(dtype, share)
    writer = pickle.loads(pickle.dumps(DualWriter(local_store, "here")))
    entries = writer.write([(40, 43, A[40:43]), (43, 44, A[43:44]), (60, N, A[60:])])
    entries += writer.write([(0, 40, A[:40]), (44, 60, A[44:60])])
    found = pickle.loads(pickle.dumps(stored(local_store, entries)))
    assert found.n_rows == N
    for start, stop in [(0, N), (0, 1), (39, 41), (9, 10), (5, 77), (102, N)]:
        rows = found.rows(start, stop)
        assert rows.dtype == dtype
        np.testing.assert_array_equal(rows, A[start:stop])
        rows[:] = np.nan  # nothing that is read again
        pieces = list(found.between(start, stop))
        assert [start, *[last for _, last, _ in pieces]] == [*[first for first, _, _ in pieces], stop]
        assert max(last - first for first, last, _ in pieces) <= 10
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in found]), A)
    with pytest.raises(FormatError, match="not within the 103 rows"):
        found.rows(0, N + 1)


def _write(writer: DualWriter, start: int, rows: NDArray[Any]) -> list[FileEntry]:
    return writer.write([(start, start + len(rows), rows)])


def test_many_processes_write_one_whole(local_store: Store) -> None:
    A, writer = duals(), DualWriter(local_store, "here")
    cuts = list(range(0, N, 20))
    with ProcessPoolExecutor(3, mp_context=get_context("forkserver")) as pool:
        futures = [pool.submit(_write, writer, cut, A[cut : cut + 20]) for cut in reversed(cuts)]
        entries = [entry for future in futures for entry in future.result()]
    np.testing.assert_array_equal(stored(local_store, entries).rows(0, N), A)


def test_short_runs_share_a_part_and_types_do_not(local_store: Store) -> None:
    A = duals()
    runs = [(low, low + 1, A[low : low + 1]) for low in range(N)]
    entries = DualWriter(local_store, "here").write(runs)
    assert [entry.rows for entry in entries] == [(0, N)]
    wider = [(0, 50, A[:50]), (50, N, A[50:].astype(np.float64))]
    entries = DualWriter(local_store, "here").write(wider)
    np.testing.assert_array_equal(stored(local_store, entries).rows(0, N), A)


def test_a_few_entries_a_row_take_a_few_bytes() -> None:
    """Ten of a thousand classes: 6 bytes an entry, and not 4 bytes a class."""
    A = duals(np.float32, 0.01, 2000, 1000)
    assert len(encode(A)) < 7 * np.count_nonzero(A) + 4 * len(A)
    wide = np.zeros((2, 70_000), np.float32)
    wide[1, 69_999] = 1.5
    assert b'"<u4"' in encode(wide)


@pytest.mark.parametrize("bounds", [[(1, 5)], [(0, 5), (6, 9)], [(0, 5), (4, 9)], [(0, 5), (0, 5)]])
def test_each_row_is_there_once(bounds: list[tuple[int, int]]) -> None:
    entries = [FileEntry(f"duals/{i}", 1, "", rows) for i, rows in enumerate(bounds)]
    with pytest.raises(FormatError, match="do not follow row"):
        parts_in_order(entries)
    with pytest.raises(FormatError, match=r"rows 3\.\.6 \(3 given\) do not follow row 5"):
        list(duals_module._parts([(0, 5, duals()[:5]), (3, 6, duals()[3:6])]))
