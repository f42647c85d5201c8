"""What a request does with one tile of rows after another, for one problem or for many in one reading.

A piece of work takes the scores of a tile under its weights and adds to its sums.  `work_through` reads the
tiles once for any number of such pieces, whichever problems they belong to, and multiplies a tile with the
weights of all of them side by side: a wide product is several times as fast as many narrow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.stretch import least_stretch, slack_of
from topline.solvers.blocks.tile_products import add_weighted_grams
from topline.solvers.blocks.vertices import (
    DenseVertices,
    accumulate_rows,
    open_sizes,
    openness,
    openness_of,
    vertices_of,
)
from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import EvaluateRequest, OracleRequest, RebuildRequest
from topline.solvers.core.rows import Rows, as_rows, is_sparse
from topline.solvers.core.tiles import Scratch, Tile, TileReader
from topline.solvers.crew import ALONE, Crew
from topline.solvers.losses import ranking
from topline.solvers.typing import Float64Array, FloatArray

FLOAT64 = np.dtype(np.float64)
#: Columns of weights side by side beyond which a wider product is hardly faster.
_WIDE = 1024


class TileWork(Protocol):
    """Work on the tiles of a block; products are in the precision `dtype`."""

    clock: Clock
    dtype: np.dtype[Any]

    @property
    def W(self) -> FloatArray | None:  # noqa: N802 - the letter of the formulas
        """Weights (d, m), None where it takes no scores."""
        ...

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Add what a tile is worth; its scores (b, m) may be overwritten, and are empty where W is None."""
        ...

    def stats(self) -> BlockStats:
        """Return the sums over all tiles that were taken."""
        ...


def work_through(tiles: TileReader, works: Sequence[TileWork], crew: Crew = ALONE) -> None:
    """Take all tiles through every piece of work, in one reading; a crew makes the scores."""
    precisions = {work.dtype for work in works}
    widest = FLOAT64 if FLOAT64 in precisions else np.dtype(np.float32)
    products = list(_side_by_side(works, tiles.rows, crew))
    for tile in tiles.read(widest):
        narrow = {dtype: as_rows(tile.X, dtype) for dtype in precisions}
        for product in products:
            product.take(tile, narrow[product.dtype])


class _Product:
    """Pieces of work of one precision, whose weights lie side by side; the first starts the clock."""

    def __init__(self, works: Sequence[TileWork], rows: int, crew: Crew) -> None:
        self._works = works
        self.dtype = works[0].dtype
        weights = [work.W for work in works if work.W is not None]
        self._scratch: Scratch | None = None
        self._own: Scratch | None = None
        if weights:
            self._W = weights[0] if len(weights) == 1 else np.concatenate(weights, axis=1)
            self._scratch = Scratch(rows, self._W.shape[1], self.dtype, crew)
            # A run begins at W = 0, where no product is needed to know the scores.
            self._at_zero = not self._W.any()
        if len(weights) > 1:
            self._own = Scratch(rows, max(W.shape[1] for W in weights), self.dtype)

    def take(self, tile: Tile, X: Rows) -> None:
        """Take one tile, with features of the precision of these."""
        here = Tile(tile.number, tile.start, tile.stop, X, tile.y, tile.weights)
        scores = np.empty((0, 0), dtype=self.dtype)
        if self._scratch is not None:
            scores = (
                self._scratch.zeros(tile.stop - tile.start)
                if self._at_zero
                else self._scratch.scores_of(X, self._W)
            )
        self._works[0].clock.product()
        at = 0
        for number, work in enumerate(self._works):
            if number:
                work.clock.begin()
            if work.W is None:
                work.take(here, scores[:, :0])
                continue
            part = scores[:, at : at + work.W.shape[1]]
            at += work.W.shape[1]
            work.take(here, part if self._own is None else self._own.laid_out(part))
        self._works[0].clock.begin()


