"""Away and pairwise steps inside the domain of every example.

A is kept as convex combinations of vertices.  Every example has an active set of its own, ranked lists of
classes (`topline.solvers.losses.ranking`), and a direction inside it: the class at place p has -rho_p, the
own class minus the sum of the others.  With a_j = delta_j + s_j - s_y the value <grad, v> of a vertex is
sum_p rho_p a_[p] (a_y = 0).  All examples take one common step along the sum of their directions.

Directions that always led to the border of their polytopes would make the common step tiny, because one
step length has to suit most of them.  So an example goes as far as its own closed form says for a dual with
1/length times the curvature of its row alone; `length` accounts for the other rows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import change_sums
from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES
from topline.solvers.blocks.block import Block, lift_scores
from topline.solvers.blocks.vertices import accumulate_nonzeros, accumulate_rows, vertices_of
from topline.solvers.core.answers import FLOAT64, Clock, Scratch, VectorSums
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import is_sparse, squared_norms
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.jit_cache import jit
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: A row's move: none, towards its vertex, away from a point of its set, or from that point to the vertex.
REST, TOWARDS, AWAY, SWAP = range(4)
#: Shares below this are rounding of a subtraction.
_ROUNDING = 1e-15
#: Index of the dense point in a set.
BASE = -1
#: Vertices in the set of one row; fewer for long lists of ranks, but enough to keep the dense point small.
_PLACES, _FEWEST = 16, 8
#: Most rounds of decomposing a given point into vertices, and the accepted distance of their mixture.
_APART_ROUNDS = 1000
_APART = 1e-12
#: Scores per distance while decomposing a point, so large that the margin of 1 between classes is negligible.
_FAR = 2.0**60

_NEVER = -1


class Examples(NamedTuple):
    """Labels, weights, and the curvature of the dual along the scores of each row alone."""

    y: Any
    weights: Any
    bends: Any


class Terms(NamedTuple):
    """Rank weights, margins (m, m) or (0, 0), and the curvature that smoothing adds per class."""

    rho: Any
    margins: Any
    gamma: float
    gamma_own: float


class Sets(NamedTuple):
    """The active sets of some rows.

    That of row i is `lists[i, s, :lengths[i, s]]` with `shares[i, s]` for s < used[i], and one dense point
    `base[i]` with `base_share[i]`; `base` is empty while all of these are 0.
    """

    lists: Any
    lengths: Any
    shares: Any
    used: Any
    base: Any
    base_share: Any

    def of(self, rows: Any) -> Sets:
        """Return the sets of some rows."""
        base = self.base[rows] if len(self.base) else self.base
        lists, lengths, shares, used = (part[rows] for part in self[:4])
        return Sets(lists, lengths, shares, used, base, self.base_share[rows])


class Chosen(NamedTuple):
    """The directions of some rows: vertices as lists, their lengths, moves, the point left, step lengths."""

    ranked: Any
    counts: Any
    moves: Any
    leaving: Any
    reach: Any

    def of(self, rows: Any) -> Chosen:
        """Return the directions of some rows."""
        return Chosen(*(part[rows] for part in self))


@jit(fastmath={"contract"})
def value_of(a: Any, rho: Any, labels: Any, count: int) -> float:
    """Return <grad, v> of a vertex."""
    total = 0.0
    for p in range(count):
        total += rho[p] * a[labels[p]]
    return total


@jit(fastmath={"contract"})
def value_of_point(a: Any, point: Any, own: int) -> float:
    """Return <grad, alpha> of a dense point, whose classes sum to 0."""
    total = 0.0
    for j in range(len(a)):
        if j != own:
            total -= point[j] * a[j]
    return total


@jit(fastmath={"contract"})
def add_vertex(target: Any, factor: float, rho: Any, labels: Any, count: int, own: int) -> None:
    """Add a multiple of a vertex."""
    others = 0.0
    for p in range(count):
        if labels[p] != own:
            target[labels[p]] -= factor * rho[p]
            others += rho[p]
    target[own] += factor * others


@jit(fastmath={"contract"})
def worst_of(a: Any, own: int, rho: Any, sets: Any, i: int) -> tuple[int, float, float]:
    """Return index, <grad, v> and share of the point in the set of row i with the least <grad, v>."""
    place, least, share = BASE, np.inf, 0.0
    if sets.base_share[i] > 0.0:
        least, share = value_of_point(a, sets.base[i], own), sets.base_share[i]
    for s in range(sets.used[i]):
        value = value_of(a, rho, sets.lists[i, s], sets.lengths[i, s])
        if value < least:
            place, least, share = s, value, sets.shares[i, s]
    return place, least, share


@jit(fastmath={"contract"})
def rest_of(sets: Any, i: int, place: int) -> float:
    """Return 1 minus the share of one point of row i, summed over the others to keep all digits."""
    total = 0.0 if place == BASE else sets.base_share[i]
    for s in range(sets.used[i]):
        if s != place:
            total += sets.shares[i, s]
    return total


@jit(fastmath={"contract"})
def put_in_order(rho: Any, labels: Any, count: int, own: int) -> int:
    """Normalise a vertex so that equal vertices are equal lists; return its new length.

    Classes of equal rank weights are sorted, and an own class tied with the last rank is dropped.
    """
    start = 0
    while start < count:
        stop = start + 1
        while stop < count and rho[stop] == rho[start]:
            stop += 1
        if stop > start + 1:
            labels[start:stop] = np.sort(labels[start:stop])
        start = stop
    last = count - 1
    while last >= 0 and labels[last] != own and rho[last] == rho[count - 1]:
        last -= 1
    if last < 0 or labels[last] != own or rho[last] != rho[count - 1]:
        return count
    for p in range(last, count - 1):
        labels[p] = labels[p + 1]
    return count - 1


@jit(fastmath={"contract"})
def take_step(step: float, y: Any, rho: Any, chosen: Any, sets: Any) -> None:
    """Update the sets as A changes by `step` times the directions chosen last."""
    base_share, shares, used = sets.base_share, sets.shares, sets.used
    for i in range(len(y)):
        move, place, length, left = chosen.moves[i], chosen.leaving[i], step * chosen.reach[i], 0.0
        if move == REST or length == 0.0:
            continue
        if move != TOWARDS:
            lost = length if move == SWAP else length * rest_of(sets, i, place)
            left = (base_share[i] if place == BASE else shares[i, place]) - lost
            # At the maximal step the point leaves the set, up to rounding.
            left = left if left > _ROUNDING else 0.0
        if move != SWAP:
            # Away from v is A + length (A - v), towards u is A + length (u - A).
            kept = 1.0 - length if move == TOWARDS else 1.0 + length
            base_share[i] *= kept
            for s in range(used[i]):
                shares[i, s] *= kept
        if move != TOWARDS:
            if place == BASE:
                base_share[i] = left
            else:
                shares[i, place] = left
        used[i] = _drop_empty(sets.lists[i], sets.lengths[i], shares[i], used[i])
        if move != AWAY:
            used[i] = _take_in(length, chosen.ranked[i], chosen.counts[i], y[i], rho, sets, i)


@jit(fastmath={"contract"})
def _drop_empty(lists: Any, lengths: Any, shares: Any, used: int) -> int:
    """Remove points without a share; return the number of those left."""
    kept = 0
    for s in range(used):
        if shares[s] > 0.0:
            if kept < s:
                lists[kept], lengths[kept], shares[kept] = lists[s], lengths[s], shares[s]
            kept += 1
    return kept


@jit(fastmath={"contract"})
def _take_in(gained: float, labels: Any, count: int, own: int, rho: Any, sets: Any, i: int) -> int:
    """Give a vertex a share of the set of row i; a full set merges its smallest point into the dense one."""
    lists, lengths, shares, used = sets.lists[i], sets.lengths[i], sets.shares[i], int(sets.used[i])
    for s in range(used):
        if lengths[s] == count and np.all(lists[s, :count] == labels[:count]):
            shares[s] += gained
            return used
    place = used
    if used == len(shares):
        place = int(np.argmin(shares))
        whole, base = sets.base_share[i] + shares[place], sets.base[i]
        base *= sets.base_share[i] / whole
        add_vertex(base, shares[place] / whole, rho, lists[place], lengths[place], own)
        sets.base_share[i] = whole
    lists[place, :count] = labels[:count]
    lengths[place], shares[place] = count, gained
    return max(used, place + 1)


@jit(fastmath={"contract"})
def _violations(scores: Any, own: int, margins: Any, a: Any) -> None:
    """Write a_j = delta_j + s_j - s_y of one row."""
    own_score = np.float64(scores[own])
    for j in range(len(a)):
        a[j] = np.float64(scores[j]) - own_score + (margins[own, j] if margins.shape[0] > 0 else 1.0)
    a[own] = 0.0


@jit(fastmath={"contract"})
def choose_directions(
    scores: Any, examples: Any, terms: Any, swap: bool, chosen: Any, sets: Any, A: Any, change: Any
) -> None:
    """Write the direction of every row to `change` (b, m), and its components to `chosen`.

    `chosen` holds the vertices at the scores (b, m).  A row takes its best step for the curvature
    `examples.bends[i]` along its scores, at most to the border of its polytope.
    """
    a, rho = np.empty(scores.shape[1]), terms.rho
    for i in range(scores.shape[0]):
        own, row, bend = examples.y[i], change[i], examples.bends[i]
        row[:] = 0.0
        chosen.moves[i] = REST
        _violations(scores[i], own, terms.margins, a)
        chosen.counts[i] = put_in_order(rho, chosen.ranked[i], chosen.counts[i], own)
        vertex = chosen.ranked[i, : chosen.counts[i]]
        top = value_of(a, rho, vertex, len(vertex))
        here = value_of_point(a, A[i], own)
        place, least, share = worst_of(a, own, rho, sets, i)
        rest = rest_of(sets, i, place)
        slope, longest, move = top - here, 1.0, TOWARDS
        if swap:
            slope, longest, move = top - least, share, SWAP
        elif here - least > slope and rest > 0.0:
            slope, longest, move = here - least, share / rest, AWAY
        if not slope > 0.0 or examples.weights[i] == 0.0:
            continue
        if move == AWAY:
            _add_away(row, place, own, rho, sets, i, rest)
        else:
            add_vertex(row, 1.0, rho, vertex, len(vertex), own)
            if move == TOWARDS:
                row -= A[i]
            else:
                _take_off(row, 1.0, place, own, rho, sets, i)
        square = terms.gamma_own * row[own] * row[own]
        for j in range(len(row)):
            square += row[j] * row[j] * (bend if j == own else bend + terms.gamma)
        chosen.moves[i], chosen.leaving[i] = move, place
        chosen.reach[i] = longest if slope >= square * longest else slope / square
        row *= chosen.reach[i]


@jit(fastmath={"contract"})
def _add_away(row: Any, place: int, own: int, rho: Any, sets: Any, i: int, rest: float) -> None:
    """Add alpha - v for the point v at a place of the set of row i.

    The sum over the other points keeps its digits next to v, where the plain difference has none.
    """
    if place != BASE and sets.base_share[i] > 0.0:
        row += sets.base_share[i] * sets.base[i]
    for s in range(sets.used[i]):
        if s != place:
            add_vertex(row, sets.shares[i, s], rho, sets.lists[i, s], sets.lengths[i, s], own)
    _take_off(row, rest, place, own, rho, sets, i)


@jit(fastmath={"contract"})
def _take_off(row: Any, factor: float, place: int, own: int, rho: Any, sets: Any, i: int) -> None:
    """Subtract a multiple of the point at a place of the set of row i."""
    if place == BASE:
        row -= factor * sets.base[i]
    else:
        add_vertex(row, -factor, rho, sets.lists[i, place], sets.lengths[i, place], own)


class RowSets:
    """One active set for every row of a block, and |x_i|^2 (rows,) as `norms`, NaN until known.

    Parameters
    ----------
    problem : the problem; its loss has sparse vertices.
    y, weights : (rows,) labels, and how often each row counts.
    A : (rows, m) float64, the starting points, decomposed into vertices; a row that cannot be decomposed
        becomes the dense point of its set.
    pending_step : the last step applied to A.
    """

    lasting: ClassVar[str] = "round"

    def __init__(
        self,
        problem: Problem,
        y: IntArray,
        weights: Float64Array,
        A: FloatArray,
        pending_step: PendingStep | None = None,
    ) -> None:
        self._problem, self._y, self._weights = problem, y, weights
        self.norms = np.full(len(y), np.nan)
        #: The round of the directions chosen last.
        self.found = _NEVER
        self._applied = _NEVER if pending_step is None else pending_step.round
        rows, ranks = len(y), len(problem.form.rho)
        places = int(np.clip(64 * problem.m // (4 * ranks + 12), _FEWEST, _PLACES))
        # Every row begins at the vertex 0, an empty list.
        self.sets = Sets(
            lists=np.zeros((rows, places, ranks), dtype=np.int32),
            lengths=np.zeros((rows, places), dtype=np.int32),
            shares=np.zeros((rows, places)),
            used=np.ones(rows, dtype=np.int32),
            base=np.zeros((0, problem.m)),
            base_share=np.zeros(rows),
        )
        self.sets.shares[:, 0] = 1.0
        self._chosen = Chosen(
            ranked=np.zeros((rows, ranks), dtype=np.int32),
            counts=np.zeros(rows, dtype=np.int32),
            moves=np.zeros(rows, dtype=np.int8),
            leaving=np.zeros(rows, dtype=np.int32),
            reach=np.zeros(rows),
        )
        self._take_apart(A)

    def choose(
        self,
        rows: slice,
        scores: FloatArray,
        bends: Float64Array,
        duals: tuple[FloatArray, FloatArray],
        sums: Float64Array,
        *,
        length: float,
        pairwise: bool,
    ) -> None:
        """Find the vertices and directions of the rows of a tile.

        Parameters
        ----------
        scores : (b, m) shifted scores, overwritten.
        bends : (b,) curvature of the dual along the scores of each row alone, over `length`.
        duals : A (b, m), and room for the directions.
        sums : incremented as by `ranking.rank_rows`.
        length : share of its own best step that an example takes; infinite for none of the smoothing.
        """
        problem, form = self._problem, self._problem.form
        y, weights, chosen = self._y[rows], self._weights[rows], self._chosen.of(rows)
        # The search of directions, slow to compile, exists for float64 only.
        lasting = scores.astype(np.float64)
        rule = ranking.RankRule(form.rho, *form.ranks, problem.own_share, form.table)
        ranking.rank_rows(scores, y, weights, rule, chosen.ranked, chosen.counts, sums)
        terms = Terms(form.rho, form.table, problem.smoothing / length, problem.smoothing_own / length)
        examples = Examples(y, weights, bends)
        choose_directions(lasting, examples, terms, pairwise, chosen, self.sets.of(rows), *duals)

    def apply_step(self, pending_step: PendingStep | None) -> None:
        """Take the step of an earlier round, once."""
        if pending_step is None or pending_step.round == self._applied:
            return
        if self.found != pending_step.round:
            raise StateLostError(
                f"the active sets of a block do not hold the directions of round {pending_step.round}; load"
                " the duals of a checkpoint and continue from its state"
            )
        self._take(pending_step.step)
        self._applied = pending_step.round

    def _take(self, step: float) -> None:
        if (self.sets.used == self.sets.shares.shape[1]).any():
            self._make_room()
        take_step(step, self._y, self._problem.form.rho, self._chosen, self.sets)

    def _make_room(self) -> None:
        """Give every row a dense point, of share 0 if it had none."""
        if not len(self.sets.base):
            self.sets = self.sets._replace(base=np.zeros((len(self._y), self._problem.m)))

    def _take_apart(self, A: FloatArray) -> None:
        """Decompose the rows of A (rows, m): approach each by pairwise steps of its own."""
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
        self.sets.base[rows], self.sets.base_share[rows] = A[rows], 1.0
        self.sets.used[rows] = 0

    def _way_to(self, A: FloatArray, Z: Float64Array) -> Float64Array:
        """Take the step of each row from its point Z that brings it closest to A, and return it."""
        change, bends = np.empty_like(Z), np.full(len(Z), _FAR)
        sums = np.zeros(ranking.N_SUMS)
        self.choose(slice(None), _FAR * (Z - A), bends, (Z, change), sums, length=np.inf, pairwise=True)
        self._take(1.0)
        return change

    def _part(self, rows: Int64Array) -> RowSets:
        part = copy.copy(self)
        part._y, part._weights = self._y[rows], self._weights[rows]
        part.sets, part._chosen = self.sets.of(rows), self._chosen.of(rows)
        return part

    def _put(self, rows: Int64Array, part: RowSets) -> None:
        if len(part.sets.base):
            self._make_room()
        for mine, theirs in zip((*self.sets, *self._chosen), (*part.sets, *part._chosen), strict=True):
            if len(theirs):
                mine[rows] = theirs


@dataclass(frozen=True, eq=False)
class FindDirections(Operation[VectorSums]):
    """Find a direction dA of A inside the active sets of the examples, at W (d, m), after the pending step.

    The answer sums the directions; its `loss` is the true one.

    Attributes
    ----------
    pairwise : whether examples swap vertices, instead of going towards one or away from one.
    length : share of its own best step that an example takes.
    exact : products in float64, not in the precision of the features.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    pairwise: bool = False
    length: float = 1.0
    exact: bool = False

    @property
    def widens(self) -> bool:
        """Whether the dual variables are in float64 afterwards."""
        return True

    def answer(self, block: Block, crew: Crew) -> VectorSums:
        """Return the sums over the directions of the rows of a block, which wait for their step."""
        duals, problem, form = block.duals_after(self.pending_step), block.problem, block.problem.form
        duals.widen()
        A, change = duals.whole("Frank-Wolfe over the columns")
        kept = block.recall(RowSets, lambda: RowSets(problem, block.y, block.weights, A, self.pending_step))
        kept.apply_step(self.pending_step)
        clock, dtype = Clock(), FLOAT64 if self.exact else block.dtype
        W = np.ascontiguousarray(self.W, dtype=dtype)
        scratch = Scratch(block.tiles.rows, problem.m, dtype)
        product = np.zeros((problem.m, problem.d))
        sums, smoothed_sums = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        smoothed = vertices_of(problem, block.tiles.rows, smoothed=True)
        for tile in block.tiles.read(dtype):
            scores = scratch.scores_of(tile.X, W)
            clock.product()
            if problem.smoothing > 0:
                smoothed.find(scratch.copy_of(scores), tile.y, tile.weights, smoothed_sums)
                lift_scores(scores, A[tile.rows], tile.y, *problem.gammas)
            if np.isnan(kept.norms[tile.rows.start]):
                kept.norms[tile.rows] = squared_norms(tile.X)
            # The curvature of the dual along the scores of each row alone.
            bends = np.asarray(problem.scale / self.length * tile.weights * kept.norms[tile.rows])
            here = A[tile.rows], change[tile.rows]
            kept.choose(tile.rows, scores, bends, here, sums, length=self.length, pairwise=self.pairwise)
            clock.row_work()
            if is_sparse(tile.X):
                accumulate_rows(tile.X, change[tile.rows], tile.weights, product)
            else:
                # Directions have few classes per row, and the scan over all of them is needed anyway.
                accumulate_nonzeros(tile.X, change[tile.rows], tile.weights, product)
            clock.product()
        kept.found = self.round
        linear, cross, square, changed = change_sums(
            form.conjugate, form.linear_conjugate, (np.arange(len(A)), block.y, block.weights), ALL_CLASSES,
            (A, change), form.table, problem.own_share,
        )  # fmt: skip
        alpha_sq = duals.squares(A, slice(None))
        clock.row_work()
        duals.changed(self.round)
        return VectorSums(
            rows=len(A),
            product=np.ascontiguousarray(product.T),
            conjugate_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            loss=float((smoothed_sums if problem.smoothing > 0 else sums)[ranking.LOSS]),
            active=changed,
            **clock.seconds(),
        )

    def through(self, run: Runner, view: MapView) -> VectorSums:
        """Return the sums at weights V of a feature map, whose norm multiplies the curvature."""
        return Operation.through(replace(self, length=self.length / view.norm), run, view)
