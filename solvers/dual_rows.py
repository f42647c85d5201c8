"""Dual rows of one block: as one array, or packed under a budget of bytes.

Whatever the form, the numbers are those of the array: what is read is what was written, to the last bit, but
for the sign of a zero.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from solvers.typing import FloatArray


class DualStore(Protocol):
    """Rows (rows, m) of floats, all zero at first."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, m)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory now."""
        ...

    @property
    def dense(self) -> FloatArray | None:
        """The array itself, whose changes are changes of the store; None where there is no such array."""
        ...

    def read(self, start: int, stop: int, /) -> FloatArray:
        """Give the rows [start, stop), C-contiguous: a view where dense, else a fresh array.

        Changes of it count only once they are written back.
        """
        ...

    def write(self, start: int, stop: int, values: FloatArray, /) -> None:
        """Replace the rows [start, stop) by values (stop - start, m) of any float type."""
        ...

    def clear(self) -> None:
        """Make every row zero."""
        ...

    def widen(self) -> None:
        """Keep the rows in float64 from now on; `dense` is then another array."""
        ...


class DenseStore:
    """One array in memory."""

    def __init__(self, rows: int, m: int, dtype: np.dtype[Any]) -> None:
        self._values: FloatArray = np.zeros((rows, m), dtype=dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, m)."""
        return len(self._values), self._values.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64."""
        return self._values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory now."""
        return self._values.nbytes

    @property
    def dense(self) -> FloatArray:
        """The array itself."""
        return self._values

    def read(self, start: int, stop: int) -> FloatArray:
        """Give a view of the rows [start, stop)."""
        return self._values[start:stop]

    def write(self, start: int, stop: int, values: FloatArray) -> None:
        """Replace the rows [start, stop), unless `values` is the view that `read` gave of them."""
        place = self._values[start:stop]
        if values.__array_interface__ != place.__array_interface__:
            place[...] = values

    def clear(self) -> None:
        """Make every row zero."""
        self._values[:] = 0.0

    def widen(self) -> None:
        """Keep the rows in float64 from now on."""
        self._values = self._values.astype(np.float64)
