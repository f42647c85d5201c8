"""Paths of a sweep in shared passes, for rows that do not fit into every process.

A round advances the paths of all losses and folds along C together: the cells at one place on their paths are
the heads of `topline.solvers.run.shared`, which request the rows at the same time.  A fold is a column of
weights, 0 for held-out rows, so that there is one copy of the rows, in memory if they fit, otherwise read
again, on threads of this process or on workers with a share each.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client
from numpy.typing import NDArray

from topline.pipeline.cluster import DaskExecutor, given_or_own_client
from topline.pipeline.rows import CachedRows, TrainingRows, example_weights
from topline.pipeline.sweep.cells import Outcome, Path, Reached, advance_cell
from topline.pipeline.sweep.folds import stratified_folds
from topline.pipeline.sweep.paths import Answer, PathTask
from topline.pipeline.sweep.plan import SharedMemory, SweepPlan
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.methods import Measurement
from topline.solvers.methods.certificate import rebuild
from topline.solvers.operations import CopyDuals, CountHits, Head
from topline.solvers.run.shared import HeadExecutor, SharedPasses
from topline.solvers.run.task import risk_at_zero, state_of_best_multiple

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Held(NamedTuple):
    """Location of a cell's A: in the blocks, under its head; `replaced` counts losses of A until then."""

    head: Head
    replaced: int


