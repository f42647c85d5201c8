"""Stores: the contract on every kind, and what is particular to each."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import itertools
import multiprocessing
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec.asyn import AsyncFileSystem

from tests.contracts.store_contract import StoreContract
from tests.processes import run_program
from tests.storage.bucket import served_bucket
from topline.storage.errors import (
    AccessError,
    ConflictError,
    MissingExtraError,
    NotFoundError,
    UnsafePathError,
    UnsupportedURLError,
)
from topline.storage.stores import Store, held_lease, masked, open_store, parse_url, split_url
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.objects import ObjectStore


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, local_store: Store) -> Store:
        return local_store


class TestStoreWithoutLocksAndLinks(StoreContract):
    @pytest.fixture
    def store(self, bare_store: Store) -> Store:
        return bare_store


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self, memory_store: Store) -> Store:
        return memory_store


class TestS3Store(StoreContract):
    @pytest.fixture
    def store(self, s3_store: Store) -> Store:
        return s3_store


@pytest.mark.parametrize(
    ("url", "scheme", "root"),
    [
        ("/data/store", "file", "/data/store"),
        ("file:///data/my%20store", "file", "/data/my store"),
        ("memory://a/b/", "memory", "a/b"),
        ("s3://bucket/some//prefix", "s3", "bucket/some/prefix"),
        ("S3://bucket", "s3", "bucket"),
        ("gs://bucket/x", "gs", "bucket/x"),
    ],
)
def test_urls_that_name_stores(url: str, scheme: str, root: str) -> None:
    address = parse_url(url)
    assert (address.scheme, address.root) == (scheme, root)
    assert parse_url(str(address)) == address


@pytest.mark.parametrize(
    "url",
    ["", "http://host/store", "s3://", "s3://bucket/../other", "file://host/x", "hdfs://a/b", "memory://"],
)
def test_urls_that_do_not(url: str) -> None:
    with pytest.raises(UnsupportedURLError):
        open_store(url)


@pytest.mark.parametrize(
    "url", ["s3://AKIA:s3cr3t@bucket/x", "gs://bucket/x?token=s3cr3t", "http://user:s3cr3t@host/x?key=s3cr3t"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UnsupportedURLError) as caught:
        open_store(url)
    assert "s3cr3t" not in str(caught.value)
    assert "s3cr3t" not in masked(url)


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("here", create=True)
    assert store.url == str(tmp_path / "here")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no store at"):
        open_store(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnsupportedURLError, match="a store is a folder"):
        open_store(tmp_path / "file", create=True)


def test_a_symbolic_link_out_of_the_store_is_not_followed(local_store: Store, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    root = Path(local_store.url)
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").symlink_to(tmp_path / "outside" / "secret")
    (root / "inside").mkdir()
    (root / "fine").symlink_to(root / "inside")
    for path in ("link/secret", "file"):
        for act in (local_store.read_bytes, local_store.size, lambda p: local_store.write_bytes(p, b"y")):
            with pytest.raises(UnsafePathError, match="leaves the store"):
                act(path)
    assert (tmp_path / "outside" / "secret").read_text() == "x"
    local_store.write_bytes("fine/x", b"1")
    assert local_store.read_bytes("inside/x") == b"1"


def test_a_store_reached_through_a_link_is_itself(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    store = open_store(tmp_path / "alias")
    store.write_bytes("a/b", b"x")
    assert store.read_bytes("a/b") == b"x"
    assert store.walk() == ["a/b"]


def test_no_file_in_the_making_stays_behind(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(AccessError, match="a/b"):
        local_store.write_bytes("a/b", b"x" * 100)
    assert not any(path.endswith(PARTIAL) for path in local_store.walk())
    assert not local_store.exists("a/b")


@pytest.mark.parametrize("refused", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_links_or_exclusive_renames_is_named(
    bare_store: Store, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def rename(*_: object) -> int:
        ctypes.set_errno(refused)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=rename))
    with pytest.raises(AccessError, match=r"/a cannot hold a store: .*; use a local disk or a bucket$"):
        bare_store.put_if_absent("a/b", b"data")
    assert bare_store.walk() == []


@pytest.mark.parametrize("call", ["link", "fsync", "flock"])
def test_a_call_that_fails_is_not_taken_for_one_that_is_missing(
    local_store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    assert local_store.locks

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl if call == "flock" else os, call, broken)
    with pytest.raises(AccessError, match="Input/output error"), held_lease(local_store, "name", "a test"):
        pass


def test_a_write_is_on_the_disk_before_it_is_seen(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, link, replace = os.fsync, os.link, Path.replace

    def synced(descriptor: int) -> None:
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def linked(source: Path, target: Path) -> None:
        events.append("seen")
        link(source, target)

    def replaced(self: Path, target: Path) -> Path:
        events.append("seen")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(Path, "replace", replaced)
    for write in (local_store.write_bytes, local_store.put_if_absent):
        events.clear()
        write(f"{write.__name__}/x", b"data")
        assert events[-3:] == ["file", "seen", "folder"]
        assert set(events[:-3]) <= {"folder"}, "new folders come first"


@pytest.mark.parametrize("write", ["write_bytes", "put_if_absent"])
def test_a_write_into_a_folder_that_others_remove(
    local_store: Store, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    fsync, removed = os.fsync, []

    def removing(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and len(removed) < 2:
            removed.append(shutil.rmtree(str(local_store.local_path) + "/a"))

    monkeypatch.setattr(os, "fsync", removing)
    getattr(local_store, write)("a/b", b"data")
    assert local_store.read_bytes("a/b") == b"data"
    assert len(removed) == 2
    assert local_store.walk() == ["a/b"]


def test_a_folder_that_two_remove_at_a_time(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1", "a/b/2", "a/b/3"):
        local_store.write_bytes(name, b"x")
    unlink, others = os.unlink, []

    def second(path: str, **options: int) -> None:
        if not others:
            others.append(path)
            local_store.delete("a/1")
            shutil.rmtree(str(local_store.local_path) + "/a/b")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", second)
    local_store.delete_tree("a")
    assert others
    assert not (Path(local_store.url) / "a").exists()


def test_a_file_in_the_place_of_a_folder(local_store: Store) -> None:
    local_store.write_bytes("a", b"x")
    with pytest.raises(AccessError, match="a/b"):
        local_store.write_bytes("a/b", b"y")
    with pytest.raises(AccessError, match="a/b"):
        local_store.read_bytes("a/b")


@pytest.fixture
def nobody() -> Iterator[None]:
    """Root, who may read everything, is nobody for the time of a test."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)
    yield
    if user == 0:
        os.seteuid(user)


