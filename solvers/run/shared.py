"""Many runs over the same rows in shared passes: what all of them wait for is asked in one request.

A run is what it is alone: the loop of `topline.solvers.run.loop` with its method, line search, gap and
stopping.  Each has a thread, in which it works out what to ask next; once every run waits, their requests go
to the blocks together (`topline.solvers.operations.heads`), which read the rows once for all of them.  So
a run comes to the same numbers whatever other runs there are, as long as rows lie in memory; where they are
read, the order in which sweeps visit them is a common one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from topline.solvers.core.answers import A
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.core.traffic import Traffic
from topline.solvers.errors import DualsReplacedError, SolverError
from topline.solvers.executors import Executor
from topline.solvers.operations import (
    AskHeads,
    CopyDuals,
    CountHits,
    HeadCall,
    HeadsProblem,
    Operation,
)
from topline.solvers.typing import Float64Array, IntArray

T = TypeVar("T")


class AbandonedRunError(SolverError):
    """A run that shares its passes was given up, because another one failed or somebody stopped them."""


@dataclass(frozen=True, eq=False)
class HeadRun:
    """One of the runs: its number, its problem, and which column of the weights of the rows is its own."""

    head: int
    problem: Problem
    column: int


class HeadExecutor:
    """What a run is asked through: it waits until all runs have asked something, and gets its own answer."""

    workers = 1

    def __init__(self, passes: SharedPasses, run: HeadRun) -> None:
        self._passes, self._run = passes, run
        self._replaced: DualsReplacedError | None = None

    @property
    def blocks(self) -> int:
        """Number of blocks of the rows."""
        return self._passes.blocks

    def run(self, operation: Operation[A]) -> A:
        """Run an operation on every block and return the sum."""
        if self._replaced is not None:
            replaced, self._replaced = self._replaced, None
            raise replaced
        answer: A = self._ask(operation)
        return answer

    def copy_duals(self, request: CopyDuals) -> None:
        """Start from the dual variables of another head, which stands still meanwhile."""
        self._ask(request)

    def count_hits(self, request: CountHits) -> HitCount:
        """Return the hits among the rows that the head holds out.

        They do not depend on dual variables: where some were lost meanwhile, the next `run` says so.
        """
        while True:
            try:
                answer = self._ask(request)
                break
            except DualsReplacedError as error:
                self._replaced = error
        count: HitCount = answer.count
        return count

    def traffic(self) -> Traffic:
        """Return nothing: what is moved is moved for all runs."""
        return Traffic()

    def _ask(self, request: Any) -> Any:
        run = self._run
        return self._passes.answer(HeadCall(run.head, run.problem, run.column, request))


@dataclass(eq=False)
class _Turn:
    """What the runs of one call have asked, what they were answered, and how many are still at work."""

    busy: int
    asked: dict[int, HeadCall] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)
    ended: dict[int, Any] = field(default_factory=dict)
    failed: BaseException | None = None


class SharedPasses:
    """Rows bound to an executor, over which any number of runs share their passes.

    `weights` (n, columns) say how often each row counts; a row of weight 0 is held out.  `replaced` counts
    how often dual variables were lost: a run that stood still meanwhile has to rebuild what follows them.
    """

    def __init__(
        self,
        executor: Executor,
        problem: HeadsProblem,
        X: RowSource,
        y: IntArray,
        weights: Float64Array,
    ) -> None:
        executor.bind(problem, X, y, keep_duals=True, weights=weights)
        self._executor = executor
        self._turn = threading.Condition()
        self._now = _Turn(0)
        self._gone: list[int] = []
        self.replaced = 0
        #: How often all rows were asked about, for however many runs.
        self.passes = 0

    @property
    def blocks(self) -> int:
        """Number of blocks of the rows."""
        return self._executor.blocks

    def forget(self, head: int) -> None:
        """Let go of the dual variables of a head, with the next request."""
        self._gone.append(head)

    def run_all(self, runs: Mapping[HeadRun, Callable[[HeadExecutor], T]]) -> dict[int, T]:
        """Let each function run to its end with an executor of its own, and return what they returned.

        What one of them raises ends all of them, as does Ctrl-C.
        """
        now = self._now = _Turn(len(runs))
        threads = [
            threading.Thread(target=self._take, args=(now, run, function), name=f"topline-head-{run.head}")
            for run, function in runs.items()
        ]
        for thread in threads:
            thread.start()
        try:
            while self._all_wait(now):
                self._serve(now)
        except BaseException as error:  # also Ctrl-C, which the runs must not outlive
            self._give_up(now, error)
            raise
        finally:
            for thread in threads:
                thread.join()
        if now.failed is not None:
            raise now.failed
        return now.ended

    def answer(self, call: HeadCall) -> Any:
        """Return the answer to a call, once all runs wait for theirs."""
        with self._turn:
            now = self._now
            if now.failed is None:
                now.asked[call.head] = call
                now.busy -= 1
                self._turn.notify_all()
                self._turn.wait_for(lambda: call.head in now.answers or now.failed is not None)
            if now.failed is not None:
                raise AbandonedRunError(f"another run has failed: {now.failed}")
            answer = now.answers.pop(call.head)
        if isinstance(answer, DualsReplacedError):
            raise DualsReplacedError(str(answer))
        return answer

    def _take(self, now: _Turn, run: HeadRun, function: Callable[[HeadExecutor], Any]) -> None:
        """Let one run come to its end, in a thread of its own."""
        try:
            ended = function(HeadExecutor(self, run))
        except BaseException as error:  # noqa: BLE001 - `run_all` raises it
            self._give_up(now, error)
            return
        with self._turn:
            now.ended[run.head] = ended
            now.busy -= 1
            self._turn.notify_all()

    def _all_wait(self, now: _Turn) -> bool:
        """Wait until no run is at work; return whether any has asked something."""
        with self._turn:
            self._turn.wait_for(lambda: now.busy == 0 or now.failed is not None)
            return now.failed is None and bool(now.asked)

    def _serve(self, now: _Turn) -> None:
        """Answer what all runs have asked."""
        calls = tuple(now.asked[head] for head in sorted(now.asked))
        gone, self._gone = tuple(self._gone), []
        answers: dict[int, Any]
        try:
            answers = dict(self._executor.run(AskHeads(calls, gone)).parts)
        except DualsReplacedError as error:
            self.replaced += 1
            answers = dict.fromkeys(now.asked, error)
        self.passes += 1
        with self._turn:
            now.answers |= answers
            now.busy += len(calls)
            now.asked.clear()
            self._turn.notify_all()

    def _give_up(self, now: _Turn, error: BaseException) -> None:
        with self._turn:
            if now.failed is None:
                now.failed = error
            self._turn.notify_all()
