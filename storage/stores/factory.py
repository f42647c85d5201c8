"""Opening a store by its URL."""

from __future__ import annotations

from pathlib import Path

from topline.storage.stores.base import Store
from topline.storage.stores.local import LocalStore
from topline.storage.stores.objects import ObjectStore
from topline.storage.stores.urls import parse_url


def open_store(url: str | Path, *, create: bool = False) -> Store:
    """Return the store at `url`: a local path, or a file://, memory://, s3:// or gs:// URL.

    With `create`, a local folder that does not exist is made; without, it is a `NotFoundError`.  Raises
    `UnsupportedURLError` if it is not a store's address, `MissingExtraError` if s3fs or gcsfs is missing.

    >>> from topline import open_store
    >>> store = open_store("memory://example")
    >>> store.put_if_absent("notes/one.txt", b"the first")
    True
    >>> store.put_if_absent("notes/one.txt", b"the second")
    False
    >>> store.list("notes"), store.read_bytes("notes/one.txt")
    (['one.txt'], b'the first')
    """
    address = parse_url(str(url))
    if address.scheme == "file":
        return LocalStore(Path(address.root), create=create)
    return ObjectStore(address)
