"""Second-order sums of one block, for the steps of Newton's method.

u of an envelope is piecewise linear in the scores of a row for the hinges and smooth for the entropies, so a
difference along a short step is J_i = -du/dq times the step for every loss, exact up to rounding unless a
kink lies between.  Hessians are sums of J_i over rows.  Values that a block keeps between the operations of a
round (`topline.solvers.operations.second_order`), within a budget, only save work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.blocks.vertices import DenseVertices
from topline.solvers.core.answers import Clock
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.crew import ALONE, Crew
from topline.solvers.errors import UnsupportedCombinationError
from topline.solvers.jit_cache import jit
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Step of a difference of u: this share of the distance over which u can change by its whole range, or by a
#: hinge's size, and at least this share of the scores, so that it is not rounding.
_SHORT, _RESOLVED = 1e-7, 1e-9
#: A change of u below this share of the change for a unit J is rounding.
_FLAT = 1e-4
#: The same for a smooth loss, whose J is nowhere exactly zero.
_FLAT_SMOOTH = 1e-7
#: Steps of R. McWeeny's purification (Rev. Mod. Phys. 32, 1960), each of which squares the distance from a
#: projector, and the distance beyond which a matrix is left alone: its row is at a kink.
_PURIFIED, _KINKED = 2, 0.1
#: Rows whose matrices are purified at once.
_DRAWN_ROWS = 256


@dataclass(frozen=True, eq=False)
class CurvedRows:
    """Rows of a tile with non-zero J.

    `scores` are q, `U` is u(q), `classes` marks the classes in which u moves, and `X` is None if their
    features are to be read again.
    """

    rows: IntArray
    y: IntArray
    weights: Float64Array
    scores: FloatArray
    U: FloatArray
    classes: Any = None
    X: Rows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of everything but X."""
        kept = self.rows, self.y, self.weights, self.scores, self.U, self.classes
        return sum(int(part.nbytes) for part in kept if part is not None)

    def of(self, rows: IntArray) -> CurvedRows:
        """Return some of the rows, without features."""
        return CurvedRows(
            self.rows[rows], self.y[rows], self.weights[rows], self.scores[rows], self.U[rows],
            self.classes[rows],
        )  # fmt: skip


