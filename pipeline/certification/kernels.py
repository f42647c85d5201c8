"""Kernel values and scores for certificates, independent of the solvers.

With C = A / (lam n), the scores of a row x are sum_j k(x, x_j) c_j over the rows with c_j != 0, and |W|^2 is
the sum of <c_i, scores of x_i>: the sums of a linear model with the scores as features and identity weights.
Rows and coefficients are read in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.errors import InputError

Array = NDArray[np.float64]

# The kernel whose values the rows hold.
PRECOMPUTED = "precomputed"

# Bytes of kernel values in memory at once.
TILE_BYTES = 1 << 25
# Distances from inner products have this error relative to |x|^2 + |y|^2; where it moves an exponent by more
# than FINE, they are computed from differences, unless the value vanishes anyway.
ROUNDING, FINE, VANISHES = 8.0 * float(np.finfo(np.float64).eps), 1e-9, 50.0


class Parts:
    """Parts of the rows that carry a model; those beyond `room` bytes are read again each time."""

    def __init__(self, read: Callable[[int], tuple[Any, Array]], count: int, room: int) -> None:
        self._read, self._count, self._room = read, count, room
        self._held: list[tuple[Any, Array]] = []

    def __iter__(self) -> Iterator[tuple[Any, Array]]:
        yield from self._held
        for number in range(len(self._held), self._count):
            rows, C = self._read(number)
            self._room -= 8 * (rows.shape[0] * rows.shape[1] + C.size)
            if self._room > 0 and number == len(self._held):
                self._held.append((rows, C))
            yield rows, C


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The rows (s, d) in float64 that carry a model, with their coefficients (s, m), in parts."""

    record: Mapping[str, Any]
    parts: Iterable[tuple[Any, Array]]
    m: int

    def scores(self, X: Any) -> Array:
        """Return the scores (r, m) of rows X (r, d); raise `InputError` for an unknown kernel."""
        scores = np.zeros((X.shape[0], self.m))
        for rows, C in self.parts:
            step = max(1, TILE_BYTES // (8 * max(1, rows.shape[0])))
            for start in range(0, X.shape[0], step):
                tile = slice(start, start + step)
                scores[tile] += kernel_values(self.record, X[tile], rows) @ C
        return scores


def kernel_values(record: Mapping[str, Any], X: Any, Y: Any) -> Array:
    """Return k(x, y) of rows X and Y in float64; raise `InputError` for an unknown kernel."""
    parameters = dict(record)
    name = parameters.pop("name", None)
    if name not in KERNELS:
        raise InputError(f"the kernel {name!r} is not known here: the known ones are {sorted(KERNELS)}")
    return np.asarray(KERNELS[name](X, Y, **parameters), dtype=np.float64)


def unit_rows(numbers: NDArray[np.int64], n: int) -> Any:
    """Return the rows of these numbers of the n x n identity matrix."""
    ones = np.ones(len(numbers))
    return sparse.csr_matrix((ones, numbers, np.arange(len(numbers) + 1)), shape=(len(numbers), n))


def _linear(X: Any, Y: Any) -> Array:
    products: Any = X @ Y.T
    return np.asarray(products.toarray() if hasattr(products, "toarray") else products, dtype=np.float64)


def _rbf(X: Any, Y: Any, gamma: float) -> Array:
    left, right = _squares(X), _squares(Y)
    squares = _linear(X, Y)
    squares *= 2.0
    np.subtract(left[:, None] + right, squares, out=squares)
    if gamma * ROUNDING * (left.max(initial=0.0) + right.max(initial=0.0)) > FINE:
        _take_differences(X, Y, gamma, ROUNDING * (left[:, None] + right), squares)
    np.maximum(squares, 0.0, out=squares)
    squares *= -gamma
    return np.asarray(np.exp(squares, out=squares))


def _take_differences(X: Any, Y: Any, gamma: float, rounding: Array, squares: Array) -> None:
    """Replace relevant squared distances with too much rounding, in place."""
    wrong = np.argwhere((gamma * rounding > FINE) & (gamma * (squares - rounding) < VANISHES))
    for i in np.unique(wrong[:, 0]):
        near = wrong[wrong[:, 0] == i, 1]
        squares[i, near] = _squares(Y[near] - X[np.full(len(near), i)])


def _squares(X: Any) -> Array:
    squares: Any = X.multiply(X) if hasattr(X, "multiply") else np.square(X)
    return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def _chi2(X: Any, Y: Any, gamma: float) -> Array:
    from sklearn.metrics.pairwise import additive_chi2_kernel  # scikit-learn takes a second to import

    return np.asarray(np.exp(gamma * additive_chi2_kernel(X, Y)))


def _laplacian(X: Any, Y: Any, gamma: float) -> Array:
    from sklearn.metrics.pairwise import manhattan_distances

    return np.asarray(np.exp(-gamma * manhattan_distances(X, Y)))


def _intersection(X: Any, Y: Any) -> Array:
    # min(x, y) = (x + y - |x - y|) / 2 for non-negative features.
    from sklearn.metrics.pairwise import manhattan_distances

    return np.asarray(0.5 * (X.sum(axis=1)[:, None] + Y.sum(axis=1) - manhattan_distances(X, Y)))


def _groups(X: Any, Y: Any, groups: Iterable[Mapping[str, Any]]) -> Iterable[Array]:
    for group in groups:
        features = slice(group["start"], group["stop"])
        yield group["weight"] * kernel_values(group["kernel"], X[:, features], Y[:, features])


# Formula of each kernel, by its name in a model's record.
KERNELS: dict[str, Callable[..., Array]] = {
    "linear": _linear,
    "rbf": _rbf,
    "polynomial": lambda X, Y, degree, gamma, coef0: (gamma * _linear(X, Y) + coef0) ** degree,
    "chi2": _chi2,
    "laplacian": _laplacian,
    "intersection": _intersection,
    "sum": lambda X, Y, groups: reduce(np.add, _groups(X, Y, groups)),
    "product": lambda X, Y, groups: reduce(np.multiply, _groups(X, Y, groups)),
    # X holds the values with all training rows, and Y selects some of them by rows of the identity.
    PRECOMPUTED: _linear,
}
