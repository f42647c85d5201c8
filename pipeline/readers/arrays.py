"""Features in NumPy and HDF5 files, read by rows: memory-mapped, streamed or sliced."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import (
    FEATURE_NAMES,
    LABEL_NAMES,
    FeatureFile,
    check_matrix,
    one_column,
    pick,
)
from topline.pipeline.readers.damage import cause, check_expansion, check_members, reading

SKIP_BYTES = 1 << 20


class NpyFeatures(FeatureFile):
    """A .npy file (n, d), memory-mapped."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self._array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read as a NumPy array of numbers: {cause(error)}") from error
        self.n, self.d = check_matrix(self.place, self._array.shape, self._array.dtype)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 of the map, shape (stop - start, d)."""
        return np.asarray(self._array[start:stop])


class StreamedArray:
    """A member of an .npz file read from front to back; asked to go back it begins again."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self.place = f"{name} in {path}"
        self._file: IO[bytes] | None = None
        self._open = ExitStack()
        self._next = 0
        with reading(self.place), zipfile.ZipFile(path) as archive:
            member = archive.getinfo(f"{name}.npy")
            check_expansion(self.place, member.compress_size, member.file_size)
            with archive.open(member) as file:
                self.shape, fortran, self.dtype = self._header(file)
        if int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize > member.file_size:
            raise InputError(f"{self.place} is cut short: save it again")
        if fortran and len(self.shape) > 1:
            raise InputError(f"{self.place} lies column by column: save np.ascontiguousarray of it")
        self._row_items = int(np.prod(self.shape[1:], dtype=np.int64))

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return entries start..stop-1 of the first axis."""
        if self._file is None or start < self._next:
            self.close()
            archive = self._open.enter_context(zipfile.ZipFile(self._path))
            self._file = self._open.enter_context(archive.open(f"{self._name}.npy"))
            self._header(self._file)
            self._next = 0
        row_bytes = self._row_items * self.dtype.itemsize
        self._skip((start - self._next) * row_bytes)
        data = self._read((stop - start) * row_bytes)
        self._next = stop
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def close(self) -> None:
        """Close the member and its archive."""
        self._open.close()
        self._file = None

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        reader = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        try:
            version = np.lib.format.read_magic(file)
            if version not in reader:
                raise InputError(f"{self.place} has the unknown NumPy format {version}")
            shape, fortran, dtype = reader[version](file)
        except ValueError as error:
            raise InputError(f"{self.place} cannot be read as a NumPy array: {error}") from error
        return shape, fortran, dtype

    def _skip(self, count: int) -> None:
        while count > 0:
            count -= len(self._read(min(count, SKIP_BYTES)))

    def _read(self, count: int) -> bytes:
        try:
            data = self._file.read(count) if self._file is not None else b""
        except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise InputError(f"{self.place} is damaged: {error}") from error
        if len(data) < count:
            raise InputError(f"{self.place} is cut short")
        return data


class NpzFeatures(FeatureFile):
    """An array (n, d) of an .npz file, streamed; labels from another array of it."""

    def __init__(self, path: Path, name: str, labels: NDArray[Any] | None) -> None:
        super().__init__(path)
        self._labels = labels
        self._array = StreamedArray(path, name)
        self.n, self.d = check_matrix(self._array.place, self._array.shape, self._array.dtype)

    def close(self) -> None:
        """Close the stream."""
        self._array.close()

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return the next rows of the stream."""
        return self._array.rows(start, stop)


class CsrNpzFeatures(FeatureFile):
    """A CSR matrix as `scipy.sparse.save_npz` writes it: data and indices are streamed side by side."""

    def __init__(self, path: Path, small: Mapping[str, NDArray[Any]], labels: NDArray[Any] | None) -> None:
        super().__init__(path)
        self._labels = labels
        shape, self._indptr = small["shape"], small["indptr"].astype(np.int64)
        if bytes(np.asarray(small.get("format", b"csr")).item()) != b"csr":
            raise InputError(f"{path} holds a sparse matrix that is not CSR: save X.tocsr()")
        self._data, self._indices = StreamedArray(path, "data"), StreamedArray(path, "indices")
        self.n, self.d = check_matrix(self.place, shape.tolist(), self._data.dtype)
        self.nonzeros = int(self._indptr[-1])
        if len(self._indptr) != self.n + 1 or self.nonzeros != self._data.shape[0]:
            raise InputError(
                f"{path} is not a valid CSR matrix: indptr, data and shape contradict each other"
            )

    def close(self) -> None:
        """Close the streams."""
        self._data.close()
        self._indices.close()

    def rows(self, start: int, stop: int) -> csr_matrix:
        """Return the next rows of the streams."""
        low, high = int(self._indptr[start]), int(self._indptr[stop])
        indices = self._indices.rows(low, high)
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.d:
            raise InputError(
                f"{self.place} has column indices outside 0..{self.d - 1} in rows {start}-{stop - 1}"
            )
        values = (self._data.rows(low, high), indices, self._indptr[start : stop + 1] - low)
        return csr_matrix(values, shape=(stop - start, self.d))