def test_a_store_that_may_not_be_read(nobody: None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "x").write_text("x")
        store = open_store(folder)
        assert store.read_bytes("x") == b"x"
        folder.chmod(0)
        with pytest.raises(AccessError, match="Permission denied"):
            store.read_bytes("x")
        folder.chmod(0o700)


def test_free_bytes(local_store: Store, memory_store: Store) -> None:
    assert (local_store.free_bytes() or 0) > 0
    assert memory_store.free_bytes() is None


def test_what_the_kernel_would_not_let_be_written(
    local_store: Store, memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_store.is_writable()
    assert memory_store.is_writable()
    # The superuser, as whom tests may run, is let everywhere but on a read-only mount.
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    assert not local_store.is_writable()


def test_used_bytes(local_store: Store, memory_store: Store) -> None:
    for store in (local_store, memory_store):
        before = store.used_bytes()
        store.write_bytes("a/b/c", b"12345")
        store.write_bytes("d", b"123")
        after = store.used_bytes()
        assert (before, after) == ((None, None) if store is memory_store else (0, 8))


def test_split_url() -> None:
    assert split_url("/data/store/models/m0001", "models") == ("/data/store", "m0001")
    assert split_url("s3://b/p/models/m0001/", "models") == ("s3://b/p", "m0001")
    for wrong in ("/data/store/m0001", "models/m0001", "/data/runs/r0001"):
        with pytest.raises(UnsupportedURLError, match="<store>/models/<name>"):
            split_url(wrong, "models")


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'topline\[s3\]'"):
        open_store("s3://bucket/store")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'topline\[gcs\]'"):
        open_store("gs://bucket/store")


def test_nothing_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, topline.storage.cache, topline.storage.datasets, topline.storage.models\n"
        "import topline.storage.runs, topline.storage.verification\n"
        "loaded = {'fsspec', 's3fs', 'gcsfs', 'zarr', 'dask', 'prefect'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_googles_store_opens_without_a_network() -> None:
    assert open_store("gs://bucket/some/store/").url == "gs://bucket/some/store"


def test_a_bucket_that_is_not_there(s3_bucket: str) -> None:
    store = open_store("s3://no-such-bucket/store")
    with pytest.raises(NotFoundError, match="s3://no-such-bucket/store/a"):
        store.read_bytes("a")


def test_an_object_store_out_of_reach_says_so_without_secrets(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import botocore.exceptions

    class Driver:
        def cat_file(self, *_: object, **__: object) -> bytes:
            raise botocore.exceptions.EndpointConnectionError(
                endpoint_url="http://secret-that-must-not-appear/"
            )

    monkeypatch.setattr(ObjectStore, "_fs", Driver())
    with pytest.raises(AccessError, match="EndpointConnectionError") as caught:
        s3_store.read_bytes("a")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("kind", ["ignores", "looks first", "refuses and stores"])
def test_a_bucket_whose_conditions_do_not_hold_is_refused_before_anything_is_written(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It ignores conditions, looks and puts in two steps, or stores what it refuses."""
    import topline.storage.stores.objects as module

    there: dict[str, bytes] = {}
    both_looked = threading.Barrier(2)

    class Wrong:
        def pipe_file(self, key: str, data: bytes, mode: str) -> None:
            absent = key not in there
            if kind == "looks first" and absent:
                both_looked.wait(timeout=60)
            if absent or kind != "looks first":
                there[key] = data
            if not absent and kind != "ignores":
                raise FileExistsError(key)

        def cat_file(self, key: str) -> bytes:
            return there[key]

        def rm_file(self, key: str) -> None:
            del there[key]

    monkeypatch.setattr(module, "_CONDITIONAL", set())
    monkeypatch.setattr(ObjectStore, "_fs", Wrong())
    for _ in range(2):
        with pytest.raises(UnsupportedURLError, match="does not keep to the header If-None-Match"):
            s3_store.put_if_absent("models/m0001/begun.json", b"data")
    assert not there


def test_conditions_are_looked_at_once_a_bucket_and_leave_nothing(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import topline.storage.stores.objects as module

    monkeypatch.setattr(module, "_CONDITIONAL", set())
    puts: list[str] = []
    created = ObjectStore._created

    def counted(self: ObjectStore, key: str, data: bytes) -> bool:
        puts.append(key)
        return created(self, key, data)

    monkeypatch.setattr(ObjectStore, "_created", counted)
    assert s3_store.put_if_absent("a", b"1")
    assert not s3_store.put_if_absent("a", b"2")
    assert s3_store.read_bytes("a") == b"1"
    assert s3_store.walk() == ["a"]
    assert [key.rpartition("/")[2] == "a" for key in puts] == [False, False, False, True, True]


def test_a_conditional_write_under_way_elsewhere_is_tried_again(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    import topline.storage.stores.objects as module

    class Busy:
        def __init__(self, busy_for: int) -> None:
            self.left, self.kept = busy_for, b""

        def pipe_file(self, _: str, data: bytes, mode: str) -> None:
            self.left -= 1
            if self.left >= 0:
                raise OSError(errno.EBUSY, "ConditionalRequestConflict")
            self.kept = data

    monkeypatch.setattr(module, "_CONFLICT_PAUSE", 0.0)
    monkeypatch.setattr(ObjectStore, "_check_conditions", lambda _: None)
    patient = Busy(3)
    monkeypatch.setattr(ObjectStore, "_fs", patient)
    assert s3_store.put_if_absent("a", b"data")
    assert patient.kept == b"data"
    monkeypatch.setattr(ObjectStore, "_fs", Busy(10**6))
    with pytest.raises(ConflictError, match="somebody else"):
        s3_store.put_if_absent("a", b"data")


def _take_environment(values: dict[str, str]) -> None:
    os.environ.update(values)


def _read_in_child(store: Store, path: str) -> bytes:
    return store.read_bytes(path)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_object_store_is_read_from_another_process(s3_store: Store, method: str) -> None:
    s3_store.write_bytes("a", b"from the parent")
    # A fork server that another test started knows nothing of this one's credentials.
    context = multiprocessing.get_context(method)
    with context.Pool(1, _take_environment, (dict(os.environ),)) as pool:
        assert pool.apply(_read_in_child, (s3_store, "a")) == b"from the parent"


class _Silent(AsyncFileSystem):
    """A driver that waits for a connection that never comes."""

    cachable = False

    async def _isfile(self, path: str) -> bool:
        await asyncio.Event().wait()
        return bool(path)


def test_a_bucket_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.filesystem", lambda *_, **__: _Silent())
    monkeypatch.setattr("topline.storage.stores.objects._CALL_SECONDS", 0.01)
    store = open_store("s3://bucket/store")
    with pytest.raises(AccessError, match="s3://bucket/store"):
        store.exists("a")


@pytest.mark.parametrize("name", ["s3fs", "botocore.retryhandler", "gcsfs", "gcsfs.credentials"])
def test_repetitions_are_counted_without_what_drivers_say_for_debugging(name: str) -> None:
    code = (
        "import logging; logging.basicConfig(level=logging.WARNING)\n"
        "from topline.storage.stores import repeated_requests\n"
        "before = repeated_requests()\n"
        f"logging.getLogger({name!r}).debug('a secret of the driver')\n"
        f"logging.getLogger({name!r}).warning('what it warns of')\n"
    )
    said = run_program([sys.executable, "-c", code], check=True).stderr
    assert "secret" not in said
    assert "what it warns of" in said


_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with served_bucket("localbucket") as name:
        yield name


class TestAnotherS3Server(StoreContract):
    @pytest.fixture
    def store(self, bucket: str) -> Store:
        return open_store(f"s3://{bucket}/test-{next(_numbers)}")
