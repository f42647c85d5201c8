"""The Frank-Wolfe vertices of the rows: of all of them, or of some that count by weights of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.tile_products import add_weighted_grams
from topline.solvers.blocks.vertices import DenseVertices, open_sizes, openness, openness_of, vertices_of
from topline.solvers.core.answers import Clock, VectorSums
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.risks import AverageTopK, SelectedRows
from topline.solvers.core.rows import Rows, as_rows
from topline.solvers.core.tiles import FLOAT64, Scratch, Tile, TileWork
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.operations.evaluate import find_largest, risk_of
from topline.solvers.typing import Float64Array, FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexSums(VectorSums):
    """Sums over the vertices u_i; `loss` is sum Phi at the shifted scores.

    Attributes
    ----------
    alpha_sq : sum |alpha_i|^2; 0 where no A is kept.
    openness : (m,) with an envelope about sum o_ij, from some rows of every tile: for the softmax
        sum p_ij (1 - p_ij), in general |u_ij| - u_ij^2.  None elsewhere.
    openness_sq : about the sum of the squares of what the rows add to it over all classes.
    moments : (m, d, d) the sums that are asked for with `least_openness`; None elsewhere.
    """

    alpha_sq: float = 0.0
    openness: Float64Array | None = None
    openness_sq: float = 0.0
    moments: Float64Array | None = None


@dataclass(frozen=True, eq=False)
class FindVertices(TileOperation[VertexSums]):
    """Find the Frank-Wolfe vertex U at W (d, m), after applying `pending_step`; it waits to be mixed into A.

    Attributes
    ----------
    envelope : U = -grad Phi_gamma at the scores of W itself, not at the shifted ones: no A is needed, none is
        changed, and conjugate_u = sum -Phi*(-u_i) - (gamma/2) |u_i|^2.
    exact : products in float64, not in the precision of the features.
    least_openness : (m,) where with an envelope x_i x_i^T is to be summed for every class j, times the
        o_ij that are above it; the openness is then of all rows.  None for no such sums.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    envelope: bool = False
    exact: bool = False
    least_openness: Float64Array | None = None

    widening: ClassVar[bool] = True

    def work(self, block: Block, crew: Crew) -> TileWork[VertexSums]:
        """Return what is done with each tile."""
        duals = None if self.envelope else block.lifting_duals()
        if duals is not None and self.exact:
            block.duals_after(self.pending_step).widen()
        return _FindVertex(self, block, crew)

    def on_largest(self, run: Runner, risk: AverageTopK, n: int) -> VertexSums:
        """Return the sums over the rows of the largest losses, each with the weight w_i = n p_i.

        The rows are named to the blocks, which choose nothing, so that p is feasible whatever rounding does
        to a loss that is computed again, on another machine perhaps.
        """
        found = find_largest(run, self.W, risk, n, exact=self.exact)
        rows = risk.selected(found.largest, n)
        answer = run(FindSelectedVertices(self.W, rows, self.exact))
        if answer.rows != len(rows):
            raise StateLostError(
                f"the vertex covers {answer.rows} of the {len(rows)} rows that were selected; run it again"
            )
        return replace(
            answer,
            loss=risk_of(found.largest, risk, n),
            seconds_products=answer.seconds_products + found.seconds_products,
            seconds_kernels=answer.seconds_kernels + found.seconds_kernels,
        )


