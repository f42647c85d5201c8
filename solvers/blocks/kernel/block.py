"""One block of the kernelised dual: the scores of its rows, and what it does with them.

The scores are S = K A / (lam n) of the block's rows, so that each row's share of the gap, P and D of the
problem are sums over rows at any time.  They move by K(own rows, rows that changed) times a change, which is
what a pass of this problem costs: n columns of K.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.blocks.kernel import jit
from topline.solvers.blocks.kernel.atoms import BlockAtoms
from topline.solvers.blocks.kernel.columns import KeptColumns, Places, TileColumns
from topline.solvers.blocks.kernel.products import add_products, holds_values, values_of
from topline.solvers.blocks.kernel.tile_update import updated
from topline.solvers.blocks.kernel.vertices import BlockVertices
from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.kernel_rows import (
    AtomRequest,
    Change,
    CollectRequest,
    CrossRequest,
    KernelRequest,
    Mark,
    MixRequest,
    PairValues,
    PickedRows,
    PickRequest,
    ReweighRequest,
    SpreadRequest,
    TileRequest,
    VertexRequest,
    VertexSpreadRequest,
)
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.core.tiles import Tile, TileReader
from topline.solvers.typing import FloatArray, Int64Array

_VertexRequest: TypeAlias = VertexRequest | VertexSpreadRequest | MixRequest | AtomRequest | ReweighRequest


class BlockKernel:
    """The scores of one block.

    Parameters
    ----------
    problem, tiles, duals : what is solved, the block's rows and its dual rows.
    index, start, stop : place of the block among all blocks, and its rows in the problem.
    dtype : precision of products, where a request does not ask for float64.
    mark : what the scores 0 belong to; None where A is not 0.
    kept_bytes : memory for columns of K from one round to the next; None for a share of a moderate one.
    """

    def __init__(
        self,
        problem: Problem,
        tiles: TileReader,
        duals: BlockDuals,
        index: int,
        start: int,
        stop: int,
        dtype: np.dtype[Any],
        mark: Mark | None,
        kept_bytes: int | None = None,
    ) -> None:
        self._problem, self._tiles, self._duals = problem, tiles, duals
        self._index, self._start, self._stop = index, start, stop
        self._dtype = dtype
        #: None where the scores belong to no A.
        self._mark: Mark | None = mark
        self._scores: FloatArray | None = None
        self._vertices: BlockVertices | None = None
        self._atoms = BlockAtoms(problem, tiles)
        self._columns = KeptColumns(stop - start, problem.n, kept_bytes)

    def take_scores(self, other: BlockKernel) -> None:
        """Take the scores of a block of the same rows with the same A."""
        self._mark, self._scores, self._dtype = other._mark, other._scores, other._dtype
        self._vertices, self._atoms = other._vertices, other._atoms
        self._columns = other._columns

    def run(self, request: KernelRequest) -> BlockStats:
        """Answer a request; `stale` counts rows whose scores belong to another A, and nothing is done."""
        if request.exact:
            self._widen()
        match request:
            case TileRequest():
                return updated(self._problem, request) if request.by == self._index else BlockStats()
            case CollectRequest():
                return self._collected(request)
            case CrossRequest():
                return self._crossed(request)
            case SpreadRequest() if self._mark == request.after:
                return BlockStats()
            case SpreadRequest() if request.anew:
                return self._spread(request)
            case MixRequest() if request.after is not None and self._mark == request.after:
                return BlockStats()
            case ReweighRequest() if self._mark == request.after:
                return BlockStats()
        if self._mark != request.mark:
            return BlockStats(stale=self._stop - self._start)
        return self._answer(request)

    def _answer(self, request: SpreadRequest | PickRequest | _VertexRequest) -> BlockStats:
        """Answer a request to scores that bear its mark."""
        match request:
            case SpreadRequest():
                return self._spread(request)
            case PickRequest():
                return self._picked(request)
            case VertexRequest():
                return self._kept_vertices().find(request, self._kept_scores(), self._duals)
            case VertexSpreadRequest():
                return self._spread_vertices(request)
            case MixRequest():
                return self._mixed(request)
            case AtomRequest() | ReweighRequest():
                return self._of_atoms(request)

    def _widen(self) -> None:
        self._duals.widen()
        if self._dtype != np.float64:
            self._atoms.forget()
        self._dtype = np.dtype(np.float64)
        if self._scores is not None and self._scores.dtype != self._dtype:
            self._scores = self._scores.astype(self._dtype)
        if self._vertices is not None:
            self._vertices.widen()

    def _kept_scores(self) -> FloatArray:
        if self._scores is None:
            self._scores = np.zeros((self._stop - self._start, self._problem.m), dtype=self._dtype)
        return self._scores

    def _kept_vertices(self) -> BlockVertices:
        if self._vertices is None:
            rows = self._stop - self._start
            self._vertices = BlockVertices(self._problem, self._tiles, rows, self._dtype)
        return self._vertices

    def _own(self, numbers: Int64Array, tile: Tile) -> tuple[Int64Array, slice]:
        """Return the places in a tile of those of some rows that lie there, and which of them these are."""
        first = self._start + tile.start
        low, high = np.searchsorted(numbers, [first, self._start + tile.stop])
        return numbers[low:high] - first, slice(int(low), int(high))

    def _spread(self, request: SpreadRequest) -> BlockStats:
        clock, change, scores = Clock(), request.change, self._kept_scores()
        if request.anew:
            scores[:] = 0.0
        # Until the end they belong to no A.
        self._mark = None
        if change is None:
            self._mark = request.after
            return BlockStats()
        there = self._places(request, change)
        for tile in self._tiles.read(self._dtype):
            kept = None if there is None else TileColumns(self._columns, there, tile.start)
            add_products(request.kernel, tile.X, change, self._problem.scale, scores[tile.rows], kept)
            clock.product()
            places, own = self._own(change.numbers, tile)
            if request.moves and len(places):
                A = self._duals.A.read(tile.start, tile.stop)
                weights = tile.weights[places, None]
                A[places] += (change.values[own] / np.where(weights > 0.0, weights, np.inf)).astype(A.dtype)
                self._duals.A.write(tile.start, tile.stop, A)
            clock.row_work()
        if there is not None:
            self._columns.keep(change.numbers, there)
        self._mark = request.after
        return BlockStats(rows=self._stop - self._start, **clock.seconds())

    def _places(self, request: SpreadRequest | VertexSpreadRequest, change: Change) -> Places | None:
        """Return where columns of K are kept; None in float64, and where the rows hold K themselves."""
        if self._dtype != np.float32 or holds_values(request.kernel):
            return None
        return self._columns.places(change.numbers)

    def _spread_vertices(self, request: VertexSpreadRequest) -> BlockStats:
        clock, vertices = Clock(), self._kept_vertices()
        if vertices.found != request.mark or vertices.parts < request.part:
            return BlockStats(stale=self._stop - self._start)
        if vertices.parts > request.part:
            return BlockStats()
        # Until the end they are of no vertices.
        vertices.found = None
        places = self._places(request, request.change)
        for tile in self._tiles.read(self._dtype):
            T = vertices.scores[tile.rows]
            kept = None if places is None else TileColumns(self._columns, places, tile.start)
            add_products(request.kernel, tile.X, request.change, self._problem.scale, T, kept)
            clock.product()
        if places is not None:
            self._columns.keep(request.change.numbers, places)
        vertices.found, vertices.parts = request.mark, request.part + 1
        return BlockStats(rows=self._stop - self._start, **clock.seconds())

    def _mixed(self, request: MixRequest) -> BlockStats:
        vertices = self._kept_vertices()
        if vertices.found != request.mark or vertices.parts != request.parts:
            return BlockStats(stale=self._stop - self._start)
        if request.after is None:
            return vertices.mix(request, self._kept_scores(), self._duals)
        self._mark = None
        stats = vertices.mix(request, self._kept_scores(), self._duals)
        self._mark = request.after
        return stats

    def _of_atoms(self, request: AtomRequest | ReweighRequest) -> BlockStats:
        vertices, scores = self._kept_vertices(), self._kept_scores()
        if vertices.found != request.mark or vertices.parts != request.parts:
            return BlockStats(stale=len(scores))
        new = vertices.vertices, vertices.scores
        if isinstance(request, AtomRequest):
            if request.anew:
                self._atoms.become(request.atoms[0], scores, self._duals)
            if self._atoms.lacks(request.atoms):
                return BlockStats(stale=len(scores))
            return self._atoms.products(request, *new)
        mixed = {name for _, parts in request.kept for name, _ in parts}
        if self._atoms.lacks(mixed - {request.newest}):
            return BlockStats(stale=len(scores))
        # Until the end they are of no A.
        self._mark = None
        stats = self._atoms.reweigh(request, *new, scores, self._duals)
        self._mark = request.after
        return stats

    def _picked(self, request: PickRequest) -> BlockStats:
        clock, problem, form = Clock(), self._problem, self._problem.form
        scores, sums = self._kept_scores(), np.zeros(jit.N_SUMS)
        vertices = vertices_of(problem, self._tiles.rows, smoothed=True)
        roots, picked, active = 0.0, None, 0
        for tile in self._tiles.read(self._dtype):
            S, A = scores[tile.rows], self._duals.A.read(tile.start, tile.stop)
            losses, gaps = np.empty(len(S)), np.empty(len(S))
            vertices.losses(S.copy(), tile.y, losses)
            jit.row_gaps(
                form.conjugate, A, S, losses, tile.y, tile.weights, problem.smoothing, problem.own_share,
                form.table, gaps, sums,
            )  # fmt: skip
            places = np.empty(len(S), dtype=np.int64)
            first = self._start + tile.start
            count, here = jit.picked_rows(
                gaps, first, request.rate, request.least, request.seed, request.mark.round, places
            )
            roots += here
            active += int(np.count_nonzero(losses))
            if count:
                rows = picked_of(request.kernel, tile, places[:count], first, A, S)
                picked = rows if picked is None else picked.merge(rows)
            clock.row_work()
        return BlockStats(
            rows=self._stop - self._start,
            loss=float(sums[jit.LOSS]),
            shifted_loss=float(sums[jit.LOSS]),
            conjugate_alpha=float(sums[jit.CONJUGATE]),
            alpha_u=float(sums[jit.CROSS]),
            alpha_sq=float(sums[jit.SQUARE]),
            active=active,
            roots=roots,
            picked=picked,
            **clock.seconds(),
        )

    def _collected(self, request: CollectRequest) -> BlockStats:
        found: Change | None = None
        vertices = self._kept_vertices() if request.vertices else None
        if vertices is not None and vertices.found != request.mark:
            return BlockStats(stale=self._stop - self._start)
        for tile in self._tiles.read(self._dtype, request.start - self._start, request.stop - self._start):
            first = self._start + tile.start
            low, high = max(request.start - first, 0), min(request.stop - first, tile.stop - tile.start)
            if vertices is None:
                A = self._duals.A.read(tile.start, tile.stop)
            else:
                A = vertices.change(tile.start, tile.stop)
            places = low + np.flatnonzero(A[low:high].any(axis=1))
            part = Change(
                first + places, sent(request.kernel, tile, places), A[places] * tile.weights[places, None]
            )
            found = part if found is None else found.merge(part)
        return BlockStats(change=found)

    def _crossed(self, request: CrossRequest) -> BlockStats:
        found = []
        for tile in self._tiles.read(self._dtype):
            places, _ = self._own(request.numbers, tile)
            if len(places):
                found.append(values_of(request.kernel, tile.X[places], None, request.numbers, self._dtype))
        return BlockStats(values=np.concatenate(found) if found else None)


def sent(kernel: PairValues, tile: Tile, places: Int64Array) -> Rows:
    """Return what other blocks need of rows: nothing but their numbers where these hold kernel values."""
    if holds_values(kernel):
        return np.empty((len(places), 0), dtype=np.float32)
    X: Rows = tile.X[places]
    return X if is_sparse(X) else np.ascontiguousarray(X)


def picked_of(
    kernel: PairValues, tile: Tile, places: Int64Array, first: int, A: FloatArray, S: FloatArray
) -> PickedRows:
    """Return rows at some places of a tile, from `first` on, as they are sent."""
    X = sent(kernel, tile, places)
    return PickedRows(first + places, X, tile.y[places], tile.weights[places], A[places], S[places])
