"""The small reduction of a round: what a block returns, and how blocks are summed.

The sum runs over a fixed binary tree of block indices.  Node (level, place) stands for the blocks
[place * 2^level, (place + 1) * 2^level) below the number of blocks; a node whose sibling lies wholly beyond
the last block passes for its own parent.  Every executor adds along this tree, so its floating-point result
does not depend on who computed what, or in which order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np

from topline.solvers.core.kernel_rows import Change, PickedRows
from topline.solvers.core.risks import LargestLosses
from topline.solvers.errors import StateLostError
from topline.solvers.typing import Float64Array, FloatArray

T = TypeVar("T")

#: What blocks give that is no sum of numbers.
_JOINED = {
    "product",
    "class_losses",
    "openness",
    "moments",
    "stretch",
    "largest",
    "picked",
    "change",
    "values",
}


@dataclass(frozen=True, eq=False)
class BlockStats:
    """Sums over the rows of one or more blocks, each row times its weight; `merge` adds them.

    The product is carried whole: the curvature of a step is the squared norm of a *sum* of products, so
    nothing may be squared before all blocks are in.

    Attributes
    ----------
    rows : examples summed over.
    product : (d, m) sum x_i u_i^T, in float64, or the float32 in which an AscentRequest moves large weights;
        None where the request asks for none.  Here and below u_i is
        alpha_i in the answer to a RebuildRequest, and the change of alpha_i in that to an AscentRequest.  A
        GramRequest is answered by the (m d, d) Gram matrices of all classes or the (m d, m d) Hessian, a
        MomentsRequest by a (d, d) sum, a SlopeRequest by a (1, 1) one.
    class_losses : (m,) what every class adds to `loss`, in the answer to an OracleRequest with `envelope`
        where the loss is a sum over the classes; None elsewhere.
    openness : (m,) about sum o_ij in the answer to an OracleRequest with `envelope`, from some rows of every
        tile: for the softmax sum p_ij (1 - p_ij), in general |u_ij| - u_ij^2.  None elsewhere.
    moments : (m, d, d) the sums that an OracleRequest asks for with `least_openness`; None elsewhere.
    openness_sq : about the sum of the squares of what the rows add to it over all classes.
    conjugate_u : sum b(u_i), b(u) = -Phi*(-u), which is -<delta_i, u_i> for the hinges; for an
        AscentRequest the change of sum b(alpha_i).
    alpha_u : sum <alpha_i, u_i>; 0 where no A is kept.
    u_sq : sum |u_i|^2; in the answer to an EvaluateRequest that asks for the total, sum |x_i|^2.
    alpha_sq : sum |alpha_i|^2; 0 where no A is kept.
    conjugate_alpha : sum -Phi*(-alpha_i) of the kept A in the answer to an EvaluateRequest, where that is
        not linear.
    loss : sum Phi at the (shifted) scores; for an EvaluateRequest the true loss, Phi_gamma where
        smoothing > 0.
    shifted_loss : sum Phi(W^T x_i + gamma alpha_i) of an EvaluateRequest; equal to `loss` where
        smoothing is 0.
    largest : the largest losses in the answer to a LossesRequest.
    stretch : the least c at which no row has a loss at c W; inf where there is none, 0 where the request does
        not ask.
    active : rows with u_i != 0; in the answer to a LossesRequest, with a loss.
    visited : column updates of an AscentRequest; rows whose scores a second-order request took.
    left : of an AscentRequest the sum of the duality gaps of the rows that its stages visited, where it
        was small enough to end them; inf where something else did.
    seconds_products : time in products with X and in reading it, summed over blocks.
    seconds_kernels : time in everything per row, summed over blocks.
    stale, rise, roots, picked, change, values : of the kernelised dual, `topline.solvers.core.kernel_rows`:
        rows whose scores belong to another A, what n D rises by at least, the sum of the roots of the rows'
        shares of the gap, the rows that were picked, rows of A or of a change of it, and kernel values; rows
        of several blocks lie one below the other.
    """

    rows: int = 0
    product: FloatArray | None = None
    class_losses: Float64Array | None = None
    openness: Float64Array | None = None
    openness_sq: float = 0.0
    moments: Float64Array | None = None
    largest: LargestLosses | None = None
    conjugate_u: float = 0.0
    alpha_u: float = 0.0
    u_sq: float = 0.0
    alpha_sq: float = 0.0
    conjugate_alpha: float = 0.0
    loss: float = 0.0
    shifted_loss: float = 0.0
    stretch: float = 0.0
    active: int = 0
    visited: int = 0
    left: float = 0.0
    seconds_products: float = 0.0
    seconds_kernels: float = 0.0
    stale: int = 0
    rise: float = 0.0
    roots: float = 0.0
    picked: PickedRows | None = None
    change: Change | None = None
    values: FloatArray | None = None

    @classmethod
    def zero(cls) -> BlockStats:
        """Return the neutral element of `merge`."""
        return cls()

    def merge(self, other: BlockStats) -> BlockStats:
        """Return the sums over the rows of both."""
        values = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name not in _JOINED
        }
        return BlockStats(
            product=_joined(self.product, other.product, _sum),
            class_losses=_joined(self.class_losses, other.class_losses, _sum),
            openness=_joined(self.openness, other.openness, _sum),
            moments=_joined(self.moments, other.moments, _sum),
            stretch=max(self.stretch, other.stretch),
            largest=_joined(self.largest, other.largest, LargestLosses.merge),
            picked=_joined(self.picked, other.picked, PickedRows.merge),
            change=_joined(self.change, other.change, Change.merge),
            values=_joined(self.values, other.values, lambda above, below: np.concatenate([above, below])),
            **values,
        )


class Node(NamedTuple):
    """A node of the tree over block indices: blocks place * 2^level up to (place + 1) * 2^level."""

    level: int
    place: int


class TreeMerger:
    """Adds up BlockStats along the fixed tree, in whatever order they come.

    It merges as soon as both children of a node are there, so a run in block order holds about log2(blocks)
    parts.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._parts: dict[Node, BlockStats] = {}

    def add(self, node: Node, stats: BlockStats) -> None:
        """Take the sum over the blocks of one node."""
        while not self._is_root(node):
            sibling = Node(node.level, node.place ^ 1)
            if (sibling.place << sibling.level) < self._blocks:
                other = self._parts.pop(sibling, None)
                if other is None:
                    break
                left, right = (stats, other) if node.place < sibling.place else (other, stats)
                stats = left.merge(right)
            node = Node(node.level + 1, node.place >> 1)
        self._parts[node] = stats

    def parts(self) -> list[tuple[Node, BlockStats]]:
        """Return what could not be merged further, in block order."""
        return sorted(self._parts.items(), key=lambda part: part[0].place << part[0].level)

    def total(self) -> BlockStats:
        """Return the sum over all blocks; StateLostError where some are missing."""
        parts = self.parts()
        if len(parts) != 1 or not self._is_root(parts[0][0]):
            raise StateLostError(f"the sum over {self._blocks} blocks is not complete; run the round again")
        return parts[0][1]

    def _is_root(self, node: Node) -> bool:
        return node.place == 0 and (1 << node.level) >= self._blocks


def leaf(block: int) -> Node:
    """Return the node of a single block."""
    return Node(0, block)


def tree_total(parts: Iterable[tuple[Node, BlockStats]], blocks: int) -> BlockStats:
    """Merge parts that together cover all blocks; StateLostError where some are missing."""
    merger = TreeMerger(blocks)
    for node, stats in parts:
        merger.add(node, stats)
    return merger.total()


def _joined(left: T | None, right: T | None, join: Callable[[T, T], T]) -> T | None:
    if left is None or right is None:
        return right if left is None else left
    return join(left, right)


def _sum(left: FloatArray, right: FloatArray) -> Any:
    return left + right
