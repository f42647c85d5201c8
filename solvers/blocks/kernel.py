"""Work of a block on rows with a kernel: scores, vertices, atoms, and updates.

A block keeps the scores S = K A / (lam n) of its rows, so the gap, P and D are sums over rows at any time.
The scores move by K(own rows, rows that changed) times a change, which is the cost of a pass: n columns of K.
Recurring columns are kept, as far as a budget holds them.

With U the vertices at the scores S and T = K U / (lam n), a step makes S + g (T - S) of S.  From one round to
the next few rows change their vertices, and T moves by their columns of K alone.  Atoms are vertices U_t of
all rows with their scores T_t: the mixture A = sum_t w_t U_t has the scores S = sum_t w_t T_t, so new weights
need no kernel value.

One block updates the picked rows exactly, with extrapolation between the sweeps: for a large C and a wide
kernel, rows move together in a few directions, by ever less each sweep.  The scores that sweeps keep up to
date give K times each change; only the projection of the best mixture on the domain takes a product with K
of the picked rows, which is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.solvers.blocks.ascent.extrapolation import REMEMBERED, Extrapolation
from topline.solvers.blocks.ascent.sweeps import ALL_CLASSES, KernelTile, RowTile, SweptPart, repeated_sweeps
from topline.solvers.blocks.block import Block
from topline.solvers.core.answers import Clock, Tile
from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import Rows, stacked
from topline.solvers.jit_cache import JitFunction, jit
from topline.solvers.losses.rows import nearest_rows
from topline.solvers.projections.columns import room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@stored
@dataclass(frozen=True)
class Mark:
    """Identifies the A of a block's scores: rebuild, round and part of the round."""

    built: int = 0
    round: int = 0
    part: int = 0

    @property
    def whole(self) -> Mark:
        """The mark before any part."""
        return replace(self, part=0)


