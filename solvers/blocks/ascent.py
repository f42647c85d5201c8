"""Dual ascent on one block: a sweep over all rows, many over those not at rest, and extrapolation.

A round's first sweep of exact column updates visits every row in a random order: it is the full check.  A row
that it leaves at a vertex of its domain, where it was, rests for the round.  The others, often a small part,
are swept again and again while that pays: until a stage of sweeps brings less than a share of what the first
sweep brought, or the visits reach a multiple of the rows of the block.

Sweeps close in on the optimum along a few directions, slowly where C is large.  So the changes of the last
stages are kept, with their images in W, and after each stage the best point of the space that they span is
looked for: D is quadratic there, a system of a few equations.  That point may lie outside the domain.  Its
projection, row by row, does not, and the best point of the segment to it is exact again.

Weights too large for a core's caches are swept tile by tile (`topline.solvers.blocks.ascent_tiles`), and dual
rows that are not one array are opened slab by slab.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from topline.solvers.blocks.ascent_changes import add_rows_csr, add_rows_dense
from topline.solvers.blocks.ascent_jit import change_sums
from topline.solvers.blocks.ascent_rows import DualWindow, HeldRows, Portion, RowFeed
from topline.solvers.blocks.ascent_sweeps import sweep_csr, sweep_dense
from topline.solvers.blocks.ascent_tiles import TiledWeights, update_tile
from topline.solvers.blocks.extrapolation import Extrapolation
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.dual_rows import DualStore
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import AscentRequest
from topline.solvers.core.rows import RowSource, is_sparse
from topline.solvers.projections.columns import column_kind, margins_or_empty
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Weights of up to so many entries are kept in float64: they stay in the first-level cache all the same.
_SMALL_W = 1 << 12
#: Weights of more bytes than this do not stay in a core's second-level cache: rows are swept tile by tile.
_LARGE_W = 1 << 20
#: Rows over which a change is summed at once, and numbers in them.
_SUMMED_ROWS = 4096
_SUMMED_NUMBERS = 1 << 22
#: A request for up to so many sweeps is taken literally, one for more asks for stages of so many sweeps each.
_PLAIN_SWEEPS = 2
#: Visits after a round's first sweep, in rows of the block, and stages that they may be spread over.
_MOST_VISITS = 8.0
_MOST_STAGES = 24
#: A stage whose last sweep brings less than this share of what the first one brought ends the round.
_STAGE_PAYS = 0.1
#: A row whose rise is below this share of the mean has not moved.
_STILL = 0.01


def weights_alike(entries: int) -> int:
    """Give a number of entries of W that is swept like so many, and not much above the least such number."""
    if entries <= _SMALL_W:
        return 0
    large = _LARGE_W // np.dtype(np.float32).itemsize
    return 2 * _SMALL_W if entries <= large else 2 * large


class BlockAscent:
    """Sweeps over the rows of one block.

    Parameters
    ----------
    problem : what is solved.
    X : (rows, d) features of the block.
    y, weights : (rows,) labels, and how often each row counts.
    index : place of the block among all blocks; it seeds the random orders.
    dtype : precision of products, where a request does not ask for float64.
    """

    def __init__(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        weights: Float64Array,
        index: int,
        dtype: np.dtype[Any],
    ) -> None:
        form = problem.form
        self.problem, self.y, self.weights = problem, y, weights
        self.index, self.dtype = index, dtype
        self.loss = column_kind(form), form.rho, margins_or_empty(form)
        self._X = X
        self._feed: RowFeed | None = None
        self.norms, self.along = np.full(len(y), -1.0), np.zeros(len(y))
        self._direction = np.zeros(problem.d)

    def keep_apart(self, request: AscentRequest) -> tuple[Float64Array, float]:
        """Give the direction that a request keeps apart, and by how much it shrinks squares along it."""
        shared = request.shared
        u = np.zeros(self.problem.d) if shared is None else shared.u
        if not np.array_equal(u, self._direction):
            self._direction = u
            self.norms[:] = -1.0
        return self._direction, 0.0 if shared is None else 1.0 - shared.kappa

    def run(self, request: AscentRequest, A: DualStore, delta: DualStore) -> BlockStats:
        """Write to `delta` (rows, m) the change of A (rows, m) that the sweeps find, and sum it.

        The result depends on the request and on A alone.
        """
        delta.clear()
        work = Work(self, request, DualWindow(A, delta))
        feed = self.feed_for(A)
        first = work.sweep(feed.shuffled(np.arange(len(self.y)), work.random))
        busy = np.flatnonzero(work.rises >= 0.0)
        in_one = A.dense is not None and request.sweeps > _PLAIN_SWEEPS and len(busy) > 0
        held = feed.held(busy) if in_one else None
        if held is not None:
            _stages(work, held, first, request.sweeps)
            return work.stats(feed)
        for _ in range(request.sweeps - 1):
            busy = busy[work.moved(busy)]
            work.sweep(feed.shuffled(busy, work.random))
        return work.stats(feed)

    def feed_for(self, A: DualStore) -> RowFeed:
        """Give the rows of the block in slabs of which the dual rows, if packed, can be opened whole."""
        opened = A.shape[1] if A.dense is None else None
        if self._feed is None or opened != self._feed.opened:
            self._feed = RowFeed(self._X, self.dtype, opened=opened)
        return self._feed


def _stages(work: Work, held: HeldRows, first: float, sweeps: int) -> None:
    """Sweep over rows in memory, in stages of so many sweeps, and extrapolate after each."""
    everything = np.arange(len(held.rows))
    budget = _MOST_VISITS * len(work.rises)
    work.duals.open(held.block)
    extrapolation = Extrapolation(work, held) if work.linear and Extrapolation.fits(work, held) else None
    for _ in range(_MOST_STAGES):
        chosen = everything
        rise = 0.0
        for _ in range(sweeps):
            last = work.sweep([held.shuffled(chosen, work.random)])
            rise += last
            budget -= len(chosen)
            chosen = everything[work.moved(held.rows)]
            if budget <= 0 or not len(chosen):
                break
        # The primal objective is far from its least value where rows were moved together: sweeps come last.
        if budget <= 0 or last < _STAGE_PAYS * first:
            return
        if extrapolation is not None:
            extrapolation.step(rise)


class Work:
    """What the sweeps of one request share: the weights as they move, and which rows move."""

    def __init__(self, block: BlockAscent, request: AscentRequest, duals: DualWindow) -> None:
        self.block, self.duals = block, duals
        self.random = np.random.default_rng((request.seed, request.round, block.index))
        self.scale = block.problem.scale * request.safety_factor
        self.linear = block.problem.form.linear_conjugate
        self.rises = np.empty(len(block.y))
        self._products = np.dtype(np.float64) if request.exact else block.dtype
        self._start = request.W
        self.sparse = False
        self.u, self.kept_apart = block.keep_apart(request)
        self.apart = np.zeros(block.problem.m)
        self.W: FloatArray = np.empty((0, 0))
        self._tiles: TiledWeights | None = None
        self.clock = Clock()
        self.visited = 0
        self._still = 0.0

    def sweep(self, portions: Iterable[Portion]) -> float:
        """Update rows once each; gives what the dual rises by at least."""
        total, visited = 0.0, 0
        for portion in portions:
            self._lay_out(portion.X)
            self.duals.open(portion.slab)
            self.clock.product()
            if self._tiles is None:
                self._sweep_rows(portion)
            else:
                self._sweep_tiles(portion, self._tiles)
            self.clock.kernel()
            total += float(np.maximum(self.rises[portion.rows], 0.0).sum())
            visited += len(portion.rows)
        self.duals.close()
        self.visited += visited
        self._still = _STILL * total / max(visited, 1)
        return total

    def moved(self, rows: Int64Array) -> Any:
        """Say which rows moved when they were last visited."""
        return self.rises[rows] > self._still

    def _lay_out(self, X: Any) -> None:
        """Lay W out for the rows that come: (m, d) for dense ones, (d, m) for sparse ones."""
        if self.W.size:
            return
        self.sparse = is_sparse(X)
        start = self._start if self.sparse else self._start.T
        if not self.sparse and start.size * self._products.itemsize > _LARGE_W:
            W = np.array(start, order="C")
            self._tiles = TiledWeights(W, self._products, self.u, self.kept_apart, self.apart)
            self.W = W
            return
        dtype = np.dtype(np.float64) if start.size <= _SMALL_W else self._products
        self.W = np.array(start, dtype=dtype, order="C")

    def _sweep_rows(self, portion: Portion) -> None:
        block, duals, problem = self.block, self.duals, self.block.problem
        X, places, rows, slab = portion
        here = slice(*slab)
        shared = (
            places, rows - slab[0], block.y[here], block.weights[here], block.norms[here], block.along[here],
            self.u, self.kept_apart, duals.A, duals.delta, self.scale, problem.smoothing,
            problem.smoothing_own, *block.loss, self.W, self.apart, self.rises[here],
        )  # fmt: skip
        if self.sparse:
            sweep_csr(X.data, X.indices, X.indptr, *shared)
        else:
            sweep_dense(X, *shared)

    def _sweep_tiles(self, portion: Portion, tiles: TiledWeights) -> None:
        block, duals, problem = self.block, self.duals, self.block.problem
        here = slice(*portion.slab)
        tiles.refresh()
        for low in range(0, len(portion.rows), tiles.rows):
            part = slice(low, low + tiles.rows)
            X = np.asarray(portion.X[portion.places[part]], dtype=self._products)
            scores, gram, along = tiles.products(X)
            self.clock.product()
            update_tile(
                scores, gram, portion.rows[part] - portion.slab[0], block.y[here], block.weights[here],
                duals.A, duals.delta, self.scale, problem.smoothing, problem.smoothing_own, *block.loss,
                self.rises[here], *tiles.changes,
            )  # fmt: skip
            self.clock.kernel()
            tiles.carry(X, along)
            self.clock.product()

    def part_apart(self, image: Float64Array) -> Float64Array:
        """Give what a change of W, laid out like W, is along u, for every class."""
        return np.asarray(self.u @ image if self.sparse else image @ self.u)

    def image(self, portion: Portion, changes: FloatArray, out: Float64Array) -> None:
        """Add the sum of w_i x_i change_i^T to `out`, which is laid out like W."""
        X, places, rows, _ = portion
        factors = self.block.weights[rows]
        if is_sparse(X):
            add_rows_csr(X.data, X.indices, X.indptr, places, changes, factors, out)
        else:
            add_rows_dense(X, places, changes, factors, out)

    def _product(self, feed: RowFeed, changed: Int64Array) -> Float64Array:
        """Give the sum of w_i x_i change_i^T, anew where W has moved by steps rounded to float32."""
        if self.W.dtype == np.float64:
            start = self._start if self.sparse else self._start.T
            return np.asarray((self.W - start) / self.scale)
        product = np.zeros(self.W.shape)
        for portion in feed.shuffled(changed, self.random):
            _, delta = self.duals.read(portion.slab)
            self.image(portion, delta[portion.rows - portion.slab[0]], product)
        return product

    def stats(self, feed: RowFeed) -> BlockStats:
        """Sum the change."""
        block, n = self.block, len(self.block.y)
        kind, _, margins = block.loss
        sums, changed = np.zeros(5), np.zeros(n, dtype=np.bool_)
        rows = max(min(_SUMMED_ROWS, _SUMMED_NUMBERS // block.problem.m), 1)
        for low in range(0, n, rows):
            high = min(low + rows, n)
            A, delta = self.duals.read((low, high))
            changed[low:high] = delta.any(axis=1)
            sums += change_sums(
                kind, block.y[low:high], block.weights[low:high], A, delta, margins,
                block.problem.own_share,
            )  # fmt: skip
        self.clock.kernel()
        product = self._product(feed, np.flatnonzero(changed))
        self.clock.product()
        return BlockStats(
            rows=n,
            product=product if self.sparse else np.ascontiguousarray(product.T),
            conjugate_u=float(sums[0]),
            alpha_u=float(sums[1]),
            u_sq=float(sums[2]),
            alpha_sq=float(sums[3]),
            active=int(sums[4]),
            visited=self.visited,
            seconds_products=self.clock.products,
            seconds_kernels=self.clock.kernels,
        )
