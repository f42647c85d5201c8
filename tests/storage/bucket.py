"""A bucket on the loopback interface, served by moto, which speaks as AWS does, or by localbucket."""

from __future__ import annotations

import itertools
import logging
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest

_DONE_WITH: list[dict[Any, Any]] = []


@contextmanager
def moto_server() -> Iterator[str]:
    """Serve what moto keeps in memory, and yield its address."""
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
        yield f"http://{host}:{port}"
    server.stop()


@contextmanager
def localbucket_server() -> Iterator[str]:
    """Serve a folder, and yield the address: like MinIO it does not say which condition refused a put."""
    import localbucket

    class Handler(localbucket.S3Handler):
        """Deletes many objects in one request too, which localbucket leaves out."""

        def do_POST(self) -> None:
            if urlsplit(self.path).query == "delete":
                self._dispatch(self._delete_many)
            else:
                super().do_POST()

        def _delete_many(self, bucket: str, _: str) -> None:
            for key in ET.fromstring(self._read_body()).findall("{*}Object/{*}Key"):
                place = self._object_path(bucket, key.text or "")
                if place.is_file():
                    place.unlink()
                for folder in itertools.takewhile(lambda one: one.parent != self.data_root, place.parents):
                    if any(folder.iterdir()):
                        break
                    folder.rmdir()
            self._send_xml(ET.Element("DeleteResult"))

    logging.getLogger("localbucket").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        Handler.data_root = Path(folder).resolve()
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "moto": moto_server,
    "localbucket": localbucket_server,
}


@contextmanager
def own_drivers() -> Iterator[None]:
    """Have drivers made with the environment of the moment: fsspec keeps those of another server."""
    from s3fs import S3FileSystem

    others = dict(S3FileSystem._cache)
    S3FileSystem._cache.clear()
    try:
        yield
    finally:
        # Their sessions are closed with the process, as those of the drivers that fsspec keeps.
        _DONE_WITH.append(dict(S3FileSystem._cache))
        S3FileSystem._cache.clear()
        S3FileSystem._cache.update(others)


@contextmanager
def served_bucket(by: str = "moto") -> Iterator[str]:
    """Serve an empty bucket by one of `SERVERS` and yield its name; the environment leads to it."""
    import fsspec

    with SERVERS[by]() as address, pytest.MonkeyPatch.context() as patch, own_drivers():
        patch.setenv("AWS_ENDPOINT_URL", address)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTEST")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-that-must-not-appear")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # What moto holds is the process's: another server may have a bucket already.
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        fsspec.filesystem("s3", use_listings_cache=False).mkdir(name)
        yield name