class PairValues(Protocol):
    """The interface of a kernel for blocks."""

    @property
    def name(self) -> str:
        """Its name; "precomputed" means that the rows hold the values themselves."""
        ...

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) in float64."""
        ...


@dataclass(frozen=True, eq=False)
class SomeRows:
    """Rows of the problem: numbers (r,), ascending, and features (r, d); subclasses add what is theirs."""

    numbers: Int64Array
    X: Rows

    def merge(self, other: Self) -> Self:
        """Return the rows of both."""
        return type(self)(**{name: stacked([of, getattr(other, name)]) for name, of in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Change(SomeRows):
    """Rows of a change of A, or of A itself, each times its weight: `values` (r, m)."""

    values: FloatArray


@dataclass(frozen=True, eq=False)
class PickedRows(SomeRows):
    """Rows updated together: labels, weights, dual rows and scores (r, m)."""

    y: IntArray
    weights: Float64Array
    A: FloatArray
    scores: FloatArray


#: Rows and columns of a tile, whose values stay in a core's second-level cache between steps.
_ROWS, _COLUMNS = 256, 1024
#: The name of kernels whose rows hold the values.
_PRECOMPUTED = "precomputed"


def holds_values(kernel: PairValues) -> bool:
    """Whether the features of a row are its kernel values with all rows."""
    return kernel.name == _PRECOMPUTED


def values_of(kernel: PairValues, X: Rows, Y: Rows, columns: Int64Array, dtype: np.dtype[Any]) -> FloatArray:
    """Return k(x, y) of rows X with the numbered rows Y: (rows of X, rows of Y) in a precision."""
    if holds_values(kernel):
        chosen = X[:, columns]
        return np.ascontiguousarray(chosen.toarray() if hasattr(chosen, "toarray") else chosen, dtype=dtype)
    if dtype == np.float32:
        tile = getattr(kernel, "tile", None)
        if tile is not None:
            return np.asarray(tile(X, Y), dtype=np.float32)
    return np.asarray(kernel.matrix(X, X if Y is X else Y), dtype=dtype)


def _cuts(n: int, step: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n, step):
        yield start, min(n, start + step)


#: Default limit in bytes on the kept columns of all blocks of a problem.
_KEPT_BYTES = 1 << 28


class KeptColumns:
    """As many columns of `rows` values as `kept_bytes` hold, out of `n`.

    Without a budget a block has a share of the default limit, in proportion to its rows.
    """

    def __init__(self, rows: int, n: int, kept_bytes: int | None) -> None:
        most = _KEPT_BYTES * rows // n if kept_bytes is None else kept_bytes
        self._rows, self._n = rows, n
        self._room = min(max(most - 8 * n, 0) // (4 * max(rows, 1)), n)
        self._slots: Int64Array | None = None
        self._values: FloatArray | None = None
        self._used = 0

    def places(self, numbers: Int64Array, *, keeps: bool = True) -> KnownColumns:
        """Return where the columns of rows are, allotting places to new ones; none has one without `keeps`.

        New columns become known when `keep` says that they were written.
        """
        if self._room == 0 or not keeps:
            return KnownColumns(self, np.full(len(numbers), -1), np.zeros(len(numbers), dtype=bool))
        if self._slots is None:
            self._slots = np.full(self._n, -1)
        slots = self._slots[numbers]
        known = slots >= 0
        new = np.flatnonzero(~known)[: self._room - self._used]
        slots[new] = self._used + np.arange(len(new))
        return KnownColumns(self, slots, known)

    def keep(self, numbers: Int64Array, places: KnownColumns) -> None:
        """Mark columns as known once their places are written for every row of the block."""
        new = ~places.known & (places.slots >= 0)
        if self._slots is not None and new.any():
            self._slots[numbers[new]] = places.slots[new]
            self._used += int(new.sum())

    @property
    def values(self) -> FloatArray:
        """The values (places, rows)."""
        if self._values is None:
            # Untouched pages take no memory.
            self._values = np.empty((self._room, self._rows), dtype=np.float32)
        return self._values


class KnownColumns(NamedTuple):
    """The columns of some rows: their places, `slots` (r,), -1 for none, and which are `known` already."""

    columns: KeptColumns
    slots: Int64Array
    known: NDArray[np.bool_]

    def read(self, which: Int64Array, start: int, stop: int) -> FloatArray:
        """Return the values of the rows [start, stop) of the block in known columns, (columns, rows)."""
        return np.asarray(self.columns.values[self.slots[which], start:stop])

    def write(self, which: Int64Array, start: int, values: FloatArray) -> None:
        """Keep the values (rows, columns) of rows from `start` on, as far as there is room."""
        slots = self.slots[which]
        here = slots >= 0
        if here.any():
            self.columns.values[slots[here], start : start + len(values)] = values[:, here].T


#: Shares of atoms, by name.
Mixture: TypeAlias = Iterable[tuple[int, float]]
#: The name of A itself as an atom.
ITSELF = -2


class Atom(NamedTuple):
    """Dual rows, sparse unless they are those of the round, with their scores."""

    rows: Any
    scores: FloatArray

    def inner(self, U: Float64Array, part: slice) -> Float64Array:
        """Return <alpha_i, u_i> for the rows U of a part."""
        if isinstance(self.rows, sparse.csr_matrix):
            return np.asarray(self.rows[part].multiply(U).sum(axis=1)).ravel()
        return np.asarray(np.einsum("ij,ij->i", self.rows[part], U))

    def shared(self, share: float, part: slice) -> FloatArray:
        """Return `share` times the rows of a part, as an array."""
        rows = self.rows[part]
        return np.asarray(share * (rows.toarray() if isinstance(rows, sparse.csr_matrix) else rows))


class KernelScores:
    """The scores S (rows, m) of a block, and the mark of their A.

    Attributes
    ----------
    mark : the mark of the scores; None for no A.
    found : the mark of the scores that the vertices U belong to, with the parts of the change of U included
        in T; None for no vertices.
    vertices, before : U (rows, m), each row once, whatever its weight, and those of the last round.
    of_vertices : T, of the last round's vertices and of these parts.
    atoms : vertices that mixtures are made of, by name.
    """

    lasting: ClassVar[str] = "duals"

    def __init__(self, block: Block) -> None:
        self._shape = block.stop - block.start, block.problem.m
        self.dtype: np.dtype[Any] = block.dtype
        # Scores and A begin at 0.
        self.mark: Mark | None = None if block.loaded else Mark()
        self._scores: FloatArray | None = None
        self.found: Mark | None = None
        self.vertices: FloatArray = np.zeros((0, 0), dtype=self.dtype)
        self.before = self.of_vertices = self.vertices
        #: The sums over the current vertices.
        self.sums: Any = None
        self.atoms: dict[int, Atom] = {}
        self._columns = KeptColumns(self._shape[0], block.problem.n, block.kept_bytes)

    @property
    def scores(self) -> FloatArray:
        """S."""
        if self._scores is None:
            self._scores = np.zeros(self._shape, dtype=self.dtype)
        return self._scores

    def open_vertices(self) -> None:
        """Allocate vertices."""
        if not self.vertices.size:
            self.vertices, self.before, self.of_vertices = (
                np.zeros(self._shape, dtype=self.dtype) for _ in range(3)
            )

    def holds_vertices(self, mark: Mark) -> bool:
        """Return whether U are the vertices at the scores with this mark."""
        return self.found is not None and self.found.whole == mark

    def atom(self, name: int, block: Block) -> Atom:
        """Return A itself, the atom of a name, or else the vertices."""
        if name == ITSELF:
            return Atom(block.duals.A, self.scores)
        return self.atoms.get(name) or Atom(self.vertices, self.of_vertices)

    def become(self, name: int, block: Block) -> None:
        """Make A the only atom."""
        duals = block.duals.A
        rows = [sparse.csr_matrix(duals[start:stop]) for _, start, stop in block.tiles.bounds()]
        self.atoms = {name: Atom(sparse.csr_matrix(sparse.vstack(rows, format="csr")), self.scores.copy())}

    def products(self, names: Sequence[int], block: Block) -> Float64Array:
        """Return sum <t_i, u_i>, with smoothing, of the named atoms with the vertices U, then of U with T."""
        problem, U = block.problem, self.vertices
        atoms = [*(self.atom(name, block) for name in names), Atom(U, self.of_vertices)]
        sums = np.zeros(len(atoms))
        for _, start, stop in block.tiles.bounds():
            rows = slice(start, stop)
            y, weights = block.tiles.y[rows], block.tiles.weights[rows]
            smoothed = U[rows].astype(np.float64) * problem.smoothing
            if problem.own_share != 1.0:
                smoothed[np.arange(len(y)), y] *= problem.own_share
            for place, atom in enumerate(atoms):
                with_scores = np.einsum("ij,ij->i", atom.scores[rows], U[rows], dtype=np.float64)
                if problem.smoothing > 0:
                    with_scores += atom.inner(smoothed, rows)
                sums[place] += float(with_scores @ weights)
        return sums

    def keep_atoms(self, kept: Iterable[tuple[int, Mixture]], newest: int) -> None:
        """Replace the atoms by mixtures of them and of the vertices, named `newest`."""
        self.atoms[newest] = Atom(sparse.csr_matrix(self.vertices), self.of_vertices.copy())
        self.atoms = {name: self._mixed(parts) for name, parts in kept}

    def weigh(self, weights: Sequence[tuple[int, float]], block: Block) -> None:
        """Set A and its scores to a mixture of atoms."""
        duals, atoms = block.duals.A, [(self.atom(name, block), share) for name, share in weights]
        for _, start, stop in block.tiles.bounds():
            rows = slice(start, stop)
            A, S = np.zeros((stop - start, block.problem.m)), np.zeros_like(self.scores[rows])
            for atom, share in atoms:
                A += atom.shared(share, rows)
                S += np.asarray(share * atom.scores[rows], dtype=S.dtype)
            duals[rows], self.scores[rows] = A.astype(duals.dtype), S

    def _mixed(self, parts: Mixture) -> Atom:
        """Return the mixture of some atoms; a single one unchanged."""
        shares = list(parts)
        if len(shares) == 1:
            return self.atoms[shares[0][0]]
        (first, share), *others = shares
        rows, scores = share * self.atoms[first].rows, share * self.atoms[first].scores
        for name, share in others:
            rows = rows + share * self.atoms[name].rows
            scores = scores + share * self.atoms[name].scores
        dtype = self.atoms[first].scores.dtype
        return Atom(sparse.csr_matrix(rows, dtype=dtype), np.asarray(scores, dtype=dtype))

    def widen(self) -> None:
        """Change to float64."""
        if self.dtype == np.float64:
            return
        self.atoms = {}
        self.dtype = np.dtype(np.float64)
        if self._scores is not None:
            self._scores = self._scores.astype(np.float64)
        self.of_vertices, self.before, self.vertices = (
            array.astype(np.float64) for array in (self.of_vertices, self.before, self.vertices)
        )

    def add(
        self,
        block: Block,
        kernel: PairValues,
        change: Change,
        scores: FloatArray,
        clock: Clock,
        *,
        moves: bool = False,
    ) -> None:
        """Add K(own rows, rows of the change) times the change to scores; `moves` also adds it to A."""
        # No columns are kept in float64, nor if the rows hold K themselves.
        keeps = self.dtype == np.float32 and not holds_values(kernel)
        columns = self._columns.places(change.numbers, keeps=keeps)
        changes = np.ascontiguousarray(block.problem.scale * change.values, dtype=self.dtype)
        known, others = np.flatnonzero(columns.known), np.flatnonzero(~columns.known)
        for tile in block.tiles.read(self.dtype):
            for low, high in _cuts(len(tile.y), _ROWS):
                first, X = tile.rows.start + low, tile.X[low:high]
                here = scores[first : tile.rows.start + high]
                for left, right in _cuts(len(known), _COLUMNS):
                    some = known[left:right]
                    here += columns.read(some, first, first + len(here)).T @ changes[some]
                for left, right in _cuts(len(others), _COLUMNS):
                    some = others[left:right]
                    values = values_of(kernel, X, change.X[some], change.numbers[some], self.dtype)
                    here += values @ changes[some]
                    columns.write(some, first, values)
            clock.product()
            if moves:
                _move(block, tile, change)
                clock.row_work()
        self._columns.keep(change.numbers, columns)


def own_places(block: Block, numbers: Int64Array, tile: Tile) -> tuple[Int64Array, slice]:
    """Return the places in a tile of the numbered rows that lie there, and the slice of numbers they form."""
    first = block.start + tile.rows.start
    low, high = np.searchsorted(numbers, [first, block.start + tile.rows.stop])
    return numbers[low:high] - first, slice(int(low), int(high))


def _move(block: Block, tile: Tile, change: Change) -> None:
    places, own = own_places(block, change.numbers, tile)
    if len(places):
        duals = block.duals.A
        A = duals[tile.rows]
        weights = tile.weights[places, None]
        A[places] += (change.values[own] / np.where(weights > 0.0, weights, np.inf)).astype(A.dtype)
        duals[tile.rows] = A


#: Sweeps over a tile end when one brings less than this share of the first, or after this many,
_PAYS, _MOST_SWEEPS = 0.02, 200
#: and one in this many also visits rows at rest, after an extrapolation, if D is a parabola.
_VISIT_ALL = 5
#: Float64 copies of dual rows in an extrapolation, and the bytes beyond which sweeps continue without it.
_COPIES = 2 * REMEMBERED + 8
_MOST_BYTES = 1 << 27


def extrapolation_bytes(rows: int, m: int) -> int:
    """Return the bytes for extrapolating `rows` picked rows; 0 for no extrapolation."""
    most = 8 * _COPIES * rows * m
    return most if most <= _MOST_BYTES else 0


def updated(
    problem: Problem, rows: PickedRows, K: FloatArray, random: np.random.Generator
) -> tuple[Change, float, int]:
    """Update the picked rows until a sweep over them brings little.

    `K` (r, r) are the kernel values.  Returns the change, the rise of n D, and the number of column updates.
    """
    column = problem.form.column_where(alike=problem.smoothing_own == problem.smoothing)
    scores = np.ascontiguousarray(rows.scores.T)
    part = part_of(problem, KernelTile(K, scores), rows)
    everyone = order = part.rows
    extrapolation = Extrapolation(TileRows(problem, K, part)) if TileRows.fits(problem, part) else None
    first, total, swept, visited = 0.0, 0.0, 0.0, 0
    for sweep in range(_MOST_SWEEPS):
        order = random.permutation(order)
        rise = repeated_sweeps(part._replace(places=order, rows=order), column, 1, np.inf, order[:0]).risen
        visited += len(order)
        total, swept = total + rise, swept + rise
        first = first or rise
        if rise <= _PAYS * first and len(order) == len(everyone):
            break
        order = np.flatnonzero(part.rises >= 0.0)
        if rise <= _PAYS * first or not len(order) or (sweep + 1) % _VISIT_ALL == 0:
            order = everyone
        if extrapolation is not None and (sweep + 1) % _VISIT_ALL == 0:
            total, swept = total + extrapolation.step(swept), 0.0
    changed = np.flatnonzero(part.delta.any(axis=1))
    values = part.delta[changed] * rows.weights[changed, None].astype(rows.scores.dtype)
    return Change(rows.numbers[changed], rows.X[changed], values), total, visited


def part_of(problem: Problem, tile: RowTile, rows: PickedRows) -> SweptPart:
    """Return the arrays that sweeps over all picked rows of a tile read and write."""
    form, A, everyone = problem.form, np.ascontiguousarray(rows.A), np.arange(len(rows.A))
    return SweptPart(
        tile=tile,
        places=everyone,
        rows=everyone,
        lists=ALL_CLASSES,
        y=rows.y,
        weights=rows.weights,
        norms=np.full(len(A), -1.0),
        along=np.zeros(len(A)),
        u=np.zeros(0),
        kept_apart=0.0,
        apart=np.zeros(problem.m),
        A=A,
        delta=np.zeros_like(A),
        rises=np.zeros(len(A)),
        scale=problem.scale,
        gamma=problem.smoothing,
        gamma_own=problem.smoothing_own,
        rho=form.rho,
        margins=form.table,
    )


class TileRows:
    """Picked rows, with scores kept up to date by the sweeps."""

    tries_again: ClassVar[bool] = True

    def __init__(self, problem: Problem, K: FloatArray, part: SweptPart) -> None:
        self.problem, self.y, self.weights = problem, part.y, part.weights
        self._K, self._scores = K, part.tile.W
        self._A, self._delta = part.A, part.delta

    @staticmethod
    def fits(problem: Problem, part: SweptPart) -> bool:
        """Return whether the dual is a parabola, and the remembered changes fit in memory."""
        return problem.form.linear_conjugate and extrapolation_bytes(*part.A.shape) > 0

    def now(self) -> tuple[Float64Array, Float64Array]:
        """Return the dual rows and their scores, both (r, m)."""
        B = self._A.astype(np.float64) + self._delta
        return B, np.ascontiguousarray(self._scores.T, dtype=np.float64)

    def inner(self, V: Float64Array, change: Float64Array, image: Float64Array) -> float:  # noqa: ARG002
        """Return <V, D>."""
        return float(np.einsum("ij,ij->i", V, change) @ self.weights)

    def curvature(self, left: Float64Array, right: Float64Array, change: Float64Array) -> float:
        """Return <V(C), D>."""
        return self.inner(left, change, right)

    def image(self, change: Float64Array) -> Float64Array:
        """Return the change of scores caused by a change of the dual rows."""
        # K is symmetric, and rows are contiguous.
        moved = np.flatnonzero(change.any(axis=1))
        weighted = self.problem.scale * self.weights[moved, None] * change[moved]
        scored = weighted.T.astype(self._K.dtype) @ self._K[moved]
        return np.ascontiguousarray(scored.T, dtype=np.float64)

    def feasible(self, B: Float64Array, trial: Float64Array) -> Float64Array:
        """Return the change of the moving rows to the nearest point of the domain."""
        moved = np.flatnonzero((trial != B).any(axis=1))
        trial[moved] = nearest_rows(self.problem.form, trial[moved], self.y[moved])
        trial -= B
        return trial

    def move(self, B: Float64Array, V: Float64Array, change: Float64Array, image: Float64Array) -> None:
        """Add a change to A and the scores."""
        moved = np.flatnonzero(change.any(axis=1))
        self._delta[moved] = B[moved] + change[moved] - self._A[moved]
        self._scores += image.T.astype(self._scores.dtype)
        B[:], V[:] = self.now()


#: Indices of the sums over rows.
LOSS, CONJUGATE, CROSS, SQUARE, N_SUMS = 0, 1, 2, 3, 4


class GapTerms(NamedTuple):
    """Terms of the rows' gap apart from scores: weights, smoothing, margins (m, m)."""

    weights: Float64Array
    gamma: float
    own_share: float
    margins: Float64Array


