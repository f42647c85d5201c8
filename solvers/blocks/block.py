"""A block of examples: its dual variables, and a request in, a small sum out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES, FAR_AHEAD, ClassLists, fetch_listed
from topline.solvers.core.answers import TileReader
from topline.solvers.core.dual_points import PendingStep, step_number
from topline.solvers.core.dual_rows import ByteBudget, DualStore, PackedStore
from topline.solvers.core.problem import Problem, SelectedRows
from topline.solvers.core.rows import Rows, RowSource, compute_dtype, read_slabs, slab_bounds
from topline.solvers.errors import StateLostError, UnsupportedCombinationError
from topline.solvers.jit_cache import jit
from topline.solvers.losses.rows import conjugate_sum, nearest_rows
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

_NEVER = -1
#: Numbers projected at once, which takes several float64 arrays.
_AT_ONCE = 1 << 19


@jit
def _add_changes(A: Any, change: Any, rows: Any, lists: Any, step: float) -> None:
    """Add step times the change to the listed classes of some rows of A, in its type, and clear it there."""
    factor, few = A.dtype.type(step), len(lists.classes) > 0
    first, last = 0, A.shape[1]
    for t in range(len(rows)):
        i = rows[t]
        if t + FAR_AHEAD < len(rows):
            ahead = rows[t + FAR_AHEAD]
            fetch_listed(A, change, ahead, lists, ahead)
        if few:
            first, last = lists.starts[lists.place[i]], lists.starts[lists.place[i] + 1]
        for e in range(first, last):
            j = lists.classes[e] if few else e
            # Rows of a hinge change in few classes: most of A is not touched.
            if change[i, j] != 0.0:
                A[i, j] += factor * change[i, j]
                change[i, j] = 0.0


@jit(fastmath={"contract"})
def lift_scores(scores: Any, A: Any, y: Any, smoothing: float, smoothing_own: float) -> None:
    """Add smoothing * A to the scores, both (b, m); the own class has the factor `smoothing_own`."""
    # If all classes have the same smoothing, y may number label sets.
    alike = smoothing_own == smoothing
    for i in range(A.shape[0]):
        own = 0.0 if alike else scores[i, y[i]] + smoothing_own * A[i, y[i]]
        for j in range(A.shape[1]):
            scores[i, j] += smoothing * A[i, j]
        if not alike:
            scores[i, y[i]] = own


@jit(fastmath={"contract"})
def sum_of_squares(A: Any, y: Any, weights: Any, own_share: float) -> float:
    """Return sum_i w_i |alpha_i|^2 in float64, where the own class counts `own_share` times."""
    total = 0.0
    for i in range(A.shape[0]):
        row = 0.0
        for j in range(A.shape[1]):
            row += np.float64(A[i, j]) * np.float64(A[i, j])
        if own_share != 1.0:
            row += (own_share - 1.0) * np.float64(A[i, y[i]]) * np.float64(A[i, y[i]])
        total += weights[i] * row
    return total


class BlockDuals:
    """A of one block (rows, m) and, tile by tile, the vertex found last and the last step applied.

    Round numbers per tile make every request repeatable: one that was interrupted, or arrives twice, finds
    the part already done.

    Parameters
    ----------
    problem : the problem.
    y, weights : (rows,) labels, and how often each row counts.
    dtype : initial precision of A.
    cuts : the rows 0 = r_0 < r_1 < ... = rows at which tiles begin and end.
    dual_bytes : memory for A and its pending change; if both do not fit as arrays they are packed, and
        continue in a temporary file.  None for arrays.  With a shared budget they are packed until `open` is
        called.
    """

    def __init__(
        self,
        problem: Problem,
        y: IntArray,
        weights: Float64Array,
        dtype: np.dtype[np.floating],
        cuts: Sequence[int],
        dual_bytes: int | ByteBudget | None = None,
    ) -> None:
        self._problem = problem
        self._form = problem.form
        self._y, self._weights = y, weights
        self._weighted = bool((weights != 1.0).any())
        self._cuts = cuts
        self._budget = dual_bytes if isinstance(dual_bytes, ByteBudget) else None
        if isinstance(dual_bytes, int) and dual_bytes < array_bytes(len(y), problem.m):
            self._budget = ByteBudget(dual_bytes)
        self.A: DualStore = self._zeros(dtype, self._budget)
        self._change: DualStore | None = None
        #: Ascending numbers of the rows whose change may be non-zero; None for all rows.
        self._moved: Int64Array | None = None
        self._lists = ALL_CLASSES
        tiles = len(cuts) - 1
        self._applied = np.full(tiles, _NEVER, dtype=np.int64)
        self._pending = np.full(tiles, _NEVER, dtype=np.int64)

    def open(self) -> None:
        """Keep A and its change as arrays from now on; there must be room."""
        self._move(None)

    def pack(self) -> None:
        """Keep A and its change packed from now on, under the budget."""
        self._move(self._budget)

    def array_bytes(self, *, wide: bool = False) -> int:
        """Return the bytes of A and its change as arrays, of float64 if `wide`."""
        rows, m = self.A.shape
        return array_bytes(rows, m) if wide else array_bytes(rows, m, self.A.dtype.itemsize)

    def clear(self) -> None:
        """Free what A and its change take of the budget; they must not be used again."""
        for rows in (self.A, self._change):
            if isinstance(rows, PackedStore):
                rows.clear()

    def _zeros(self, dtype: np.dtype[Any], budget: ByteBudget | None) -> DualStore:
        """Return dual rows of zeros, packed if there is a budget."""
        shape = len(self._y), self._problem.m
        return np.zeros(shape, dtype) if budget is None else PackedStore(self._cuts, shape[1], dtype, budget)

    def _move(self, budget: ByteBudget | None) -> None:
        self.A = self._copied(self.A, budget)
        self._change = None if self._change is None else self._copied(self._change, budget)

    def _copied(self, rows: DualStore, budget: ByteBudget | None) -> DualStore:
        """Return a copy of dual rows, packed if there is a budget; packed ones are freed."""
        found = self._zeros(rows.dtype, budget)
        for start, stop in pairwise(self._cuts):
            found[start:stop] = rows[start:stop]
        if isinstance(rows, PackedStore):
            rows.clear()
        return found

    def conjugates(self, A: FloatArray, rows: slice) -> float:
        """Return sum w_i (-Phi*(-alpha_i)) of dual rows A (r, m) at `rows`."""
        form = self._form
        return float(conjugate_sum(form.conjugate, A, self._y[rows], self._weights[rows], form.table))

    def squares(self, A: FloatArray, rows: slice) -> float:
        """Return sum w_i |alpha_i|^2 of dual rows A (r, m) at `rows`, over the smoothed entries."""
        return float(sum_of_squares(A, self._y[rows], self._weights[rows], self._problem.own_share))

    def products(self, A: FloatArray, U: FloatArray, rows: slice) -> float:
        """Return sum w_i <alpha_i, u_i> of dual rows A and U (r, m) at `rows`, over the smoothed entries."""
        y, share = self._y[rows], self._problem.own_share
        products = np.einsum("ij,ij->i", A, U, dtype=np.float64)
        if share != 1.0:
            own = np.arange(len(y)), y
            products -= (1.0 - share) * A[own].astype(np.float64) * U[own]
        return float(products @ self._weights[rows])

    def lift(self, scores: FloatArray, A: FloatArray, rows: slice) -> None:
        """Add gamma alpha_i to the scores (r, m), for dual rows A (r, m) at `rows`."""
        if self._problem.smoothing > 0:
            lift_scores(scores, A, self._y[rows], *self._problem.gammas)

    def apply_step(self, pending_step: PendingStep | None) -> None:
        """Apply a step to all rows, once."""
        if pending_step is None:
            return
        number = pending_step.number
        if self._moved is not None and pending_step.shrink == 1.0:
            A, change = self.A, self._change
            waits = (self._pending == number) & (self._applied != number)
            if isinstance(A, np.ndarray) and isinstance(change, np.ndarray) and waits.all():
                # The few rows of a part of a round, whatever the number of tiles.
                _add_changes(A, change, self._moved, self._lists, pending_step.step)
                self._applied[:] = number
                self._moved = self._moved[:0]
                return
            still = np.diff(np.searchsorted(self._moved, self._cuts)) == 0
            self._applied[still & (self._pending == number)] = number
        for tile in map(int, np.flatnonzero(self._applied != number)):
            self.rows_after(tile, slice(self._cuts[tile], self._cuts[tile + 1]), pending_step)

    def rows_after(self, tile: int, rows: slice, pending_step: PendingStep | None) -> FloatArray:
        """Return the rows of A of one tile, after applying a step to them, once."""
        start, stop = rows.start, rows.stop
        A = self.A[start:stop]
        if pending_step is None or self._applied[tile] == pending_step.number:
            return A
        if self._pending[tile] != pending_step.number:
            raise StateLostError(
                f"rows {start}:{stop} of a block do not hold the vertex of round {pending_step.round}; "
                "load the duals of a checkpoint and continue from its state"
            )
        moved: slice | Int64Array = slice(None)
        if self._moved is not None:
            low, high = np.searchsorted(self._moved, (start, stop))
            moved = self._moved[low:high] - start
        change = self._room()[start:stop][moved]
        A[moved] += np.asarray(pending_step.step * change, dtype=A.dtype)
        A = A if pending_step.shrink == 1.0 else pending_step.shrink * A
        self.A[start:stop] = A
        self._applied[tile] = pending_step.number
        return A

    def finish_step(self, pending_step: PendingStep | None) -> None:
        """Apply a step where its change waits; then A counts as having it, and no change waits."""
        for tile, (start, stop) in enumerate(pairwise(self._cuts)):
            if pending_step is not None and self._pending[tile] == pending_step.number:
                self.rows_after(tile, slice(start, stop), pending_step)
        self._applied[:] = _NEVER if pending_step is None else pending_step.number
        self._pending[:] = _NEVER

    def found(self, tile: int, rows: slice, U: FloatArray, A: FloatArray, round_: int) -> None:
        """Keep the vertex U (r, m) of this round for the rows A (r, m) of a tile, as the change to it."""
        change = self._room()
        self._moved = None
        if isinstance(change, np.ndarray):
            np.subtract(U, A, out=change[rows])
        else:
            change[rows] = U - A
        self._pending[tile] = step_number(round_)

    def change(self) -> DualStore:
        """Return room (rows, m) for a change of A; its old contents no longer wait for a step."""
        self._pending[:] = _NEVER
        self._moved = None
        return self._room()

    def no_change(self, rows: Int64Array | None = None, lists: ClassLists = ALL_CLASSES) -> DualStore:
        """Return zeros (rows, m) for a change of A in the listed classes of some rows, by default of all.

        They are zeroed at the cost of the rows last written.
        """
        before, room = self._moved, self.change()
        if isinstance(room, PackedStore):
            room.clear()
        else:
            room[slice(None) if before is None else before] = 0.0
        self._moved, self._lists = None if rows is None else np.sort(rows), lists
        return room

    def changed(self, round_: int, part: int = 0) -> None:
        """Record that the room holds the change of this round, or of a part of it, for every tile."""
        number = step_number(round_, part)
        self._pending[:] = number
        # A round that lost dual variables restarts and finds another change with the same number.
        self._applied[self._applied == number] = _NEVER

    def whole(self, method: str) -> tuple[FloatArray, FloatArray]:
        """Return A and its change as arrays (rows, m); raises UnsupportedCombinationError if packed."""
        A, change = self.A, self.change()
        if isinstance(A, PackedStore) or isinstance(change, PackedStore):
            raise UnsupportedCombinationError(
                f"{method} works on dual variables as arrays, and those of a block are packed to fit their "
                "budget: allow more memory, or use dual_ascent"
            )
        return A, change

    def widen(self) -> None:
        """Keep A in float64 from now on, each row at the nearest point of its domain.

        Rounding to float32 left rows slightly outside, where the dual exceeds that of any feasible row: exact
        updates would appear to lower it.
        """
        if self.A.dtype == np.float64:
            return
        self._to_float64()
        self.put_inside()

    def put_inside(self) -> None:
        """Put each row at the nearest point of its domain, in the precision of A."""
        rows = max(_AT_ONCE // self._problem.m, 1)
        for start in range(0, len(self._y), rows):
            stop = min(start + rows, len(self._y))
            A = self.A[start:stop].astype(np.float64)
            self.A[start:stop] = nearest_rows(self._form, A, self._y[start:stop])

    def feasible(self, A: FloatArray, rows: slice) -> Float64Array:
        """Return dual rows A (r, m) at `rows` in float64, inside their domains."""
        wide = A.astype(np.float64)
        return wide if A.dtype == np.float64 else nearest_rows(self._form, wide, self._y[rows])

    def counted(self, start: int, stop: int) -> FloatArray:
        """Return the rows [start, stop) of A, each times its weight."""
        A = self.A[start:stop]
        return A * self._weights[start:stop, None].astype(A.dtype) if self._weighted else A

    def load_counted(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the block on by rows already multiplied by their weights."""
        if self._weighted:
            weights = self._weights[start : start + len(rows), None]
            # For a row of weight 0 all points of the domain are equal.
            divisors = np.where(weights > 0.0, weights, np.inf)
            rows = (rows / divisors).astype(rows.dtype)
        self.load(start, rows)

    def load(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the block on; vertices found before are forgotten."""
        shape = self.A.shape
        if rows.ndim != 2 or rows.shape[1] != shape[1] or start + len(rows) > shape[0]:
            raise StateLostError(f"stored duals of shape {rows.shape} do not fit a block of shape {shape}")
        if rows.dtype == np.float64 and self.A.dtype != np.float64:
            self._to_float64()
        self.A[start : start + len(rows)] = rows
        self._applied[:] = _NEVER
        self._pending[:] = _NEVER

    def _to_float64(self) -> None:
        self.A = _widened(self.A)
        self._change = None if self._change is None else _widened(self._change)

    def _room(self) -> DualStore:
        if self._change is None:
            budget = self._budget if isinstance(self.A, PackedStore) else None
            self._change = self._zeros(self.A.dtype, budget)
        return self._change


def _widened(rows: DualStore) -> DualStore:
    """Return dual rows in float64; packed ones are packed anew in their place."""
    if isinstance(rows, np.ndarray):
        return rows.astype(np.float64, copy=False)
    rows.widen()
    return rows


def inside(problem: Problem, A: FloatArray, y: IntArray, weights: Float64Array | None) -> Float64Array:
    """Return rows A (n, m), each times its weight, in float64 and, after float32, inside their domains."""
    if A.dtype == np.float64:
        return np.asarray(A, dtype=np.float64)
    points = A.astype(np.float64)
    if weights is not None:
        points /= np.where(weights > 0.0, weights, np.inf)[:, None]
    rows = max(_AT_ONCE // problem.m, 1)
    for start in range(0, len(y), rows):
        part = slice(start, start + rows)
        points[part] = nearest_rows(problem.form, points[part], y[part])
    if weights is not None:
        points *= weights[:, None]
    return points


def array_bytes(rows: int, m: int, itemsize: int = 8) -> int:
    """Return the bytes of A (rows, m) and its change as arrays, of float64 unless told otherwise."""
    return 2 * itemsize * rows * m


class Kept(Protocol):
    """Values that operations keep with a block from one answer to the next; they only save work.

    They are valid for a "round" of the operation's own, while nothing else moves A; as long as the "duals"
    are the same, or moved by steps; or as long as the "rows" are.
    """

    lasting: ClassVar[str]


K = TypeVar("K", bound=Kept)


@dataclass(frozen=True, eq=False)
class RunSpec:
    """The specification of blocks: a problem, and some of its rows.

    Attributes
    ----------
    problem : the problem, or any of the problems of heads.
    X : features, by the numbers of the rows in the problem.
    y, weights : labels of the local rows, and how often each counts (rows,), or for heads (rows, columns);
        None for once.
    keep_duals : whether A is kept, initially 0.
    dual_bytes, kept_bytes : memory for A, and for values kept by operations, of all local rows; None for the
        default.
    first : number of the first local row.
    """

    problem: Problem
    X: RowSource
    y: IntArray
    weights: Float64Array | None = None
    keep_duals: bool = False
    dual_bytes: int | None = None
    kept_bytes: int | None = None
    first: int = 0

    def part(self, start: int, stop: int, budgeted: int | None = None) -> RunSpec:
        """Return the rows [start, stop) alone, with the budgets of `budgeted` rows, by default their own."""
        rows, all_rows = slice(start - self.first, stop - self.first), max(len(self.y), 1)
        share = stop - start if budgeted is None else budgeted
        return replace(
            self,
            y=self.y[rows],
            weights=None if self.weights is None else self.weights[rows],
            dual_bytes=None if self.dual_bytes is None else self.dual_bytes * share // all_rows,
            kept_bytes=None if self.kept_bytes is None else self.kept_bytes * share // all_rows,
            first=start,
        )


class Block:
    """A contiguous run of examples, with the dual variables of one head if they are kept.

    Parameters
    ----------
    spec : its problem and its rows, the first of which has the number `first`.
    index : place of the block among all blocks, from 0.
    X : its features, a RowSource of as many rows; by default those of the specification.
    budget : shared memory for A; None for the block's own.  Beyond the budget, A and the change that waits
        for its step are packed, and beyond that in a temporary file; the numbers are the same.
    norms : row norms shared by several blocks of the same rows; None for the block's own.
    """

    def __init__(
        self,
        spec: RunSpec,
        index: int = 0,
        X: RowSource | None = None,
        budget: ByteBudget | None = None,
        norms: tuple[Float64Array, Float64Array] | None = None,
    ) -> None:
        X = spec.X if X is None else X
        self.index, self.start, self.stop = index, spec.first, spec.first + len(spec.y)
        self.problem, self.X, rows = spec.problem, X, len(spec.y)
        self.y: IntArray = np.ascontiguousarray(spec.y, dtype=np.int32)
        self.weights = (
            np.ones(rows) if spec.weights is None else np.ascontiguousarray(spec.weights, np.float64)
        )
        self.dtype = compute_dtype(X.dtype)
        self.tiles = TileReader(X, self.y, self.weights, self.start, self.problem.m)
        self.norms = norms
        self._kept: dict[type[Kept], Any] = {}
        self.kept_bytes = spec.kept_bytes
        #: Whether A has been replaced since its start at 0.
        self.loaded = False
        self.kept_duals: BlockDuals | None = None
        if spec.keep_duals:
            cuts, room = [0, *(stop for _, _, stop in self.tiles.bounds())], budget or spec.dual_bytes
            self.kept_duals = BlockDuals(self.problem, self.y, self.weights, self.dtype, cuts, room)

    def recall(self, kind: type[K], make: Callable[[], K]) -> K:
        """Return the values that operations of a kind keep with the block; `make` creates missing ones."""
        if kind not in self._kept:
            self._kept[kind] = make()
        kept: K = self._kept[kind]
        return kept

    def read_selected(self, selected: SelectedRows) -> Iterator[tuple[SelectedRows, Rows]]:
        """Yield selected rows of the block in batches of at most a tile, with their features."""
        most = self.tiles.rows
        slabs = [
            (start, stop) for start, stop in slab_bounds(self.X, most) if len(selected.between(start, stop))
        ]
        for start, stop, slab in read_slabs(self.X, slabs):
            here = selected.between(start, stop)
            for first in range(0, len(here), most):
                places = slice(first, first + most)
                part = SelectedRows(here.rows[places] + start, here.weights[places])
                yield part, slab[here.rows[places]]

    @property
    def duals(self) -> BlockDuals:
        """The dual variables; raises StateLostError if none are kept."""
        if self.kept_duals is None:
            raise StateLostError("this block keeps no dual variables; bind it with keep_duals=True")
        return self.kept_duals

    def duals_after(self, pending_step: PendingStep | None) -> BlockDuals:
        """Return the dual variables with `pending_step` applied to every row."""
        self.duals.apply_step(pending_step)
        return self.duals

    def dual_rows(
        self, pending_step: PendingStep | None = None, start: int | None = None, stop: int | None = None
    ) -> FloatArray:
        """Return the rows [start, stop) of A, by their numbers in the problem, after the pending step.

        All rows by default; `topline.solvers.core.dual_rows.row_runs` gives runs of moderate size.
        """
        first = 0 if start is None else start - self.start
        last = (self.stop if stop is None else stop) - self.start
        return self.duals_after(pending_step).counted(first, last)

    def load_duals(self, start: int, rows: FloatArray) -> None:
        """Replace A from row `start` of the problem on by `rows` (r, m)."""
        self.duals.load_counted(start - self.start, rows)
        self._forget({"rows"})
        self.loaded = True

    def finish_step(self, pending_step: PendingStep | None) -> None:
        """Adopt A after a step, applied where its change waits, however far requests had come.

        Every row is feasible before, after and between rounds, so a run can continue from this A.
        """
        self.duals.finish_step(pending_step)
        self._forget({"rows", "duals"})

    def take_duals(self, other: Block) -> None:
        """Adopt the dual variables of a block of the same rows, which must not be used again."""
        self.kept_duals, self.loaded = other.duals, other.loaded
        self._forget({"rows"})
        self._kept |= {kind: kept for kind, kept in other._kept.items() if kept.lasting == "duals"}

    def _forget(self, lasting: Collection[str]) -> None:
        """Drop kept values except those with the given lifetimes."""
        self._kept = {kind: kept for kind, kept in self._kept.items() if kept.lasting in lasting}