def _side_by_side(works: Sequence[TileWork], rows: int, crew: Crew) -> list[_Product]:
    """Return the products that the weights make, each of one precision and not much wider than pays."""
    found = []
    for _, alike in groupby(sorted(works, key=lambda work: work.dtype.itemsize), key=lambda w: w.dtype):
        group: list[TileWork] = []
        width = 0
        for work in alike:
            columns = 0 if work.W is None else work.W.shape[1]
            if group and width + columns > _WIDE:
                found.append(_Product(group, rows, crew))
                group, width = [], 0
            group.append(work)
            width += columns
        found.append(_Product(group, rows, crew))
    return found


class FindVertex:
    """The vertex u_i at s_i + gamma alpha_i (Tajima et al., eq. 2.25 with the sign of C.24), summed."""

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        duals: BlockDuals | None,
        request: OracleRequest,
        dtype: np.dtype[Any],
        crew: Crew,
    ) -> None:
        self.clock, self.dtype = Clock(), FLOAT64 if request.exact else dtype
        self.W = np.ascontiguousarray(request.W, dtype=self.dtype)
        self._tiles, self._duals, self._request = tiles, duals, request
        self._vertices = vertices_of(problem, tiles.rows, smoothed=request.envelope, crew=crew)
        self._product = np.zeros((problem.m, problem.d))
        self._rows = 0
        self._alpha_u = self._alpha_sq = 0.0
        self._form = problem.form
        self._dense = request.envelope and isinstance(self._vertices, DenseVertices)
        self._by_class = request.envelope and problem.by_class
        self._sums = np.zeros(ranking.N_SUMS + (problem.m if self._by_class else 0))
        self._openness, self._openness_sq = np.zeros(problem.m), 0.0
        self._moments: Float64Array | None = None
        if self._dense and request.least_openness is not None:
            self._moments = np.zeros((problem.m, problem.d, problem.d))

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Find the vertices of a tile, and leave them with the duals to be mixed in."""
        y, weights = self._tiles.labels_and_weights(tile.rows)
        duals, vertices, request = self._duals, self._vertices, self._request
        A = None
        if duals is not None:
            A = duals.rows_after(tile.number, tile.start, tile.stop, request.pending_step)
            self._alpha_sq += duals.squares(A, tile.rows)
            duals.lift(scores, A, tile.rows)
        vertices.find(scores, y, weights, self._sums)
        if duals is not None and A is not None:
            self._alpha_u += vertices.mix_later(duals, A, tile.number, tile.rows, request.round)
        if self._dense:
            self._add_openness(tile.X, scores, weights)
        self.clock.row_work()
        vertices.accumulate(tile.X, self._product)
        self._rows += tile.stop - tile.start
        self.clock.product()

    def _add_openness(self, X: Rows, U: FloatArray, weights: Float64Array) -> None:
        """Add how open the classes are in a tile, and the moments of rows that are open enough."""
        least, moments = self._request.least_openness, self._moments
        if least is None or moments is None:
            here, square = openness(self._form, U, weights)
        else:
            sizes = open_sizes(self._form, U)
            here, square = openness_of(sizes, weights)
            sizes[sizes <= least] = 0.0
            self.clock.row_work()
            add_weighted_grams(moments, X, sizes * weights[:, None])
            self.clock.product()
        self._openness += here
        self._openness_sq += square

    def stats(self) -> BlockStats:
        """Return the sums of an OracleRequest."""
        sums = self._sums
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(self._product.T),
            class_losses=sums[ranking.N_SUMS :] if self._by_class else None,
            openness=self._openness if self._dense else None,
            openness_sq=self._openness_sq,
            moments=self._moments,
            conjugate_u=float(sums[ranking.B_U]),
            alpha_u=self._alpha_u,
            u_sq=float(sums[ranking.U_SQ]),
            alpha_sq=self._alpha_sq,
            loss=float(sums[ranking.LOSS]),
            shifted_loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            **self.clock.seconds(),
        )


class Evaluate:
    """The losses at W, and what D of the kept A is made of besides W."""

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        duals: BlockDuals | None,
        request: EvaluateRequest,
        dtype: np.dtype[Any],
        crew: Crew,
    ) -> None:
        self.clock, self.dtype = Clock(), FLOAT64 if request.exact else dtype
        self.W = np.ascontiguousarray(request.W, dtype=self.dtype)
        self._problem, self._tiles, self._duals, self._request = problem, tiles, duals, request
        self._smoothed = problem.smoothing > 0
        self._plain = vertices_of(problem, tiles.rows, smoothed=True, crew=crew)
        self._shifted = (
            vertices_of(problem, tiles.rows, smoothed=False, crew=crew) if self._smoothed else self._plain
        )
        self._scratch = Scratch(tiles.rows, problem.m, self.dtype) if self._smoothed else None
        self._sums, self._shifted_sums = np.zeros(ranking.N_SUMS), np.zeros(ranking.N_SUMS)
        self._total: Float64Array | None = None
        self._rows = 0
        self._alpha_sq = self._conjugate_alpha = self._x_sq = 0.0
        self._stretch = 0.0

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Add the losses of a tile."""
        y, weights = self._tiles.labels_and_weights(tile.rows)
        duals = self._duals
        if self._request.stretched and self._stretch < np.inf:
            slack = slack_of(tile.X, self.W)
            self._stretch = least_stretch(self._problem.form, scores, y, weights, slack, self._stretch)
        if self._request.total and not is_sparse(tile.X):
            own = Tile(tile.number, tile.start, tile.stop, tile.X, y, weights)
            self._total, self._x_sq = own.added_to(self._total, self._x_sq)
            self.clock.product()
        if duals is not None:
            A = duals.rows_after(tile.number, tile.start, tile.stop, self._request.pending_step)
            self._alpha_sq += duals.squares(A, tile.rows)
            if not self._problem.form.linear_conjugate:
                self._conjugate_alpha += duals.conjugates(A, tile.rows)
            if self._scratch is not None:
                raised = self._scratch.copy_of(scores)
                duals.lift(raised, A, tile.rows)
                self._shifted.find(raised, y, weights, self._shifted_sums)
        self._plain.find(scores, y, weights, self._sums)
        self._rows += tile.stop - tile.start
        self.clock.row_work()

    def stats(self) -> BlockStats:
        """Return the sums of an EvaluateRequest."""
        loss = float(self._sums[ranking.LOSS])
        return BlockStats(
            rows=self._rows,
            product=self._total,
            u_sq=self._x_sq,
            alpha_sq=self._alpha_sq,
            conjugate_alpha=self._conjugate_alpha,
            loss=loss,
            shifted_loss=float(self._shifted_sums[ranking.LOSS]) if self._smoothed else loss,
            stretch=self._stretch,
            active=int(self._sums[ranking.ACTIVE]),
            **self.clock.seconds(),
        )


