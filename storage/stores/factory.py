"""Opening a store by its URL."""

from __future__ import annotations

from pathlib import Path

from topline.storage.stores.base import Store
from topline.storage.stores.local import LocalStore
from topline.storage.stores.objects import ObjectStore
from topline.storage.stores.urls import parse_url


def open_store(url: str | Path, *, create: bool = False) -> Store:
    """Store at `url`: a local path, or a file://, memory://, s3:// or gs:// URL.

    With `create`, a local folder that does not exist is made; without, it is a `NotFoundError`.  Raises
    `UnsupportedURLError` for what is no store's address, `MissingExtraError` if s3fs or gcsfs is missing.
    """
    address = parse_url(str(url))
    if address.scheme == "file":
        return LocalStore(Path(address.root), create=create)
    return ObjectStore(address)
