"""The machine that simulated processes run on: modules of the storage that see its disk, bucket and clock."""

from __future__ import annotations

import functools
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.bucket import Driver
from tests.simulation.disk import FCNTL, OS, SHUTIL, Place
from tests.simulation.versions import released
from tests.simulation.world import Here, Thread
from topline.pipeline.ingest import editing
from topline.storage import models as model_records
from topline.storage import records as stored_records
from topline.storage.arrays import groups
from topline.storage.arrays.groups import ArrayReader, ArraySpec, packed_array
from topline.storage.datasets import Dataset, contents, writer
from topline.storage.datasets.contents import dump_manifest, load_manifest
from topline.storage.runs import checkpoints
from topline.storage.runs import records as run_records
from topline.storage.stores import (
    base,
    commit_log,
    lease,
    local,
    objects,
    sealed,
)
from topline.storage.stores.lease import CLOCK
from topline.storage.stores.urls import StoreURL

BUCKET = "s3://bucket/store"
DISK = "/store"


class Random:
    """Names that a history draws, the same each time."""

    chance = random.Random(0)

    @classmethod
    def uuid4(cls) -> Any:
        return uuid.UUID(int=cls.chance.getrandbits(128))

    @classmethod
    def token_hex(cls, size: int) -> str:
        return f"{cls.chance.getrandbits(8 * size):0{2 * size}x}"


class SimulatedEvent(threading.Event):
    """An event that no real thread waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        Here.world.pause(timeout or 0.0, self.is_set)
        return self.is_set()


class SimulatedThread:
    """A thread of the simulated process that starts it."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...] = (), **_: Any) -> None:
        self._run = functools.partial(target, *args)
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Here.world.spawn(self._run)

    def join(self, timeout: float) -> None:
        thread = self._thread
        if thread is not None and not thread.done:
            Here.world.pause(timeout, lambda: thread.done)


class SimulatedTime:
    """The time of day, as the running process's clock says."""

    @staticmethod
    def now(zone: Any = UTC) -> datetime:
        return datetime.fromtimestamp(Here.world.wall(), zone)

    fromisoformat = datetime.fromisoformat
    fromtimestamp = datetime.fromtimestamp


class SimulatedBucket(objects.ObjectStore):
    """A bucket behind the simulated driver."""

    def __init__(self, address: StoreURL) -> None:
        super().__init__(address)
        self._opened = os.getpid(), Driver()


def _remembered(function: Callable[..., Any], most: int = 1 << 13) -> Callable[..., Any]:
    """Return a pure function of small values that is worked out once for many histories."""
    known: dict[Any, Any] = {}

    def call(*values: Any) -> Any:
        key = tuple(value if isinstance(value, bytes | str) else repr(value) for value in values)
        if key not in known:
            result = function(*values)
            if len(known) >= most:
                known.clear()
            known[key] = list(result) if hasattr(result, "__next__") else result
        return known[key]

    return call


def _of_its_own(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a function whose callers may change the record that each gets."""
    return lambda *values: dict(function(*values))


def _last_modules(names: Any, threads: Any, clock: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the modules of the last version that see the machine, and what they see instead."""
    time = SimpleNamespace(monotonic=clock["monotonic"], time=clock["wall"], sleep=clock["sleep"])
    for module, replaced in {
        "local_store": {"os": OS, "shutil": SHUTIL, "Path": Place, "uuid": names},
        "object_store": {"time": time},
        "stores": {"Path": Place},
        "run_lock": {"os": OS, "fcntl": FCNTL},
        "lease": {"os": OS, "fcntl": FCNTL, "threading": threads, "time": time},
        "commits": {"uuid": names},
        "checkpoints": {"uuid": names},
        "records": {"datetime": SimulatedTime},
    }.items():
        yield released(module), replaced
    yield released("object_store").ObjectStore, {"__init__": _of_the_bucket}


def _of_the_bucket(store: Any, address: Any) -> None:
    store.url, store._address, store._failures = str(address), address, (OSError,)
    store._opened = os.getpid(), Driver()


@contextmanager
def simulated() -> Iterator[None]:
    """Let the storage use the world in `Here` instead of this machine, until the block ends."""
    names = SimpleNamespace(uuid4=Random.uuid4)
    threads = SimpleNamespace(Thread=SimulatedThread, Event=SimulatedEvent)
    clock = {
        "monotonic": lambda: Here.world.monotonic(),
        "wall": lambda: Here.world.wall(),
        "sleep": lambda seconds: Here.world.sleep(seconds),
        "wait": SimulatedEvent.wait,
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, replaced in (
            (local, {"os": OS, "fcntl": FCNTL, "shutil": SHUTIL, "Path": Place, "uuid": names}),
            (run_records, {"os": OS}),
            (lease, {"os": OS, "fcntl": FCNTL, "threading": threads}),
            (sealed, {"uuid": names, "unseal": _of_its_own(_remembered(sealed.unseal))}),
            (base, {"clean_path": functools.lru_cache(1 << 13)(base.clean_path)}),
            (ArraySpec, {"from_metadata": _remembered(ArraySpec.from_metadata)}),
            (commit_log, {"digest_json": _remembered(commit_log.digest_json)}),
            (checkpoints, {"uuid": names}),
            (model_records, {"uuid": names}),
            (objects, {"Path": Place, "ObjectStore": SimulatedBucket, "_CONDITIONAL": {"bucket"}}),
            (objects, {"time": SimpleNamespace(sleep=clock["sleep"])}),
            (stored_records, {"datetime": SimulatedTime}),
            (editing, {"datetime": SimulatedTime}),
            *_last_modules(names, threads, clock),
            (groups, {"packed_array": _remembered(packed_array)}),
            (writer, {"packed_array": _remembered(packed_array)}),
            (
                contents,
                {"dump_manifest": _remembered(dump_manifest), "load_manifest": _remembered(load_manifest)},
            ),
        ):
            for name, value in replaced.items():
                patch.setattr(module, name, value)
        for kind in (local.LocalStore, Dataset, ArrayReader):
            for value in vars(kind).values():
                if isinstance(value, functools.cached_property) and hasattr(value, "lock"):
                    # Python 3.11 holds it while the value is worked out, which takes calls of this world.
                    patch.setattr(value, "lock", nullcontext())
        genuine = dict(vars(CLOCK))
        vars(CLOCK).update(clock)
        try:
            yield
        finally:
            vars(CLOCK).update(genuine)
