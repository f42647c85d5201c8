"""Operations on the kernelised dual, whose blocks keep the scores S = K A / (lam n) of their rows.

No weights W are sent: a round picks some rows anywhere, one block makes exact updates within them, and every
block adds K(its rows, the rows that changed) times the change to its scores.  The size of a message is that
of the picked rows, whatever n is.

Scores belong to one A.  An operation names the `Mark` that they must have; a block whose scores have another
mark does nothing and counts its rows as `stale`.  An operation that changes scores names their new mark, so
that it can be repeated, and a block that was moved or lost is detected.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from topline.solvers.blocks.block import Block
from topline.solvers.blocks.kernel import (
    CONJUGATE,
    CROSS,
    ITSELF,
    LOSS,
    N_SUMS,
    SQUARE,
    Change,
    GapTerms,
    KernelScores,
    Mark,
    PairValues,
    PickedRows,
    holds_values,
    own_places,
    picked_rows,
    row_gaps,
    updated,
    values_of,
)
from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.answers import Answer, Clock, Tile, merged_by
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.crew import Crew
from topline.solvers.losses import ranking
from topline.solvers.operations.base import Operation
from topline.solvers.typing import Float64Array, FloatArray, Int64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelAnswer(Answer):
    """`stale` counts rows whose scores belong to another A: nothing was done with them."""

    stale: int = 0


K = TypeVar("K", bound=KernelAnswer)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelOperation(Operation[K]):
    """An operation with a kernel, on scores marked `mark`; products are in float64 if `exact`."""

    kernel: PairValues
    mark: Mark
    exact: bool = False

    widening: ClassVar[bool] = True

    def answer(self, block: Block, crew: Crew) -> K:
        """Return the answer of one block, whose scores and A begin at 0."""
        here = block.recall(KernelScores, lambda: KernelScores(block))
        if self.exact:
            block.duals.widen()
            here.widen()
        return self.answer_at(block, here)

    @abstractmethod
    def answer_at(self, block: Block, here: KernelScores) -> K:
        """Return the answer of a block with its scores."""


@contextmanager
def _changing(here: KernelScores, after: Mark, name: str = "mark") -> Iterator[None]:
    """Unmark the scores while they change, and mark them `after` at the end."""
    setattr(here, name, None)
    yield
    setattr(here, name, after)


@dataclass(frozen=True, eq=False, kw_only=True)
class PickedSums(KernelAnswer):
    """Sums over the rows, and the picked rows, stacked over blocks.

    Attributes
    ----------
    loss, active : sum Phi_gamma at the scores s_i, and the number of rows with a loss.
    conjugate_alpha, alpha_s, alpha_sq : sum -Phi*(-alpha_i), sum <alpha_i, s_i> and sum |alpha_i|^2.
    roots : sum of the square roots of the rows' shares of n times the gap.
    """

    loss: float = 0.0
    active: int = 0
    conjugate_alpha: float = 0.0
    alpha_s: float = 0.0
    alpha_sq: float = 0.0
    roots: float = 0.0
    picked: PickedRows | None = merged_by(PickedRows.merge)


@dataclass(frozen=True, eq=False, kw_only=True)
class PickRows(KernelOperation[PickedSums]):
    """Sum losses, conjugates and <alpha_i, s_i>, and pick rows at random for the next update.

    Row i with the share g_i of n times the gap is picked with probability min(1, rate sqrt(g_i)), or 0 if g_i
    is below `least`.  The draw depends on seed, round and row only, not on how rows are cut into blocks.
    """

    rate: float = 0.0
    least: float = 0.0
    seed: int = 0

    def answer_at(self, block: Block, here: KernelScores) -> PickedSums:
        """Return the sums over the rows of a block, and the rows it picks."""
        if here.mark != self.mark:
            return PickedSums(stale=block.stop - block.start)
        clock, problem, form = Clock(), block.problem, block.problem.form
        sums, roots, active = np.zeros(N_SUMS), 0.0, 0
        picked: PickedRows | None = None
        for tile in block.tiles.read(here.dtype):
            S, A = here.scores[tile.rows], block.duals.A[tile.rows]
            losses, gaps = problem.losses(S.copy(), tile.y), np.empty(len(S))
            terms = GapTerms(tile.weights, problem.smoothing, problem.own_share, form.table)
            row_gaps(form.conjugate, terms, A, S, losses, tile.y, gaps, sums)
            first = block.start + tile.rows.start
            at, roots_here = picked_rows(gaps, first, self.rate, self.least, self.seed, self.mark.round)
            roots += roots_here
            active += int(np.count_nonzero(losses))
            if len(at):
                X = _sent(self.kernel, tile, at)
                rows = PickedRows(first + at, X, tile.y[at], tile.weights[at], A[at], S[at])
                picked = rows if picked is None else picked.merge(rows)
            clock.row_work()
        return PickedSums(
            loss=float(sums[LOSS]),
            conjugate_alpha=float(sums[CONJUGATE]),
            alpha_s=float(sums[CROSS]),
            alpha_sq=float(sums[SQUARE]),
            active=active,
            roots=roots,
            picked=picked,
            **clock.seconds(),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class RowChange(KernelAnswer):
    """A change of rows; of updated ones also a lower bound of the rise of n D, and how many were visited."""

    change: Change | None = merged_by(Change.merge)
    rise: float = 0.0
    visited: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class UpdateRows(KernelOperation[RowChange]):
    """Let block `by` make exact column updates within the picked rows, and return their change.

    `values` (r, r) are the kernel values if features do not determine them, else None.
    """

    rows: PickedRows
    by: int = 0
    seed: int = 0
    values: FloatArray | None = None

    def answer_at(self, block: Block, here: KernelScores) -> RowChange:
        """Return the change if this is block `by`."""
        if self.by != block.index:
            return RowChange()
        clock, rows, K = Clock(), self.rows, self.values
        if K is None:
            K = values_of(self.kernel, rows.X, rows.X, rows.numbers, rows.scores.dtype)
        clock.product()
        random = np.random.default_rng((self.seed, self.mark.round))
        change, rise, visited = updated(block.problem, rows, K, random)
        clock.row_work()
        return RowChange(change=change, rise=rise, visited=visited, **clock.seconds())


@dataclass(frozen=True, eq=False, kw_only=True)
class CrossValues(KernelAnswer):
    """Kernel values of rows, stacked over blocks."""

    values: FloatArray | None = merged_by(lambda above, below: np.concatenate([above, below]))


@dataclass(frozen=True, eq=False, kw_only=True)
class FindCrossValues(KernelOperation[CrossValues]):
    """Return K(own rows, rows) for the rows of these numbers, from precomputed values."""

    numbers: Int64Array

    def answer_at(self, block: Block, here: KernelScores) -> CrossValues:
        """Return the values for those of the rows that lie in a block."""
        found = []
        for tile in block.tiles.read(here.dtype):
            places, _ = own_places(block, self.numbers, tile)
            if len(places):
                found.append(values_of(self.kernel, tile.X[places], None, self.numbers, here.dtype))
        return CrossValues(values=np.concatenate(found) if found else None)


@dataclass(frozen=True, eq=False, kw_only=True)
class SpreadChange(KernelOperation[KernelAnswer]):
    """Add K(own rows, rows of the change) times the change, if any, to the scores, then marked `after`.

    `moves` also adds the change to the block's rows of A.  `anew` first resets the scores to 0.  With
    `vertices` they are the scores of the vertices.
    """

    change: Change | None = None
    after: Mark
    moves: bool = True
    anew: bool = False
    vertices: bool = False

    def answer_at(self, block: Block, here: KernelScores) -> KernelAnswer:
        """Move the scores of a block."""
        name, scores = ("found", here.of_vertices) if self.vertices else ("mark", here.scores)
        mark = getattr(here, name)
        if mark == self.after:
            return KernelAnswer()
        if mark != self.mark and not self.anew:
            return KernelAnswer(stale=block.stop - block.start)
        clock = Clock()
        with _changing(here, self.after, name):
            if self.anew:
                scores[:] = 0.0
            if self.change is not None:
                here.add(block, self.kernel, self.change, scores, clock, moves=self.moves)
        return KernelAnswer(**clock.seconds())


@dataclass(frozen=True, eq=False, kw_only=True)
class CollectRows(KernelOperation[RowChange]):
    """Return the non-zero rows start..stop-1 of A.

    With `vertices`, of the change since the last round of the vertices at the scores marked `mark`.
    """

    start: int = 0
    stop: int = 0
    vertices: bool = False

    def answer_at(self, block: Block, here: KernelScores) -> RowChange:
        """Return the rows that lie in a block."""
        if self.vertices and not here.holds_vertices(self.mark):
            return RowChange(stale=block.stop - block.start)
        found: Change | None = None
        for tile in block.tiles.read(here.dtype, self.start - block.start, self.stop - block.start):
            first = block.start + tile.rows.start
            low, high = max(self.start - first, 0), min(self.stop - first, len(tile.y))
            if self.vertices:
                A: FloatArray = np.asarray(here.vertices[tile.rows] - here.before[tile.rows])
            else:
                A = block.duals.A[tile.rows]
            places = low + np.flatnonzero(A[low:high].any(axis=1))
            values = A[places] * tile.weights[places, None]
            part = Change(first + places, _sent(self.kernel, tile, places), values)
            found = part if found is None else found.merge(part)
        return RowChange(change=found)


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelVertices(KernelAnswer):
    """Sums over vertices: b(u_i), |u_i|^2 and <alpha_i, u_i>; `changed` counts rows with a new vertex."""

    conjugate_u: float = 0.0
    u_sq: float = 0.0
    alpha_u: float = 0.0
    active: int = 0
    changed: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class FindKernelVertices(KernelOperation[KernelVertices]):
    """Find the vertex u_i of each row at its scores.

    Blocks hold the scores of the vertices of the round `of`; None starts vertices and scores at 0.
    """

    of: Mark | None = None

    def answer_at(self, block: Block, here: KernelScores) -> KernelVertices:
        """Return the sums over the vertices of a block; rows whose T belongs to another U are stale."""
        stale = KernelVertices(stale=block.stop - block.start)
        if here.mark != self.mark:
            return stale
        here.open_vertices()
        if here.holds_vertices(self.mark):
            known: KernelVertices = here.sums
            return known
        if self.of is None:
            here.of_vertices[:] = here.vertices[:] = 0.0
        elif not here.holds_vertices(self.of):
            return stale
        here.found = None
        here.before, here.vertices = here.vertices, here.before
        here.sums = sums = self._found(block, here)
        here.found = self.mark
        return sums

    def _found(self, block: Block, here: KernelScores) -> KernelVertices:
        clock, problem, duals = Clock(), block.problem, block.duals
        vertices = vertices_of(problem, block.tiles.rows, smoothed=False)
        sums, cross, changed = np.zeros(ranking.N_SUMS), 0.0, 0
        for _, start, stop in block.tiles.bounds():
            rows = slice(start, stop)
            y, weights = block.tiles.y[rows], block.tiles.weights[rows]
            A, lifted, U = duals.A[rows], here.scores[rows].copy(), here.vertices[rows]
            duals.lift(lifted, A, rows)
            vertices.find(lifted, y, weights, sums)
            vertices.write(U)
            cross += duals.products(A, U, rows)
            changed += int(np.count_nonzero((here.before[rows] != U).any(axis=1)))
        clock.row_work()
        return KernelVertices(
            conjugate_u=float(sums[ranking.B_U]),
            u_sq=float(sums[ranking.U_SQ]),
            alpha_u=cross,
            active=int(sums[ranking.ACTIVE]),
            changed=changed,
            **clock.seconds(),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class AtomProducts(KernelAnswer):
    """lam n times the new column (atoms + 1,) of the Gram matrix, including smoothing."""

    products: Float64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class MultiplyAtoms(KernelOperation[AtomProducts]):
    """Sum products of the vertices marked `found` with atoms; `anew` first makes A the one of the name."""

    atoms: tuple[int, ...]
    found: Mark
    anew: bool = False

    def answer_at(self, block: Block, here: KernelScores) -> AtomProducts:
        """Return the products of a block."""
        stale = AtomProducts(stale=block.stop - block.start, products=np.zeros(len(self.atoms) + 1))
        if here.mark != self.mark or here.found != self.found:
            return stale
        clock = Clock()
        if self.anew:
            here.become(self.atoms[0], block)
        if not here.atoms.keys() >= {*self.atoms} - {ITSELF}:
            return stale
        products = here.products(self.atoms, block)
        clock.row_work()
        return AtomProducts(products=products, **clock.seconds())


@dataclass(frozen=True, eq=False, kw_only=True)
class ReweighAtoms(KernelOperation[KernelAnswer]):
    """Reduce the atoms to `kept`, mixtures of the present atoms and of the vertices as `newest`.

    A and the scores become the mixture with `weights`, marked `after`.  The vertices are marked `found`.
    """

    newest: int
    found: Mark
    kept: tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
    weights: tuple[tuple[int, float], ...]
    after: Mark

    def answer_at(self, block: Block, here: KernelScores) -> KernelAnswer:
        """Reweigh the atoms of a block."""
        if here.mark == self.after:
            return KernelAnswer()
        mixed = {name for _, parts in self.kept for name, _ in parts}
        there = here.mark == self.mark and here.found == self.found
        if not there or not here.atoms.keys() >= mixed - {self.newest}:
            return KernelAnswer(stale=block.stop - block.start)
        clock = Clock()
        with _changing(here, self.after):
            if self.kept:
                here.keep_atoms(self.kept, self.newest)
            here.weigh(self.weights, block)
        clock.row_work()
        return KernelAnswer(**clock.seconds())


def _sent(kernel: PairValues, tile: Tile, places: Int64Array) -> Rows:
    """Return the description of rows for other blocks: only numbers if features are kernel values."""
    if holds_values(kernel):
        return np.empty((len(places), 0), dtype=np.float32)
    X: Rows = tile.X[places]
    return X if is_sparse(X) else np.ascontiguousarray(X)