class _FindVertex:
    """The vertex u_i at s_i + gamma alpha_i (Tajima et al., eq. 2.25 with the sign of C.24), summed."""

    def __init__(self, operation: FindVertices, block: Block, crew: Crew) -> None:
        problem, envelope = block.problem, operation.envelope
        self.clock, self.dtype = Clock(), FLOAT64 if operation.exact else block.dtype
        self.W = np.ascontiguousarray(operation.W, dtype=self.dtype)
        self._tiles, self._operation = block.tiles, operation
        self._duals = None if envelope else block.lifting_duals()
        self._vertices = vertices_of(problem, block.tiles.rows, smoothed=envelope, crew=crew)
        self._product = np.zeros((problem.m, problem.d))
        self._rows = 0
        self._alpha_u = self._alpha_sq = 0.0
        self._form = problem.form
        self._dense = envelope and isinstance(self._vertices, DenseVertices)
        self._sums = np.zeros(ranking.N_SUMS)
        self._openness, self._openness_sq = np.zeros(problem.m), 0.0
        self._moments: Float64Array | None = None
        if self._dense and operation.least_openness is not None:
            self._moments = np.zeros((problem.m, problem.d, problem.d))

    def take(self, tile: Tile, scores: FloatArray) -> None:
        """Find the vertices of a tile, and leave them with the duals to be mixed in."""
        y, weights = self._tiles.labels_and_weights(tile.rows)
        duals, vertices, operation = self._duals, self._vertices, self._operation
        A = None
        if duals is not None:
            A = duals.rows_after(tile.number, tile.start, tile.stop, operation.pending_step)
            self._alpha_sq += duals.squares(A, tile.rows)
            duals.lift(scores, A, tile.rows)
        vertices.find(scores, y, weights, self._sums)
        if duals is not None and A is not None:
            self._alpha_u += vertices.mix_later(duals, A, tile.number, tile.rows, operation.round)
        if self._dense:
            self._add_openness(tile.X, scores, weights)
        self.clock.row_work()
        vertices.accumulate(tile.X, self._product)
        self._rows += tile.stop - tile.start
        self.clock.product()

    def _add_openness(self, X: Rows, U: FloatArray, weights: Float64Array) -> None:
        """Add how open the classes are in a tile, and the moments of rows that are open enough."""
        least, moments = self._operation.least_openness, self._moments
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

    def answer(self) -> VertexSums:
        """Return the sums over all tiles that were taken."""
        sums = self._sums
        return VertexSums(
            rows=self._rows,
            product=np.ascontiguousarray(self._product.T),
            openness=self._openness if self._dense else None,
            openness_sq=self._openness_sq,
            moments=self._moments,
            conjugate_u=float(sums[ranking.B_U]),
            alpha_u=self._alpha_u,
            u_sq=float(sums[ranking.U_SQ]),
            alpha_sq=self._alpha_sq,
            loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            **self.clock.seconds(),
        )


@dataclass(frozen=True, eq=False)
class FindSelectedVertices(Operation[VertexSums]):
    """Find -grad Phi_gamma, or a vertex, at W (d, m) for some rows alone, each of which counts by a weight.

    The weights take the place of those that the problem was bound with; A is not looked at, and no other rows
    are read.  The `rows` of the answer are those that were selected.
    """

    W: Float64Array
    rows: SelectedRows
    exact: bool = False

    def answer(self, block: Block, crew: Crew) -> VertexSums:
        """Return the sums over the vertices of the selected rows of a block, each times its weight."""
        clock, problem, tiles = Clock(), block.problem, block.tiles
        dtype = FLOAT64 if self.exact else block.dtype
        W = np.ascontiguousarray(self.W, dtype=dtype)
        selected = self.rows.between(block.start, block.stop)
        scratch = Scratch(tiles.rows, problem.m, dtype)
        vertices = vertices_of(problem, tiles.rows, smoothed=True)
        product, sums = np.zeros((problem.m, problem.d)), np.zeros(ranking.N_SUMS)
        for part, values in block.read_selected(selected):
            X = as_rows(values, dtype)
            scores = scratch.scores_of(X, W)
            clock.product()
            vertices.find(scores, block.y[part.rows], part.weights, sums)
            clock.row_work()
            vertices.accumulate(X, product)
            clock.product()
        return VertexSums(
            rows=len(selected),
            product=np.ascontiguousarray(product.T),
            conjugate_u=float(sums[ranking.B_U]),
            u_sq=float(sums[ranking.U_SQ]),
            loss=float(sums[ranking.LOSS]),
            active=int(sums[ranking.ACTIVE]),
            **clock.seconds(),
        )
