"""Answers of blocks to an operation, how they add up, and the tiles of rows from which they come.

An answer is a small frozen dataclass whose fields say how they merge: numbers and arrays add, and a field
that does not add names its rule (`merged_by`).  Products are carried whole, because the curvature of a step
is the squared norm of a *sum* of products: squares are taken only after all blocks are in.

The sum runs over a fixed binary tree of block indices.  Node (level, place) stands for the blocks
[place * 2^level, (place + 1) * 2^level) below the number of blocks; a node whose sibling lies wholly beyond
the last block passes for its own parent.  Every executor adds along this tree, so the floating-point result
does not depend on which worker computed what, or in which order.

A tile is a run of a block's rows, small enough for a core's cache.  A piece of work takes the scores of a
tile under its weights and adds to its sums.  `work_through` reads the tiles once for any number of pieces, of
whichever problems, and multiplies a tile with all their weights side by side: one wide product is several
times as fast as many narrow ones.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, groupby
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from topline.solvers.core.rows import (
    RowRange,
    Rows,
    RowSource,
    as_rows,
    compute_dtype,
    cut_rows,
    gives_sparse,
    is_sparse,
    read_slabs,
    refuse_nonfinite,
    rows_are,
    slab_bounds,
    stacked,
    tile_rows,
)
from topline.solvers.crew import ALONE, Crew, is_narrow, multiply_rows
from topline.solvers.errors import StateLostError
from topline.solvers.typing import Float64Array, FloatArray, IntArray


@dataclass
class Clock:
    """Seconds in products and in per-row work; each call of a method begins a stretch, and ends the last.

    `laps` counts the stretches of all clocks of the process, so that others can see progress.
    """

    laps: ClassVar[int] = 0
    products: float = 0.0
    per_row: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """Discard the time since the last stretch ended."""
        self._last = time.perf_counter()

    def product(self) -> None:
        """End a stretch of products with X, or of reading it."""
        last, self._last = self._last, time.perf_counter()
        self.products += self._last - last
        Clock.laps += 1

    def row_work(self) -> None:
        """End a stretch of work per row."""
        last, self._last = self._last, time.perf_counter()
        self.per_row += self._last - last
        Clock.laps += 1

    def seconds(self) -> dict[str, Any]:
        """Return both times under their names in an `Answer`."""
        return {"seconds_products": self.products, "seconds_kernels": self.per_row}


A = TypeVar("A", bound="Answer")

_RULE = "merge"


def merged_by(rule: Callable[[Any, Any], Any], default: Any = None) -> Any:
    """Return the field of an answer that merges by a rule of its own, such as `max`."""
    return field(default=default, metadata={_RULE: rule})


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The answer of some blocks to an operation; None in a field means nothing to add.

    Attributes
    ----------
    seconds_products : time in products with X and in reading it, summed over blocks.
    seconds_kernels : time in all per-row work, summed over blocks.
    """

    seconds_products: float = 0.0
    seconds_kernels: float = 0.0

    def merge(self, other: Self) -> Self:
        """Return the answer of the blocks of both; those of `other` come after these."""
        merged: dict[str, Any] = {}
        for part in fields(self):
            left, right = getattr(self, part.name), getattr(other, part.name)
            if left is None or right is None:
                merged[part.name] = right if left is None else left
            else:
                merged[part.name] = part.metadata.get(_RULE, operator.add)(left, right)
        return type(self)(**merged)


@dataclass(frozen=True, eq=False, kw_only=True)
class LossAnswer(Answer):
    """Sums over the rows of some blocks, each row times its weight.

    Attributes
    ----------
    rows : number of examples.
    loss : sum Phi_gamma at the scores that the operation defines.
    active : rows with a loss, or with u_i not 0.
    """

    rows: int = 0
    loss: float = 0.0
    active: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorSums(LossAnswer):
    """Sums over vectors u_i (m,) of the rows, such as vertices or changes of alpha_i.

    Attributes
    ----------
    product : (d, m) sum x_i u_i^T, in float64 unless an operation says otherwise.
    conjugate_u : sum b(u_i), b(u) = -Phi*(-u), which is -<delta_i, u_i> for the hinges; for a change of A the
        change of sum b(alpha_i).
    alpha_u : sum <alpha_i, u_i>; 0 where no A is kept.
    u_sq : sum |u_i|^2.
    alpha_sq : sum |alpha_i|^2; 0 where no A is kept, or nobody asks.
    """

    product: FloatArray
    conjugate_u: float = 0.0
    alpha_u: float = 0.0
    u_sq: float = 0.0
    alpha_sq: float = 0.0


#: (level, place) of a node of the tree over block indices.
Node: TypeAlias = tuple[int, int]


