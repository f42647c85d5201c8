"""Many runs over the same rows in shared passes: one loop asks the blocks for all of them together.

A head is one problem over the rows, with a column of weights; training has one, and a sweep one per cell.
Each run is an ordinary loop of `topline.solvers.run.loop`, with its own method, line search, gap and
stopping, on a stack of its own (a greenlet).  When a run needs an operation it yields to the loop here, which
waits until every run has asked, sends all requests to the blocks as one operation (`AskHeads`) that reads the
rows once, and hands out the answers.  A run's numbers therefore do not depend on the other runs while rows
lie in memory; rows read from storage are swept in an order common to all runs.
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
from topline.solvers.core.state import Traffic
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import Executor
from topline.solvers.operations import AskHeads, Head, Operation
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class HeadExecutor:
    """The executor of one head's run, answered together with all others."""

    head: Head
    blocks: int
    workers: int = 1
    sends: bool = False
    keeps_duals: bool = True

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        answer: A = getcurrent().parent.switch(operation)
        return answer

    def traffic(self) -> Traffic:
        """Return nothing: traffic is shared by all runs."""
        return Traffic()


class SharedPasses:
    """Rows bound to an executor, over which any number of runs share their passes.

    `problem` is any of the runs' problems; `weights` (n, columns) weight each row, with 0 for held-out rows.
    `replaced` counts how often dual variables were lost: a run that was idle meanwhile has to rebuild its W.
    """

    def __init__(
        self, executor: Executor, problem: Problem, X: RowSource, y: IntArray, weights: Float64Array
    ) -> None:
        executor.bind(problem, X, y, keep_duals=True, weights=weights)
        self._executor = executor
        self._gone: list[int] = []
        self.replaced = 0

    def forget(self, number: int) -> None:
        """Drop the dual variables of a head with the next request."""
        self._gone.append(number)

    def run_all(self, runs: Mapping[Head, Callable[[HeadExecutor], T]]) -> dict[int, T]:
        """Run each function to its end with an executor of its own, and return their results.

        An exception in one of them, or Ctrl-C, ends all of them.
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
        """Answer the requests of the runs; return each run's next request or its result."""
        gone, self._gone = tuple(self._gone), []
        try:
            parts = self._executor.run(AskHeads(tuple(asking.items()), gone)).parts
        except DualsReplacedError as error:
            self.replaced += 1
            return {head: stacks[head].throw(DualsReplacedError(str(error))) for head in asking}
        return {head: stacks[head].switch(parts[head.number]) for head in asking}
