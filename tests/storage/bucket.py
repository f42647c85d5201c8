"""A bucket on the loopback interface, as moto serves it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def served_bucket() -> Iterator[str]:
    """Serve an empty bucket and yield its name; the environment leads to it."""
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
        # What moto holds is the process's: another server may have a bucket already.
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
        yield name
    server.stop()
