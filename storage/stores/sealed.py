"""Sealed records: JSON objects that contain their own digest and place and, with a key, a signature."""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from collections.abc import Mapping
from typing import Any

from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.fingerprint import canonical_json, seal, unseal
from topline.storage.records import plain
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join

#: Environment variable of the key with which records are signed and, if set, must be signed.
STORE_KEY = "TOPLINE_STORE_KEY"
_WRITER = "token"
_PLACE, _SIGNATURE = "place", "signature"


def write_record(store: Store, path: str, kind: str, fields: Mapping[str, Any]) -> None:
    """Write a sealed record of type `kind`, replacing what is at `path`."""
    store.write_bytes(path, sealed(path, {**fields, **encoding(kind)}))


def put_own(store: Store, path: str, record: Mapping[str, Any]) -> bool:
    """Put a sealed record if there is none; return whether the one now there is this call's.

    A driver that lost the answer to a write repeats it and finds the name taken by this very record.  An
    unreadable record counts as another's.
    """
    return put_marked(store, path, marked(record))


def marked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with a token by which `put_marked` recognises it."""
    return {**plain(record), _WRITER: uuid.uuid4().hex}


def put_marked(store: Store, path: str, record: Mapping[str, Any]) -> bool:
    """Put a record as `put_own` does, with its token from `marked`."""
    if store.put_if_absent(path, sealed(path, record)):
        return True
    try:
        return bool(unsealed(store, path).get(_WRITER) == record[_WRITER])
    except (NotFoundError, IntegrityError):
        return False


def read_record(store: Store, path: str, kind: str) -> dict[str, Any]:
    """Return the record at `path`.

    Raises `NotFoundError`, `IntegrityError` for a damaged or misplaced one, and `FormatError` for another
    type or version.
    """
    record = unsealed(store, path)
    check_encoding(record, kind, join(store.url, path))
    return record


def sealed(path: str, record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a record for `path`, relative to the store's root."""
    body = {**plain(record), _PLACE: path}
    key = os.environ.get(STORE_KEY)
    return seal({**body, _SIGNATURE: _signature(body, key)} if key else body)


def unsealed(store: Store, path: str) -> dict[str, Any]:
    """Return the record at `path` that `sealed` encoded.

    Raises `NotFoundError`, and `IntegrityError` if it was changed, is misplaced, or is not signed with the
    key of the environment.
    """
    place = join(store.url, path)
    record = unseal(store.read_bytes(path), place)
    signature = record.pop(_SIGNATURE, None)
    key = os.environ.get(STORE_KEY)
    if key and not hmac.compare_digest(str(signature), _signature(record, key)):
        raise IntegrityError(f"{place} is not signed with the key in {STORE_KEY}; restore it from a copy")
    # Records of version 0.1.0 do not name their place; their readers check what they describe.
    belongs = record.pop(_PLACE, path)
    if belongs != path:
        raise IntegrityError(f"{place} is a record of {belongs}, not its own; restore it from a copy")
    return record


def _signature(body: Mapping[str, Any], key: str) -> str:
    return hmac.new(key.encode(), canonical_json(body), hashlib.sha256).hexdigest()
