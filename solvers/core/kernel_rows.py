"""Rows and requests of the kernelised dual, whose blocks keep the scores S = K A / (lam n) of their rows.

No weights W travel: a round picks some rows anywhere, one block makes exact updates within them, and every
block adds K(its rows, the rows that changed) times the change to its scores.  What a message carries has the
size of the rows that were picked, whatever n is.

Scores belong to one A.  Every request that changes them names the `Mark` that they must have and the one
that they get, so that a request may come twice, and a block that was moved or lost is found out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import sparse

from topline.solvers.core.codec import stored
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@stored
@dataclass(frozen=True)
class Mark:
    """Which A the scores of a block belong to: of which rebuild, after which round and part of it."""

    built: int = 0
    round: int = 0
    part: int = 0


class PairValues(Protocol):
    """What blocks ask of a kernel."""

    @property
    def name(self) -> str:
        """Its name; that of a precomputed one says that the rows hold the values themselves."""
        ...

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) in float64."""
        ...


@dataclass(frozen=True, eq=False)
class Change:
    """Rows of a change of A, or of A itself, each times its weight.

    Attributes
    ----------
    numbers : (r,) the rows, ascending.
    X : (r, d) their features.
    values : (r, m).
    """

    numbers: Int64Array
    X: Rows
    values: FloatArray

    def merge(self, other: Change) -> Change:
        """Return the rows of both."""
        return Change(
            np.concatenate([self.numbers, other.numbers]),
            _stacked(self.X, other.X),
            np.concatenate([self.values, other.values]),
        )


@dataclass(frozen=True, eq=False)
class PickedRows:
    """Rows that are updated together: features (r, d), labels, weights, dual rows and scores (r, m)."""

    numbers: Int64Array
    X: Rows
    y: IntArray
    weights: Float64Array
    A: FloatArray
    scores: FloatArray

    def merge(self, other: PickedRows) -> PickedRows:
        """Return the rows of both."""
        joined = (
            np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("y", "weights", "A", "scores")
        )
        numbers = np.concatenate([self.numbers, other.numbers])
        return PickedRows(numbers, _stacked(self.X, other.X), *joined)


def _stacked(above: Rows, below: Rows) -> Rows:
    if is_sparse(above):
        return sparse.csr_matrix(sparse.vstack([above, below], format="csr"))
    return np.concatenate([above, below])


@dataclass(frozen=True, eq=False, kw_only=True)
class _KernelRequest:
    """Of a kernel, for blocks whose scores bear `mark`; products are in float64 where `exact`."""

    kernel: PairValues
    mark: Mark
    exact: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class PickRequest(_KernelRequest):
    """Sum losses, conjugates and <alpha_i, s_i>, and pick rows at random for the next update.

    Row i with the share g_i of n times the gap is picked with the probability min(1, rate sqrt(g_i)), unless
    g_i is below `least`.  Whether it is depends on seed, round and row alone, not on how rows are cut.
    """

    rate: float = 0.0
    least: float = 0.0
    seed: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class TileRequest(_KernelRequest):
    """Let block `by` make exact column updates within the rows that were picked, and give their change.

    `values` (r, r) are the kernel's where the rows do not tell, else None.
    """

    rows: PickedRows
    by: int = 0
    seed: int = 0
    values: FloatArray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class CrossRequest(_KernelRequest):
    """Give K(own rows, rows) of the rows of these numbers, out of precomputed values."""

    numbers: Int64Array


@dataclass(frozen=True, eq=False, kw_only=True)
class SpreadRequest(_KernelRequest):
    """Add K(own rows, rows of the change) times the change, if any, to the scores, which then bear `after`.

    Where `moves`, own rows of A change by it as well.  Where `anew` the scores begin at 0, whatever they
    were.
    """

    change: Change | None = None
    after: Mark
    moves: bool = True
    anew: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class CollectRequest(_KernelRequest):
    """Give the rows start..stop-1 of A that are not zero.

    Where `vertices`, of the change of the vertices at the scores that bear `mark` since the round before.
    """

    start: int = 0
    stop: int = 0
    vertices: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexRequest(_KernelRequest):
    """Find the vertex u_i of each row at its scores; sum b(u_i), |u_i|^2 and <alpha_i, u_i>.

    `visited` counts the rows whose vertices change.  Blocks hold the scores of the vertices of the round
    `of`; where that is None vertices and scores begin at 0.
    """

    of: Mark | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexSpreadRequest(_KernelRequest):
    """Add K(own rows, rows of the change) times the change to the scores of vertices, part after part."""

    change: Change
    part: int


@dataclass(frozen=True, eq=False, kw_only=True)
class MixRequest(_KernelRequest):
    """Sum <u_i, s_i>, as `alpha_u`, and <u_i, t_i>, as `u_sq`, of scores s_i and those of the vertices t_i.

    These have so many `parts` of their change.  With a `step` A and the scores go so far towards the vertices
    and theirs instead, and the scores then bear `after`.
    """

    parts: int
    step: float | None = None
    after: Mark | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class AtomRequest(_KernelRequest):
    """Sum the products of new vertices, after so many `parts` of their change, with atoms of these names.

    The product of the answer (atoms + 1, 1) is lam n times the Gram matrix's new column, with what smoothing
    adds.  Where `anew`, A as it is becomes the one atom of the name first.
    """

    atoms: tuple[int, ...]
    parts: int
    anew: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ReweighRequest(_KernelRequest):
    """Let the atoms be `kept`, mixtures of those that are there and the vertices as `newest`.

    A and the scores become their mixture by `weights`, and bear `after`.
    """

    newest: int
    parts: int
    kept: tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
    weights: tuple[tuple[int, float], ...]
    after: Mark


#: What the blocks of the kernelised dual understand.
KernelRequest: TypeAlias = (
    PickRequest
    | TileRequest
    | CrossRequest
    | SpreadRequest
    | CollectRequest
    | VertexRequest
    | VertexSpreadRequest
    | MixRequest
    | AtomRequest
    | ReweighRequest
)
