"""Inputs of dual ascent's sweeps: the rows of a block, runs of them to visit, and their dual rows."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topline.solvers.blocks.ascent.plan import AscentPlan
from topline.solvers.blocks.ascent.shared_tiles import ThreadChoice
from topline.solvers.core.dual_rows import DualStore
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, RowSource
from topline.solvers.crew import Helpers
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Numbers of A processed together.
_LOOKED_AT = 1 << 22


class RowNorms:
    """|x_i|^2 (rows,) of the rows of a block, -1 before the first visit, and <x_i, u>.

    Blocks of the same rows may share them while u = 0: every writer writes the same values.
    """

    def __init__(self, rows: int) -> None:
        self.squares = np.full(rows, -1.0)
        self.along = np.zeros(rows)


class BlockRows:
    """Rows of one block, and values that sweeps compute for them once.

    Parameters
    ----------
    problem : the problem.
    X : (rows, d) features of the block.
    y, weights : (rows,) labels, and how often each row counts.
    index : place of the block among all blocks; it seeds the random orders.
    dtype : precision of products, unless a request asks for float64.
    helpers : threads that work on the rows beside the caller; None for some of its own.
    norms : row norms shared by blocks of these rows; None for its own.
    """

    def __init__(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        weights: Float64Array,
        index: int,
        dtype: np.dtype[Any],
        helpers: Helpers | None = None,
        norms: RowNorms | None = None,
    ) -> None:
        self.problem, self.X, self.y, self.weights = problem, X, y, weights
        self.index, self.dtype = index, dtype
        alike = problem.smoothing_own == problem.smoothing
        #: The loss for compiled functions.
        self.column = problem.form.column_where(alike=alike)
        self.rho, self.margins = problem.form.rho, problem.form.table
        self.helpers = helpers or Helpers()
        self._undirected, self._directed = norms, RowNorms(0)

    @cached_property
    def thread_choice(self) -> ThreadChoice:
        """The choice between one thread and several for sweeps over these rows."""
        return ThreadChoice()

    @property
    def norms(self) -> Float64Array:
        """|x_i|^2 (rows,), -1 where unknown."""
        return self._norms.squares

    @property
    def along(self) -> Float64Array:
        """<x_i, u> (rows,) where |x_i|^2 is known."""
        return self._norms.along

    @property
    def _norms(self) -> RowNorms:
        if self._direction is not None:
            return self._directed
        self._undirected = self._undirected or RowNorms(len(self.y))
        return self._undirected

    _direction: Float64Array | None = None

    def keep_apart(self, request: AscentPlan) -> tuple[Float64Array, float]:
        """Return the deflated direction of a request, and by how much it shrinks squares along it."""
        shared = request.shared
        if shared is None:
            self._direction = None
            return np.zeros(self.problem.d), 0.0
        if self._direction is None or not np.array_equal(shared.u, self._direction):
            self._direction, self._directed = shared.u, RowNorms(len(self.y))
        return self._direction, 1.0 - shared.kappa


def rows_with_mass(A: DualStore) -> NDArray[np.bool_]:
    """Return which rows of A (rows, m) are not 0, reading a few at a time."""
    rows, m = A.shape
    step = max(_LOOKED_AT // m, 1)
    parts = [A.read(low, min(low + step, rows)).any(axis=1) for low in range(0, rows, step)]
    return np.concatenate(parts)


class Portion(NamedTuple):
    """Rows of the block to visit in order: `places` says where each lies in X.

    `slab` gives the first row of the run that they come from, and the one after its last.
    """

    X: Rows
    places: Int64Array
    rows: Int64Array
    slab: tuple[int, int]


class DualWindow:
    """Dual rows A of a block and their change delta, one slab at a time; the last `most` stay open.

    Changes in `delta` (rows of the slab, m) are stored when more slabs are opened, or by `close`.
    """

    def __init__(self, A: DualStore, delta: DualStore, most: int = 1) -> None:
        self._A, self._delta, self._most = A, delta, most
        self._opened: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
        self.A: FloatArray = np.empty((0, A.shape[1]))
        self.delta: FloatArray = np.empty((0, A.shape[1]))

    def open(self, slab: tuple[int, int]) -> None:
        """Open the rows slab[0]..slab[1]-1."""
        found = self._opened.pop(slab, None)
        if found is None:
            if len(self._opened) >= self._most:
                self._keep(next(iter(self._opened)))
            found = self._A.read(*slab), self._delta.read(*slab)
        # Ordered by last use.
        self._opened[slab] = found
        self.A, self.delta = found

    @property
    def dense(self) -> tuple[FloatArray, FloatArray] | None:
        """A and delta, if each is one array in memory."""
        A, delta = self._A.dense, self._delta.dense
        return None if A is None or delta is None else (A, delta)

    def open_whole(self) -> bool:
        """Open all rows if they are one array in memory; return whether they are."""
        if self.dense is None:
            return False
        self.open((0, self._A.shape[0]))
        return True

    def read(self, slab: tuple[int, int]) -> tuple[FloatArray, FloatArray]:
        """Return rows of A and delta read-only, while no slab is open."""
        return self._A.read(*slab), self._delta.read(*slab)

    def changed(self) -> Int64Array:
        """Return the rows that have a change, while no slab is open."""
        return np.flatnonzero(rows_with_mass(self._delta))

    def close(self) -> None:
        """Store the changes."""
        for slab in list(self._opened):
            self._keep(slab)

    def _keep(self, slab: tuple[int, int]) -> None:
        _, delta = self._opened.pop(slab)
        self._delta.write(*slab, delta)