@dataclass(eq=False)
class TreeMerger(Generic[A]):
    """Adds up answers along the fixed tree, in whatever order they come.

    It merges once both children of a node are there, so a run in block order holds about log2(blocks) parts.
    """

    blocks: int
    _parts: dict[Node, A] = field(default_factory=dict)

    @property
    def _root(self) -> Node:
        return max(self.blocks - 1, 0).bit_length(), 0

    def add(self, node: Node, answer: A) -> None:
        """Add the sum over the blocks of one node."""
        while node != self._root:
            level, place = node
            sibling = place ^ 1
            if (sibling << level) < self.blocks:
                other = self._parts.pop((level, sibling), None)
                if other is None:
                    break
                left, right = (answer, other) if place < sibling else (other, answer)
                answer = left.merge(right)
            node = level + 1, place >> 1
        self._parts[node] = answer

    def parts(self) -> list[tuple[Node, A]]:
        """Return the unmerged parts in block order."""
        return sorted(self._parts.items(), key=lambda part: part[0][1] << part[0][0])

    def total(self) -> A:
        """Return the sum over all blocks; StateLostError where some are missing."""
        total = self._parts.get(self._root)
        if total is None or len(self._parts) > 1:
            raise StateLostError(f"the sum over {self.blocks} blocks is not complete; run the round again")
        return total


def tree_total(parts: Iterable[tuple[Node, A]], blocks: int) -> A:
    """Merge parts that together cover all blocks; StateLostError where some are missing."""
    merger: TreeMerger[A] = TreeMerger(blocks)
    for node, answer in parts:
        merger.add(node, answer)
    return merger.total()


@dataclass(frozen=True)
class Tile:
    """Some rows of a block, a slice, ready for computation."""

    number: int
    rows: slice
    X: Rows
    y: IntArray
    weights: Float64Array


def iterate_tiles(X: RowSource, first_row: int, rows: int) -> Iterator[tuple[int, int, Rows]]:
    """Yield (start, stop, rows start:stop of X) with float32 or float64 values.

    Tiles end at row numbers, counted from `first_row`, that are multiples of `rows`, so results hardly depend
    on how rows are cut into blocks.  Features outside memory are read ahead in slabs of whole stored pieces;
    a tile across two slabs is put together.
    """
    n, dtype = int(X.shape[0]), compute_dtype(X.dtype)
    if rows_are("at_hand", X, 0, n):
        for start, stop in cut_rows(n, first_row, rows):
            yield start, stop, as_rows(X[start:stop], dtype)
        return
    begun: list[Rows] = []
    for low, high, slab in read_slabs(X, slab_bounds(X, rows)):
        for start, stop in cut_rows(high - low, first_row + low, rows):
            # The last rows of a slab are copied if their tile continues, to release the slab.
            part = as_rows(slab[start:stop], dtype)
            reached = low + stop
            if reached < n and (first_row + reached) % rows:
                begun.append(part.copy())
                continue
            whole = stacked([*begun, part])
            begun.clear()
            yield reached - whole.shape[0], reached, whole


class TileReader:
    """Reads the rows of one block tile by tile, and checks once that they are finite.

    Parameters
    ----------
    X, y, weights : features (rows, d), labels and weights (rows,) of the block.
    first_row : its first row in the whole problem, from which tiles are counted.
    m : number of classes.
    """

    def __init__(self, X: RowSource, y: IntArray, weights: Float64Array, first_row: int, m: int) -> None:
        self._X, self.y, self.weights = X, y, weights
        self._first_row = first_row
        # A sparse row takes little room for any d.
        width = 0 if gives_sparse(X) else int(X.shape[1])
        #: Rows of a whole tile.
        self.rows = tile_rows(width, m, compute_dtype(X.dtype).itemsize)
        self._unchecked = {number for number, _, _ in self.bounds()}

    def __len__(self) -> int:
        return len([*self.bounds()])

    def read(self, dtype: np.dtype[Any], low: int = 0, high: int | None = None) -> Iterator[Tile]:
        """Yield the tiles with features in the given precision, only those that overlap rows low..high-1.

        Raises NonFiniteError naming the rows with NaN or infinite features.
        """
        n = len(self.y)
        wanted = [tile for tile in self.bounds() if tile[1] < (n if high is None else high) and low < tile[2]]
        if not wanted:
            return
        first, begin, end = wanted[0][0], wanted[0][1], wanted[-1][2]
        source = self._X if end - begin == n else RowRange(self._X, begin, end)
        tiles = iterate_tiles(source, self._first_row + begin, self.rows)
        for number, (start, stop, X) in enumerate(tiles, first):
            rows = slice(begin + start, begin + stop)
            if number in self._unchecked:
                refuse_nonfinite(X, self._first_row + rows.start)
                self._unchecked.discard(number)
            yield Tile(number, rows, as_rows(X, dtype), self.y[rows], self.weights[rows])

    def bounds(self) -> Iterator[tuple[int, int, int]]:
        """Yield (number, start, stop) of the tiles without reading features."""
        first, last = self._first_row, self._first_row + len(self.y)
        for number, low in enumerate(range(first - first % self.rows, last, self.rows)):
            yield number, max(low - first, 0), min(low + self.rows, last) - first


