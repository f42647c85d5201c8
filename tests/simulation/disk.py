"""A disk in memory, and what stands in the place of `os`, `fcntl`, `shutil` and `Path` to use it.

It keeps what POSIX promises and no more: what was not synced may be gone after a power cut, whole, in part or
not at all, each entry of a folder by itself; a folder is listed in any order; a lock ends with its process.
"""

from __future__ import annotations

import copy
import errno
import fcntl
import itertools
import os
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self

from tests.simulation.world import EPOCH, Here

ERRORS = {
    "refused": errno.EIO,
    "not synced": errno.EIO,
    "not removed": errno.EIO,
    "disk full": errno.ENOSPC,
    "quota": errno.EDQUOT,
}
_READS = ("refused",)
_WRITES = ("refused", "disk full", "quota", "power cut", "power cut")
_OF_A_FOLDER = ("not synced", "not synced", "not synced", "power cut", "power cut")
_NEVER = float("inf")


_numbers = itertools.count(1)


class File:
    """Bytes, and those of them that a power cut leaves; locks of descriptors."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.data = b""
        self.synced = b""
        self.written = Here.world.now
        self.shared: set[int] = set()
        self.alone: int | None = None

    def copy(self, copies: dict[File, File]) -> File:
        """Return a file without locks; one that has two names is copied once."""
        if self not in copies:
            copies[self] = made = copy.copy(self)
            made.shared, made.alone = set(), None
        return copies[self]


class Folder:
    """Entries by name, and those that a power cut leaves."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.entries: dict[str, File | Folder] = {}
        self.synced: dict[str, File | Folder] = {}

    def copy(self, copies: dict[Any, Any]) -> Folder:
        """Return a folder with copies of all below it."""
        if self not in copies:
            copies[self] = made = copy.copy(self)
            made.entries = {name: node.copy(copies) for name, node in self.entries.items()}
            made.synced = {name: node.copy(copies) for name, node in self.synced.items()}
        return copies[self]


