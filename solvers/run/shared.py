"""Many runs over the same rows in shared passes: one loop asks the blocks for all of them together.

A head is one problem over the rows, with a column of weights; training has one, and a sweep one a cell.  Its
run is what it is alone, the loop of `topline.solvers.run.loop` with its method, line search, gap and
stopping, on a stack of its own (a greenlet).  Where it asks for something it gives way to the loop here,
which lets every run go on until it asks, asks the blocks for all of them in one operation (`AskHeads`),
which reads the rows once, and hands out the answers.  So a run comes to the same numbers whatever other runs
there are, as long as rows lie in memory; where they are read, the order in which sweeps visit them is a
common one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from topline.solvers.core.answers import A
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import Traffic
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import Executor
from topline.solvers.operations import AskHeads, Head, Operation
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class HeadExecutor:
    """What the run of a head is asked through: it gets its answer with those of all others."""

    head: Head
    blocks: int
    workers: int = 1
    sends: bool = False

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        answer: A = getcurrent().parent.switch(operation)
        return answer

    def traffic(self) -> Traffic:
        """Return nothing: what is moved is moved for all runs."""
        return Traffic()


class SharedPasses:
    """Rows bound to an executor, over which any number of runs share their passes.

    `problem` is any of theirs, `weights` (n, columns) say how often each row counts; a row of weight 0 is
    held out.  `replaced` counts how often dual variables were lost: a run that stood still meanwhile has to
    rebuild what follows them.
    """

    def __init__(
        self, executor: Executor, problem: Problem, X: RowSource, y: IntArray, weights: Float64Array
    ) -> None:
        executor.bind(problem, X, y, keep_duals=True, weights=weights)
        self._executor = executor
        self._gone: list[int] = []
        self.replaced = 0

    def forget(self, number: int) -> None:
        """Let go of the dual variables of a head, with the next request."""
        self._gone.append(number)

    def run_all(self, runs: Mapping[Head, Callable[[HeadExecutor], T]]) -> dict[int, T]:
        """Let each function run to its end with an executor of its own, and return what they returned.

        What one of them raises ends all of them, as does Ctrl-C.
        """
        stacks = {head: greenlet(run) for head, run in runs.items()}
        for stack in stacks.values():
            stack.gr_context = copy_context()  # how NumPy takes overflow, and whose log lines these are
        ended: dict[int, T] = {}
        found = {
            head: stack.switch(HeadExecutor(head, self._executor.blocks)) for head, stack in stacks.items()
        }
        while found:
            asking = {head: asked for head, asked in found.items() if not stacks[head].dead}
            ended |= {head.number: result for head, result in found.items() if head not in asking}
            found = self._answered(asking, stacks) if asking else {}
        return ended

    def _answered(
        self, asking: Mapping[Head, Operation[Any]], stacks: Mapping[Head, greenlet]
    ) -> dict[Head, Any]:
        """Answer what runs have asked; return what each of them asks next, or what it ends with."""
        gone, self._gone = tuple(self._gone), []
        try:
            parts = self._executor.run(AskHeads(tuple(asking.items()), gone)).parts
        except DualsReplacedError as error:
            self.replaced += 1
            return {head: stacks[head].throw(DualsReplacedError(str(error))) for head in asking}
        return {head: stacks[head].switch(parts[head.number]) for head in asking}
