"""Wsabie and Wsabie++: classes and examples in one space of few dimensions, by sampled ranks.

    f_j(x) = <U^T x, v_j>,   U (d, D), V (D, m),   rows of U and columns of V at most `radius` long
    min over U, V of sum_i L(rank_i) max(0, 1 + f_j - f_y),   L(r) = 1 + 1/2 + ... + 1/r

A step draws classes j != y until one violates the margin, f_j > f_y - 1; after N draws the rank of y is taken
to be (m - 1) / N, rounded down (WARP).  Steps are AdaGrad's.  Wsabie++ does not draw the last `memory`
classes that violated the margin of a class y for an example of y again, so that pairs that nobody can tell
apart do not take all steps; memory 0 is Wsabie with AdaGrad.

The problem is not convex and the method samples: there is no certificate, and the last iterate is the result.
Source: J. Weston, S. Bengio, N. Usunier, "Wsabie: scaling up to large vocabulary image annotation", IJCAI
2011; M. Gupta, S. Bengio, J. Weston, "Training highly multiclass classifiers", JMLR 15, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reproduce.baselines.rows import finite_rows
from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array

UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]
#: Keeps the first step of a coordinate finite.
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class WsabieResult:
    """What `fit_wsabie` reached.

    `U` (d, D) takes examples to the space of `V` (D, m), in which `classes` (m,) are.  `violated` (epochs,)
    is the share of the examples of each epoch for which a violating class was drawn.
    """

    U: Float64Array
    V: Float64Array
    classes: np.ndarray[Any, Any]
    violated: Float64Array

    @property
    def W(self) -> Float64Array:
        """Weights (d, m) that score as the product of the two does."""
        return self.U @ self.V

    def scores(self, X: Any) -> Float64Array:
        """Return the scores (rows, m) of X (rows, d), dense or CSR."""
        return np.asarray((X @ self.U) @ self.V)


def fit_wsabie(
    X: Any,
    y: Any,
    *,
    dimension: int,
    memory: int = 0,
    radius: float = 10.0,
    step: float = 0.1,
    epochs: int = 30,
    seed: int = 0,
) -> WsabieResult:
    """Train on X (n, d) dense and labels y (n,) of two or more classes, by `epochs` turns over the rows.

    Raises InvalidProblemError where X is sparse, there is one class, `memory` leaves no class to draw, or a
    number is out of its range, and NonFiniteError for NaN or infinity in X.
    """
    X = finite_rows(X)
    if is_sparse(X):
        raise InvalidProblemError("Wsabie takes features as an array; give X.toarray()")
    X = np.ascontiguousarray(X, dtype=np.float64)
    seed, memory = (
        positive_integer("seed", seed, or_zero=True),
        memory if memory == 0 else positive_integer("memory", memory),
    )
    classes, labels = named_classes(y)
    m, dimension = len(classes), positive_integer("dimension", dimension)
    if np.ndim(y) != 1 or len(labels) != len(X) or m < 2:
        raise InvalidProblemError(
            f"y has the shape {np.shape(y)} and {m} classes; give a label for each of {len(X)} rows, of at"
            " least two classes"
        )
    if memory >= m - 1:
        raise InvalidProblemError(f"memory is {memory} of {m} classes; give 0 to {m - 2}")
    radius, step = positive_number("radius", radius), positive_number("step", step)
    epochs = positive_integer("epochs", epochs)
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(X.shape[1], dimension)) / np.sqrt(dimension)
    V = rng.normal(size=(dimension, m)) / np.sqrt(dimension)
    columns = np.ascontiguousarray(shortened(V.T, radius))
    U = shortened(U, radius)
    squares_U, squares_V = np.full_like(U, _TINY), np.full_like(columns, _TINY)
    recent = np.full((m, memory + 1), -1, dtype=np.int64)
    state = rng.integers(1, 2**63, size=1, dtype=np.uint64)
    violated = [
        _epoch(
            X, labels.astype(np.int64), rng.permutation(len(X)), U, columns, squares_U, squares_V, recent,
            memory, radius, step, state,
        )
        / len(X)
        for _ in range(epochs)
    ]  # fmt: skip
    if not (np.isfinite(squares_U).all() and np.isfinite(squares_V).all()):
        raise NonFiniteError("the squares of the gradients overflowed; scale the features")
    return WsabieResult(U, np.ascontiguousarray(columns.T), classes, np.array(violated))


def named_classes(y: Any) -> tuple[np.ndarray[Any, Any], Int64Array]:
    """Return the classes (m,), sorted, and the number of each row's; refuse a row without one."""
    labels = np.asarray(y)
    missing = [row for row, label in enumerate(labels.ravel()) if label is None or label != label]
    if missing:
        raise InvalidProblemError(f"row {missing[0]} has no label: drop such rows, or give them a label")
    classes, numbers = np.unique(labels, return_inverse=True)
    return classes, numbers


