"""The sweeps of one round of dual ascent: the request, the moving weights, the rows that move, and the sums.

Sweeps may touch a few classes of each row: those with mass, and those most likely to gain some.  Most rows
have mass in two or three classes, however many there are.  While all others stay at 0, the update of a hinge
over ranks is exactly that of a problem with only these classes, and needs only their scores.  One product
with W before the stages of a round chooses them.  The first sweep of the next round, over all classes,
corrects omissions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import add_changes, change_sums, project_rows
from topline.solvers.blocks.ascent.rows import BlockRows, DualWindow, Portion, RowFeed
from topline.solvers.blocks.ascent.shared_tiles import TiledWeights
from topline.solvers.blocks.ascent.sweeps import (
    ALL_CLASSES,
    STILL,
    ClassLists,
    RowTile,
    Swept,
    SweptPart,
    add_rows,
    moving,
    repeated_sweeps,
    tile_of,
)
from topline.solvers.blocks.block import sum_of_squares
from topline.solvers.core.answers import Clock, VectorSums, merged_by
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import squared_norm
from topline.solvers.core.rows import gives_sparse, is_sparse
from topline.solvers.crew import ALONE, Crew
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.losses import LossForm
from topline.solvers.losses.rows import conjugate_sum
from topline.solvers.projections.columns import ColumnProblem, column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows over which a change is summed at once, and numbers in them.
_SUMMED_ROWS = 4096
_SUMMED_NUMBERS = 1 << 22
#: The least |dW|^2 of a share of the rows, in |W|^2, beside which rounding W to float32 is small.
_CLEAR = 1e-8
#: Larger sums are returned in the type of the weights: float32 halves what workers send.
_NARROW_SUMS = 1 << 16
#: Least rows, and products, visited between two looks at the clock.
_TIMED_ROWS, _TIMED_PRODUCTS = 2048, 1 << 24
#: Multiplications, or dual entries, per batch where rows are looked at.
_LOOKED_AT = 1 << 22
#: Weights of up to this many entries are kept in float64: they fit in the first-level cache anyway.
SMALL_W = 1 << 12
#: Weights of more entries and classes than these are swept tile by tile, and on several threads,
_TILED_W = 1 << 16
_TILED_CLASSES = 32
#: as are those of more bytes, which exceed a core's second-level cache;
_LARGE_W = 1 << 20
#: for a smooth loss, whose visits change all classes, those of more entries and features than these.
_TILED_SMOOTH, _TILED_FEATURES = 1 << 13, 64
#: Placeholder for a generator's state where one sweep draws nothing.
_UNUSED = np.ones(1, dtype=np.int64)


@dataclass(frozen=True, eq=False, kw_only=True)
class AscentSums(VectorSums):
    """Sums over the changes of alpha_i; `product` is in float32 if large weights move in float32.

    Attributes
    ----------
    visited : column updates.
    left : the sum of the duality gaps of the rows visited by the stages, if small enough to end them; inf if
        something else did.
    moving : the rows that a further sweep would visit, at the end of one.
    filled : the shares of a sweep that have rows in some block; they come first.
    late : the number of blocks that ran out of time.
    """

    visited: float = 0.0
    left: float = 0.0
    moving: int = 0
    filled: int = merged_by(max, 0)
    late: int = 0


@dataclass(frozen=True)
class Turn:
    """One turn of a round: one share of the rows of every block.

    Attributes
    ----------
    part : its number in the round.
    sweep : the first, 0, goes over all rows, each later one over those that move, in an order of its own.
    share, shares : index of the share of that order, out of this many equal shares; a sweep that has begun
        may turn out to have fewer, as blocks report.
    """

    part: int
    sweep: int
    share: int
    shares: int

    @property
    def ends_sweep(self) -> bool:
        """Whether it is the last turn of its sweep."""
        return self.share + 1 == self.shares


@dataclass(frozen=True, eq=False)
class AscentPlan:
    """How to look for a change dA of A that raises the dual: sweeps of exact column updates from W (d, m).

    Attributes
    ----------
    round, W : with the number of the block and the seed the round fixes the random orders.
    pending_step : the step to apply to A first.
    sweeps : the first visits every row, a second one the rows not at rest; more than two request stages of so
        many sweeps over those, as many stages as pay.
    safety_factor : factor >= 1 on the curvature, for a block that moves while others do.
    seed : of the random orders.
    exact : products and A in float64, not in the precision of the features.
    shared, apart : the direction u (d,) along which examples are shrunk, and the initial component along it
        (m,) of the weights besides W: a row scores W^T x + <x, u> apart.
    most_passes : limit on visits, as a multiple of the rows.
    seconds : time after which no more rows are visited; None for no limit.
    warm : whether A is already near the optimum, so that most rows are at rest and stages over the others pay
        for longer.
    support : visit only rows with non-zero alpha.
    enough : end the stages once the duality gaps of their rows sum to at most this.
    alike : move rows together that look alike and have different labels.
    turn : the share of the rows to visit, once; None for the sweeps.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    sweeps: int = 1
    safety_factor: float = 1.0
    seed: int = 0
    exact: bool = False
    shared: DeflatedDirection | None = None
    apart: Float64Array | None = None
    most_passes: float = math.inf
    seconds: float | None = None
    warm: bool = False
    support: bool = False
    enough: float = 0.0
    alike: bool = False
    turn: Turn | None = None


