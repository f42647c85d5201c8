"""Sealed records of a stated type: JSON objects that carry their type, its version and their own digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topline.storage.fingerprint import seal, unseal
from topline.storage.records import plain
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join


def write_record(store: Store, path: str, kind: str, fields: Mapping[str, Any]) -> None:
    """Write a sealed record of type `kind`, replacing what is at `path`."""
    store.write_bytes(path, sealed(kind, fields))


def read_record(store: Store, path: str, kind: str) -> dict[str, Any]:
    """Return the record at `path`.

    Raises `NotFoundError`, `IntegrityError` for a damaged one and `FormatError` for another type or version.
    """
    place = join(store.url, path)
    record = unseal(store.read_bytes(path), place)
    check_encoding(record, kind, place)
    return record


def sealed(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of a sealed record of type `kind`."""
    return seal({**plain(fields), **encoding(kind)})
