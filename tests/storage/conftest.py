"""Stores to test on: a folder, memory, and S3 as moto serves it on the loopback."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from topline.storage.stores import Store, open_store

_numbers = itertools.count()


@pytest.fixture
def local_store() -> Iterator[Store]:
    """A folder, in memory where there is a RAM disk: waiting for a real disk shows these tests nothing."""
    ram = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=ram if ram.is_dir() and os.access(ram, os.W_OK) else None) as folder:
        yield open_store(Path(folder).resolve() / "store", create=True)


@pytest.fixture
def memory_store() -> Iterator[Store]:
    store = open_store(f"memory://test-{next(_numbers)}")
    yield store
    for path in store.walk():
        store.delete(path)


@pytest.fixture(scope="session")
def s3_bucket() -> Iterator[str]:
    """An empty bucket behind moto's server; the credentials are those moto takes, which is any."""
    import fsspec
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put, one_at_a_time = S3Response.put_object, threading.Lock()

    def atomic_put(self: S3Response) -> Any:
        """Put as S3 does; moto looks whether an object is there, and then puts it, in two steps."""
        with one_at_a_time:
            return put(self)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(S3Response, "put_object", atomic_put)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-that-must-not-appear")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # What moto holds is the process's: another server of this fixture may have a bucket already.
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
        yield name
    server.stop()


@pytest.fixture
def s3_store(s3_bucket: str) -> Store:
    return open_store(f"s3://{s3_bucket}/test-{next(_numbers)}")


@pytest.fixture(params=["local", "memory", "s3"])
def any_store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(f"{request.param}_store")
    return store
