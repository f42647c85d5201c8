"""What every store must do; a test class inherits this and provides the fixture `store`."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.storage.samples import zarr_store
from topline.storage.errors import NotFoundError, UnsafePathError
from topline.storage.stores import Store


class StoreContract:
    """Inherit it and define a fixture `store` that gives a new, empty store."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError

    def test_what_is_written_is_read(self, store: Store) -> None:
        data = bytes(range(256)) * 5
        store.write_bytes("a/b/c.bin", data)
        assert store.exists("a/b/c.bin")
        assert store.size("a/b/c.bin") == len(data)
        assert store.read_bytes("a/b/c.bin") == data

    def test_a_write_replaces_the_whole_file(self, store: Store) -> None:
        store.write_bytes("a", b"a long first version")
        store.write_bytes("a", b"short")
        assert store.read_bytes("a") == b"short"

    def test_an_empty_file_is_a_file(self, store: Store) -> None:
        store.write_bytes("empty", b"")
        assert store.exists("empty")
        assert store.size("empty") == 0
        assert store.read_bytes("empty") == b""

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [(0, 3, b"012"), (4, 3, b"456"), (8, 5, b"89"), (10, 4, b""), (25, 4, b""), (3, 0, b"")],
    )
    def test_ranges(self, store: Store, start: int, length: int, expected: bytes) -> None:
        store.write_bytes("digits", b"0123456789")
        assert store.read_range("digits", start, length) == expected

    def test_what_is_not_there(self, store: Store) -> None:
        store.write_bytes("folder/file", b"1")
        assert not store.exists("nothing")
        assert not store.exists("folder"), "a folder is no file"
        for read in (store.read_bytes, store.size, lambda path: store.read_range(path, 0, 1)):
            with pytest.raises(NotFoundError, match="nothing"):
                read("nothing")
        assert store.list("nothing") == []
        assert store.walk("nothing") == []
        store.delete("nothing")
        store.delete_tree("nothing")

    def test_listing_and_walking(self, store: Store) -> None:
        for path in ("top", "a/1", "a/2", "a/deep/3", "ab/4", "ü/日本"):
            store.write_bytes(path, b"x")
        assert store.list() == ["a", "ab", "top", "ü"]
        assert store.list("a") == ["1", "2", "deep"]
        assert store.walk("a") == ["a/1", "a/2", "a/deep/3"]
        assert store.walk() == ["a/1", "a/2", "a/deep/3", "ab/4", "top", "ü/日本"]

    def test_deleting(self, store: Store) -> None:
        for path in ("a/1", "a/b/2", "ab/3"):
            store.write_bytes(path, b"x")
        store.delete("a/1")
        assert store.walk() == ["a/b/2", "ab/3"]
        store.delete_tree("a")
        assert store.walk() == ["ab/3"]

    @pytest.mark.parametrize(
        "path", ["../x", "a/../../x", "/etc/passwd", "a//b", ".", "a\\..\\b", "a\nb", "a/"]
    )
    def test_paths_that_lead_out_are_refused(self, store: Store, path: str) -> None:
        for act in (
            store.read_bytes,
            store.exists,
            store.size,
            store.list,
            store.walk,
            store.delete,
            store.delete_tree,
        ):
            with pytest.raises(UnsafePathError):
                act(path)
        for put in (store.write_bytes, store.put_if_absent):
            with pytest.raises(UnsafePathError):
                put(path, b"x")
        assert store.walk() == []

    def test_the_root_itself_is_neither_written_nor_deleted(self, store: Store) -> None:
        store.write_bytes("a", b"x")
        for act in (
            lambda: store.write_bytes("", b"x"),
            lambda: store.delete_tree(""),
            lambda: store.put_if_absent("", b""),
        ):
            with pytest.raises(UnsafePathError):
                act()
        assert store.walk() == ["a"]

    def test_put_if_absent_keeps_the_first(self, store: Store) -> None:
        assert store.put_if_absent("one/name", b"first")
        assert not store.put_if_absent("one/name", b"second")
        assert store.read_bytes("one/name") == b"first"
        assert store.walk() == ["one/name"], "nothing is left beside it"

    def test_put_if_absent_lets_one_of_racing_threads_through(self, store: Store) -> None:
        racers, rounds = 6, 5
        gate = threading.Barrier(racers)

        def race(racer: int) -> list[bool]:
            won = []
            for number in range(rounds):
                gate.wait()
                won.append(store.put_if_absent(f"race/{number}", str(racer).encode()))
            return won

        with ThreadPoolExecutor(racers) as pool:
            outcomes = list(pool.map(race, range(racers)))
        for number in range(rounds):
            winners = [racer for racer in range(racers) if outcomes[racer][number]]
            assert len(winners) == 1
            assert store.read_bytes(f"race/{number}") == str(winners[0]).encode()

    def test_it_travels_by_its_url(self, store: Store) -> None:
        store.write_bytes("a", b"x")
        copy = pickle.loads(pickle.dumps(store))
        assert copy == store
        assert copy.read_bytes("a") == b"x"

    def test_threads_may_share_it(self, store: Store) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: store.write_bytes(f"t/{i}", str(i).encode()), range(20)))
            read = list(pool.map(lambda i: store.read_bytes(f"t/{i}"), range(20)))
        assert read == [str(i).encode() for i in range(20)]

    def test_zarr_reads_through_it(self, store: Store) -> None:
        import numpy as np
        import zarr

        from topline.storage.arrays.groups import packed_array
        from topline.storage.stores.files import put_files

        values = np.arange(12, dtype=np.float32).reshape(4, 3)
        put_files(store, "group", packed_array("values", values))
        array = zarr.open_array(zarr_store(store, "group/values"), mode="r")
        np.testing.assert_array_equal(array[:], values)
