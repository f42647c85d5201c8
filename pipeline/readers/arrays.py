"""Features in files of arrays (NumPy, HDF5, MATLAB, safetensors, Zarr), read by rows."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.sparse import csr_matrix, load_npz

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import (
    FEATURE_NAMES,
    FeatureFile,
    Names,
    check_matrix,
    pick,
    refuse_names,
)
from topline.pipeline.readers.damage import cause, check_expansion, check_members, reading

SKIP_BYTES = 1 << 20
#: Arrays of which SciPy makes a sparse matrix.
_SPARSE = ("data", "indices", "indptr", "shape", "format")


@dataclass(frozen=True, eq=False)
class Arrays:
    """The arrays of a file by their names, each with a shape and a dtype, and sliced by rows; "" is one.

    `kind` is what a name names, and `stack` closes the file.
    """

    arrays: Mapping[str, Any]
    kind: str
    stack: ExitStack


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
        self.ndim = len(self.shape)
        if int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize > member.file_size:
            raise InputError(f"{self.place} is cut short: save it again")
        self._row_items = int(np.prod(self.shape[1:], dtype=np.int64))
        #: An array that lies column by column is read at once.
        self._whole = self._loaded() if fortran and self.ndim > 1 else None

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return some entries of the first axis."""
        if not self.ndim or self.dtype.hasobject:
            return self._loaded()
        start, stop, _ = rows.indices(self.shape[0])
        if self._whole is not None:
            return self._whole[start:stop]
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

    def _loaded(self) -> NDArray[Any]:
        with self._path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return np.asarray(archive[self._name])

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


@dataclass(frozen=True, eq=False)
class _Turned:
    """A matrix that lies with its columns for rows, as MATLAB writes it to HDF5."""

    array: Any

    def __getattr__(self, name: str) -> Any:
        return {"shape": self.array.shape[::-1]}.get(name) or getattr(self.array, name)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.array[..., rows]).T


@dataclass(frozen=True, eq=False)
class _Tensor:
    """A tensor of a safetensors file, with bfloat16 as the float32 that NumPy has."""

    tensor: Any

    def __getattr__(self, name: str) -> Any:
        shape = tuple(self.tensor.get_shape())
        if name == "dtype":
            return self[:0].dtype
        return {"shape": shape, "ndim": len(shape)}[name]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        found = np.asarray(self.tensor[rows])
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def npy_arrays(path: Path) -> Arrays:
    """Return the array of an .npy file, memory-mapped."""
    with reading(path, "a NumPy array of numbers"):
        # A map is refused where the file is shorter than its header says; an array would be allocated first.
        return Arrays({"": np.load(path, mmap_mode="r", allow_pickle=False)}, "array", ExitStack())


def npz_arrays(path: Path) -> Arrays:
    """Return the arrays of an .npz file, each streamed."""
    stack = ExitStack()
    with reading(path, "an .npz file of numbers"):
        check_members(path)
        with zipfile.ZipFile(path) as archive:
            members = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name: StreamedArray(path, name) for name in members}
    if not arrays:
        raise InputError(f"{path} holds no array: save one with np.savez")
    for array in arrays.values():
        stack.callback(array.close)
    return Arrays(arrays, "array", stack)


