"""Staged datasets: what the writers of one key have agreed on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from topline.storage.datasets.contents import UnitRef
from topline.storage.datasets.info import folder_to_write, read_catalog
from topline.storage.errors import FormatError, IntegrityError, MismatchError, NotFoundError
from topline.storage.fingerprint import digest_bytes
from topline.storage.records import now, plain
from topline.storage.schema import FILES_LIST, STAGING, STAGING_ENCODING, UNITS_LIST, encoding
from topline.storage.stores import Store
from topline.storage.stores.holds import hold_while
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join


def claim(owner: object, store: Store, folder: str, description: Mapping[str, Any]) -> None:
    """Write a staging's description and hold it for `owner`; `MismatchError` if another differs."""
    wanted = {**encoding(STAGING_ENCODING), **plain(description)}
    if _begin(owner, store, folder, wanted):
        return
    found = unsealed(store, join(folder, STAGING))
    differing = sorted(name for name in wanted if found.get(name) != wanted[name])
    if differing:
        raise MismatchError(
            f"{join(store.url, folder)} was begun with other {' and '.join(differing)};"
            " abandon it or give this dataset another key"
        )


def _begin(owner: object, store: Store, folder: str, description: Mapping[str, Any]) -> bool:
    """Hold a folder's staging record as long as `owner` lives; return whether it is new."""
    path = join(folder, STAGING)
    while True:
        begun = store.put_if_absent(path, sealed(path, {**description, "begun": now()}))
        hold_while(owner, store, path)
        # It can be removed as abandoned just before it is held.
        if store.exists(path):
            return begun


def staged(store: Store, key: str) -> Mapping[str, Any] | None:
    """Return the description that the writers of an uncommitted dataset agreed on; None before the first."""
    path = join(folder_to_write(store, key, read_catalog(store)), STAGING)
    return unsealed(store, path) if store.exists(path) else None


def discard_staged(store: Store, key: str) -> None:
    """Delete the staging of a key unless committed; pruning removes what its units refer to."""
    catalog = read_catalog(store)
    if catalog.of_key(key) is None:
        store.delete_tree(folder_to_write(store, key, catalog))


def folder_for(owner: object, store: Store, folder: str, listing: bytes) -> str:
    """Return the folder for the files that `listing` lists, with that list in it.

    The first writer to commit takes the staging's own `folder`.  A writer with other files (two machines may
    compute features that differ in the last bits) takes one beside it, so that nobody replaces what another
    publishes.  On a local disk retention spares it as long as `owner` lives.
    """
    if store.put_if_absent(join(folder, FILES_LIST), listing) or _lists(store, folder) == listing:
        return folder
    beside = f"{folder}-{digest_bytes(listing)[:8]}"
    _begin(owner, store, beside, encoding(STAGING_ENCODING))
    store.write_bytes(join(beside, FILES_LIST), listing)
    return beside


def listed_units(store: Store, folder: str) -> list[UnitRef]:
    """Return the units of a dataset in this folder, committed or not; `IntegrityError` if unreadable."""
    path = join(folder, UNITS_LIST)
    try:
        return [UnitRef.from_json(unit) for unit in json.loads(store.read_bytes(path))]
    except NotFoundError:
        return []
    except (ValueError, TypeError, LookupError, AttributeError, FormatError) as error:
        raise IntegrityError(f"{join(store.url, path)} is damaged: {error}") from error


def _lists(store: Store, folder: str) -> bytes | None:
    """Return a folder's list of files; None if the writer of another has just removed it."""
    try:
        return store.read_bytes(join(folder, FILES_LIST))
    except NotFoundError:
        return None


def check_cuts(cuts: tuple[int, ...], n_rows: int) -> None:
    """Raise `FormatError` unless the cuts of units rise from 0 to the number of rows."""
    if cuts[:1] != (0,) or cuts[-1] != n_rows or any(a >= b for a, b in pairwise(cuts)):
        raise FormatError(f"units are cut at 0 < ... < {n_rows}, not at {cuts}")