class Envelopes:
    """Phi_c of a problem, c = gamma + sigma; sigma is 0 for a smooth loss."""

    def __init__(self, problem: Problem, sigma: float, crew: Crew = ALONE) -> None:
        if sigma > 0:
            problem = replace(problem, smoothing=problem.smoothing + sigma)
        self._vertices = DenseVertices(problem, smoothed=True, crew=crew)
        self._curvature, self._smooth = problem.form.family.curvature, problem.form.smooth
        self._form = problem.form
        self._all_smoothed = problem.own_share == 1.0
        #: c, the scale over which u moves by its whole range; 1 for a smooth loss.
        self._stiffness = problem.smoothing or 1.0
        self.mix_later, self.accumulate = self._vertices.mix_later, self._vertices.accumulate
        self.find = self._vertices.find

    def gradients(self, scores: FloatArray, y: IntArray, weights: Float64Array) -> FloatArray:
        """Return u of some rows."""
        U = scores.copy()
        self.find(U, y, weights, np.zeros(ranking.N_SUMS))
        return U

    def weighed(self, curved: CurvedRows, T: FloatArray) -> FloatArray:
        """Return w_i J_i t_i for the rows of T (r, m), in its precision."""
        if self._curvature is not None:
            product, U = np.empty_like(T), curved.U.astype(T.dtype, copy=False)
            self._curvature.times(U, curved.y, curved.weights, self._form.table, T, product)
            return product
        return np.asarray(self.moved(curved, T) * curved.weights[:, None], dtype=T.dtype)

    @property
    def closed(self) -> bool:
        """Whether J follows from u by a formula."""
        return self._curvature is not None

    def pairs(self, curved: CurvedRows, dtype: np.dtype[Any]) -> FloatArray:
        """Return w_i J_i,jk for k <= j of every row, shape (r, m (m + 1) / 2), by the formula."""
        if self._curvature is None:
            raise UnsupportedCombinationError(
                "the curvature of this loss has no closed form; ask for products"
            )
        m = curved.U.shape[1]
        entries = np.empty((len(curved.U), m * (m + 1) // 2), dtype)
        self._curvature.pairs(curved.U, curved.y, curved.weights, self._form.table, entries)
        return entries

    def moved(self, curved: CurvedRows, T: Any) -> Float64Array:
        """Return J_i t_i for the rows of T (r, m), by a difference of u."""
        largest = np.abs(T).max(axis=1, keepdims=True).astype(np.float64)
        step = self._reach(curved) / np.where(largest > 0.0, largest, 1.0)
        at = self.gradients(curved.scores + step * T, curved.y, curved.weights)
        return np.asarray((curved.U - at) / step)

    def _reach(self, curved: CurvedRows) -> Float64Array:
        """Return a change of each row's scores (r, 1), short compared with the distance to the next kink."""
        if self._smooth:
            return np.full((len(curved.U), 1), _SHORT * self._stiffness)
        # For a large C and a small loss all u are small, and the kinks of a wide envelope equally close.
        size = float(np.abs(curved.U).max(initial=0.0)) or 1.0
        resolved = _RESOLVED * np.abs(curved.scores).max(axis=1, keepdims=True)
        return np.asarray(np.maximum(_SHORT * self._stiffness * min(size, 1.0), resolved))

    def moving(self, curved: CurvedRows, seed: tuple[int, int]) -> Any:
        """Return in which classes u of each row moves: by its formula, or by one short random step."""
        if self._curvature is not None:
            # J_jj = |u_j| (1 - |u_j|) is the largest entry of its row.
            return np.abs(curved.U) > _FLAT_SMOOTH
        probe = np.random.default_rng(seed).standard_normal(curved.scores.shape)
        largest = np.abs(probe).max(axis=1, keepdims=True)
        flat = (_FLAT_SMOOTH if self._smooth else _FLAT) / self._stiffness
        return np.abs(self.moved(curved, probe)) > flat * largest

    def jacobians(self, curved: CurvedRows) -> Float64Array:
        """Return J_i (r, m, m), symmetric, 0 except for pairs of classes in which u moves.

        If all scores are smoothed, u is a projection onto a polytope, divided by c, and c J is the projector
        onto the directions of a face.  Differences are purified to it: their rounding may be large compared
        with lam.
        """
        m = curved.scores.shape[1]
        J = np.zeros((len(curved.scores), m, m))
        support = np.zeros(curved.scores.shape, dtype=np.bool_)
        # One random step may leave a class unmoved by chance, but no other class of its face.
        found = curved.classes
        while found.any():
            self._add_columns(J, curved, found)
            support |= found
            found = np.any(J != 0.0, axis=2) & ~support
        for rows, classes in _alike_rows(support):
            at = rows[:, None, None], classes[:, :, None], classes[:, None, :]
            part = J[at]
            part = 0.5 * (part + part.transpose(0, 2, 1))
            J[at] = _purified(self._stiffness * part) / self._stiffness if self._all_smoothed else part
        return J

    def _add_columns(self, J: Float64Array, curved: CurvedRows, classes: Any) -> None:
        """Write the columns of some classes (r, m) of each row to J (r, m, m), with rounding set to 0."""
        m = J.shape[1]
        for k, unit in enumerate(np.eye(m)):
            rows = np.flatnonzero(classes[:, k])
            if rows.size:
                column = self.moved(curved.of(rows), np.broadcast_to(unit, (len(rows), m)))
                J[rows, :, k] = np.where(np.abs(column) > _FLAT / self._stiffness, column, 0.0)

    def diagonals(self, curved: CurvedRows) -> Float64Array:
        """Return J_i,jj (r, m), as if J centred the classes in which u moves, or from u of an entropy."""
        if self._smooth:
            sizes = np.abs(curved.U)
            return np.asarray(sizes * np.maximum(1.0 - sizes, 0.0))
        count = curved.classes.sum(axis=1, keepdims=True)
        share = np.where(count > 1, 1.0 - 1.0 / np.maximum(count, 1), 1.0)
        return np.asarray(curved.classes * share / self._stiffness)


def _alike_rows(classes: Any) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield batches of rows (r,) with k of the classes (n, m) set, and these classes (r, k)."""
    counts = classes.sum(axis=1)
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        for start in range(0, len(rows), _DRAWN_ROWS):
            some = rows[start : start + _DRAWN_ROWS]
            yield some, np.nonzero(classes[some])[1].reshape(len(some), count)


def _purified(near: Float64Array) -> Float64Array:
    """Return the projectors nearest to symmetric matrices (r, m, m); unchanged if none is near."""
    square = near @ near
    kinked = np.abs(square - near).max(axis=(1, 2), initial=0.0) > _KINKED
    projectors = near
    for _ in range(_PURIFIED):
        projectors = 3.0 * square - 2.0 * square @ projectors
        square = projectors @ projectors
    projectors[kinked] = near[kinked] @ near[kinked]
    return projectors


def diagonal_blocks(
    curved_rows: Iterable[tuple[CurvedRows, Rows]],
    envelopes: Envelopes,
    problem: Problem,
    clock: Clock,
    stride: int = 1,
) -> tuple[Float64Array, int]:
    """Sum J_i,jj x_i x_i^T for every class j, with J as if it centred the classes in which u moves.

    One curved row of a tile in `stride` stands for all.  Returns (m d, d), and the number of these rows.
    """
    m, d = problem.m, problem.d
    grams, visited = np.zeros((m, d, d)), 0
    for curved, X in curved_rows:
        clock.product()
        diagonals = envelopes.diagonals(curved) * curved.weights[:, None]
        taken = diagonals[::stride] * (len(diagonals) / len(diagonals[::stride]))
        clock.row_work()
        add_weighted_grams(grams, X[::stride], taken)
        visited += len(taken)
        clock.product()
    return grams.reshape(m * d, d), visited


def hessian(
    curved_rows: Iterable[tuple[CurvedRows, Rows]], envelopes: Envelopes, problem: Problem, clock: Clock
) -> tuple[Float64Array, int]:
    """Sum J_i,jk x_i x_i^T for every pair of classes j and k; return (m d, m d), and the number of rows."""
    m, d = problem.m, problem.d
    second, first = np.tril_indices(m)
    total, visited = np.zeros((len(first), d, d)), 0
    for curved, X in curved_rows:
        clock.product()
        if envelopes.closed:
            entries = envelopes.pairs(curved, X.dtype)
        else:
            entries = envelopes.jacobians(curved)[:, second, first] * curved.weights[:, None]
        clock.row_work()
        add_weighted_grams(total, X, entries)
        visited += len(curved.rows)
        clock.product()
    # Column-major for LAPACK.
    matrix = np.empty((m * d, m * d), order="F")
    columns = matrix.T.reshape(m, d, m, d)
    for pair, j, k in zip(total, second, first, strict=True):
        columns[k, :, j, :] = columns[j, :, k, :] = pair.T
    return matrix, visited


#: Default limit of the bytes kept by a block.
_KEPT_BYTES = 5 << 29
#: Bytes of gathered rows among them.
_GATHERED_BYTES = 1 << 28
#: Score-shaped arrays kept: scores and moves; for a smooth loss also u at the point and along the line.
_ARRAYS, _ARRAYS_SMOOTH = 2, 4


def most_kept(rows: int, m: int, features: int, *, smooth: bool) -> int:
    """Return the bytes that blocks of `rows` rows can use in all, for float32 `features` (bytes).

    Every row then counts as curved: its scores and u in float64, its moving classes, number, label and
    weight.
    """
    a_number = 4 * (_ARRAYS_SMOOTH if smooth else _ARRAYS) + 17
    return (a_number * m + 20) * rows + min(features, _GATHERED_BYTES)


@dataclass(frozen=True, eq=False)
class EnvelopePoint:
    """The point of the envelopes of a proximal step on the dual: weights W (d, m), after `pending_step`.

    Attributes
    ----------
    sigma : weight >= 0 of the proximal term sigma/(2n) |A - A_t|^2.
    exact : products in float64, not in the precision of the features.
    last_step : the step from the last point along the V of its slopes, which a block that still has their
        scores uses instead of products with W; NaN for products.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    sigma: float = 0.0
    exact: bool = False
    last_step: float = math.nan


@dataclass(frozen=True, eq=False)
class Found:
    """u of a smooth loss in every tile, `step` along the line from the point of a round, and its sums."""

    step: float
    U: dict[int, FloatArray] = field(default_factory=dict)
    sums: Float64Array = field(default_factory=lambda: np.zeros(ranking.N_SUMS))


class KeptTiles:
    """Values shared by operations at one point, for the `tiles` of a block with `numbers` scores.

    Attributes
    ----------
    scores, moves : X W and X V by the number of the tile; all tiles, or none if they exceed the budget.
    curved : the rows with non-zero J by the number of the tile, None if a tile has none; as many tiles as the
        budget holds.
    here, ahead : u of a smooth loss at the point, and at the last trial along the line.
    """

    lasting: ClassVar[str] = "round"

    def __init__(self, tiles: int, numbers: int, kept_bytes: int | None) -> None:
        self._tiles, self._numbers = tiles, numbers
        self._most = _KEPT_BYTES if kept_bytes is None else kept_bytes
        self._left = self._gatherable = 0
        self._place: tuple[int, bool] | None = None
        self.whole = False
        self.scores: dict[int, FloatArray] = {}
        self.moves: dict[int, FloatArray] = {}
        self.curved: dict[int, CurvedRows | None] = {}
        self.here: Found | None = None
        self.ahead: Found | None = None

    def stand_at(self, point: EnvelopePoint, itemsize: int) -> None:
        """Move to a point, with numbers of this item size; scores that can be updated stay."""
        place = point.round, point.exact
        if place == self._place:
            return
        follows = self._place == (point.round - 1, point.exact) and len(self.scores) == self._tiles
        if follows and point.last_step != 0.0:
            follows = math.isfinite(point.last_step) and len(self.moves) == self._tiles
        if not follows:
            self.scores.clear()
        elif point.last_step != 0.0:
            for number, moves in self.moves.items():
                self.scores[number] += np.asarray(point.last_step * moves, dtype=moves.dtype)
        if not follows or point.last_step != 0.0:
            reached = follows and self.ahead is not None and self.ahead.step == point.last_step
            self.here = self.ahead if reached else None
        self.ahead = None
        self.moves.clear()
        self.curved.clear()
        arrays = (_ARRAYS if point.sigma > 0 else _ARRAYS_SMOOTH) * self._numbers * itemsize
        self.whole = arrays <= self._most
        self._left = self._most - (arrays if self.whole else 0)
        self._gatherable = min(self._left, _GATHERED_BYTES)
        self._place = place

    @property
    def has_line(self) -> bool:
        """Whether scores and moves of every tile are kept, so that no features are read for them."""
        return len(self.moves) == len(self.scores) == self._tiles

    @property
    def has_curved(self) -> bool:
        """Whether all curved rows are kept, with their features."""
        return len(self.curved) == self._tiles and all(
            rows is None or rows.X is not None for rows in self.curved.values()
        )

    def keep_curved(self, number: int, rows: CurvedRows | None, X: Rows) -> CurvedRows | None:
        """Keep the curved rows of tile `number` if there is room; return them, with features if those fit.

        X are all features of the tile.
        """
        left = self._left - (0 if rows is None else rows.nbytes)
        if left < 0:
            return rows
        if rows is not None:
            size = len(rows.rows) * (X.shape[1] if not is_sparse(X) else 2 * X.nnz / X.shape[0])
            nbytes = int(size * X.dtype.itemsize)
            if nbytes <= min(self._gatherable, left):
                self._gatherable -= nbytes
                left -= nbytes
                rows = replace(rows, X=X[rows.rows])
        self._left = left
        self.curved[number] = rows
        return rows


#: At least this many Gram matrices, of at most this many columns, share the products of all pairs of columns.
_MANY_GRAMS, _FEW_COLUMNS = 12, 128
#: Columns up to which rows with few matrices are added one by one.
_NARROW = 48
#: Rows whose pairs stay in the cache until they are used.
_ROWS_OF_PAIRS = 256


def add_weighted_grams(grams: Float64Array, X: Rows, weights: FloatArray) -> None:
    """Add sum_i weights[i, q] x_i x_i^T for every column q of weights (r, q) to grams (q, d, d)."""
    count, d = weights.shape[1], X.shape[1]
    few = 2 * np.count_nonzero(weights) < weights.size
    if few and d <= _NARROW and not is_sparse(X):
        _add_few(grams, X, weights)
        return
    if is_sparse(X) or few or count < _MANY_GRAMS or d > _FEW_COLUMNS:
        for q in range(count):
            grams[q] += weighted_gram(X, weights[:, q])
        return
    room = np.empty((min(_ROWS_OF_PAIRS, len(weights)), d * (d + 1) // 2), X.dtype)
    total, weights = np.zeros((count, room.shape[1])), weights.astype(X.dtype, copy=False)
    for start in range(0, len(weights), _ROWS_OF_PAIRS):
        part = X[start : start + _ROWS_OF_PAIRS]
        pairs = room[: len(part)]
        _pairs(part, pairs)
        total += weights[start : start + len(part)].T @ pairs
    rows, columns = np.tril_indices(d)
    gram = np.empty((d, d))
    for q in range(count):
        gram[rows, columns] = gram[columns, rows] = total[q]
        grams[q] += gram


def weighted_gram(X: Rows, weights: FloatArray) -> Float64Array:
    """Return sum w_i x_i x_i^T (d, d) over the rows whose weight is not 0."""
    rows = np.flatnonzero(weights)
    if not rows.size:
        return np.zeros((X.shape[1], X.shape[1]))
    part = X if len(rows) == len(weights) else X[rows]
    if not is_sparse(part) and (weights >= 0).all():
        # BLAS computes half of a product of a matrix with itself.
        part = part * np.sqrt(weights[rows, None]).astype(X.dtype)
        return np.asarray(part.T @ part)
    scaled = weights[rows, None].astype(X.dtype)
    product = part.multiply(scaled).T @ part if is_sparse(part) else (part * scaled).T @ part
    return np.asarray(product.toarray() if is_sparse(product) else product)


@jit
def _add_few(grams: Float64Array, X: FloatArray, weights: FloatArray) -> None:
    """Do the work of `add_weighted_grams` row by row."""
    for i in range(X.shape[0]):
        for q in range(grams.shape[0]):
            if weights[i, q] != 0.0:
                for j in range(X.shape[1]):
                    x = weights[i, q] * X[i, j]
                    for k in range(X.shape[1]):
                        grams[q, j, k] += x * X[i, k]


@jit
def _pairs(X: FloatArray, pairs: FloatArray) -> None:
    """Write x_ij x_ik for k <= j of every row to `pairs`."""
    for i in range(X.shape[0]):
        at = 0
        for j in range(X.shape[1]):
            x = X[i, j]
            for k in range(j + 1):
                pairs[i, at + k] = x * X[i, k]
            at += j + 1
