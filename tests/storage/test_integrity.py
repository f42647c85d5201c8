"""Whatever happens to a stored file, reading it is an error that names the rows, never wrong numbers."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import run_program
from tests.storage.samples import dense, manifest_of, sparse, unit_of, write_dataset
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetInfo, check_dataset, list_datasets
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.records import digest_array, digest_bytes, digest_json, seal, unseal
from topline.storage.stores import Store

PLAN = ChunkPlan(n_rows=101, chunk_rows=8, shard_rows=32)

Damage = Callable[[Store, str], None]


def lose(store: Store, path: str) -> None:
    store.delete(path)


def empty(store: Store, path: str) -> None:
    store.write_bytes(path, b"")


def halve(store: Store, path: str) -> None:
    data = store.read_bytes(path)
    store.write_bytes(path, data[: len(data) // 2])


def lengthen(store: Store, path: str) -> None:
    store.write_bytes(path, store.read_bytes(path) + b"\0")


def flip_first(store: Store, path: str) -> None:
    flip(store, path, 3)


def flip_index(store: Store, path: str) -> None:
    flip(store, path, 8 * store.size(path) - 100)


def flip(store: Store, path: str, bit: int) -> None:
    data = bytearray(store.read_bytes(path))
    data[bit // 8] ^= 1 << bit % 8
    store.write_bytes(path, bytes(data))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing": (lose, "is missing"),
    "zero length": (empty, "is empty, and"),
    "cut short": (halve, r"has \d+ bytes, and"),
    "longer": (lengthen, r"has \d+ bytes, and"),
    "flipped bit": (flip_first, "is damaged"),
    "flipped bit in the index": (flip_index, "has a damaged index"),
}
"""Zarr 3.1.6 alone reads the first two as fill values, without a word."""

OPERATIONS: dict[str, Callable[[Dataset], Any]] = {
    "whole shard": lambda dataset: dataset.rows(32, 64),
    "all shards": lambda dataset: dataset.rows(0, 101),
    "first chunk": lambda dataset: dataset.rows(32, 40),
    "part of a chunk": lambda dataset: dataset.rows(33, 35),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", ["local", "memory"])
@pytest.mark.sampled(2)
def test_a_damaged_shard_is_named_with_its_rows(
    request: pytest.FixtureRequest, kind: str, damage: str, operation: str
) -> None:
    store: Store = request.getfixturevalue(f"{kind}_store")
    info = write_dataset(store, dense(101, 6), PLAN)
    act, words = DAMAGES[damage]
    act(store, f"{unit_of(store, info, 1)}/c/0/0")
    dataset = Dataset.open(store)
    with pytest.raises(IntegrityError, match=words) as caught:
        OPERATIONS[operation](dataset)
    message = str(caught.value)
    assert message.startswith(f"features of dataset {info.id}: shard 1 ")
    assert f"run `topline fsck {store.url}`" in message
    named = re.search(r"\(rows (\d+)-(\d+)\)", message)
    first, last = (int(number) for number in named.groups())
    assert (first, last) == ((32, 39) if damage == "flipped bit" else (32, 63)), (
        "a whole shard, or a whole chunk"
    )
    np.testing.assert_array_equal(dataset.rows(64, 101), dense(101, 6)[64:])


def test_the_message_in_full(local_store: Store) -> None:
    info = write_dataset(local_store, dense(101, 6), PLAN)
    lose(local_store, f"{unit_of(local_store, info, 3)}/c/0/0")
    with pytest.raises(IntegrityError) as caught:
        Dataset.open(local_store).rows(0, 101)
    assert str(caught.value) == (
        f"features of dataset {info.id}: shard 3 is missing (rows 96-100);"
        f" run `topline fsck {local_store.url}`"
    )


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.sampled(4)
def test_an_object_of_s3_that_is_lost_or_empty(s3_store: Store, operation: str) -> None:
    info = write_dataset(s3_store, dense(101, 6), PLAN)
    shard = f"{unit_of(s3_store, info, 1)}/c/0/0"
    for act, words in (DAMAGES["zero length"], DAMAGES["missing"]):
        act(s3_store, shard)
        with pytest.raises(IntegrityError, match=words):
            OPERATIONS[operation](Dataset.open(s3_store))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("array", ["indptr", "indices", "data"])
@pytest.mark.sampled(3)
def test_a_damaged_sparse_unit_is_named_with_its_rows(
    local_store: Store, array: str, damage: str, operation: str
) -> None:
    info = write_dataset(local_store, sparse(101, 6), PLAN)
    act, words = DAMAGES[damage]
    act(local_store, f"{unit_of(local_store, info, 1)}/{array}/c/0")
    with pytest.raises(IntegrityError, match=words) as caught:
        OPERATIONS[operation](Dataset.open(local_store))
    assert f"features of dataset {info.id}: shard 1 " in str(caught.value)
    assert "(rows 32-63)" in str(caught.value)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("arrays/labels/c/0", Dataset.labels),
        ("arrays/split/c/0", Dataset.split),
        ("manifest", Dataset.sample_ids),
        ("arrays/class_names/data/c/0", Dataset.stored_class_names),
        ("arrays/labels/zarr.json", Dataset.labels),
        ("manifest", Dataset.manifest),
        ("units.json", Dataset.sample_ids),
    ],
)
def test_everything_else_of_a_dataset(
    local_store: Store, damage: str, path: str, read: Callable[[Dataset], Any]
) -> None:
    info = write_dataset(local_store, dense(101, 6), PLAN)
    place = manifest_of(local_store, info, 1) if path == "manifest" else f"{info.folder}/{path}"
    dataset = Dataset.open(local_store)
    DAMAGES[damage][0](local_store, place)
    with pytest.raises(IntegrityError, match=f"dataset {info.id}"):
        read(dataset)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_list_of_files_and_the_commit_record(local_store: Store, damage: str) -> None:
    info = write_dataset(local_store, dense(101, 6), PLAN, key="one")
    other = write_dataset(local_store, dense(101, 6), PLAN, key="two")
    DAMAGES[damage][0](local_store, f"{info.folder}/files.json")
    with pytest.raises(IntegrityError, match=rf"files\.json of dataset {info.id}"):
        Dataset.open(local_store, info.id)
    assert check_dataset(Dataset.open(local_store, other.id), deep=True) == []
    act = DAMAGES[damage][0]
    if act is not lengthen:  # a NUL after a JSON record is refused by the parser all the same
        act(local_store, "commits/datasets/00000001.json")
        with pytest.raises(IntegrityError, match=r"commits/datasets/00000001\.json"):
            list_datasets(local_store)


def test_any_flipped_bit_of_any_file_is_an_error_or_harmless(local_store: Store) -> None:
    X = dense(40, 3)
    info = write_dataset(local_store, X, ChunkPlan(40, 8, 16))
    rng = np.random.default_rng(7)
    root = Path(local_store.url)
    for path in local_store.walk():
        place = root / path
        original = place.read_bytes()
        for bit in rng.integers(0, 8 * len(original), 6):
            place.write_bytes(original)
            flip(local_store, path, int(bit))
            try:
                dataset = Dataset.open(local_store)
                everything = dataset.rows(0, 40), dataset.labels(), dataset.sample_ids(), dataset.manifest()
            except IntegrityError:
                pass
            else:
                assert np.array_equal(everything[0], X)
                assert dataset.info == info
                if path.endswith((".parquet", ".json")) and "staging" not in path and "commits" not in path:
                    assert check_dataset(dataset, deep=True), f"a deep check must notice bit {bit} of {path}"
        place.write_bytes(original)
    assert check_dataset(Dataset.open(local_store), deep=True) == []


def test_a_dataset_that_is_damaged_while_it_is_open(local_store: Store) -> None:
    info = write_dataset(local_store, dense(101, 6), PLAN)
    dataset = Dataset.open(local_store)
    dataset.rows(0, 101)
    dataset.rows(33, 35)
    lose(local_store, f"{unit_of(local_store, info, 1)}/c/0/0")
    for operation in OPERATIONS.values():
        with pytest.raises(IntegrityError, match=r"shard 1 is missing \(rows 32-63\)"):
            operation(dataset)


def test_a_shard_that_is_a_link_out_of_the_store_is_not_read(local_store: Store, tmp_path: Path) -> None:
    info: DatasetInfo = write_dataset(local_store, dense(101, 6), PLAN)
    shard = Path(local_store.url) / unit_of(local_store, info, 1) / "c/0/0"
    shutil.move(shard, tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leaves the store"):
        Dataset.open(local_store).rows(0, 101)


def test_known_digest() -> None:
    # SHA-256 of "abc", FIPS 180-2, appendix B.1.
    assert digest_bytes(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_order_of_keys_does_not_matter_and_values_do() -> None:
    assert digest_json({"a": 1, "b": [1, 2]}) == digest_json({"b": [1, 2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": 2})
    assert digest_json([1, 2]) != digest_json([2, 1])


def test_digests_are_the_same_in_another_process() -> None:
    code = "from topline.storage.records import digest_json; print(digest_json({'k': 'ü', 'x': [0.1, None]}))"
    out = run_program([sys.executable, "-c", code], check=True).stdout
    assert out.strip() == digest_json({"k": "ü", "x": [0.1, None]})


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, object()])
def test_what_is_not_json(value: object) -> None:
    with pytest.raises(FormatError):
        digest_json({"x": value})


def test_arrays_differ_by_type_shape_and_values() -> None:
    a = np.arange(6, dtype=np.float32)
    variants = [a, a.astype(np.float64), a.reshape(2, 3), a.reshape(3, 2), a + 1]
    assert len({digest_array(variant) for variant in variants}) == len(variants)
    assert digest_array(a[::2]) == digest_array(a[::2].copy()) == digest_array(a[::2].astype(">f4"))


def test_every_flipped_bit_of_a_sealed_record_is_noticed() -> None:
    record = {"name": "ü", "n": 12, "values": [1.5, None]}
    data = seal(record)
    assert unseal(data, "here") == record
    noticed = 0
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            # White space between the values carries nothing: such a change gives the same record.
            assert unseal(bytes(changed), "here") == record
        except IntegrityError:
            noticed += 1
    assert noticed > 7 * len(data)


def test_a_damaged_record_is_named() -> None:
    with pytest.raises(IntegrityError, match="runs/r1 is damaged: its seal"):
        unseal(seal({"n": 1}).replace(b"1", b"2", 1), "runs/r1")
    for wrong in (b"", b"[]", b"{}", b"{", b"null"):
        with pytest.raises(IntegrityError, match="not a sealed JSON record"):
            unseal(wrong, "runs/r1")
