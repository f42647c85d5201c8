"""Features in files of arrays (NumPy, HDF5, MATLAB, safetensors, Zarr), read by rows."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.sparse import csr_matrix, load_npz

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import (
    FEATURE_NAMES,
    FeatureFile,
    Names,
    Rows,
    check_matrix,
    pick,
    refuse_names,
)
from topline.pipeline.readers.files import cause, check_expansion, reading

#: Arrays of which SciPy makes a sparse matrix.
_SPARSE = ("data", "indices", "indptr", "shape", "format")


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of a file by name, "" for the only one; a name names a `kind`, `stack` closes the file."""

    arrays: Mapping[str, Any]
    kind: str = "array"
    stack: ExitStack = field(default_factory=ExitStack)

    @property
    def names(self) -> Sequence[str]:
        """The names of the arrays."""
        return list(self.arrays)

    def values(self, name: str) -> NDArray[Any]:
        """Return all that an array holds, text decoded from HDF5's bytes."""
        values = np.asarray(self.arrays[name][:])
        if values.dtype.kind not in "SO":
            return values
        words = [
            value.decode() if isinstance(value, bytes) else str(value) for value in values.ravel().tolist()
        ]
        return np.asarray(words, dtype=str).reshape(values.shape)


@dataclass(frozen=True, eq=False)
class View:
    """An array in a file, of which `read` returns entries start..stop-1 of the first axis."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int, int], NDArray[Any]]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return some entries of the first axis; all of an array without axes."""
        start, stop, _ = rows.indices(self.shape[0] if self.shape else 1)
        return self.read(start, stop)


def _member(path: Path, name: str, archive: zipfile.ZipFile, stack: ExitStack) -> View:
    """Return a member of an .npz file, read from front to back; asked to go back it begins again."""
    place = f"{name} in {path}"
    member = archive.getinfo(f"{name}.npy")
    file = stack.enter_context(archive.open(member))
    with reading(place, "a NumPy array"):
        old = np.lib.format.read_magic(file) == (1, 0)
        header = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
    begin, row_bytes = file.tell(), int(np.prod(shape[1:], dtype=object)) * dtype.itemsize
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > member.file_size:
        raise InputError(f"{place} is cut short: save it again")

    @cache
    def whole() -> NDArray[Any]:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])

    def read(start: int, stop: int) -> NDArray[Any]:
        if not shape or dtype.hasobject:
            return whole()
        if fortran and len(shape) > 1:  # columns lie one after the other
            return whole()[start:stop]
        with reading(place):
            if file.tell() != begin + start * row_bytes:
                file.seek(begin + start * row_bytes)
            data = file.read((stop - start) * row_bytes)
            return np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])

    return View(shape, dtype, read)


def _turned(entry: Any) -> View:
    """Return a matrix that lies with its columns for rows, as MATLAB writes it to HDF5."""
    return View(entry.shape[::-1], entry.dtype, lambda start, stop: np.asarray(entry[..., start:stop]).T)


def _tensor(tensor: Any) -> View:
    """Return a tensor of a safetensors file, with bfloat16 as the float32 that NumPy has."""

    def read(start: int, stop: int) -> NDArray[Any]:
        found = np.asarray(tensor[start:stop])
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found

    shape = tuple(tensor.get_shape())
    return View(shape, read(0, 0).dtype if shape else np.dtype(np.float32), read)


def npy_arrays(path: Path) -> Arrays:
    """Return the array of an .npy file, memory-mapped."""
    with reading(path, "a NumPy array of numbers"):
        # A map is refused where the file is shorter than its header says; an array would be allocated first.
        return Arrays({"": np.load(path, mmap_mode="r", allow_pickle=False)})


def npz_arrays(path: Path) -> Arrays:
    """Return the arrays of an .npz file, each streamed."""
    with reading(path, "an .npz file of numbers"), ExitStack() as stack:
        archive = stack.enter_context(zipfile.ZipFile(path))
        for member in archive.infolist():
            check_expansion(f"{member.filename} in {path}", member.compress_size, member.file_size)
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: _member(path, name, archive, stack) for name in names}
        if not arrays:
            raise InputError(f"{path} holds no array: save one with np.savez")
        return Arrays(arrays, "array", stack.pop_all())


def hdf_arrays(path: Path) -> Arrays:
    """Return the datasets of an HDF5 file, those of MATLAB turned as it shows them."""
    import h5py

    with path.open("rb") as raw:
        turned = raw.read(10) == b"MATLAB 7.3"
    with reading(path, "HDF5"), ExitStack() as stack:
        file = stack.enter_context(h5py.File(path, "r"))
        if "encoding-type" in file.attrs:
            raise InputError(
                f"{path} is AnnData's: save its matrix with scipy.sparse.save_npz, and its classes as text"
            )
        arrays: dict[str, Any] = {}

        def collect(name: str, entry: Any) -> None:
            if isinstance(entry, h5py.Dataset):
                arrays[name] = _turned(entry) if turned else entry

        file.visititems(collect)
        return Arrays(arrays, "dataset", stack.pop_all())


