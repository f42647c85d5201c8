"""Bundles: named arrays and dual variables in one folder, listed with their digests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from storage.array_reader import ArrayReader, read_checked
from storage.arrays import packed_array, packed_group, write_row_blocks
from storage.errors import FormatError, NotFoundError
from storage.files import FileEntry, FileSet, put_file, put_files
from storage.schema import encoding
from storage.stores import Store
from storage.urls import join

RowBlocks = Iterable[tuple[int, int, NDArray[Any]]]
"""(start, stop, rows): consecutive runs of rows, ascending from 0, without gaps."""

DUALS = "duals"
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")


def write_bundle(
    store: Store,
    folder: str,
    kind: str,
    arrays: Mapping[str, NDArray[Any]],
    duals: RowBlocks | None,
) -> tuple[list[FileEntry], int]:
    """Write arrays and, streamed, duals as a Zarr group of encoding `kind`; return files and dual rows."""
    for name in arrays:
        if not _NAME.match(name) or name == DUALS:
            raise FormatError(f"an array is not named {name!r}; use letters, digits, '_', '-' and '.'")
    packed = (file for name in sorted(arrays) for file in packed_array(name, arrays[name]))
    entries = put_files(store, folder, packed)
    rows = 0
    if duals is not None:
        written, rows = write_row_blocks(store, folder, DUALS, duals)
        entries += written
    return [*entries, put_file(store, folder, packed_group("", encoding(kind)))], rows


class Bundle:
    """A bundle, opened for reading."""

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._duals: ArrayReader | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays, without the duals."""
        found = {path.partition("/")[0] for path in self._files.by_path if "/" in path}
        return tuple(sorted(found - {DUALS}))

    @property
    def has_duals(self) -> bool:
        """Whether dual variables were stored."""
        return join(DUALS, "zarr.json") in self._files.by_path

    def array(self, name: str) -> NDArray[Any]:
        """The array `name`, with the SHA-256 of its files checked."""
        if name not in self.names:
            raise NotFoundError(f"{self._files.owner} has no array {name!r}; it has {', '.join(self.names)}")
        return read_checked(self._files, name, f"{name} of {self._files.owner}")

    def duals(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 of the dual variables, sizes and checksums checked."""
        return self._reader().rows(start, stop)

    def dual_blocks(self) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """All dual variables, shard by shard, as (start, stop, rows)."""
        bounds = self._reader().spec.plan.unit_bounds()
        for start, stop in itertools.pairwise(bounds):
            yield start, stop, self._reader().rows(start, stop)

    def _reader(self) -> ArrayReader:
        if not self.has_duals:
            raise NotFoundError(f"{self._files.owner} was stored without dual variables")
        if self._duals is None:
            self._duals = ArrayReader.open(self._files, DUALS, f"{DUALS} of {self._files.owner}")
        return self._duals
