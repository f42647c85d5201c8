"""What a coordinator sends to a worker, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

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

    `spec` is of the rows spans[0].start .. spans[-1].stop-1, with this worker's budgets.  Dual variables of
    the blocks `keeps` are kept from the epoch before, with `pending_step` applied where it waits; those of
    other blocks are 0.  A run that no call has touched for `lease` seconds is dropped, since its coordinator
    must have died.
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
    """What a request took of a worker; `bytes_read` of features counts since the blocks were placed."""

    seconds: float
    memory_bytes: int
    bytes_read: int


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over blocks of some workers, merged as far as they reach, and the cost of each by its address.

    Merging goes along the tree of `topline.solvers.core.answers`, whose nodes say what is added to what: no
    bit depends on who adds.
    """

    blocks: int
    parts: list[tuple[Node, Answer]]
    costs: dict[str, WorkerCost]

    def joined(self, *others: Sums) -> Sums:
        """Return the sums of these workers and of others together."""
        merger: TreeMerger[Answer] = TreeMerger(self.blocks)
        costs: dict[str, WorkerCost] = {}
        for sums in (self, *others):
            costs |= sums.costs
            for node, answer in sums.parts:
                merger.add(node, answer)
        return Sums(self.blocks, merger.parts(), costs)


class ShippedRows:
    """Rows start.. of an array in memory, under the row numbers of the whole array."""

    def __init__(self, values: Any, start: int, n: int) -> None:
        self._values = values
        self._start = start
        self.shape = (n, int(values.shape[1]))
        self.dtype = values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are here."""
        parts = ("data", "indices", "indptr") if is_sparse(self._values) else ("data",)
        return sum(int(getattr(self._values, name).nbytes) for name in parts)

    @property
    def in_memory(self) -> bool:
        """Whether slices cost no reading."""
        return held_in_memory(self._values)

    @property
    def sparse(self) -> bool:
        """Whether slices are CSR matrices."""
        return is_sparse(self._values)

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        return self._values[start - self._start : stop - self._start]
