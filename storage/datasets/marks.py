"""Marks of a dataset in the making: which contents each unit has, or is about to have."""

from __future__ import annotations

from topline.storage.datasets.contents import UnitRef, is_stored
from topline.storage.errors import FormatError, IntegrityError, NotFoundError
from topline.storage.schema import MARKS, mark_path
from topline.storage.stores import Store
from topline.storage.stores.sealed import sealed, unsealed
from topline.storage.stores.urls import join


def write_mark(store: Store, folder: str, unit: int, ref: UnitRef) -> None:
    """Mark the contents of `unit`, before they are stored: from here on nobody removes them."""
    path = join(folder, mark_path(unit))
    store.write_bytes(path, sealed(path, {"unit": unit, **ref.to_json()}))


def finished_unit(store: Store, folder: str, unit: int) -> UnitRef | None:
    """Return what `unit` refers to if all of that is stored: then the unit is done.

    Otherwise None: whatever the reason, the fix is to write the unit again.
    """
    try:
        ref = UnitRef.from_json(unsealed(store, join(folder, mark_path(unit))))
    except (NotFoundError, IntegrityError, FormatError):
        return None
    return ref if is_stored(store, ref) else None


def marked_units(store: Store, folder: str) -> list[int]:
    """Return the units that are marked, done or not."""
    names = store.list(join(folder, MARKS))
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return [int(stem) for stem in stems if stem.isdecimal()]
