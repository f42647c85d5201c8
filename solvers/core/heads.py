"""Many problems over the same rows, each of them a head: what a coordinator asks of all heads together.

A head has its own loss, lam, smoothing and weights of the rows, and with these its own dual variables; the
rows, their labels and the classes are everybody's.  Rows that a head holds out have the weight 0.  Heads come
with their first request and go when they have `ended`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.core.requests import PendingStep, Request
from topline.solvers.typing import Float64Array

#: What a block answers to the call of one head.
Sums: TypeAlias = BlockStats | HitCount


@dataclass(frozen=True)
class HeadsProblem:
    """What all heads have in common: n rows of d features in m classes, and how many heads there are at most.

    The memory for dual variables is shared out among so many.
    """

    n: int
    d: int
    m: int
    most: int = 1


@dataclass(frozen=True)
class CopyDualsRequest:
    """Start from `share` times the dual variables of another head, after its `pending_step`.

    Rows may then lie outside the head's domains; those that it holds out are 0.
    """

    source: int
    share: float = 1.0
    pending_step: PendingStep | None = None


@dataclass(frozen=True, eq=False)
class CountHitsRequest:
    """Count the rows of weight 0 that have their class among the first k under W (d, m), with bounds.

    `radius` is how far the exact solution may lie from W; a row of class c counts `class_weights[c]` times.
    """

    W: Float64Array
    k: int
    radius: float
    class_weights: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class HeadCall:
    """One request of one head, and what it is: its problem, and which column of the weights is its own."""

    head: int
    problem: Problem
    column: int
    request: Request | CopyDualsRequest | CountHitsRequest


@dataclass(frozen=True, eq=False)
class HeadRequests:
    """The calls of all heads that are waiting, to be answered in one reading, and the heads that are done."""

    calls: tuple[HeadCall, ...]
    ended: tuple[int, ...] = ()

    @property
    def pending_step(self) -> PendingHeadSteps:
        """The steps that the heads have not yet applied, by head."""
        steps = {call.head: getattr(call.request, "pending_step", None) for call in self.calls}
        return PendingHeadSteps({head: step for head, step in steps.items() if step is not None})


@dataclass(frozen=True)
class PendingHeadSteps:
    """The pending step of each head that has one."""

    steps: Mapping[int, PendingStep] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class HeadStats:
    """The sums of each head over the rows of one or more blocks; `merge` adds them head by head."""

    parts: Mapping[int, Sums]
    seconds_products: float = 0.0
    seconds_kernels: float = 0.0

    def merge(self, other: HeadStats) -> HeadStats:
        """Return the sums over the rows of both, which have answered the same calls."""
        return HeadStats(
            {head: _added(sums, other.parts[head]) for head, sums in self.parts.items()},
            self.seconds_products + other.seconds_products,
            self.seconds_kernels + other.seconds_kernels,
        )


def _added(left: Sums, right: Sums) -> Sums:
    if isinstance(left, HitCount) and isinstance(right, HitCount):
        return left + right
    if isinstance(left, BlockStats) and isinstance(right, BlockStats):
        return left.merge(right)
    raise TypeError("a head has got answers to two kinds of requests")
