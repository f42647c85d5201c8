"""Answers of blocks to an operation, and how they are added up.

An answer is a small frozen dataclass whose fields say how they merge: numbers and arrays add, and a field
that does not add names its rule (`merged_by`).  Products are carried whole, because the curvature of a step
is the squared norm of a *sum* of products: squares are taken only after all blocks are in.

The sum runs over a fixed binary tree of block indices.  Node (level, place) stands for the blocks
[place * 2^level, (place + 1) * 2^level) below the number of blocks; a node whose sibling lies wholly beyond
the last block passes for its own parent.  Every executor adds along this tree, so the floating-point result
does not depend on which worker computed what, or in which order.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from topline.solvers.errors import StateLostError
from topline.solvers.typing import FloatArray


@dataclass
class Clock:
    """Seconds in products and in per-row work; each call of a method ends one stretch.

    `laps` counts the stretches of all clocks of the process, so that others can see progress.
    """

    laps: ClassVar[int] = 0
    products: float = 0.0
    per_row: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """Discard the time since the last stretch ended."""
        self._last = time.perf_counter()

    def product(self) -> None:
        """End a stretch of products with X, or of reading it."""
        self.products += self._lap()

    def row_work(self) -> None:
        """End a stretch of work per row."""
        self.per_row += self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        Clock.laps += 1
        return seconds

    def seconds(self) -> dict[str, Any]:
        """Return both times under their names in an `Answer`."""
        return {"seconds_products": self.products, "seconds_kernels": self.per_row}


A = TypeVar("A", bound="Answer")

_RULE = "merge"


def merged_by(rule: Callable[[Any, Any], Any], default: Any = None) -> Any:
    """Return the field of an answer that merges by a rule of its own, such as `max`."""
    return field(default=default, metadata={_RULE: rule})


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """The answer of some blocks to an operation; None in a field means nothing to add.

    Attributes
    ----------
    seconds_products : time in products with X and in reading it, summed over blocks.
    seconds_kernels : time in all per-row work, summed over blocks.
    """

    seconds_products: float = 0.0
    seconds_kernels: float = 0.0

    def merge(self, other: Self) -> Self:
        """Return the answer of the blocks of both; those of `other` come after these."""
        merged: dict[str, Any] = {}
        for part in fields(self):
            left, right = getattr(self, part.name), getattr(other, part.name)
            if left is None or right is None:
                merged[part.name] = right if left is None else left
            else:
                merged[part.name] = part.metadata.get(_RULE, operator.add)(left, right)
        return type(self)(**merged)


@dataclass(frozen=True, eq=False, kw_only=True)
class LossAnswer(Answer):
    """Sums over the rows of some blocks, each row times its weight.

    Attributes
    ----------
    rows : number of examples.
    loss : sum Phi_gamma at the scores that the operation defines.
    active : rows with a loss, or with u_i not 0.
    """

    rows: int = 0
    loss: float = 0.0
    active: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class VectorSums(LossAnswer):
    """Sums over vectors u_i (m,) of the rows, such as vertices or changes of alpha_i.

    Attributes
    ----------
    product : (d, m) sum x_i u_i^T, in float64 unless an operation says otherwise.
    conjugate_u : sum b(u_i), b(u) = -Phi*(-u), which is -<delta_i, u_i> for the hinges; for a change of A the
        change of sum b(alpha_i).
    alpha_u : sum <alpha_i, u_i>; 0 where no A is kept.
    u_sq : sum |u_i|^2.
    """

    product: FloatArray
    conjugate_u: float = 0.0
    alpha_u: float = 0.0
    u_sq: float = 0.0


class Node(NamedTuple):
    """A node of the tree over block indices: blocks place * 2^level up to (place + 1) * 2^level."""

    level: int
    place: int


class TreeMerger(Generic[A]):
    """Adds up answers along the fixed tree, in whatever order they come.

    It merges once both children of a node are there, so a run in block order holds about log2(blocks) parts.
    """

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._parts: dict[Node, A] = {}

    def add(self, node: Node, answer: A) -> None:
        """Add the sum over the blocks of one node."""
        while not self._is_root(node):
            sibling = Node(node.level, node.place ^ 1)
            if (sibling.place << sibling.level) < self._blocks:
                other = self._parts.pop(sibling, None)
                if other is None:
                    break
                left, right = (answer, other) if node.place < sibling.place else (other, answer)
                answer = left.merge(right)
            node = Node(node.level + 1, node.place >> 1)
        self._parts[node] = answer

    def parts(self) -> list[tuple[Node, A]]:
        """Return the unmerged parts in block order."""
        return sorted(self._parts.items(), key=lambda part: part[0].place << part[0].level)

    def total(self) -> A:
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


def tree_total(parts: Iterable[tuple[Node, A]], blocks: int) -> A:
    """Merge parts that together cover all blocks; StateLostError where some are missing."""
    merger: TreeMerger[A] = TreeMerger(blocks)
    for node, answer in parts:
        merger.add(node, answer)
    return merger.total()