class Rebuild:
    """What W and D of eq. 2 and 3 are made of, from A as it is stored."""

    def __init__(
        self, problem: Problem, tiles: TileReader, duals: BlockDuals, request: RebuildRequest, crew: Crew
    ) -> None:
        self.clock, self.dtype, self.W = Clock(), FLOAT64, None
        self._tiles, self._duals, self._request, self._crew = tiles, duals, request, crew
        self._product = np.zeros((problem.m, problem.d))
        self._rows = 0
        self._b = self._alpha_sq = 0.0

    def take(self, tile: Tile, scores: FloatArray) -> None:  # noqa: ARG002 - it takes none
        """Add the dual rows of a tile."""
        duals, request = self._duals, self._request
        A = duals.rows_after(tile.number, tile.start, tile.stop, request.pending_step)
        A = duals.feasible(A, tile.rows) if request.feasible else A.astype(np.float64)
        A = A if request.share == 1.0 else request.share * A
        self._b += duals.conjugates(A, tile.rows)
        self._alpha_sq += duals.squares(A, tile.rows)
        self.clock.row_work()
        weights = self._tiles.labels_and_weights(tile.rows)[1]
        accumulate_rows(tile.X, A, weights, self._product, self._crew)
        self._rows += tile.stop - tile.start
        self.clock.product()

    def stats(self) -> BlockStats:
        """Return the sums of a RebuildRequest."""
        return BlockStats(
            rows=self._rows,
            product=np.ascontiguousarray(self._product.T),
            conjugate_u=self._b,
            alpha_sq=self._alpha_sq,
            **self.clock.seconds(),
        )
