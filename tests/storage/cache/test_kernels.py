"""Stored kernels: written shard by shard, seen once they are whole, checked by fsck."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from topline.storage.arrays.groups import packed_array
from topline.storage.cache import StoredKernel, cache_key
from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.stores import Store, open_store
from topline.storage.stores.files import put_files
from topline.storage.verification import verify_store

K = np.random.default_rng(0).normal(size=(70, 70))
F = K[:, :9].astype(np.float32)


def write(store: Store, key: str) -> StoredKernel:
    return StoredKernel.write(store, key, K, F, {"rows": 70})


def test_a_kernel_comes_back_as_it_was(tmp_path: Path) -> None:
    store = open_store(tmp_path, create=True)
    key = cache_key({"dataset": "d1", "gamma": 0.5})
    assert cache_key({"gamma": 0.5, "dataset": "d1"}) == key != cache_key({"dataset": "d1", "gamma": 0.6})
    written = write(store, key)
    for kernel in (written, StoredKernel.find(store, key), pickle.loads(pickle.dumps(written))):
        np.testing.assert_array_equal(kernel.matrix.rows(3, 61), K[3:61])
        np.testing.assert_array_equal(kernel.factor.rows(0, 70), F)
        assert kernel.facts == {"rows": 70}
    assert not verify_store(store)
    with pytest.raises(NotFoundError, match="has no kernel 0123: train again"):
        StoredKernel.load(store, "0123")


def test_of_two_writers_the_first_wins(tmp_path: Path) -> None:
    store = open_store(tmp_path, create=True)
    first = write(store, "0" * 16)
    second = StoredKernel.write(store, "0" * 16, K, -F, {"rows": 70})
    assert second.folder == first.folder
    np.testing.assert_array_equal(second.factor.rows(0, 70), F)
    assert not verify_store(store)


def test_what_was_begun_is_harmless_and_what_is_damaged_is_found(tmp_path: Path) -> None:
    store = open_store(tmp_path, create=True)
    put_files(store, "kernels/begun", packed_array("matrix", K))
    assert [(finding.kind, finding.harmless) for finding in verify_store(store)] == [("staging", True)]
    store.delete_tree("kernels/begun")
    assert not verify_store(store)
    kernel = write(store, "0" * 16)
    shard = tmp_path / kernel.folder / "matrix" / "c" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    assert [finding.harmless for finding in verify_store(store)] == [False]
    with pytest.raises(IntegrityError, match="matrix of kernel"):
        kernel.matrix.rows(0, 70)
    record = tmp_path / "kernels" / f"{'0' * 16}.json"
    record.write_text(record.read_text().replace("70", "71", 1))
    assert any(finding.kind == "kernel" for finding in verify_store(store))