def shortened(rows: Float64Array, radius: float) -> Float64Array:
    """Return rows, those longer than `radius` at that length."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows * np.minimum(1.0, radius / np.maximum(lengths, _TINY)))


@jit
def draw_violator(
    scores: Float64Array, y: int, recent: Int64Array, memory: int, state: UInt64Array
) -> tuple[int, int]:
    """Return a class that violates the margin of y, -1 where m - 1 draws find none, and how many draws.

    `recent` (memory + 1) holds the last violators of y, which are not drawn; `state` (1,) is that of the
    random numbers, xorshift's.
    """
    m, own = scores.shape[0], np.int64(y)
    for draw in range(1, m):
        j = own
        while j == own:
            word = state[0]
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            state[0] = word
            j = np.int64(word % np.uint64(m))
            for place in range(memory):
                if recent[place] == j:
                    j = own
                    break
        if scores[j] > scores[own] - 1.0:
            return int(j), draw
    return -1, m - 1


@jit
def rank_weight(m: int, draws: int) -> float:
    """Return L of the rank that so many draws stand for."""
    total = 0.0
    for r in range((m - 1) // draws):
        total += 1.0 / (r + 1.0)
    return total


@jit
def _stepped(
    row: Float64Array, gradient: Float64Array, squares: Float64Array, step: float, radius: float
) -> None:
    """Take AdaGrad's step in a row, and draw it back to the ball."""
    length = 0.0
    for f in range(row.shape[0]):
        squares[f] += gradient[f] * gradient[f]
        row[f] -= step * gradient[f] / np.sqrt(squares[f])
        length += row[f] * row[f]
    if length > radius * radius:
        row *= radius / np.sqrt(length)


@jit
def _epoch(
    X: Float64Array,
    y: Int64Array,
    order: Int64Array,
    U: Float64Array,
    columns: Float64Array,
    squares_U: Float64Array,
    squares_V: Float64Array,
    recent: Int64Array,
    memory: int,
    radius: float,
    step: float,
    state: UInt64Array,
) -> int:
    """Go over the rows once in this order, changing U, the columns of V and what they remember.

    Return how many rows had a violator.
    """
    d, D = U.shape
    z, gap, scores, gradient = np.empty(D), np.empty(D), np.empty(columns.shape[0]), np.empty(D)
    found = 0
    for i in order:
        own = y[i]
        _embed(X[i], U, columns, z, scores)
        other, draws = draw_violator(scores, own, recent[own], memory, state)
        if other < 0:
            continue
        found += 1
        _remember(recent[own], memory, other)
        weight = rank_weight(scores.shape[0], draws)
        for g in range(D):
            gap[g] = weight * (columns[other, g] - columns[own, g])
            gradient[g] = weight * z[g]
        _stepped(columns[other], gradient, squares_V[other], step, radius)
        for g in range(D):
            gradient[g] = -gradient[g]
        _stepped(columns[own], gradient, squares_V[own], step, radius)
        for f in range(d):
            if X[i, f] != 0.0:
                for g in range(D):
                    gradient[g] = X[i, f] * gap[g]
                _stepped(U[f], gradient, squares_U[f], step, radius)
    return found


@jit
def _embed(
    x: Float64Array, U: Float64Array, columns: Float64Array, z: Float64Array, scores: Float64Array
) -> None:
    """Write U^T x to z and the scores of all classes to `scores`."""
    z[:] = 0.0
    for f in range(x.shape[0]):
        if x[f] != 0.0:
            for g in range(z.shape[0]):
                z[g] += x[f] * U[f, g]
    for j in range(scores.shape[0]):
        total = 0.0
        for g in range(z.shape[0]):
            total += z[g] * columns[j, g]
        scores[j] = total


@jit
def _remember(recent: Int64Array, memory: int, other: int) -> None:
    """Put a violator first and forget the oldest."""
    for place in range(memory - 1, 0, -1):
        recent[place] = recent[place - 1]
    if memory > 0:
        recent[0] = other
