"""What an operation is: a question that the coordinator asks of every block, whose answers add up.

An operation is a value: it can be sent to another machine, sent again, and compared.  One file holds all of
it: what it asks, what a block does with it, the answer, whose fields say how they merge, and how it is asked
where weights are those of a feature map, or where the risk is not the mean of the losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from topline.solvers.blocks.block import Block
from topline.solvers.core.answers import A, Answer
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.feature_maps import MapView
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.tiles import TileSums, TileWork, work_through
from topline.solvers.core.traffic import Traffic
from topline.solvers.crew import Crew

A_co = TypeVar("A_co", bound=Answer, covariant=True)


class Operation(ABC, Generic[A_co]):
    """What is asked of every block; to inherit as a frozen dataclass.

    A block answers the same operation with the same sums however often it comes, and changes nothing more.
    One that is `widening` leaves dual variables in float64, where it is exact if it says so of itself.
    """

    widening: ClassVar[bool] = False

    @property
    def pending_step(self) -> PendingStep | None:
        """The step that a block applies to A first, where it has not done so; a field of most operations."""
        return None

    @property
    def widens(self) -> bool:
        """Whether dual variables are in float64 from then on."""
        return self.widening and bool(getattr(self, "exact", True))

    @abstractmethod
    def answer(self, block: Block, crew: Crew) -> A_co:
        """Return the answer of one block, on the threads of a crew; it does not depend on how many.

        Raises NonFiniteError naming the rows where features are NaN or infinite, StateLostError where a
        step refers to a round that this block has not seen.
        """

    def within(self, passes: int, seconds: float | None) -> Self:
        """Return the operation for a run that may still take so much; None for no limit."""
        return self

    def through(self, run: Runner, view: MapView) -> A_co:
        """Return the answer at weights V of a feature map, of blocks that know W = L V alone.

        Fields W and V, which are weights, go to the blocks as such, and a product comes back as one for V.
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
        """Return the answer for the mean of the k largest of n losses, from the blocks' own."""
        del risk, n
        return run(self)


class TileOperation(Operation[A]):
    """An operation that takes the tiles one by one: many of these go through one reading of the rows."""

    @abstractmethod
    def sums(self, block: Block, crew: Crew) -> TileSums[A]:
        """Return what is done with each tile; a crew works on it."""

    def work(self, block: Block, crew: Crew) -> TileWork[A]:
        """Return the work on the tiles of a block, which may be read for others too."""
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
    """Runs operations on all examples of a bound problem: all that a run needs once it has begun."""

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        ...

    @property
    def sends(self) -> bool:
        """Whether requests go to other processes, so that time is lost with each."""
        ...

    def run(self, operation: Operation[A], /) -> A:
        """Run an operation on every block and return the sum."""
        ...

    def traffic(self) -> Traffic:
        """Return what was moved and who worked since `bind`; it asks nobody and costs next to nothing."""
        ...