def mat_arrays(path: Path) -> Arrays:
    """Return the variables of a MATLAB file up to version 7."""
    found = {name: value for name, value in loadmat(path).items() if isinstance(value, np.ndarray)}
    return Arrays(found, "variable")


def tensors(path: Path) -> Arrays:
    """Return the tensors of a safetensors file, memory-mapped."""
    from safetensors import SafetensorError, safe_open

    stack = ExitStack()
    try:
        file = stack.enter_context(safe_open(path, "np"))
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as safetensors: {cause(error)}") from error
    return Arrays({name: _tensor(file.get_slice(name)) for name in file.keys()}, "tensor", stack)  # noqa: SIM118


def zarr_arrays(path: Path) -> Arrays:
    """Return the array of a Zarr folder, or those of a group."""
    import zarr

    found = zarr.open(str(path), mode="r")
    arrays = {"": found} if isinstance(found, zarr.Array) else dict(found.arrays())
    return Arrays(arrays)


class ArrayFeatures(FeatureFile):
    """A matrix (n, d) among the arrays of a file, or a sparse one of SciPy, streamed where it is CSR."""

    def __init__(self, arrays_in: Callable[[Path], Arrays], path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        found = arrays_in(path)
        with ExitStack() as stack:
            stack.callback(found.stack.close)
            self._found, self.kind = found, found.kind
            self.names = [name for name in found.names if name]
            if not self.names:
                refuse_names(path, "one array", features_name=wanted.features, labels_name=wanted.labels)
            self._read = self._sparse() if self._is_sparse() else self._dense()
            stack.pop_all()

    def _dense(self) -> Callable[[int, int], Rows]:
        arrays, others = self._found.arrays, self.not_features() if self.names else set()
        rest = [name for name, array in arrays.items() if len(array.shape) == 2 and name not in others]
        rest = rest or [name for name in arrays if name not in others]
        name = pick(self.place, self.kind, self.wanted.features, FEATURE_NAMES, rest)
        if name is None:
            held = ", ".join(self.names) or "nothing"
            raise InputError(f"{self.path} holds {held}: say which are the features with --features-name")
        self.taken, array = [name], arrays[name]
        place = f"{name} in {self.path}" if name else str(self.path)
        self.n, self.d = check_matrix(place, array.shape, array.dtype)
        if self.path.is_file() and self.kind == "dataset":
            check_expansion(place, self.path.stat().st_size, self.n * self.d * array.dtype.itemsize)
        return lambda start, stop: np.asarray(array[start:stop])

    def _is_sparse(self) -> bool:
        names = set(self.names)
        parts = {"data", "shape", *({"indptr", "row"} & names or {"indptr"})}
        return parts <= names and self.wanted.features is None

    def _sparse(self) -> Callable[[int, int], Rows]:
        arrays, self.taken = self._found.arrays, _SPARSE
        form = self._found.values("format").item() if "format" in arrays else "csr"
        data, whole = arrays["data"], None if form == "csr" else csr_matrix(load_npz(self.path))
        self.n, self.d = check_matrix(self.place, self._found.values("shape").tolist(), data.dtype)
        if whole is not None:
            self.nonzeros = whole.nnz
            return lambda start, stop: whole[start:stop]
        indices, indptr = arrays["indices"], self._found.values("indptr").astype(np.int64)
        self.nonzeros = int(indptr[-1])
        if len(indptr) != self.n + 1 or self.nonzeros != data.shape[0]:
            raise InputError(
                f"{self.path} is not a valid CSR matrix: indptr, data and shape contradict each other"
            )

        def read(start: int, stop: int) -> Rows:
            low, high = int(indptr[start]), int(indptr[stop])
            columns = indices[low:high]
            if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < self.d:
                raise InputError(
                    f"{self.place} has column indices outside 0..{self.d - 1} in rows {start}-{stop - 1}"
                )
            values = (data[low:high], columns, indptr[start : stop + 1] - low)
            return csr_matrix(values, shape=(stop - start, self.d))

        return read

    def close(self) -> None:
        """Close the file."""
        self._found.stack.close()

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1 of the matrix."""
        try:
            return self._read(start, stop)
        except OSError as error:
            raise InputError(
                f"{self.place} cannot be read in rows {start}-{stop - 1}: {cause(error)}"
            ) from error

    def column(self, name: str) -> NDArray[Any]:
        """Return an array beside the features."""
        return self._found.values(name) if name in self._found.names else super().column(name)
