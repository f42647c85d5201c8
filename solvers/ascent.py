"""Dual ascent on one block: a sweep over all rows, many over those not at rest, and extrapolation.

A round's first sweep of exact column updates visits every row in a random order: it is the full check.  A row
that it leaves at a vertex of its domain, where it was, rests for the round.  The others, often a small part,
are swept again and again while that pays: until a stage of sweeps brings less than a share of what the first
sweep brought, or the visits reach a multiple of the rows of the block.

Sweeps close in on the optimum along a few directions, slowly where C is large.  So the changes of the last
stages are kept, with their images in W, and after each stage the best point of the space that they span is
looked for: D is quadratic there, a system of a few equations.  That point may lie outside the domain.  Its
projection, row by row, does not, and the best point of the segment to it is exact again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers.ascent_changes import add_rows_csr, add_rows_dense
from solvers.ascent_kernels import change_sums
from solvers.ascent_rows import HeldRows, Portion, RowFeed
from solvers.ascent_sweeps import sweep_csr, sweep_dense
from solvers.block_stats import BlockStats
from solvers.clock import Clock
from solvers.extrapolation import Extrapolation
from solvers.orders import AscentOrder
from solvers.problem import Problem
from solvers.projections.columns import column_kind, margins_or_empty
from solvers.rows import RowSource, is_sparse
from solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Weights of up to so many entries are kept in float64: they stay in the first-level cache all the same.
_SMALL_W = 1 << 12
#: An order for up to so many sweeps is taken literally, one for more asks for stages of so many sweeps each.
_PLAIN_SWEEPS = 2
#: Visits after a round's first sweep, in rows of the block, and stages that they may be spread over.
_MOST_VISITS = 8.0
_MOST_STAGES = 24
#: A stage whose last sweep brings less than this share of what the first one brought ends the round.
_STAGE_PAYS = 0.1
#: A row whose rise is below this share of the mean has not moved.
_STILL = 0.01


class BlockAscent:
    """Sweeps over the rows of one block.

    Parameters
    ----------
    problem : what is solved.
    X : (rows, d) features of the block.
    y, weights : (rows,) labels, and how often each row counts.
    index : place of the block among all blocks; it seeds the random orders.
    dtype : precision of products, where an order does not ask for float64.
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
        self.feed = RowFeed(X, dtype)
        self.norms, self.along = np.full(len(y), -1.0), np.zeros(len(y))
        self._direction = np.zeros(problem.d)

    def keep_apart(self, order: AscentOrder) -> tuple[Float64Array, float]:
        """Give the direction that an order keeps apart, and by how much it shrinks squares along it."""
        shared = order.shared
        u = np.zeros(self.problem.d) if shared is None else shared.u
        if not np.array_equal(u, self._direction):
            self._direction = u
            self.norms[:] = -1.0
        return self._direction, 0.0 if shared is None else 1.0 - shared.kappa

    def run(self, order: AscentOrder, A: FloatArray, delta: FloatArray) -> BlockStats:
        """Write to `delta` (rows, m) the change of A (rows, m) that the sweeps find, and sum it.

        The result depends on the order and on A alone.
        """
        delta[:] = 0.0
        work = Work(self, order, A, delta)
        first = work.sweep(work.feed_rows(np.arange(len(A))))
        busy = np.flatnonzero(work.rises >= 0.0)
        held = self.feed.held(busy) if order.sweeps > _PLAIN_SWEEPS and len(busy) else None
        if held is not None:
            _stages(work, held, first, order.sweeps)
            return work.stats()
        for _ in range(order.sweeps - 1):
            busy = busy[work.moved(busy)]
            work.sweep(work.feed_rows(busy))
        return work.stats()


