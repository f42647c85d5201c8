"""The active sets of examples: A as convex combinations of vertices, and directions inside them.

Every example has its own active set of vertices, as ranked lists of classes, and its own direction inside it.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np

from topline.solvers.blocks import active_sets
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Vertices in the set of one row; where ranks are many there are fewer, for the sake of memory, but not so
#: few that the dense point takes over.
_PLACES, _FEWEST = 16, 8
#: Rounds in which a given point is taken apart into vertices, and how far their mixture may be from it.
_APART_ROUNDS = 1000
_APART = 1e-12
#: Scores per distance while a point is taken apart: the margin of 1 between classes then counts for nothing.
_FAR = 2.0**60

_NEVER = -1


class RowSets:
    """One active set for every row.

    Parameters
    ----------
    problem : what is solved; its loss has sparse vertices.
    y, weights : (rows,) labels, and how often each row counts.
    A : (rows, m) float64, the points to start from.  They are taken apart into vertices; where that does not
        succeed the row itself is the dense point of its set.
    """

    def __init__(self, problem: Problem, y: IntArray, weights: Float64Array, A: FloatArray) -> None:
        form = problem.form
        self._rho, self._margins = form.rho, form.table
        self._hinge_first, self._own_in_sort = form.ranks
        self._own_share = problem.own_share
        self._y, self._weights = y, weights
        rows, ranks = len(y), len(form.rho)
        places = int(np.clip(64 * problem.m // (4 * ranks + 12), _FEWEST, _PLACES))
        # All begin at the vertex 0, an empty list.
        self.lists = np.zeros((rows, places, ranks), dtype=np.int32)
        self.lengths = np.zeros((rows, places), dtype=np.int32)
        self.shares = np.zeros((rows, places))
        self.shares[:, 0] = 1.0
        self.used = np.ones(rows, dtype=np.int32)
        self.base = np.zeros((0, problem.m))
        self.base_share = np.zeros(rows)
        self._ranked = np.zeros((rows, ranks), dtype=np.int32)
        self._counts = np.zeros(rows, dtype=np.int32)
        self._moves = np.zeros(rows, dtype=np.int8)
        self._leaving = np.zeros(rows, dtype=np.int32)
        self._reach = np.zeros(rows)
        self._take_apart(A)

    def choose(
        self,
        rows: slice,
        scores: FloatArray,
        lasting: Float64Array,
        bends: Float64Array,
        gammas: tuple[float, float],
        A: FloatArray,
        change: FloatArray,
        sums: Float64Array,
        *,
        pairwise: bool,
    ) -> None:
        """Find the vertices and directions of the rows of a tile.

        Parameters
        ----------
        scores, lasting : (b, m) shifted scores, twice; the first is overwritten, the second is float64, for
            which alone the long search of directions is compiled.
        bends, gammas : curvature of the dual in each row (b,), and what smoothing adds to it.
        A, change : (b, m) dual rows, and room for their directions.
        sums : added to as by `ranking.rank_rows`.
        """
        y, weights = self._y[rows], self._weights[rows]
        ranking.rank_rows(
            scores, y, weights, self._rho, self._hinge_first, self._own_in_sort, self._own_share,
            self._margins, self._ranked[rows], self._counts[rows], sums,
        )  # fmt: skip
        active_sets.choose_directions(
            lasting, y, weights, bends, *gammas, self._rho, self._margins, pairwise, self._ranked[rows],
            self._counts[rows], *self._sets(rows), A, change, self._moves[rows], self._leaving[rows],
            self._reach[rows],
        )  # fmt: skip

    def take(self, step: float) -> None:
        """Take a step along the directions that were chosen last."""
        if (self.used == self.shares.shape[1]).any():
            self._make_room()
        active_sets.take_step(
            step, self._y, self._rho, self._ranked, self._counts, self._moves, self._leaving, self._reach,
            *self._sets(slice(None)),
        )  # fmt: skip

    def _sets(self, rows: slice) -> tuple[Any, Any, Any, Any, Any, Any]:
        """Return what compiled functions know of the sets of some rows."""
        shared = self.lists[rows], self.lengths[rows], self.shares[rows], self.used[rows]
        return *shared, self.base[rows], self.base_share[rows]

    def _make_room(self) -> None:
        """Give every row a dense point, of share 0 where there was none."""
        if not len(self.base):
            self.base = np.zeros((len(self._y), self.base.shape[1]))

    def _take_apart(self, A: FloatArray) -> None:
        """Begin at the rows of A (rows, m): approach each by pairwise steps of its own."""
        rows = np.flatnonzero(A.any(axis=1))
        part, Z = self._part(rows), np.zeros((len(rows), A.shape[1]))
        for _ in range(_APART_ROUNDS):
            far = np.abs(Z - A[rows]).max(axis=1, initial=0.0) > _APART
            self._put(rows[~far], part._part(np.flatnonzero(~far)))
            part, Z, rows = part._part(np.flatnonzero(far)), Z[far], rows[far]
            if not len(rows):
                return
            Z += part._way_to(A[rows], Z)
        self._make_room()
        self.base[rows], self.base_share[rows] = A[rows], 1.0
        self.used[rows] = 0

    def _way_to(self, A: FloatArray, Z: Float64Array) -> Float64Array:
        """Take the step of each row from its point Z that brings it closest to A, and return it."""
        scores = _FAR * (Z - A)
        change = np.empty_like(Z)
        self.choose(
            slice(None), scores.copy(), scores, np.full(len(Z), _FAR), (0.0, 0.0), Z, change,
            np.zeros(ranking.N_SUMS), pairwise=True,
        )  # fmt: skip
        self.take(1.0)
        return change

    def _part(self, rows: Int64Array) -> RowSets:
        """Return copies of the sets of some rows."""
        part = copy.copy(self)
        for name in _BY_ROW:
            setattr(part, name, getattr(self, name)[rows])
        part.base = self.base[rows] if len(self.base) else self.base
        return part

    def _put(self, rows: Int64Array, part: RowSets) -> None:
        """Take over the sets of some rows from copies."""
        if len(part.base):
            self._make_room()
            self.base[rows] = part.base
        for name in _BY_ROW:
            getattr(self, name)[rows] = getattr(part, name)


#: What a row has of its own, but for its dense point.
_BY_ROW = (
    "_y", "_weights", "lists", "lengths", "shares", "used", "base_share", "_ranked", "_counts", "_moves",
    "_leaving", "_reach",
)  # fmt: skip


class ColumnSets:
    """The active sets of the rows of one block, and |x_i|^2 (rows,), NaN until it is known.

    `pending_step` is the last one that A (rows, m) has been given.
    """

    lasting: ClassVar[str] = "round"

    def __init__(
        self,
        problem: Problem,
        y: IntArray,
        weights: Float64Array,
        A: FloatArray,
        pending_step: PendingStep | None,
    ) -> None:
        self.sets = RowSets(problem, y, weights, A)
        self.norms = np.full(len(y), np.nan)
        #: The round whose directions were chosen last.
        self.found = _NEVER
        self._applied = _NEVER if pending_step is None else pending_step.round

    def apply_step(self, pending_step: PendingStep | None) -> None:
        """Take the step of an earlier round, once."""
        if pending_step is None or pending_step.round == self._applied:
            return
        if self.found != pending_step.round:
            raise StateLostError(
                f"the active sets of a block do not hold the directions of round {pending_step.round}; load"
                " the duals of a checkpoint and continue from its state"
            )
        self.sets.take(pending_step.step)
        self._applied = pending_step.round
