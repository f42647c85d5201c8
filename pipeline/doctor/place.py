"""The check of `topline doctor STORE`: what a store asks of its place, tried there."""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topline.pipeline.doctor.runner import CheckFailedError
from topline.storage.errors import StorageError
from topline.storage.stores import Store, held_lease, open_store
from topline.storage.stores.urls import join, parse_url

GIB = 1 << 30
FIX = "Use a folder on a local disk, or a bucket."


def place(url: str) -> str:
    """Write, name, lock and delete files where a store is or will be; return what its place can do."""
    try:
        with _folder_in(url) as store:
            _try_store(store)
            found = "" if store.local_path is None else _of_disk(store, store.local_path)
    except (StorageError, OSError) as error:
        raise CheckFailedError(" ".join(str(error).split()), FIX) from error
    return f"{url}: files are written whole, names taken once, leases held{found}"


@contextmanager
def _folder_in(url: str) -> Iterator[Store]:
    """Yield a store in a folder of its own at the place, which goes again."""
    if parse_url(url).scheme != "file":
        store = open_store(join(url, f"doctor-{uuid.uuid4().hex[:12]}"), create=True)
        try:
            yield store
        finally:
            for path in store.walk():
                store.delete(path)
        return
    folder = Path(parse_url(url).root)
    if folder.exists():
        open_store(folder)  # which says where it is no folder
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    own = Path(tempfile.mkdtemp(prefix=".topline-doctor-", dir=there))
    try:
        yield open_store(own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _try_store(store: Store) -> None:
    """Do what every store must: replace files whole, let one of two take a name, hold a lease."""
    store.write_bytes("a", b"first")
    store.write_bytes("a", b"second")
    taken = [store.put_if_absent("b", word) for word in (b"one", b"two")]
    if store.read_bytes("a") != b"second" or taken != [True, False] or store.read_bytes("b") != b"one":
        raise CheckFailedError(f"{store.url} loses what is written, or lets two writers take one name", FIX)
    with held_lease(store, "doctor", "topline doctor") as lease:
        lease.check()
    if store.walk("nothing") or "a" not in store.list():
        raise CheckFailedError(f"{store.url} does not list what was written", FIX)


def _of_disk(store: Store, folder: Path) -> str:
    """Return how a file system does that, and what else it does to names."""
    links = synced = True
    try:
        os.link(folder / "a", folder / "link")
    except OSError:
        links = False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        synced = False
    finally:
        os.close(descriptor)
    with suppress(OSError):
        (folder / unicodedata.normalize("NFC", "é")).touch()
    found = {
        "by hard links" if links else "by renames, without hard links": True,
        "and locks of the kernel" if store.locks else "and heartbeats, without locks of the kernel": True,
        "folders are not synced, so that a power cut may undo the last write": not synced,
        "names in other case are the same": (folder / "A").exists(),
        "accents change their form": unicodedata.normalize("NFD", "é") in os.listdir(folder),  # noqa: PTH208
        f"{shutil.disk_usage(folder).free / GIB:.1f} GiB free": True,
    }
    words = [said for said, holds in found.items() if holds]
    return f" {words[0]} {words[1]}; {'; '.join(words[2:])}"