@jit
def row_gaps(
    conjugate: JitFunction,
    terms: GapTerms,
    A: FloatArray,
    scores: FloatArray,
    losses: Float64Array,
    y: IntArray,
    gaps: Float64Array,
    sums: Float64Array,
) -> None:
    """Write w_i (Phi(s_i) + Phi*(-alpha_i) + <alpha_i, s_i>) to `gaps`, n times a row's share of P - D.

    None is negative, by Fenchel and Young.  Adds w_i times the losses, -Phi*(-alpha_i), <alpha_i, s_i> and
    |alpha_i|^2 to `sums`, the own class counting `own_share` times in the last.
    """
    m, weights = A.shape[1], terms.weights
    row = room(m)
    for i in range(A.shape[0]):
        cross = square = 0.0
        for j in range(m):
            row[j] = A[i, j]
            cross += row[j] * np.float64(scores[i, j])
            square += (terms.own_share if j == y[i] else 1.0) * row[j] * row[j]
        value = conjugate(row, y[i], terms.margins)
        sums[LOSS] += weights[i] * losses[i]
        sums[CONJUGATE] += weights[i] * value
        sums[CROSS] += weights[i] * cross
        sums[SQUARE] += weights[i] * square
        gaps[i] = max(weights[i] * (losses[i] - value + 0.5 * terms.gamma * square + cross), 0.0)


def picked_rows(
    gaps: Float64Array, first: int, rate: float, least: float, seed: int, round_: int
) -> tuple[Int64Array, float]:
    """Return the places of the picked rows, and the sum of the roots of all gaps above `least`.

    The draw is a hash of seed, round and the row's number, `first` + its place here.
    """
    above = np.flatnonzero(gaps > least)
    roots = np.sqrt(gaps[above])
    return above[_uniform(first + above, seed, round_) < rate * roots], float(roots.sum())


def _uniform(rows: Int64Array, seed: int, round_: int) -> Float64Array:
    """Return a number in [0, 1) for each row in a round: SplitMix64 of the three."""
    golden = 0x9E3779B97F4A7C15
    rest = round_ * 0xD1B54A32D192ED03 + seed * 0x8CB92BA72F3D8DD7 + golden
    state = rows.astype(np.uint64) * np.uint64(golden) + np.uint64(rest % 2**64)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return np.asarray((state >> np.uint64(11)) / 9007199254740992.0)
