"""Arrays in shards: the same bytes that Zarr means, and nothing read that was not written."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from tests.storage.samples import zarr_store
from topline.storage.arrays import ArrayReader, ChunkPlan
from topline.storage.arrays.reader import read_checked, read_strings
from topline.storage.arrays.shards import ChunkLayout, DamagedError, decode_chunk, decode_index, encode_shard
from topline.storage.arrays.writer import (
    ArraySpec,
    packed_array,
    packed_metadata,
    packed_shard,
    packed_strings,
    write_row_blocks,
)
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


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.integers(1, 3))
def test_row_blocks_of_any_sizes_make_one_array(sizes: list[int], width: int) -> None:
    store = fresh_store()
    array = np.arange(sum(sizes) * width, dtype=np.float64).reshape(-1, width)
    cuts = np.cumsum([0, *sizes])
    blocks = ((int(a), int(b), array[a:b]) for a, b in itertools.pairwise(cuts))
    entries, rows = write_row_blocks(store, "folder", "a", blocks)
    assert rows == len(array)
    np.testing.assert_array_equal(read_checked(files(store, entries), "a", "a"), array)


def test_row_blocks_larger_and_smaller_than_a_shard(local_store: Store) -> None:
    width = (16 << 20) // (8 * 100)  # a shard holds somewhat under 100 rows
    array = np.random.default_rng(0).integers(0, 9, (257, width)).astype(np.float64)
    cuts = [0, 3, 200, 201, 257]
    blocks = [(a, b, array[a:b]) for a, b in itertools.pairwise(cuts)]
    entries, _ = write_row_blocks(local_store, "folder", "a", blocks)
    assert len(entries) >= 4, "several shards and the metadata"
    np.testing.assert_array_equal(read_checked(files(local_store, entries), "a", "a"), array)


@pytest.mark.parametrize(
    "blocks",
    [[], [(0, 2), (3, 4)], [(0, 2), (1, 4)], [(1, 2)], [(0, 3, 2)]],
    ids=["none", "gap", "overlap", "late start", "wrong length"],
)
def test_row_blocks_that_do_not_fit_together(local_store: Store, blocks: list[tuple[int, ...]]) -> None:
    given_blocks = [(b[0], b[1], np.zeros((b[2] if len(b) > 2 else b[1] - b[0], 2))) for b in blocks]
    with pytest.raises(FormatError):
        write_row_blocks(local_store, "folder", "a", given_blocks)


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