def hdf_arrays(path: Path) -> Arrays:
    """Return the datasets of an HDF5 file, those of MATLAB turned as it shows them."""
    import h5py

    stack = ExitStack()
    with reading(path, "HDF5"):
        file = stack.enter_context(h5py.File(path, "r"))
    if "encoding-type" in file.attrs:
        stack.close()
        raise InputError(
            f"{path} is AnnData's: save its matrix with scipy.sparse.save_npz, and its classes as text"
        )
    arrays: dict[str, Any] = {}
    with path.open("rb") as raw:
        turned = raw.read(10) == b"MATLAB 7.3"

    def collect(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            arrays[name] = _Turned(entry) if turned else entry

    file.visititems(collect)
    return Arrays(arrays, "dataset", stack)


def mat_arrays(path: Path) -> Arrays:
    """Return the variables of a MATLAB file up to version 7."""
    found = loadmat(path)
    return Arrays(
        {name: value for name, value in found.items() if isinstance(value, np.ndarray)},
        "variable",
        ExitStack(),
    )


def safetensors_arrays(path: Path) -> Arrays:
    """Return the tensors of a safetensors file, memory-mapped."""
    from safetensors import SafetensorError, safe_open

    stack = ExitStack()
    try:
        file = stack.enter_context(safe_open(path, "np"))
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read as safetensors: {cause(error)}") from error
    return Arrays({name: _Tensor(file.get_slice(name)) for name in file.keys()}, "tensor", stack)  # noqa: SIM118


def zarr_arrays(path: Path) -> Arrays:
    """Return the array of a Zarr folder, or those of a group."""
    import zarr

    found = zarr.open(str(path), mode="r")
    arrays = {"": found} if isinstance(found, zarr.Array) else dict(found.arrays())
    return Arrays(arrays, "array", ExitStack())


class ArrayFeatures(FeatureFile):
    """An array (n, d) among those of a file; labels, splits and names of rows are others of them."""

    def __init__(self, path: Path, wanted: Names, found: Arrays) -> None:
        super().__init__(path, wanted)
        self._arrays, self._stack, self.kind = found.arrays, found.stack, found.kind
        self.names = [name for name in self._arrays if name]
        if not self.names:
            refuse_names(path, "one array", features_name=wanted.features, labels_name=wanted.labels)
        others = self.not_features() if self.names else set()
        rest = [name for name, array in self._arrays.items() if array.ndim == 2 and name not in others]
        rest = rest or [name for name in self._arrays if name not in others]
        name = pick(self.place, self.kind, wanted.features, FEATURE_NAMES, rest)
        if name is None:
            held = ", ".join(self.names) or "nothing"
            raise InputError(f"{path} holds {held}: say which are the features with --features-name")
        self.taken = [name]
        self._array = self._arrays[name]
        place = f"{name} in {path}" if name else str(path)
        self.n, self.d = check_matrix(place, self._array.shape, self._array.dtype)
        if path.is_file() and self.kind == "dataset":
            check_expansion(place, path.stat().st_size, self.n * self.d * self._array.dtype.itemsize)

    def close(self) -> None:
        """Close the file."""
        self._stack.close()

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 of the array."""
        try:
            return np.asarray(self._array[start:stop])
        except OSError as error:
            raise InputError(
                f"{self.place} cannot be read in rows {start}-{stop - 1}: {cause(error)}"
            ) from error

    def column(self, name: str) -> NDArray[Any]:
        """Return an array beside the features."""
        return values_of(self._arrays[name]) if name in self._arrays else super().column(name)


def values_of(array: Any) -> NDArray[Any]:
    """Return all that an array holds, text decoded from HDF5's bytes."""
    values = np.asarray(array[:])
    if values.dtype.kind not in "SO":
        return values
    words = [value.decode() if isinstance(value, bytes) else str(value) for value in values.ravel().tolist()]
    return np.asarray(words, dtype=str).reshape(values.shape)


class CsrFeatures(ArrayFeatures):
    """A sparse matrix as `scipy.sparse.save_npz` writes it: CSR is streamed, others are read at once."""

    def __init__(self, path: Path, wanted: Names, found: Arrays) -> None:
        FeatureFile.__init__(self, path, wanted)
        self._arrays, self._stack, self.kind = found.arrays, found.stack, found.kind
        self.taken = _SPARSE
        self.names = list(self._arrays)
        shape = self.column("shape").tolist()
        self._data, self._indices = self._arrays["data"], self._arrays.get("indices", self._arrays["data"])
        form = self.column("format").item() if "format" in self._arrays else "csr"
        self._whole = None if form == "csr" else csr_matrix(load_npz(path))
        self.n, self.d = check_matrix(self.place, shape, self._data.dtype)
        self._indptr = self.column("indptr").astype(np.int64) if self._whole is None else self._whole.indptr
        self.nonzeros = int(self._indptr[-1])
        if len(self._indptr) != self.n + 1 or self.nonzeros != self._data.shape[0]:
            raise InputError(
                f"{path} is not a valid CSR matrix: indptr, data and shape contradict each other"
            )

    def rows(self, start: int, stop: int) -> csr_matrix:  # type: ignore[override]
        """Return the next rows of the streams."""
        if self._whole is not None:
            return self._whole[start:stop]
        low, high = int(self._indptr[start]), int(self._indptr[stop])
        indices = self._indices[low:high]
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < self.d:
            raise InputError(
                f"{self.place} has column indices outside 0..{self.d - 1} in rows {start}-{stop - 1}"
            )
        values = (self._data[low:high], indices, self._indptr[start : stop + 1] - low)
        return csr_matrix(values, shape=(stop - start, self.d))


def array_reader(arrays_in: Callable[[Path], Arrays]) -> Callable[[Path, Names], FeatureFile]:
    """Return the reader of features in files whose arrays `arrays_in` returns."""

    def read(path: Path, wanted: Names) -> FeatureFile:
        found = arrays_in(path)
        parts = {"data", "shape", *({"indptr", "row"} & set(found.arrays) or {"indptr"})}
        sparse = parts <= set(found.arrays) and wanted.features is None
        return (CsrFeatures if sparse else ArrayFeatures)(path, wanted, found)

    return read
