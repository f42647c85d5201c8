"""Messages between the coordinator and the workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from topline.pipeline.cluster.shared_arrays import ArrayFile, SharedArray
from topline.solvers.core.answers import Answer, Node, TreeMerger
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.rows import held_in_memory, is_sparse
from topline.solvers.operations import RunSpec


@dataclass(frozen=True)
class Span:
    """One block: its number and its training rows start..stop-1."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Placement:
    """What one worker holds from this epoch on.

    `spec` covers the rows spans[0].start..spans[-1].stop-1, with this worker's budgets.  The blocks `keeps`
    keep their dual variables, with any `pending_step` applied; other blocks start at 0.  A run without a
    call for `lease` seconds is dropped, because its coordinator must have died.
    """

    run: str
    epoch: int
    spans: tuple[Span, ...]
    blocks: int
    spec: RunSpec
    cache_bytes: int
    lease: float
    keeps: frozenset[int] = frozenset()
    pending_step: PendingStep | None = None


class WorkerCost(NamedTuple):
    """Cost of a request on a worker; `bytes_read` of features counts from the placement of the blocks."""

    seconds: float
    memory_bytes: int
    bytes_read: int


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over blocks of some workers, merged as far as possible, and each worker's cost by address.

    The tree of `topline.solvers.core.answers` fixes the order of additions, so no bit depends on who adds.
    The products of some nodes may lie in shared memory instead of in their answers.
    """

    blocks: int
    parts: list[tuple[Node, Answer]]
    costs: dict[str, WorkerCost]
    products: Mapping[Node, SharedArray] = field(default_factory=dict)

    def shared(self, memory: ArrayFile) -> Sums:
        """Return the sums with large products in shared memory."""
        held = {node: getattr(answer, "product", None) for node, answer in self.parts}
        there = memory.shared({node: each for node, each in held.items() if isinstance(each, np.ndarray)})
        products = {node: each for node, each in there.items() if isinstance(each, SharedArray)}
        return replace(self, parts=_with_products(self.parts, dict.fromkeys(products)), products=products)

    def joined(self, *others: Sums) -> Sums:
        """Return the merged sums of these workers and of others; StateLostError if products are gone."""
        merger: TreeMerger[Answer] = TreeMerger(self.blocks)
        costs: dict[str, WorkerCost] = {}
        for sums in (self, *others):
            costs |= sums.costs
            products = {node: product.taken() for node, product in sums.products.items()}
            for node, answer in _with_products(sums.parts, products):
                merger.add(node, answer)
        return Sums(self.blocks, merger.parts(), costs)


def _with_products(
    parts: Iterable[tuple[Node, Any]], products: Mapping[Node, Any]
) -> list[tuple[Node, Answer]]:
    """Return the answers with other products where some are given."""
    return [
        (node, replace(answer, product=products[node]) if node in products else answer)
        for node, answer in parts
    ]


class ShippedRows:
    """Rows from `start` on of an array in memory, addressed by the row numbers of the whole array."""

    def __init__(self, values: Any, start: int, n: int) -> None:
        self._values = values
        self._start = start
        self.shape = (n, int(values.shape[1]))
        self.dtype = values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the rows held here."""
        parts = ("data", "indices", "indptr") if is_sparse(self._values) else ("data",)
        return sum(int(getattr(self._values, name).nbytes) for name in parts)

    @property
    def in_memory(self) -> bool:
        """Whether slices need no reading."""
        return held_in_memory(self._values)

    @property
    def sparse(self) -> bool:
        """Whether slices are CSR matrices."""
        return is_sparse(self._values)

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        return self._values[start - self._start : stop - self._start]
