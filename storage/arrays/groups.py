"""Groups: named arrays and dual variables in one folder, listed with their digests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from topline.storage.arrays.duals import DUALS, DualSource, DualWriter, StoredDuals, parts_in_order
from topline.storage.arrays.reader import read_checked
from topline.storage.arrays.writer import packed_array, packed_group
from topline.storage.errors import FormatError, NotFoundError, StorageError
from topline.storage.schema import encoding
from topline.storage.stores import FileEntry, FileSet, Store
from topline.storage.stores.files import put_file, put_files

_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")


def write_group(
    store: Store,
    folder: str,
    kind: str,
    arrays: Mapping[str, NDArray[Any]],
    duals: DualSource | None,
) -> list[FileEntry]:
    """Write arrays as a Zarr group of encoding `kind`, and the duals of a source; return the files."""
    for name in arrays:
        if not _NAME.match(name) or name == DUALS:
            raise FormatError(f"an array is not named {name!r}; use letters, digits, '_', '-' and '.'")
    parts = [] if duals is None else parts_in_order(duals(DualWriter(store, folder)))
    if duals is not None and not parts:
        raise FormatError(f"no dual variables were given to write to {folder}")
    packed = (file for name in sorted(arrays) for file in packed_array(name, arrays[name]))
    entries = put_files(store, folder, packed)
    return [*entries, *parts, put_file(store, folder, packed_group("", encoding(kind)))]


def discard_group(store: Store, folder: str) -> None:
    """Remove a group's files as far as possible: others may still be writing to it."""
    with contextlib.suppress(StorageError):
        store.delete_tree(folder)


@contextlib.contextmanager
def whole_or_nothing(store: Store, folder: str) -> Iterator[None]:
    """Discard the group in `folder` unless the block ends without an error."""
    with contextlib.ExitStack() as undo:
        undo.callback(discard_group, store, folder)
        yield
        undo.pop_all()


class ArrayGroup:
    """A group, opened for reading."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._duals: StoredDuals | None = None

    def check(self) -> None:
        """Raise `IntegrityError` if the group's metadata is damaged; `array` checks the rest."""
        for path in self._files.by_path:
            if "/" not in path:
                self._files.read(path)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, without the duals."""
        found = {path.partition("/")[0] for path in self._files.by_path if "/" in path}
        return tuple(sorted(found - {DUALS}))

    @property
    def has_duals(self) -> bool:
        """Whether dual variables were stored."""
        return any(path.startswith(f"{DUALS}/") for path in self._files.by_path)

    @property
    def duals(self) -> StoredDuals:
        """The dual variables; `NotFoundError` if none were stored."""
        if not self.has_duals:
            raise NotFoundError(f"{self._files.owner} was stored without dual variables")
        self._duals = self._duals or StoredDuals(self._files)
        return self._duals

    def array(self, name: str) -> NDArray[Any]:
        """Return the array `name`, with the SHA-256 of its files checked."""
        if name not in self.names:
            raise NotFoundError(f"{self._files.owner} has no array {name!r}; it has {', '.join(self.names)}")
        return read_checked(self._files, name, f"{name} of {self._files.owner}")