class SharedRunner:
    """Runs all paths of a round over the blocks of `executor`, at most `at_once` cells at a time."""

    def __init__(self, plan: SweepPlan, executor: Executor, rows: TrainingRows, at_once: int) -> None:
        config, self._labels = plan.config, rows.labels()
        self._plan, self._at_once = plan, at_once
        fold = stratified_folds(self._labels, config.folds, config.seed, rows.groups)
        own, names = rows.own_weights, rows.dataset.class_names
        counted = np.ones(len(rows)) if own is None else own
        weights = [
            example_weights(config.class_weight, self._labels, names, counted * (fold != out))
            for out in range(config.folds)
        ]
        self._weights = np.stack([one for one in weights if one is not None], axis=1)
        self._d, self._m = rows.shape[1], rows.dataset.info.m
        problem = plan.spec(plan.paths[0]).problem(len(rows), self._d, self._m)
        self._passes = SharedPasses(executor, problem, rows, self._labels, self._weights)
        self._paths: dict[tuple[str, int], Path] = {}
        self._numbers = itertools.count(1)

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer, after the tasks solved with it."""
        # As few groups as possible, of about equal size, so that every cell shares its passes.
        groups = -(-len(tasks) // self._at_once)
        for group in range(groups):
            together = tasks[group::groups]
            found: dict[int, list[Outcome]] = {number: [] for number in range(len(together))}
            for place in range(max(len(task.rounds[-1]) for task in together)):
                for number, measured in self._step(together, place).items():
                    found[number].append(measured)
            for number, task in enumerate(together):
                for cell in self._paths[task.name, task.fold].forget(task.waiting):
                    self._passes.forget(cell.duals.head.number)
                yield task, tuple(found[number])

    def close(self, name: str) -> None:  # noqa: ARG002 - as other runners
        """Release all paths; the rows go with the executor."""
        self._paths.clear()

    def _step(self, tasks: Sequence[PathTask], place: int) -> dict[int, Outcome]:
        """Solve the cells at one place on their paths; return the measurements by task number."""
        began = time.perf_counter()
        runs: dict[Head, Callable[[HeadExecutor], Outcome]] = {}
        tasks_of: dict[int, int] = {}
        for number, task in enumerate(tasks):
            if place >= len(task.rounds[-1]):
                continue
            C, gap = task.rounds[-1][place]
            path = self._paths.setdefault((task.name, task.fold), Path())
            if C in path.cells:
                head = path.cells[C].duals.head
            else:
                problem = replace(task.spec, C=C).problem(len(self._labels), self._d, self._m)
                head = Head(next(self._numbers), problem, task.fold)
            runs[head] = partial(self._solved, task, path, (C, gap, task.fold), head)
            tasks_of[head.number] = number
        found = self._passes.run_all(runs)
        seconds = (time.perf_counter() - began) / len(runs)
        return {tasks_of[head]: replace(outcome, seconds=seconds) for head, outcome in found.items()}

    def _solved(
        self, task: PathTask, path: Path, aim: tuple[float, float, int], head: Head, executor: HeadExecutor
    ) -> Outcome:
        """Solve a cell from its last state, from the dual variables of the smaller C, or from zero."""
        zero = risk_at_zero(head.problem, self._labels, self._weights[:, head.column])
        rows = _HeadRows(self._passes, executor, task)
        return advance_cell(rows, path, head.problem, task.train, aim, zero)


class _HeadRows:
    """The rows under one head; lost dual variables are restored when it continues."""

    def __init__(self, passes: SharedPasses, executor: HeadExecutor, task: PathTask) -> None:
        self._passes, self.executor, self._task = passes, executor, task
        self._replaced = -1

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        """Copy the best multiple of another head's dual variables."""
        share, state = before.best_multiple(problem)
        source, pending = before.duals.head.number, before.state.pending_step

        def copy(times: float) -> None:
            self.executor.run(CopyDuals(source, times, pending))

        def copied() -> SolverState:
            copy(1.0)
            return state_of_best_multiple(problem, self.executor, copy)

        try:
            if before.duals.replaced == self._passes.replaced:
                copy(share)
                return state
        except DualsReplacedError as error:
            logger.warning("%s: the fit at C = %g starts from what is left", error, before.C)
        return _while_duals_are_lost(copied, "it is copied again")

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:
        """Return the head's last state, rebuilt if its dual variables were lost."""
        if known.duals.replaced == self._passes.replaced:
            return known.state, known.measured
        state = known.state.with_point(pending_step=None)
        W, conjugate_mean, mean_sq_dual = _while_duals_are_lost(
            lambda: rebuild(problem, self.executor, state.point),
            f"the fit at C = {known.C:g} goes on from what is left",
        )
        found = state.with_point(W=W, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return replace(found, passes=state.passes + 1), None

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        """Count the hits among the held-out rows, which do not depend on dual variables."""
        # Losses from here on are restored when the cell continues.
        if self._replaced < 0:
            self._replaced = self._passes.replaced
        request = CountHits(W, self._task.topk, radius, self._task.class_weights)
        return _while_duals_are_lost(lambda: self.executor.run(request).count, "the hits are counted again")

    def duals(self, state: SolverState) -> _Held:  # noqa: ARG002 - as of other rows
        """Return the head, whose dual variables stay in the blocks."""
        return _Held(self.executor.head, self._replaced)


def _while_duals_are_lost(ask: Callable[[], T], then: str) -> T:
    """Repeat `ask` until no dual variables are lost meanwhile."""
    while True:
        try:
            return ask()
        except DualsReplacedError as error:
            logger.warning("%s: %s", error, then)


@contextmanager
def open_shared(plan: SweepPlan, shared: SharedMemory, client: Client | None) -> Iterator[SharedRunner]:
    """Yield a runner over rows on the workers of `client` or of a cluster, or in this process."""
    rows, cluster = shared.rows, shared.cluster
    memory, at_once = shared.budgets()
    with given_or_own_client(cluster, client, rows.nbytes, memory.worker_bytes) as found:
        executor: Executor
        if found is None:
            executor = SerialExecutor(dual_bytes=memory.dual_bytes, threads=CPU_COUNT)
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found, bounds=rows.block_bounds(shared.blocks), cache_bytes=memory.cache_bytes,
                dual_bytes=memory.dual_bytes, worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )  # fmt: skip
        with closing(executor):
            yield SharedRunner(plan, executor, rows, at_once)