class AscentPass:
    """The state shared by the sweeps of one request: the moving weights, and which rows move."""

    def __init__(
        self,
        block: BlockRows,
        request: AscentPlan,
        duals: DualWindow,
        crew: Crew = ALONE,
        rises: Float64Array | None = None,
    ) -> None:
        self.block, self.duals, self._crew = block, duals, crew
        part = () if request.turn is None else (request.turn.part,)
        self.random = np.random.default_rng((request.seed, request.round, block.index, *part))
        self.scale = block.problem.scale * request.safety_factor
        self.linear = block.problem.form.linear_conjugate
        #: Rise of the dual at each row's last visit; below 0 for a row at rest.
        self.rises = np.full(len(block.y), -1.0) if rises is None else rises
        self._products = np.dtype(np.float64) if request.exact else block.dtype
        self._start = request.W
        self.sparse = False
        self.u, self.kept_apart = block.keep_apart(request.shared)
        self.apart = np.zeros(block.problem.m) if request.apart is None else request.apart.copy()
        self.W: FloatArray = np.empty((0, 0))
        self._tiles: TiledWeights | None = None
        #: The classes touched by sweeps.
        self.lists = ALL_CLASSES
        self.clock = Clock()
        #: Visits of rows; a visit to a few classes counts as their share.
        self.visited = 0.0
        self._still = 0.0
        self._most = request.most_passes * len(block.y)
        self._until = None if request.seconds is None else time.monotonic() + request.seconds

    @property
    def over(self) -> bool:
        """Whether the time or the visits are used up."""
        return self._late or self.visited >= self._most

    @property
    def _late(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def allowed(self, rows: Int64Array) -> Int64Array:
        """Return as many of the rows as may still be visited."""
        left = self._most - self.visited
        return rows if len(rows) <= left else rows[: max(int(left), 0)]

    @property
    def _step(self) -> float:
        """Number of rows between two looks at the clock."""
        if self._until is None:
            return math.inf
        return max(_TIMED_ROWS, _TIMED_PRODUCTS // max(self._start.size, 1))

    def _pieces(self, portions: Iterable[Portion]) -> Iterator[Portion]:
        """Yield portions, cut into pieces if the time is limited, to look at the clock between them."""
        for portion in portions:
            if self._until is None:
                yield portion
                continue
            step = int(self._step)
            for low in range(0, len(portion.rows), step):
                part = slice(low, low + step)
                if self.over:
                    return
                yield portion._replace(places=portion.places[part], rows=portion.rows[part])

    def sweeps(self, held: RowFeed, rows: Int64Array, sweeps: int, most: float) -> tuple[float, float, float]:
        """Sweep up to `sweeps` times, first over all rows, then over those that moved, each in a new order.

        No sweep starts once the cost reaches `most` visits.  Returns the rise of the dual, in all and in the
        last sweep, and the cost.
        """
        random = self.random.integers(1, np.iinfo(np.int64).max, size=1)
        order, risen, cost = self.random.permutation(self.allowed(rows)), 0.0, 0.0
        portions = held.drawn(order) if held.whole else held.shuffled(order, self.random)
        at_once = held.in_place and (self._tiles is None or self.restricted) and len(rows) <= self._step
        while True:
            before = self.visited
            swept = self.sweep(portions, sweeps if at_once else 1, most - cost, random)
            risen += swept.risen
            cost += held.cost(self.visited - before)
            sweeps -= swept.sweeps
            if at_once or sweeps <= 0 or cost >= most or self.over:
                break
            # In the order in which one call would draw them.
            chosen = moving(order, self.rises, self._still, random) if held.whole else rows[self.moved(rows)]
            chosen = self.allowed(chosen)[: int(min(most - cost, len(chosen)))]
            if not len(chosen):
                break
            portions = held.drawn(chosen) if held.whole else held.shuffled(chosen, self.random)
        return risen, swept.last, cost

    def sweep(
        self,
        portions: Iterable[Portion],
        sweeps: int = 1,
        most: float = math.inf,
        random: Int64Array = _UNUSED,
    ) -> Swept:
        """Update rows once each, or sweep a single portion repeatedly over its moving rows."""
        done, visited, risen, last, still = 1, 0, 0.0, 0.0, 0.0
        most = min(most, self._most - self.visited)
        for portion in self._pieces(portions):
            self._lay_out(portion.X)
            self.duals.open(portion.slab)
            self.clock.product()
            part = self.part(tile_of(portion.X, self.W), portion.places, portion.rows, portion.slab)
            if self._tiles is None or self.restricted:
                swept = repeated_sweeps(part, self.block.column, sweeps, most, random)
            else:
                self._tiles.sweep(portion.X, part, self.block.column)
                rise = float(np.maximum(part.rises[part.rows], 0.0).sum())
                swept = Swept(1, float(len(portion.rows)), rise, rise, 0.0)
            self.clock.row_work()
            done, still = swept.sweeps, swept.still
            risen += swept.risen
            last += swept.last
            visited += len(portion.rows)
            self.visited += swept.visited
        self.duals.close()
        self._still = still if sweeps > 1 else STILL * last / max(visited, 1)
        return Swept(done, float(visited), risen, last, self._still)

    @property
    def restricted(self) -> bool:
        """Whether sweeps touch a few classes of each row."""
        return len(self.lists.classes) > 0

    def restrict_classes(self, held: RowFeed, rows: Int64Array) -> None:
        """Restrict sweeps over some rows, in the order of the block, to a few classes if that is possible."""
        block, apart = self.block, self.apart if self.kept_apart else None
        if gives_sparse(block.X) or len(self.allowed(rows)) < len(rows):
            return
        W = (self.columns if self.W.size else self._start).astype(block.dtype, copy=False)
        d, m = W.shape
        lists = room_for_lists(rows, block, self.duals, tiled=is_tiled(m, d, self._products))
        if lists is None:
            return
        fill_lists(lists, self._pieces(held.in_order(rows)), block, self.duals, W, apart)
        self.visited += len(rows)
        if not self.over:  # else not all rows may have their lists
            self.lists = lists
        self.clock.product()

    def project(self, Z: Float64Array, rows: Int64Array) -> None:
        """Replace dual rows Z (t, m) by the nearest points of their domains in the classes that sweeps touch.

        The unrestricted projection may have mass in classes that sweeps would then leave unchanged.
        """
        form = self.block.problem.form
        if self.restricted:
            column, places = form.column_where(alike=True), self.lists.place[rows]
            _project(Z, places, self.lists, column, form.rho, form.table, form.family.own_margin)
        else:
            project_rows(Z, self.block.y[rows], form)

    def moved(self, rows: Int64Array) -> Any:
        """Return which rows moved at their last visit."""
        return self.rises[rows] > self._still

    @property
    def columns(self) -> FloatArray:
        """The weights (d, m), in either layout."""
        return self.W if self.sparse else self.W.T

    def _lay_out(self, X: Any) -> None:
        """Lay W out for the next rows: (m, d) for dense ones, (d, m) for sparse ones."""
        if self.W.size:
            return
        self.sparse = is_sparse(X)
        start = self._start if self.sparse else self._start.T
        block = self.block
        m, smooth = start.shape[0], block.problem.form.smooth
        if not self.sparse and is_tiled(m, start.shape[1], self._products, smooth=smooth):
            self._tiles = TiledWeights(start, self._products, self._crew, block.thread_choice)
            self.W = self._tiles.W
            return
        dtype = np.dtype(np.float64) if start.size <= SMALL_W else self._products
        self.W = np.array(start, dtype=dtype, order="C")

    def part(self, tile: RowTile, places: Int64Array, rows: Int64Array, slab: tuple[int, int]) -> SweptPart:
        """Return the arrays that a sweep over some rows of an opened slab reads and writes."""
        block, duals, problem, here = self.block, self.duals, self.block.problem, slice(*slab)
        lists = self.lists._replace(place=self.lists.place[here])
        return SweptPart(
            tile, places, rows - slab[0], lists, block.y[here], block.weights[here], block.norms[here],
            block.along[here], self.u, self.kept_apart, self.apart, duals.A, duals.delta, self.rises[here],
            self.scale, problem.smoothing, problem.smoothing_own, problem.form.rho, problem.form.table,
        )  # fmt: skip

    def gap(self, held: RowFeed, rows: Int64Array) -> float:
        """Return the sum of w_i (Phi(s_i) + Phi*(-alpha_i) + <alpha_i, s_i>) over some rows, a visit each.

        No term is negative, and for W = W(A) the sum over all rows is n (P - D); smoothing adds its terms.
        """
        block, problem, total = self.block, self.block.problem, 0.0
        W = self.columns.astype(self._products, copy=False)
        for portion in held.in_order(rows):
            self.duals.open(portion.slab)
            step = max(_TIMED_ROWS, _LOOKED_AT // max(self._start.size, 1))
            for low in range(0, len(portion.rows), step):
                part = slice(low, low + step)
                some, here = portion.rows[part], portion.rows[part] - portion.slab[0]
                y, weights = block.y[some], block.weights[some]
                scores = np.asarray(portion.X[portion.places[part]] @ W)
                if self.kept_apart:
                    scores += np.outer(block.along[some], self.apart).astype(scores.dtype)
                alpha = self.duals.A[here].astype(np.float64) + self.duals.delta[here]
                total += float(np.einsum("ij,ij,i->", alpha, scores, weights))
                total -= float(conjugate_sum(problem.form.conjugate, alpha, y, weights, problem.form.table))
                if problem.smoothing > 0:
                    squares = sum_of_squares(alpha, y, weights, problem.own_share)
                    total += 0.5 * problem.smoothing * float(squares)
                total += float(problem.losses(scores, y) @ weights)
        self.duals.close()
        self.visited += len(rows)
        self.clock.product()
        return total

    def part_apart(self, image: Float64Array) -> Float64Array:
        """Return the component along u, for every class, of a change of W in its layout."""
        return np.asarray(self.u @ image if self.sparse else image @ self.u)

    def image(self, portion: Portion, changes: FloatArray, out: Float64Array) -> None:
        """Add the sum of w_i x_i change_i^T to `out`, in the layout of W."""
        X, places, rows, _ = portion
        factors = self.block.weights[rows]
        if is_sparse(X):
            add_rows(tile_of(X, out), places, changes, factors)
        else:
            add_changes(X, places, changes, factors, out, self._crew)

    def _product(self, feed: RowFeed, rows: Int64Array | None) -> FloatArray:
        """Return the sum of w_i x_i change_i^T: the way of W, or anew where that is mostly rounding."""
        if not self.W.size:  # no time was left for any row
            return np.zeros(self._start.T.shape)
        start = (self._start if self.sparse else self._start.T).astype(self.W.dtype, copy=False)
        if self.W.dtype == np.float64:
            return np.asarray((self.W - start) / self.scale)
        if rows is not None:
            way = self.W - start
            if squared_norm(way) > _CLEAR * squared_norm(start):
                way /= self.W.dtype.type(self.scale)
                return way
        product = np.zeros(self.W.shape)
        changed = self.duals.changed() if rows is None else rows
        for portion in feed.in_order(changed) if feed.whole else feed.shuffled(changed, self.random):
            _, delta = self.duals.read(portion.slab)
            self.image(portion, delta[portion.rows - portion.slab[0]], product)
        return product

    def stats(self, feed: RowFeed, rows: Int64Array | None = None) -> AscentSums:
        """Sum the change; if rows are given, all others have none."""
        block, n = self.block, len(self.block.y)
        form = block.problem.form
        # Rounds of one block begin with a sweep over all classes.
        lists, sums = ALL_CLASSES if rows is None else self.lists, np.zeros(4)
        for part, places, A, delta in self._changes(rows):
            sums += change_sums(
                form.conjugate, form.linear_conjugate, (places, block.y[part], block.weights[part]),
                lists._replace(place=lists.place[part]) if len(lists.place) else lists, (A, delta),
                form.table, block.problem.own_share,
            )  # fmt: skip
        self.clock.row_work()
        product = self._product(feed, rows)
        dtype = self.W.dtype if product.size > _NARROW_SUMS else np.float64
        self.clock.product()
        return AscentSums(
            rows=n,
            # In the layout of W: a sum of many is only added up, and the next W starts from it.
            product=product.astype(dtype, copy=False) if self.sparse else product.astype(dtype, copy=False).T,
            conjugate_u=float(sums[0]),
            alpha_u=float(sums[1]),
            u_sq=float(sums[2]),
            active=int(sums[3]),
            visited=self.visited,
            late=int(self._late),
            **self.clock.seconds(),
        )

    def _changes(
        self, rows: Int64Array | None
    ) -> Iterator[tuple[Int64Array, Int64Array, FloatArray, FloatArray]]:
        """Yield rows, all or those given, in batches: with their places in arrays of A and of its change."""
        n = len(self.block.y)
        if rows is not None and (whole := self.duals.dense) is not None:
            rows = np.sort(rows)
            yield rows, rows, *whole
            return
        step = max(min(_SUMMED_ROWS, _SUMMED_NUMBERS // self.block.problem.m), 1)
        rows = np.arange(n) if rows is None else np.sort(rows)
        for low in range(0, n, step):
            high = min(low + step, n)
            some = rows[slice(*np.searchsorted(rows, (low, high)))]
            if len(some):
                yield some, some - low, *self.duals.read((low, high))


def columns_alike(m: int, d: int, *, smooth: bool) -> int:
    """Return the least number of features, of a few, whose W for m classes is swept like that of d."""

    def kind(columns: int) -> tuple[bool, bool]:
        small = m * columns <= SMALL_W
        return small, not small and is_tiled(m, columns, np.dtype(np.float32), smooth=smooth)

    sizes = SMALL_W, _TILED_SMOOTH, _TILED_W, _LARGE_W // np.dtype(np.float32).itemsize
    some = (3, *(max(size // m + 1, _TILED_FEATURES) for size in sizes), d)
    return next(columns for columns in some if kind(columns) == kind(d))


def is_tiled(m: int, d: int, dtype: np.dtype[Any], *, smooth: bool = False) -> bool:
    """Return whether W (d, m), in a precision, is swept tile by tile."""
    if smooth and d >= _TILED_FEATURES and m * d > _TILED_SMOOTH:
        return True
    return (m >= _TILED_CLASSES and m * d > _TILED_W) or m * d * dtype.itemsize > _LARGE_W


#: Classes without mass included for their high scores; with ranks at least one more.
_SPARE = 3
#: Average share of the classes above which a row is faster swept whole; the second for rows swept in tiles,
#: which share the loads of W and run on threads.
_FEW, _FEW_OF_TILES = 0.6, 0.05
#: Least number of rows scored at once.
_LEAST_LISTED = 2048


def spare_classes(form: LossForm) -> int:
    """Return how many classes without mass are included, 0 for a loss that needs all classes."""
    if form.family.ranks is None or form.margins is not None:
        return 0
    # With the own class there are more than ranks, so that no rank goes to an omitted class.
    return max(_SPARE, len(form.rho) + 1)


def room_for_lists(
    rows: Int64Array, block: BlockRows, duals: DualWindow, *, tiled: bool = False
) -> ClassLists | None:
    """Return room for the class lists of some ascending rows of a block; None if they are not short.

    The limit is lower for rows swept in tiles.
    """
    spare = spare_classes(block.problem.form)
    if not spare:
        return None
    m, n = block.problem.m, len(block.y)
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    step = max(_LOOKED_AT // m, 1)
    for low in range(0, n, step):
        high = min(low + step, n)
        first, last = np.searchsorted(rows, (low, high))
        if first < last:
            A, delta = duals.read((low, high))
            inside = rows[first:last] - low
            count_classes(inside, block.y[low:high], A, delta, spare, starts[first : last + 1])
    np.cumsum(starts, out=starts)
    if starts[-1] > (_FEW_OF_TILES if tiled else _FEW) * m * len(rows):
        return None
    place = np.zeros(n, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    return ClassLists(place, starts, np.empty(starts[-1], dtype=np.int32))


def fill_lists(
    lists: ClassLists,
    portions: Iterable[Portion],
    block: BlockRows,
    duals: DualWindow,
    W: FloatArray,
    apart: Float64Array | None,
) -> None:
    """Write the classes of the ascending rows in `portions`, by their scores at W (d, m).

    `apart` (m,) is the part of W along the deflated direction, None without one.
    """
    step = max(_LEAST_LISTED, _LOOKED_AT // W.size)
    for X, places, rows, slab in portions:
        A, delta = duals.read(slab)
        for low in range(0, len(rows), step):
            some = rows[low : low + step]
            scores = X[places[low : low + step]] @ W
            if apart is not None:
                scores += np.outer(block.along[some], apart).astype(scores.dtype)
            first = lists.place[some[0]]
            starts = lists.starts[first : first + len(some) + 1]
            choose_classes(scores, some - slab[0], block.y[slice(*slab)], A, delta, starts, lists.classes)


@jit
def count_classes(
    rows: Int64Array, y: IntArray, A: FloatArray, delta: FloatArray, spare: int, starts: Int64Array
) -> None:
    """Write the number of classes of row rows[t] to starts[t + 1]."""
    m = A.shape[1]
    for t in range(len(rows)):
        i = rows[t]
        count = 1 + spare
        for j in range(m):
            if j != y[i] and np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                count += 1
        starts[t + 1] = min(count, m)


@jit
def choose_classes(
    scores: FloatArray,
    rows: Int64Array,
    y: IntArray,
    A: FloatArray,
    delta: FloatArray,
    starts: Int64Array,
    classes: IntArray,
) -> None:
    """Write the classes of some rows: the own one, those with mass, and the highest-scoring others.

    `scores` (t, m) are of the rows rows[t], whose classes go to classes[starts[t] : starts[t + 1]].
    """
    for t in range(len(rows)):
        i, at, end = rows[t], starts[t], starts[t + 1]
        classes[at] = y[i]
        at += 1
        for j in range(scores.shape[1]):
            if j != y[i] and np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                classes[at] = j
                at += 1
        spare = at
        for j in range(scores.shape[1]):
            if j == y[i] or np.float64(A[i, j]) + np.float64(delta[i, j]) != 0.0:
                continue
            if at == end and (spare == end or not scores[t, j] > scores[t, classes[end - 1]]):
                continue
            p = min(at, end - 1)
            while p > spare and scores[t, classes[p - 1]] < scores[t, j]:
                classes[p] = classes[p - 1]
                p -= 1
            classes[p] = j
            at = min(at + 1, end)


@jit
def _project(
    Z: Float64Array,
    places: Int64Array,
    lists: ClassLists,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    own_margin: float,
) -> None:
    """Replace rows of Z (t, m) by the nearest points of their domains in the listed classes.

    Row t has the list places[t]; its other classes are 0 and stay so.
    """
    m = Z.shape[1]
    owned = *column_workspace(m), room(m), room(m)
    work, index_work, all_q, all_alpha = borrowed(owned)
    for t in range(Z.shape[0]):
        first = lists.starts[places[t]]
        few = lists.starts[places[t] + 1] - first
        q, alpha = all_q[:few], all_alpha[:few]
        for e in range(few):
            q[e] = -Z[t, lists.classes[first + e]] - (own_margin if e == 0 else 1.0)
        column(ColumnProblem(q, 0, 1.0, 1.0, rho, margins, alpha, work, index_work, False))
        for e in range(few):
            Z[t, lists.classes[first + e]] = alpha[e]
    keep(owned)
