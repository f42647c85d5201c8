"""Numbered folders (models/m0001, runs/r0001): each number goes to one of any racing writers."""

from __future__ import annotations

import re

from topline.storage.errors import ConflictError, NotFoundError
from topline.storage.fingerprint import seal
from topline.storage.records import now
from topline.storage.stores.base import Store
from topline.storage.stores.urls import join

_TRIES = 10_000
_RESERVATION = "begun.json"


def numbered_names(store: Store, folder: str, letter: str) -> list[str]:
    """Names of the numbered folders, finished or not, in the order of their numbers."""
    pattern = re.compile(rf"^{letter}(\d{{4,}})$")
    found = [(int(match.group(1)), name) for name in store.list(folder) if (match := pattern.match(name))]
    return [name for _, name in sorted(found)]


def reserve(store: Store, folder: str, letter: str) -> str:
    """Take the next number and return its name; it stays taken whether or not anything is stored there."""
    names = numbered_names(store, folder, letter)
    first = int(names[-1][1:]) + 1 if names else 1
    for number in range(first, first + _TRIES):
        name = f"{letter}{number:04d}"
        if store.put_if_absent(reservation(folder, name), seal({"created": now()})):
            return name
    raise ConflictError(f"{join(store.url, folder)} takes no new entry; too many writers race for it")


def reservation(folder: str, name: str) -> str:
    """File that takes a name: while it is there, nobody else gets that name."""
    return join(folder, name, _RESERVATION)


def unknown(store: Store, folder: str, letter: str, name: str) -> NotFoundError:
    """The error for a name that is not there, with those that are."""
    names = numbered_names(store, folder, letter)
    known = f"it has {', '.join(names[-5:])}" if names else "it has none yet"
    return NotFoundError(f"{store.url} has no {folder.rstrip('s')} {name}; {known}")
