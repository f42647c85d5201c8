"""Stores on a local disk: synchronous, atomic, and on the disk before a call returns."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from topline.storage.errors import AccessError, NotFoundError, UnsafePathError, UnsupportedURLError
from topline.storage.stores.base import Names, Store

PARTIAL = ".partial"
"""Ending of files in the making; a process that finds one later may delete it."""

#: Error numbers for calls that a file system lacks: FAT, SMB, many in user space.
_NOT_HAD = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
#: Arguments of `renameat2`: paths relative to the working folder, fail if the target exists.
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1

_ATTEMPTS = 8
"""Writes of a file whose folder others remove meanwhile: once is rare."""


class LocalStore(Store):
    """A folder.  A file is written to a temporary name, flushed to the disk and renamed or linked."""

    def __init__(self, root: Path, *, create: bool = False) -> None:
        self.url = str(root)
        with self._translated(""):
            if create and not root.exists():
                root.mkdir(parents=True, exist_ok=True)
            if not root.exists():
                raise NotFoundError(
                    f"there is no store at {root}: check the path, or make one with topline import"
                )
            if not root.is_dir():
                raise UnsupportedURLError(f"{root} is a file, and a store is a folder")
            self._root = root.resolve()
            #: Folders known to be on the disk, by inode.
            self._durable: dict[Path, int] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStore, (Path(self.url),)

    @property
    def local_path(self) -> Path:
        """The folder."""
        return self._root

    @cached_property
    def locks(self) -> bool:
        """Whether the folder's file system has locks: NFS without a lock daemon has none."""
        with self._translated(""):
            # Probe a file, since NFS accepts locks on a folder; read-only processes take only shared locks.
            probe = self._root / f"locks.{uuid.uuid4().hex[:12]}{PARTIAL}"
            place, flags = (
                (probe, os.O_RDWR | os.O_CREAT) if self.is_writable() else (self._root, os.O_RDONLY)
            )
            descriptor = os.open(place, flags | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError as error:
                # Any other error is inconclusive; taking it for a no would exclude nobody.
                if error.errno not in _NOT_HAD | {errno.ENOLCK}:
                    raise
                return False
            finally:
                os.close(descriptor)
                probe.unlink(missing_ok=True)
            return True

    def _exists(self, path: str) -> bool:
        return self._locate(path).is_file()

    def _size(self, path: str) -> int:
        return self._locate(path).stat().st_size

    def _read_bytes(self, path: str) -> bytes:
        return self._locate(path).read_bytes()

    def _read_range(self, path: str, start: int, length: int) -> bytes:
        with self._locate(path).open("rb", buffering=0) as file:
            file.seek(start)
            pieces: list[bytes] = []
            while length > 0 and (piece := os.read(file.fileno(), length)):
                pieces.append(piece)
                length -= len(piece)
            return b"".join(pieces)

    def _write_bytes(self, path: str, data: bytes) -> None:
        self._write(path, data, _renamed)

    def _put_if_absent(self, path: str, data: bytes) -> bool:
        # Linking fails if the name exists, so one of the concurrent writers wins.
        return self._write(path, data, _linked)

    def _list(self, path: str) -> Names:
        try:
            return [entry.name for entry in self._locate(path).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _walk(self, path: str) -> Names:
        return [
            str((Path(folder) / name).relative_to(self._root))
            for folder, _, names in os.walk(self._locate(path))
            for name in names
        ]

    def _delete(self, path: str) -> None:
        place = self._locate(path)
        with suppress(FileNotFoundError):
            place.unlink()
            _sync_folder(place.parent)

    def _delete_tree(self, path: str) -> None:
        folder = self._locate(path)
        while folder.is_dir():
            # Another process may remove the same files concurrently.
            with suppress(FileNotFoundError):
                shutil.rmtree(folder)
                _sync_folder(folder.parent)

    def free_bytes(self) -> int:
        """Return the bytes that an ordinary user may still write."""
        with self._translated(""):
            return shutil.disk_usage(self._root).free

    def is_writable(self) -> bool:
        """Whether the kernel lets this process write here."""
        return os.access(self._root, os.W_OK)

    def settle(self, path: str) -> None:
        """Flush the folder `path`: its writer may have been killed before it did."""
        with self._translated(path):
            _sync_folder(self._locate(path))

    def written(self, path: str) -> float:
        """Return when the file was written, in seconds since 1970; `NotFoundError` if there is none."""
        with self._translated(path):
            return self._locate(path).stat().st_mtime

    def used_bytes(self) -> int:
        """Return the bytes of all files, ignoring those that vanish meanwhile."""
        used = 0
        for path in self.walk():
            with suppress(NotFoundError), self._translated(path):
                used += os.lstat(self._root / path).st_size
        return used

    def _locate(self, path: str) -> Path:
        """Return the real location of `path`, after checking that symbolic links stay inside the store."""
        place = self._root / path
        if not place.resolve().is_relative_to(self._root):
            raise UnsafePathError(f"{path} in {self.url} is a symbolic link that leaves the store")
        return place

    def _write(self, path: str, data: bytes, place: Callable[[Path, Path], bool]) -> bool:
        """Write a file, `place` it, and return whether the target was free; retry if its folder vanishes."""
        target = self._locate(path)
        for _ in range(_ATTEMPTS - 1):
            with suppress(FileNotFoundError):
                return self._placed(target, data, place)
        return self._placed(target, data, place)

    def _placed(self, target: Path, data: bytes, place: Callable[[Path, Path], bool]) -> bool:
        """Write a temporary file beside `target`, flush it and `place` it; nothing remains on failure."""
        self._make_folders(target.parent)
        partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
        try:
            with partial.open("xb", buffering=0) as file:
                _write_all(file.fileno(), data)
                os.fsync(file.fileno())
            free = place(partial, target)
            _sync_folder(target.parent)
        finally:
            partial.unlink(missing_ok=True)
        return free

    def _make_folders(self, folder: Path) -> None:
        """Make `folder` and its parents, each on the disk before anything is put into it.

        An existing folder may not be on the disk yet if its maker was killed.
        """
        if folder == self._root:
            return
        with suppress(FileNotFoundError):
            if self._durable.get(folder) == folder.stat().st_ino:
                return
        self._make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        number = folder.stat().st_ino
        _sync_folder(folder.parent)
        self._durable[folder] = number

    def _refusal(self, error: Exception) -> str:
        return f": {os.strerror(getattr(error, 'errno', None) or errno.EIO)}"


def _renamed(partial: Path, target: Path) -> bool:
    partial.replace(target)
    return True


def _linked(partial: Path, target: Path) -> bool:
    """Link a finished file to `target` unless that exists; rename where there are no hard links."""
    try:
        os.link(partial, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NOT_HAD:
            raise
        return _renamed_if_absent(partial, target)
    return True


def _renamed_if_absent(partial: Path, target: Path) -> bool:
    """Rename a file unless its target exists; `AccessError` if the file system cannot do that either."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(partial), os.fsencode(target)
    if rename is not None and rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno() if rename is not None else errno.ENOSYS
    if number == errno.EEXIST:
        return False
    if number in _NOT_HAD:
        raise AccessError(
            f"{target.parent} cannot hold a store: its file system neither links files nor renames them only "
            "where a name is free, so that two writers could replace each other's records; use a local disk "
            "or a bucket"
        )
    raise OSError(number, os.strerror(number), str(target))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    """Make a folder's new entry survive a power cut, if the file system can sync folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_HAD:
            raise
    finally:
        os.close(descriptor)
