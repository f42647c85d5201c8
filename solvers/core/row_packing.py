"""Rows that are mostly zero, packed into bytes and unpacked again, compiled.

Packed rows (r, m) are the values that are not zero, row after row, then the place where each row begins
among them (r + 1 numbers), then their columns.  Rows of zeros alone take no byte, and rows that would not be
shorter for it stay as they are, which their length tells.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topline.solvers.jit_cache import jit
from topline.solvers.typing import FloatArray, IntArray

#: What rows are packed into.
Bytes: TypeAlias = NDArray[np.uint8]

_PLACE = np.dtype(np.uint32)


@jit
def count_values(rows: FloatArray, places: IntArray) -> int:
    """Count what is not zero in rows (r, m); places (r + 1,) take the counts before each row."""
    total = 0
    for i in range(rows.shape[0]):
        places[i] = total
        for j in range(rows.shape[1]):
            total += rows[i, j] != 0.0
    places[rows.shape[0]] = total
    return total


@jit
def gather_values(rows: FloatArray, values: FloatArray, columns: IntArray) -> None:
    """Write what is not zero in rows (r, m), and its columns."""
    k = 0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if rows[i, j] != 0.0:
                values[k] = rows[i, j]
                columns[k] = j
                k += 1


@jit
def scatter_values(values: FloatArray, places: IntArray, columns: IntArray, out: FloatArray) -> None:
    """Write out (r, m): row i has the values from places[i] to places[i + 1] in their columns, else zero."""
    for i in range(out.shape[0]):
        out[i, :] = 0.0
        for k in range(places[i], places[i + 1]):
            out[i, columns[k]] = values[k]


def pack(rows: FloatArray) -> Bytes:
    """Return the bytes of rows (r, m), a C-contiguous array."""
    places = np.empty(len(rows) + 1, dtype=_PLACE)
    count = count_values(rows, places)
    if count == 0:
        return np.empty(0, dtype=np.uint8)
    size = count * (rows.itemsize + _column_dtype(rows.shape[1]).itemsize) + places.nbytes
    if size >= rows.nbytes:
        return rows.reshape(-1).view(np.uint8).copy()
    packed = np.empty(size, dtype=np.uint8)
    values, kept_places, columns = _parts(packed, len(rows), rows.shape[1], rows.dtype)
    kept_places[:] = places
    gather_values(rows, values, columns)
    return packed


def unpack(packed: Bytes, first: int, rows: int, out: FloatArray) -> None:
    """Write the rows first, first + 1, ... of so many packed `rows` to out (r, m), which is of their type."""
    if len(packed) == 0:
        out[:] = 0.0
    elif len(packed) == rows * out.shape[1] * out.itemsize:
        out[:] = packed.view(out.dtype).reshape(rows, -1)[first : first + len(out)]
    else:
        values, places, columns = _parts(packed, rows, out.shape[1], out.dtype)
        scatter_values(values, places[first : first + len(out) + 1], columns, out)


def _parts(packed: Bytes, rows: int, m: int, dtype: np.dtype[Any]) -> tuple[FloatArray, IntArray, IntArray]:
    """Return values, places and columns as views of the bytes of rows that are shorter for being packed."""
    column = _column_dtype(m)
    ends = (rows + 1) * _PLACE.itemsize
    count = (len(packed) - ends) // (dtype.itemsize + column.itemsize)
    values = count * dtype.itemsize
    return (
        packed[:values].view(dtype),
        packed[values : values + ends].view(_PLACE),
        packed[values + ends :].view(column),
    )


def _column_dtype(m: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if m <= 1 << 16 else np.uint32)
