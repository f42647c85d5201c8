"""A bucket in memory, as the driver of an object store shows it: it throttles, answers twice or never."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from tests.simulation.world import Here

_ERRORS = {"throttled": errno.EBUSY, "refused": errno.EIO, "lost answer": errno.ETIMEDOUT}
_READS = ("throttled", "refused")
_WRITES = ("throttled", "refused", "lost answer", "lost answer", "repeated", "late")
_LISTS = ("throttled", "refused", "listed late")


class Bucket:
    """Objects by their keys, and the changes of their set of keys, which a late listing has not heard of."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.changes: list[tuple[str, bool]] = []

    def copy(self) -> Bucket:
        made = Bucket()
        made.objects, made.changes = dict(self.objects), list(self.changes)
        return made

    def put(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            self.changes.append((key, True))
        self.objects[key] = data

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self.changes.append((key, False))

    def keys(self, unheard: int) -> set[str]:
        """Return the keys as they were so many changes ago."""
        found = set(self.objects)
        for key, added in reversed(self.changes[len(self.changes) - unheard :] if unheard else []):
            (found.discard if added else found.add)(key)
        return found


class Driver:
    """What of a driver of fsspec the storage uses; each call is a request."""

    def exists(self, key: str) -> bool:
        _enter("head", key, _READS)
        return key in _bucket().objects

    isfile = exists

    def info(self, key: str) -> dict[str, Any]:
        _enter("head", key, _READS)
        return {"type": "file", "size": len(_got(key))}

    def cat_file(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        _enter("get", key, _READS)
        return _got(key)[start:end]

    def pipe_file(self, key: str, data: bytes, mode: str = "overwrite") -> None:
        bucket = _bucket()

        def put() -> None:
            if mode == "create" and key in bucket.objects:
                raise FileExistsError(key)
            bucket.put(key, data)

        self._request("put" if mode == "overwrite" else "put if absent", key, put)

    def rm_file(self, key: str) -> None:
        bucket = _bucket()
        self._request("delete", key, lambda: bucket.remove(key))

    def rm(self, key: str, recursive: bool) -> None:
        inside = self.find(key)
        if not inside:
            raise FileNotFoundError(key)
        for one in inside:
            self.rm_file(one)

    def find(self, key: str, detail: bool = False) -> list[str]:
        keys = self._listed(key)
        return sorted(name for name in keys if name.startswith(f"{key}/"))

    def ls(self, key: str, detail: bool = False) -> list[str]:
        head = f"{key}/"
        return sorted(
            {head + n[len(head) :].partition("/")[0] for n in self._listed(key) if n.startswith(head)}
        )

    def _listed(self, key: str) -> set[str]:
        kind = _enter("list", key, _READS if Here.world.process.lists_all else _LISTS)
        Here.world.process.listed_late |= kind == "listed late"
        return _bucket().keys(3 if kind == "listed late" else 0)

    def _request(self, call: str, key: str, effect: Callable[[], None]) -> None:
        """Change something; the driver asks again where an answer does not come, and may give up."""
        world = Here.world
        fault = world.step(call, key)
        kind = None if fault is None else world.strike(fault, _WRITES)
        if kind in ("throttled", "refused"):
            _fail(kind, key)
        if kind == "late":
            # The first request is still on its way when a second one is answered.
            world.later(1 + int((fault or 0.0) * 1e6) % 60, lambda: _ignoring(effect))
        effect()
        if kind == "repeated":
            effect()
        if kind == "lost answer":
            _fail(kind, key)


def _enter(call: str, key: str, kinds: tuple[str, ...]) -> str | None:
    world = Here.world
    fault = world.step(call, key)
    if fault is None:
        return None
    kind = world.strike(fault, kinds)
    if kind in _ERRORS:
        _fail(kind, key)
    return kind


def _fail(kind: str, key: str) -> None:
    # What lasts longer than a driver's own repetitions reaches the caller in its words.
    number = errno.EIO if kind == "throttled" else _ERRORS[kind]
    raise OSError(number, os.strerror(number), key)


def _ignoring(effect: Callable[[], None]) -> None:
    try:
        effect()
    except FileExistsError:
        return


def _bucket() -> Bucket:
    return Here.world.bucket


def _got(key: str) -> bytes:
    try:
        return _bucket().objects[key]
    except KeyError:
        raise FileNotFoundError(key) from None