class Scratch:
    """Buffers that the tiles of one request share, and the crew for products."""

    def __init__(self, rows: int, m: int, dtype: np.dtype[Any], crew: Crew = ALONE) -> None:
        self._crew = crew
        self._scores = np.empty((rows, m), dtype=dtype)
        self._copy: FloatArray | None = None
        #: The last W, and a contiguous W^T.
        self._turned: tuple[FloatArray, FloatArray] | None = None

    def scores_of(self, X: Rows, W: FloatArray | None) -> FloatArray:
        """Return X W for a tile, in the shared buffer; W, None for 0, must not change between tiles."""
        scores = self._scores[: X.shape[0]]
        if W is None:
            scores[:] = 0.0
        elif is_sparse(X):
            return np.ascontiguousarray(X @ W)
        elif is_narrow(X, W.shape[1]):
            if self._turned is None or self._turned[0] is not W:
                self._turned = W, np.ascontiguousarray(W.T)
            multiply_rows(X, self._turned[1], scores)
        else:
            self._crew.multiply(X, W, scores)
        return scores

    def laid_out(self, scores: FloatArray) -> FloatArray:
        """Return a contiguous copy of some columns of a wider array, in the shared buffer."""
        flat = self._scores.reshape(-1)[: scores.size].reshape(scores.shape)
        flat[:] = scores
        return flat

    def copy_of(self, scores: FloatArray) -> FloatArray:
        """Return a copy of the scores of a tile, in a second buffer."""
        if self._copy is None:
            self._copy = np.empty_like(self._scores)
        copy = self._copy[: len(scores)]
        copy[:] = scores
        return copy


A_co = TypeVar("A_co", bound=Answer, covariant=True)

FLOAT64 = np.dtype(np.float64)
#: Number of columns beyond which a wider product is hardly faster.
_WIDE = 1024

#: Work on the tiles of a block: a generator that yields its clock, the precision of products and the weights
#: W (d, m), or None without scores.  It receives each tile with its scores (b, m), which it may overwrite
#: (empty without W), and at last None, on which it returns the sums over all tiles.
TileSums: TypeAlias = Generator[
    tuple[Clock, np.dtype[Any], FloatArray | None] | None, tuple[Tile, FloatArray] | None, A_co
]


class TileWork(NamedTuple):
    """Work on tiles that has begun: its sums, its own labels and weights of the rows, and what it asks."""

    sums: TileSums[Answer]
    tiles: TileReader
    clock: Clock
    dtype: np.dtype[Any]
    W: FloatArray | None

    @classmethod
    def begin(cls, sums: TileSums[Any], tiles: TileReader) -> TileWork:
        """Return the work after its first step, before any tile."""
        return cls(sums, tiles, *(next(sums) or (Clock(), FLOAT64, None)))


def work_through(tiles: TileReader, works: Sequence[TileWork], crew: Crew = ALONE) -> list[Any]:
    """Process all tiles with every piece of work in one reading, and return the sums of each.

    The first clock of works side by side times their product.
    """
    precisions = {work.dtype for work in works}
    widest = FLOAT64 if FLOAT64 in precisions else np.dtype(np.float32)
    groups: list[list[TileWork]] = []
    # Weights of one precision are multiplied side by side, as many as pay off.
    for _, alike in groupby(sorted(works, key=lambda work: work.dtype.itemsize), key=lambda w: w.dtype):
        width = math.inf
        for work in alike:
            columns = 0 if work.W is None else work.W.shape[1]
            if width + columns > _WIDE:
                groups.append([])
                width = 0
            groups[-1].append(work)
            width += columns
    products = [_side_by_side(group, tiles.rows, crew) for group in groups]
    for tile in tiles.read(widest):
        narrow = {dtype: as_rows(tile.X, dtype) for dtype in precisions}
        for group, product in zip(groups, products, strict=True):
            X = narrow[group[0].dtype]
            for work, scores in zip(group, product(X), strict=True):
                if work is group[0]:
                    work.clock.product()
                else:
                    work.clock.begin()
                y, weights = work.tiles.y[tile.rows], work.tiles.weights[tile.rows]
                work.sums.send((Tile(tile.number, tile.rows, X, y, weights), scores))
            group[0].clock.begin()
    answers: list[Any] = []
    for work in works:
        try:
            work.sums.send(None)
        except StopIteration as end:
            answers.append(end.value)
    return answers


def _side_by_side(group: Sequence[TileWork], rows: int, crew: Crew) -> Callable[[Rows], Iterator[FloatArray]]:
    """Return a function of X that yields the scores for each of some weights, multiplied as one W."""
    dtype, weights = group[0].dtype, [work.W for work in group if work.W is not None]
    widths = [0 if work.W is None else work.W.shape[1] for work in group]
    several = len(weights) > 1
    W = np.concatenate(weights, axis=1) if several else weights[0] if weights else np.empty((0, 0), dtype)
    scratch = Scratch(rows, W.shape[1], dtype, crew)
    own = Scratch(rows, max(widths), dtype) if several else None
    # A run begins at W = 0, where the scores are known without a product.
    factor = W if W.any() else None

    def scores(X: Rows) -> Iterator[FloatArray]:
        whole = scratch.scores_of(X, factor)
        for stop, width in zip(accumulate(widths), widths, strict=True):
            part = whole[:, stop - width : stop]
            yield part if own is None else own.laid_out(part)

    return scores