class Disk:
    """One machine's disk, with an empty folder for the store."""

    def __init__(self, *, locks: bool) -> None:
        self.locks = locks
        self.root = Folder()
        self.root.entries["store"] = Folder()
        self.root.synced = dict(self.root.entries)
        self.chance = random.Random(0)
        self._numbers = 100

    def copy(self) -> Disk:
        made = copy.copy(self)
        made.root = self.root.copy({})
        return made

    def find(self, path: str) -> File | Folder | None:
        node: Any = self.root
        try:
            for name in path.split("/")[1:]:
                node = node.entries[name]
        except (AttributeError, KeyError):
            return None
        return node

    def found(self, path: str) -> File | Folder:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def parent(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        node = self.found(folder)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node, name

    def descriptor(self, node: Any) -> int:
        self._numbers += 1
        Here.world.process.descriptors[self._numbers] = node
        return self._numbers

    def crash(self, share: float) -> None:
        """Lose power: of what was not synced each part may have reached the disk, and may not."""
        chance = random.Random(share)
        self._lose(self.root, chance)

    def _lose(self, folder: Folder, chance: random.Random) -> None:
        kept = dict(folder.synced)
        for name in {**folder.entries, **folder.synced}:
            if folder.entries.get(name) is not folder.synced.get(name) and chance.random() < 0.5:
                if name in folder.entries:
                    kept[name] = folder.entries[name]
                else:
                    del kept[name]
        folder.entries, folder.synced = dict(kept), kept
        for node in kept.values():
            if isinstance(node, Folder):
                self._lose(node, chance)
            else:
                if node.data != node.synced:
                    node.data = chance.choice([node.data, node.synced, node.data[: len(node.data) // 2], b""])
                node.synced, node.alone = node.data, None
                node.shared.clear()

    def listed(self, folder: Folder) -> list[str]:
        names = list(folder.entries)
        if len(names) > 1:
            self.chance.shuffle(names)
        return names


def _enter(call: str, path: str, kinds: tuple[str, ...] = _READS) -> str | None:
    """Make a call; raise the error that it meets, or return the fault that it makes the best of."""
    world = Here.world
    fault = world.step(call, path)
    if fault is None:
        return None
    kind = world.strike(fault, kinds)
    if kind in ERRORS:
        raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), path)
    return kind


def _disk() -> Disk:
    return Here.world.disk


class Place:
    """What of `Path` the storage uses, on the simulated disk."""

    __slots__ = ("text",)

    def __init__(self, text: object) -> None:
        self.text = str(text)

    def __str__(self) -> str:
        return self.text

    __fspath__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __truediv__(self, more: object) -> Place:
        return Place(f"{self.text}/{more}") if str(more) else self

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> Place:
        return Place(self.text.rpartition("/")[0])

    def with_name(self, name: str) -> Place:
        return self.parent / name

    def resolve(self) -> Place:
        return self

    def is_relative_to(self, other: Place) -> bool:
        return self.text == other.text or self.text.startswith(f"{other.text}/")

    def relative_to(self, other: Place) -> str:
        return self.text[len(other.text) + 1 :]

    def exists(self) -> bool:
        _enter("stat", self.text)
        return _disk().find(self.text) is not None

    def is_file(self) -> bool:
        _enter("stat", self.text)
        return isinstance(_disk().find(self.text), File)

    def is_dir(self) -> bool:
        _enter("stat", self.text)
        return isinstance(_disk().find(self.text), Folder)

    def stat(self) -> SimpleNamespace:
        _enter("stat", self.text)
        node = _disk().found(self.text)
        size, written = (len(node.data), node.written) if isinstance(node, File) else (4096, 0.0)
        return SimpleNamespace(st_size=size, st_mtime=EPOCH + written, st_ino=node.number)

    def read_bytes(self) -> bytes:
        _enter("read", self.text)
        node = _disk().found(self.text)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.text)
        return node.data

    def open(self, mode: str, buffering: int = -1) -> _Opened:
        return _Opened(self.text, _open(self.text, os.O_CREAT | os.O_EXCL if "x" in mode else os.O_RDONLY))

    def iterdir(self) -> Iterator[Place]:
        _enter("list", self.text)
        node = _disk().found(self.text)
        if isinstance(node, File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.text)
        return iter([self / name for name in _disk().listed(node)])

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        if parents and _disk().find(self.parent.text) is None:
            self.parent.mkdir(parents=True, exist_ok=True)
        _enter("mkdir", self.text, _WRITES)
        folder, name = _disk().parent(self.text)
        if name not in folder.entries:
            folder.entries[name] = Folder()
        elif not exist_ok or isinstance(folder.entries[name], File):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.text)

    def unlink(self, *, missing_ok: bool = False) -> None:
        _enter("unlink", self.text, ("not removed",))
        try:
            folder, name = _disk().parent(self.text)
            if isinstance(folder.entries[name], Folder):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.text)
            del folder.entries[name]
        except (FileNotFoundError, NotADirectoryError, KeyError):
            if not missing_ok:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.text) from None

    def replace(self, target: Place) -> None:
        _enter("rename", target.text, _WRITES)
        _disk().found(self.text)
        source, name = _disk().parent(self.text)
        folder, wanted = _disk().parent(target.text)
        if isinstance(folder.entries.get(wanted), Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target.text)
        folder.entries[wanted] = source.entries.pop(name)


class _Opened:
    """An open file; closing it is no call of its own."""

    def __init__(self, path: str, number: int) -> None:
        self._path, self._number, self._at = path, number, 0

    def fileno(self) -> int:
        return self._number

    def seek(self, place: int) -> None:
        Here.world.process.descriptors[self._number].at = place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._number)


class _Handle:
    """An open descriptor of a file or folder, and where it reads next."""

    def __init__(self, path: str, node: File | Folder) -> None:
        self.path, self.node, self.at = path, node, 0


def _open(path: Any, flags: int, mode: int = 0o644) -> int:
    text = str(path)
    makes = bool(flags & os.O_CREAT)
    disk = _disk()
    folder = isinstance(disk.find(text), Folder)
    _enter("open", text, _WRITES if makes else ("not synced",) if folder else _READS)
    if makes:
        parent, name = disk.parent(text)
        if name in parent.entries and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), text)
        parent.entries.setdefault(name, File())
    return disk.descriptor(_Handle(text, disk.found(text)))


