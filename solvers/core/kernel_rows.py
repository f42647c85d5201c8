"""Rows of the kernelised dual that go from block to block, and which A scores belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from topline.solvers.core.codec import stored
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@stored
@dataclass(frozen=True)
class Mark:
    """Which A the scores of a block belong to: of which rebuild, after which round and part of it."""

    built: int = 0
    round: int = 0
    part: int = 0


class PairValues(Protocol):
    """What blocks ask of a kernel."""

    @property
    def name(self) -> str:
        """Its name; that of a precomputed one says that the rows hold the values themselves."""
        ...

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) in float64."""
        ...


@dataclass(frozen=True, eq=False)
class Change:
    """Rows of a change of A, or of A itself, each times its weight.

    Attributes
    ----------
    numbers : (r,) the rows, ascending.
    X : (r, d) their features.
    values : (r, m).
    """

    numbers: Int64Array
    X: Rows
    values: FloatArray

    def merge(self, other: Change) -> Change:
        """Return the rows of both."""
        return Change(
            np.concatenate([self.numbers, other.numbers]),
            _stacked(self.X, other.X),
            np.concatenate([self.values, other.values]),
        )


@dataclass(frozen=True, eq=False)
class PickedRows:
    """Rows that are updated together: features (r, d), labels, weights, dual rows and scores (r, m)."""

    numbers: Int64Array
    X: Rows
    y: IntArray
    weights: Float64Array
    A: FloatArray
    scores: FloatArray

    def merge(self, other: PickedRows) -> PickedRows:
        """Return the rows of both."""
        joined = (
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("y", "weights", "A", "scores")
        )
        numbers = np.concatenate([self.numbers, other.numbers])
        return PickedRows(numbers, _stacked(self.X, other.X), *joined)


def _stacked(above: Rows, below: Rows) -> Rows:
    if is_sparse(above):
        return sparse.csr_matrix(sparse.vstack([above, below], format="csr"))
    return np.concatenate([above, below])