def open_npz(path: Path, features_name: str | None, labels_name: str | None) -> FeatureFile:
    """Return the features of an .npz file, dense or CSR."""
    try:
        # np.load leaves a file that it opened itself open when it is no archive.
        with reading(str(path)):
            check_members(path)
        with reading(str(path)), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = list(archive.files)
            if not names:
                raise InputError(f"{path} holds no array: save one with np.savez")
            sparse = {"data", "indices", "indptr", "shape"} <= set(names) and features_name is None
            others = [name for name in names if name not in ("data", "indices", "indptr", "shape", "format")]
            label = pick(str(path), "array", labels_name, LABEL_NAMES, others)
            small = {
                name: archive[name] for name in ("indptr", "shape", "format") if name in names and sparse
            }
            taken = label if label is not None and (labels_name or label in LABEL_NAMES) else None
            labels = None if taken is None else one_column(archive[taken])
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as an .npz file of numbers: {cause(error)}") from error
    if sparse:
        return CsrNpzFeatures(path, small, labels)
    rest = [name for name in names if name != taken]
    name = pick(str(path), "array", features_name, FEATURE_NAMES, rest)
    if name is None:
        raise InputError(f"{path} holds {', '.join(names)}: say which are the features with --features-name")
    return NpzFeatures(path, name, labels)


class HdfFeatures(FeatureFile):
    """A dataset (n, d) of an HDF5 file, read by slices; labels from another dataset of it."""

    def __init__(self, path: Path, features_name: str | None, labels_name: str | None) -> None:
        import h5py

        super().__init__(path)
        try:
            self._file: Any = h5py.File(path, "r")
        except OSError as error:
            raise InputError(f"{path} cannot be read as HDF5: {error}") from error
        arrays: dict[str, Any] = {}

        def collect(name: str, entry: Any) -> None:
            if isinstance(entry, h5py.Dataset):
                arrays[name] = entry

        self._file.visititems(collect)
        matrices = [name for name, array in arrays.items() if array.ndim == 2]
        name = pick(self.place, "dataset", features_name, FEATURE_NAMES, matrices)
        if name is None:
            held = ", ".join(arrays) or "nothing"
            raise InputError(f"{path} holds {held}: say which are the features with --features-name")
        self._array = arrays[name]
        vectors = [
            entry
            for entry, array in arrays.items()
            if array.ndim == 1 or (entry in LABEL_NAMES and entry != name)
        ]
        label = pick(self.place, "dataset", labels_name, LABEL_NAMES, vectors)
        # An only other vector may be anything, such as names of rows.
        named = label is not None and (labels_name is not None or label in LABEL_NAMES)
        self._label_array = arrays[label] if label is not None and named else None
        self._left_out = [entry for entry in arrays if entry not in (name, label if named else None)]
        self.n, self.d = check_matrix(f"{name} in {path}", self._array.shape, self._array.dtype)
        unpacked = self.n * self.d * self._array.dtype.itemsize
        check_expansion(f"{name} in {path}", path.stat().st_size, unpacked)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def left_out(self) -> Sequence[str]:
        """Return the datasets that are taken for nothing."""
        return self._left_out

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return a slice of rows."""
        try:
            return np.asarray(self._array[start:stop])
        except OSError as error:
            raise InputError(f"{self.place} is damaged in rows {start}-{stop - 1}: {error}") from error

    def labels(self) -> NDArray[Any] | None:
        """Return the dataset of labels, text decoded from HDF5's bytes."""
        if self._label_array is None:
            return None
        values = one_column(np.asarray(self._label_array[:]))
        if values.dtype.kind in "SO":
            words = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
            return np.asarray(words, dtype=str)
        return values
