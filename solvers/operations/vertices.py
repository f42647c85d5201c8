"""The Frank-Wolfe vertices of the rows: of all rows, or of a selection with weights of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.second_order import add_weighted_grams
from topline.solvers.blocks.vertices import (
    DenseVertices,
    Vertices,
    add_rows_by_class,
    open_sizes,
    sizes_of_entries,
    vertices_of,
)
from topline.solvers.core.answers import (
    FLOAT64,
    Clock,
    Scratch,
    Tile,
    TileSums,
    VectorSums,
    merged_by,
)
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import AverageTopK, Problem, SelectedRows
from topline.solvers.core.rows import as_rows, gives_sparse, most_terms, squares_above
from topline.solvers.crew import Crew
from topline.solvers.errors import StateLostError
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation, Runner, TileOperation
from topline.solvers.operations.point import Certified, find_largest, risk_of
from topline.solvers.typing import Float64Array, FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexSums(VectorSums):
    """Sums over the vertices u_i; `loss` is sum Phi at the shifted scores.

    Attributes
    ----------
    openness : (m,) with an envelope an estimate of sum o_ij, from some rows of every tile: for the softmax
        sum p_ij (1 - p_ij), in general |u_ij| - u_ij^2.  None otherwise.
    openness_sq : estimate of the sum over rows of the squared sum over classes of their o_ij.
    moments : (m, d, d) the sums requested by `least_openness`; None otherwise.
    row_sq, sizes, weight, terms, summed : as in `Certified`, with an envelope and products in float32, where
        the rounding of the loss has a bound; else 0 or None.
    """

    openness: Float64Array | None = None
    openness_sq: float = 0.0
    moments: Float64Array | None = None
    row_sq: float = 0.0
    sizes: Float64Array | None = None
    weight: float = 0.0
    terms: int = merged_by(max, 0)
    summed: int = merged_by(max, 0)

    def certified(self) -> Certified:
        """Return the terms of P and D at the gradients, for which Fenchel and Young's inequality is tight."""
        return Certified(
            rows=self.rows, loss=self.loss, active=self.active, product=np.asarray(self.product, np.float64),
            conjugate=self.conjugate_u, alpha_sq=self.u_sq, cross=self.conjugate_u - self.loss,
            row_sq=self.row_sq, sizes=self.sizes, weight=self.weight, terms=self.terms, summed=self.summed,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class FindVertices(TileOperation[VertexSums]):
    """Find the Frank-Wolfe vertex U at W (d, m), after applying `pending_step`; U is kept for mixing into A.

    Attributes
    ----------
    envelope : U = -grad Phi_gamma at the scores of W itself, not at the shifted ones: no A is needed, none is
        changed, and conjugate_u = sum -Phi*(-u_i) - (gamma/2) |u_i|^2.
    exact : products in float64, not in the precision of the features.
    least_openness : (m,) with an envelope, request the sum of x_i x_i^T for every class j, weighted by the
        o_ij above this; the openness is then of all rows.  None for no such sums.
    """

    round: int
    W: Float64Array
    pending_step: PendingStep | None = None
    envelope: bool = False
    exact: bool = False
    least_openness: Float64Array | None = None

    widening: ClassVar[bool] = True

    def sums(self, block: Block, crew: Crew) -> TileSums[VertexSums]:
        """Find u_i at s_i + gamma alpha_i (Tajima et al., eq. 2.25 with the sign of C.24), tile by tile."""
        problem, duals = block.problem, None
        if not self.envelope:
            duals = block.duals if problem.smoothing > 0 else block.kept_duals
        if duals is not None and self.exact:
            block.duals_after(self.pending_step).widen()
        clock, dtype = Clock(), FLOAT64 if self.exact else block.dtype
        vertices = vertices_of(problem, block.tiles.rows, smoothed=self.envelope, crew=crew)
        opens = _OpenClasses(problem, self.least_openness)
        looks = self.envelope and isinstance(vertices, DenseVertices)
        sums = np.zeros(ranking.N_SUMS)
        product, rows, alpha_u, alpha_sq = np.zeros((problem.m, problem.d)), 0, 0.0, 0.0
        bounded = self.envelope and problem.form.score_roundings is not None
        rounds, row_sq, weight, terms = bounded and dtype != FLOAT64, 0.0, 0.0, 0
        sizes, at_zero = np.zeros(problem.m), self._at_zero(block, vertices, dtype) if looks else None
        taken = yield clock, dtype, np.ascontiguousarray(self.W, dtype=dtype)
        while taken is not None:
            tile, scores = taken
            if rounds:
                squares = squares_above(tile.X)
                row_sq += float(tile.weights @ squares)
                weight += float(tile.weights.sum())
                terms = max(terms, most_terms(tile.X))
            if duals is not None:
                A = duals.rows_after(tile.number, tile.rows, self.pending_step)
                alpha_sq += duals.squares(A, tile.rows)
                duals.lift(scores, A, tile.rows)
            vertices.find(scores, tile.y, tile.weights, sums)
            if rounds:
                sizes += sizes_of_entries(scores, tile.weights * np.sqrt(squares))
            if duals is not None:
                alpha_u += vertices.mix_later(duals, A, tile.number, tile.rows, self.round)
            if looks:
                opens.add(tile, scores, clock)
            clock.row_work()
            if at_zero is not None:
                add_rows_by_class(tile.X, tile.y, tile.weights, product)
            else:
                vertices.accumulate(tile.X, product)
            rows += len(tile.y)
            clock.product()
            taken = yield None
        if at_zero is not None:
            own, other = at_zero
            product = (own - other) * product + other * product.sum(axis=0)
        return VertexSums(
            rows=rows, product=np.ascontiguousarray(product.T), alpha_u=alpha_u, alpha_sq=alpha_sq,
            openness=opens.sizes if looks else None, openness_sq=opens.squares,
            moments=opens.moments if looks else None, row_sq=row_sq, weight=weight, terms=terms,
            sizes=sizes if rounds else None, summed=block.tiles.rows if rounds else 0, **_of_vertices(sums),
            **clock.seconds(),
        )  # fmt: skip

    def _at_zero(
        self, block: Block, vertices: Vertices, dtype: np.dtype[np.floating]
    ) -> tuple[float, float] | None:
        """Return the own entry of u and every other at W = 0, where features are summed by class instead.

        None at another W, for few classes, sparse rows, or entries that depend on the class.
        """
        m, form = block.problem.m, block.problem.form
        unique = form.convex and (form.smooth or block.problem.smoothing > 0)
        if not unique or m < _MANY_CLASSES or gives_sparse(block.X) or self.W.any():
            return None
        if form.margins is not None or form.label_sets is not None:
            return None
        u = np.zeros((2, m), dtype)
        vertices.find(u, np.array([0, m - 1], dtype=np.int32), np.ones(2), np.zeros(ranking.N_SUMS))
        own, other = u[0, :2].astype(np.float64)
        alike = u[1, -1] == own and (u[0, 1:] == other).all() and (u[1, :-1] == other).all()
        return (own, other) if alike else None

    def on_largest(self, run: Runner, risk: AverageTopK, n: int) -> VertexSums:
        """Return the sums over the rows of the largest losses, each with the weight w_i = n p_i.

        The rows are named to the blocks, which choose nothing, so p is feasible even if another machine
        rounds a loss differently.
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


#: Classes from which it pays to sum the features of each first.
_MANY_CLASSES = 64


#: Rows of a tile sampled for open classes.
_OPENNESS_ROWS = 32


class _OpenClasses:
    """The openness of the classes, and the moments of the rows that are open enough (`VertexSums`)."""

    def __init__(self, problem: Problem, least: Float64Array | None) -> None:
        self._form, self._least = problem.form, least
        self.sizes, self.squares = np.zeros(problem.m), 0.0
        self.moments = None if least is None else np.zeros((problem.m, problem.d, problem.d))

    def add(self, tile: Tile, U: FloatArray, clock: Clock) -> None:
        """Add a tile with vertices U."""
        every = 1 if self._least is not None else max(len(U) // _OPENNESS_ROWS, 1)
        sizes = open_sizes(self._form, U[::every])
        weights = tile.weights[::every] * (len(U) / len(sizes))
        self.sizes += weights @ sizes
        self.squares += float(weights @ sizes.sum(axis=1, dtype=np.float64) ** 2)
        if self._least is not None and self.moments is not None:
            sizes[sizes <= self._least] = 0.0
            clock.row_work()
            add_weighted_grams(self.moments, tile.X, sizes * weights[:, None])
            clock.product()


def _of_vertices(sums: Float64Array) -> dict[str, Any]:
    """Return the `sums` over vertices under the names of an answer."""
    return {
        "conjugate_u": float(sums[ranking.B_U]),
        "u_sq": float(sums[ranking.U_SQ]),
        "loss": float(sums[ranking.LOSS]),
        "active": int(sums[ranking.ACTIVE]),
    }


@dataclass(frozen=True, eq=False)
class FindSelectedVertices(Operation[VertexSums]):
    """Find -grad Phi_gamma, or a vertex, at W (d, m) for selected rows, each with a weight.

    The weights replace those of the bound problem; A is not used, and no other rows are read.  `rows` of the
    answer counts the selected rows.
    """

    W: Float64Array
    rows: SelectedRows
    exact: bool = False

    def answer(self, block: Block, crew: Crew) -> VertexSums:
        """Return the weighted sums over the vertices of the selected rows of a block."""
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
            **_of_vertices(sums),
            **clock.seconds(),
        )
