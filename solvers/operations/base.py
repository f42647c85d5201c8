"""The protocol of operations: requests of the coordinator to every block, whose answers add up.

An operation is a value: it can be sent to another machine, sent again, and compared.  One file holds its
parameters, what a block computes, the answer, whose fields say how they merge, and how to run it at weights
of a feature map or for a risk other than the mean of the losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from topline.solvers.blocks.block import Block
from topline.solvers.core.answers import A, Answer
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.problem import AverageTopK
from topline.solvers.core.tiles import TileSums, TileWork, work_through
from topline.solvers.core.traffic import Traffic
from topline.solvers.crew import Crew

A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Operation(ABC, Generic[A_co]):
    """A request to every block; a base class for frozen dataclasses.

    A block answers a repeated operation with the same sums and changes nothing further.  A `widening`
    operation leaves the dual variables in float64; if it has a field `exact`, only when that is true.
    """

    widening: ClassVar[bool] = False

    @property
    def pending_step(self) -> PendingStep | None:
        """The step that a block first applies to A, unless already applied; a field of most operations."""
        return None

    @property
    def widens(self) -> bool:
        """Whether the dual variables are in float64 afterwards."""
        return self.widening and bool(getattr(self, "exact", True))

    @abstractmethod
    def answer(self, block: Block, crew: Crew) -> A_co:
        """Return the answer of one block, using the threads of a crew, whose number does not change it.

        Raises NonFiniteError naming the rows with NaN or infinite features, StateLostError if a step refers
        to a round that this block has not seen.
        """

    def within(self, passes: int, seconds: float | None) -> Self:
        """Return the operation limited to the run's remaining passes and seconds; None for no limit."""
        return self

    def through(self, run: Runner, view: MapView) -> A_co:
        """Return the answer at weights V of a feature map, from blocks that know only W = L V.

        The weight fields W and V are mapped on the way to the blocks, and a product is mapped back to V.
        """
        here: Any = self
        weights = {name: getattr(self, name) for name in ("W", "V") if hasattr(self, name)}
        if weights:
            here = replace(here, **{name: view.class_weights(V) for name, V in weights.items()})
        answer: Any = run(here)
        if hasattr(answer, "product"):
            answer = replace(answer, product=view.summed(answer.product))
        found: A_co = answer
        return found

    def on_largest(self, run: Runner, risk: AverageTopK, n: int) -> A_co:
        """Return the answer for the mean of the k largest of n losses, from the blocks' answers."""
        del risk, n
        return run(self)


class TileOperation(Operation[A]):
    """An operation that processes tiles one by one: several of these share one reading of the rows."""

    @abstractmethod
    def sums(self, block: Block, crew: Crew) -> TileSums[A]:
        """Return the generator that processes the tiles, with the help of a crew."""

    def work(self, block: Block, crew: Crew) -> TileWork[A]:
        """Return the work on the tiles of a block, whose reading may be shared."""
        return TileWork(self.sums(block, crew), block.tiles)

    def answer(self, block: Block, crew: Crew) -> A:
        """Return the answer of one block."""
        work = self.work(block, crew)
        work_through(block.tiles, [work], crew)
        return work.answer()


class Runner(Protocol):
    """Runs an operation on every block and returns the sum of the answers."""

    def __call__(self, operation: Operation[A], /) -> A:
        """Return the answer of all blocks."""
        ...


class OperationRunner(Protocol):
    """Runs operations on all examples of a bound problem: all that a run needs after its start."""

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        ...

    @property
    def sends(self) -> bool:
        """Whether requests go to other processes, so that each one costs time."""
        ...

    def run(self, operation: Operation[A], /) -> A:
        """Run an operation on every block and return the sum."""
        ...

    def traffic(self) -> Traffic:
        """Return data moved and work done since `bind`, at almost no cost and without a request."""
        ...