def _close(number: int) -> None:
    handle = Here.world.process.descriptors.pop(number, None)
    if handle is not None and isinstance(handle.node, File):
        handle.node.shared.discard(number)
        if handle.node.alone == number:
            handle.node.alone = None


def _handle(number: int) -> Any:
    return Here.world.process.descriptors[number]


def _write(number: int, data: Any) -> int:
    handle = _handle(number)
    kind = _enter("write", handle.path, ("short write", *_WRITES))
    length = len(data) // 2 if kind == "short write" and len(data) > 1 else len(data)
    handle.node.data += bytes(data[:length])
    handle.node.written = Here.world.now
    return length


def _pwrite(number: int, data: bytes, place: int) -> int:
    handle = _handle(number)
    _enter("write", handle.path, _WRITES)
    handle.node.data = handle.node.data[:place] + data
    return len(data)


def _truncate(number: int, length: int) -> None:
    handle = _handle(number)
    _enter("truncate", handle.path, _WRITES)
    handle.node.data = handle.node.data[:length]


def _read(number: int, length: int) -> bytes:
    handle = _handle(number)
    _enter("read", handle.path)
    piece: bytes = handle.node.data[handle.at : handle.at + length]
    handle.at += len(piece)
    return piece


def _fsync(number: int) -> None:
    handle = _handle(number)
    node = handle.node
    _enter("fsync", handle.path, _WRITES if isinstance(node, File) else _OF_A_FOLDER)
    if isinstance(node, File):
        node.synced = node.data
    else:
        node.synced = dict(node.entries)


def _link(source: Place, target: Place) -> None:
    _enter("link", target.text, _WRITES)
    node = _disk().found(source.text)
    folder, name = _disk().parent(target.text)
    if name in folder.entries:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target.text)
    folder.entries[name] = node


def _walk(top: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    _enter("list", str(top))
    node = _disk().find(str(top))
    if not isinstance(node, Folder):
        return
    names = _disk().listed(node)
    folders = [name for name in names if isinstance(node.entries[name], Folder)]
    yield str(top), folders, [name for name in names if name not in folders]
    for name in folders:
        yield from _walk(f"{top}/{name}")


def _rmtree(top: Any) -> None:
    _enter("list", str(top))
    node = _disk().found(str(top))
    assert isinstance(node, Folder)
    for name in _disk().listed(node):
        inside = Place(top) / name
        if isinstance(node.entries.get(name), Folder):
            _rmtree(inside)
        else:
            inside.unlink()
    _enter("rmdir", str(top))
    folder, own = _disk().parent(str(top))
    if node.entries:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(top))
    if folder.entries.pop(own, None) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(top))


def _flock(number: int, kind: int) -> None:
    handle = _handle(number)
    _enter("lock", handle.path)
    node = handle.node
    if isinstance(node, Folder):
        return
    if not _disk().locks:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), handle.path)

    def free() -> bool:
        living = {held for held in node.shared if _lives(held)}
        alone = node.alone if node.alone is not None and _lives(node.alone) else None
        others = living - {number}
        return alone in (None, number) and not (kind & fcntl.LOCK_EX and others)

    while not free():
        if kind & fcntl.LOCK_NB:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), handle.path)
        Here.world.pause(_NEVER, free)
    if kind & fcntl.LOCK_EX:
        node.alone = number
    else:
        node.shared.add(number)


def _lives(number: int) -> bool:
    """Return whether a descriptor is open still: that of a killed process is not."""
    world = Here.world
    return any(number in process.descriptors for process in world.processes)


def _lstat(path: str) -> SimpleNamespace:
    return Place(path).stat()


class _Module:
    """A module with some names of its own; the others are those of the module in whose place it stands."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


OS = _Module(
    os,
    open=_open,
    close=_close,
    fsync=_fsync,
    link=_link,
    write=_write,
    pwrite=_pwrite,
    ftruncate=_truncate,
    read=_read,
    walk=_walk,
    lstat=_lstat,
    access=lambda *_: True,
    getpid=lambda: Here.world.process.number,
)
FCNTL = _Module(fcntl, flock=_flock)
SHUTIL = SimpleNamespace(rmtree=_rmtree, disk_usage=lambda _: SimpleNamespace(free=1 << 40))