def _stages(work: Work, held: HeldRows, first: float, sweeps: int) -> None:
    """Sweep over rows in memory, in stages of so many sweeps, and extrapolate after each."""
    everything = np.arange(len(held.rows))
    budget = _MOST_VISITS * len(work.rises)
    extrapolation = Extrapolation(work, held) if work.linear else None
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
    """What the sweeps of one order share: the weights as they move, and which rows move."""

    def __init__(self, block: BlockAscent, order: AscentOrder, A: FloatArray, delta: FloatArray) -> None:
        self.block, self.A, self.delta = block, A, delta
        self.random = np.random.default_rng((order.seed, order.round, block.index))
        self.scale = block.problem.scale * order.spread
        self.linear = block.problem.form.linear_conjugate
        self.rises = np.empty(len(A))
        small = order.W.size <= _SMALL_W
        self._dtype = np.dtype(np.float64) if order.exact or small else block.dtype
        self._start = order.W
        self.sparse = False
        self.u, self.kept_apart = block.keep_apart(order)
        self.apart = np.zeros(block.problem.m)
        self.W: FloatArray = np.empty((0, 0))
        self.clock = Clock()
        self.visited = 0
        self._still = 0.0

    def feed_rows(self, rows: Int64Array) -> Any:
        """Give rows of the block in a random order."""
        return self.block.feed.shuffled(rows, self.random)

    def sweep(self, portions: Any) -> float:
        """Update rows once each; gives what the dual rises by at least."""
        block, total, visited = self.block, 0.0, 0
        for X, places, rows in portions:
            self._lay_out(X)
            self.clock.product()
            problem = block.problem
            shared = (
                places, rows, block.y, block.weights, block.norms, block.along, self.u, self.kept_apart,
                self.A, self.delta, self.scale, problem.smoothing, problem.smoothing_own, *block.loss,
                self.W, self.apart, self.rises,
            )  # fmt: skip
            if self.sparse:
                sweep_csr(X.data, X.indices, X.indptr, *shared)
            else:
                sweep_dense(X, *shared)
            self.clock.kernel()
            total += float(np.maximum(self.rises[rows], 0.0).sum())
            visited += len(rows)
        self.visited += visited
        self._still = _STILL * total / max(visited, 1)
        return total

    def moved(self, rows: Int64Array) -> Any:
        """Say which rows moved when they were last visited."""
        return self.rises[rows] > self._still

    def _lay_out(self, X: Any) -> None:
        """Lay W out for the rows that come: (m, d) for dense ones, (d, m) for sparse ones."""
        if self.W.size == 0:
            self.sparse = is_sparse(X)
            self.W = np.array(self._start if self.sparse else self._start.T, dtype=self._dtype, order="C")

    def part_apart(self, image: Float64Array) -> Float64Array:
        """Give what a change of W, laid out like W, is along u, for every class."""
        return np.asarray(self.u @ image if self.sparse else image @ self.u)

    def image(self, portion: Portion, changes: FloatArray, out: Float64Array) -> None:
        """Add the sum of w_i x_i change_i^T to `out`, which is laid out like W."""
        X, places, rows = portion
        factors = self.block.weights[rows]
        if is_sparse(X):
            add_rows_csr(X.data, X.indices, X.indptr, places, changes, factors, out)
        else:
            add_rows_dense(X, places, changes, factors, out)

    def _product(self) -> Float64Array:
        """Give the sum of w_i x_i change_i^T, anew where W has moved by steps rounded to float32."""
        if self.W.dtype == np.float64:
            start = self._start if self.sparse else self._start.T
            return np.asarray((self.W - start) / self.scale)
        product = np.zeros(self.W.shape)
        changed = np.flatnonzero(self.delta.any(axis=1))
        for portion in self.block.feed.shuffled(changed, self.random):
            self.image(portion, self.delta[portion.rows], product)
        return product

    def stats(self) -> BlockStats:
        """Sum the change."""
        block = self.block
        product = self._product()
        self.clock.product()
        kind, _, margins = block.loss
        linear, cross, square, alpha_sq, active = change_sums(
            kind, block.y, block.weights, self.A, self.delta, margins, block.problem.own_share
        )
        self.clock.kernel()
        return BlockStats(
            rows=len(self.A),
            product=product if self.sparse else np.ascontiguousarray(product.T),
            b_u=linear,
            alpha_u=cross,
            u_sq=square,
            alpha_sq=alpha_sq,
            active=active,
            visited=self.visited,
            seconds_products=self.clock.products,
            seconds_kernels=self.clock.kernels,
        )
