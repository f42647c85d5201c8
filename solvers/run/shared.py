"""Many runs over the same rows in shared passes: one loop asks the blocks for all of them together.

A run is what it is alone: the loop of `topline.solvers.run.loop` with its method, line search, gap and
stopping, on a stack of its own, for which it has a thread.  The loop here lets every run go on until it asks
for something, asks the blocks for all of them in one request (`topline.solvers.operations.heads`), which
reads the rows once, and hands out the answers.  So a run comes to the same numbers whatever other runs there
are, as long as rows lie in memory; where they are read, the order in which sweeps visit them is a common one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from topline.solvers.core.answers import A
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import Traffic
from topline.solvers.errors import DualsReplacedError, SolverError
from topline.solvers.executors import Executor
from topline.solvers.operations import AskHeads, Head, Operation
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")


class AbandonedRunError(SolverError):
    """A run that shares its passes was given up, because another one failed or somebody stopped them."""


class HeadExecutor:
    """What a run is asked through: it waits until all runs have asked something, and gets its own answer.

    `turns` tells the loop that the run waits, or, by an error or None, that it has ended.
    """

    workers = 1
    operation: Operation[Any]
    answer: Future[Any]

    def __init__(
        self, head: Head, blocks: int, turns: SimpleQueue[HeadExecutor | BaseException | None]
    ) -> None:
        self.head, self.blocks, self._turns = head, blocks, turns
        self.answer, self._abandoned = Future(), False

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        # The answer is new before anybody looks at whether the run is given up, and `abandon` sets both.
        self.operation, self.answer = operation, Future()
        if self._abandoned:
            raise AbandonedRunError("another run has failed")
        self._turns.put(self)
        answer: A = self.answer.result()
        return answer

    def traffic(self) -> Traffic:
        """Return nothing: what is moved is moved for all runs."""
        return Traffic()

    def take(self, function: Callable[[HeadExecutor], T]) -> T:
        """Let the run come to its end."""
        try:
            ended = function(self)
        except BaseException as error:
            self._turns.put(error)
            raise
        self._turns.put(None)
        return ended

    def abandon(self) -> None:
        """Give the run up, which may be at work or wait."""
        self._abandoned = True
        if not self.answer.done():
            self.answer.set_exception(AbandonedRunError("another run has failed"))


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

    @property
    def blocks(self) -> int:
        """Number of blocks of the rows."""
        return self._executor.blocks

    def forget(self, number: int) -> None:
        """Let go of the dual variables of a head, with the next request."""
        self._gone.append(number)

    def run_all(self, runs: Mapping[Head, Callable[[HeadExecutor], T]]) -> dict[int, T]:
        """Let each function run to its end with an executor of its own, and return what they returned.

        What one of them raises ends all of them, as does Ctrl-C.
        """
        turns: SimpleQueue[HeadExecutor | BaseException | None] = SimpleQueue()
        heads = [HeadExecutor(head, self.blocks, turns) for head in runs]
        with ThreadPoolExecutor(len(heads), thread_name_prefix="topline-head") as pool:
            ended = [pool.submit(one.take, run) for one, run in zip(heads, runs.values(), strict=True)]
            try:
                busy = len(heads)
                while asking := _asking(turns, busy):
                    self._answer(asking)
                    busy = len(asking)
            except BaseException:  # also Ctrl-C, which the runs must not outlive
                for one in heads:
                    one.abandon()
                raise
        return {one.head.number: run.result() for one, run in zip(heads, ended, strict=True)}

    def _answer(self, asking: Sequence[HeadExecutor]) -> None:
        """Answer what all runs have asked."""
        gone, self._gone = tuple(self._gone), []
        try:
            found = self._executor.run(AskHeads(tuple((one.head, one.operation) for one in asking), gone))
        except DualsReplacedError as error:
            self.replaced += 1
            for one in asking:
                one.answer.set_exception(DualsReplacedError(str(error)))
            return
        for one in asking:
            one.answer.set_result(found.parts[one.head.number])


def _asking(turns: SimpleQueue[HeadExecutor | BaseException | None], busy: int) -> list[HeadExecutor]:
    """Wait until none of so many runs is at work; return those that ask, and raise what ended another."""
    asking = []
    for _ in range(busy):
        turn = turns.get()
        if isinstance(turn, BaseException):
            raise turn
        if turn is not None:
            asking.append(turn)
    return sorted(asking, key=lambda one: one.head.number)
