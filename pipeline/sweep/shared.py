"""Paths of a sweep in shared passes: where the rows do not fit into every process, they are read for all.

A round takes the paths of all losses and folds along C together: the cells of one place on their paths are
the heads of `topline.solvers.run.shared`, which ask for the rows at the same time.  A fold is a column of
weights, 0 for what it holds out, so that there is one copy of the rows, in memory as far as they fit and read
again beyond, on threads of this process or on workers that hold a share of them each.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client
from numpy.typing import NDArray

from topline.pipeline.cluster import (
    DaskExecutor,
    given_or_own_client,
    worker_count,
)
from topline.pipeline.options import ClusterConfig
from topline.pipeline.rows import CachedRows, TrainingRows, Transforms
from topline.pipeline.sweep.cells import CellRows, Outcome, Reached, advance_cell, reached, still_needed
from topline.pipeline.sweep.folds import fold_weights, stratified_folds
from topline.pipeline.sweep.memory import plan_cells
from topline.pipeline.sweep.paths import PathTask
from topline.pipeline.sweep.plan import SweepPlan
from topline.pipeline.sweep.workers import Answer
from topline.pipeline.training.plan import ASCENT_BLOCK_BYTES
from topline.solvers.core.held_out import HitCount
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.methods import Measurement
from topline.solvers.methods.certificate import rebuild
from topline.solvers.operations import CopyDuals, CountHits, HeadsProblem
from topline.solvers.run.shared import HeadExecutor, HeadRun, SharedPasses
from topline.solvers.run.warm_start import risk_at_zero, state_of_best_multiple

logger = logging.getLogger(__name__)

#: Where a cell is: the name of its path, its fold and its C.
Place = tuple[str, int, float]


@dataclass(frozen=True, eq=False)
class _Head:
    """What a cell on one fold has come to; `replaced` is how often duals had been lost by then."""

    run: HeadRun
    reached: Reached
    replaced: int


class SharedRunner:
    """All paths of a round at the same time, over the rows that `executor` holds in blocks.

    At most `at_once` cells are solved at the same time.
    """

    def __init__(self, plan: SweepPlan, executor: Executor, rows: TrainingRows, at_once: int) -> None:
        config, self._labels = plan.config, rows.labels()
        self._plan, self._at_once = plan, at_once
        fold = stratified_folds(self._labels, config.folds, config.seed)
        self._weights = np.stack(
            [fold_weights(self._labels, fold != out, config.class_weight) for out in range(config.folds)],
            axis=1,
        )
        self._d, self._m = rows.shape[1], rows.dataset.info.m
        most = len(plan.cells) * config.folds
        problem = HeadsProblem(len(rows), self._d, self._m, most)
        self._passes = SharedPasses(executor, problem, rows, self._labels, self._weights)
        self._heads: dict[Place, _Head] = {}
        self._numbers = 0

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer, those that are solved together one after the other."""
        # As many groups as there must be, of about one size: all of them have company.
        groups = -(-len(tasks) // self._at_once)
        for group in range(groups):
            together = tasks[group::groups]
            found: dict[int, list[Outcome]] = {number: [] for number in range(len(together))}
            for place in range(max(len(task.rounds[-1]) for task in together)):
                for number, measured in self._step(together, place).items():
                    found[number].append(measured)
            for number, task in enumerate(together):
                self._forget_but(task)
                yield task, tuple(found[number])

    def close(self, name: str) -> None:  # noqa: ARG002 - as other runners
        """Let go of everything; the rows go with the executor."""
        self._heads.clear()

    def _step(self, tasks: Sequence[PathTask], place: int) -> dict[int, Outcome]:
        """Solve the cells of one place on their paths; returns what was measured, by the task's number."""
        began = time.perf_counter()
        runs: dict[HeadRun, Callable[[HeadExecutor], tuple[_Head, Outcome]]] = {}
        places: dict[int, tuple[int, Place]] = {}
        for number, task in enumerate(tasks):
            if place >= len(task.rounds[-1]):
                continue
            C, gap = task.rounds[-1][place]
            here = task.name, task.fold, C
            known, before = self._heads.get(here), self._smaller(here)
            run = known.run if known is not None else self._new_run(task, C)
            runs[run] = partial(self._solved, task, (C, gap, task.fold), run, known, before)
            places[run.head] = number, here
        found = self._passes.run_all(runs)
        seconds = (time.perf_counter() - began) / len(runs)
        measured = {}
        for run in runs:
            number, here = places[run.head]
            self._heads[here], one = found[run.head]
            measured[number] = replace(one, seconds=seconds)
        return measured

    def _new_run(self, task: PathTask, C: float) -> HeadRun:
        self._numbers += 1
        problem = replace(task.spec, C=C).problem(len(self._labels), self._d, self._m)
        return HeadRun(self._numbers, problem, task.fold)

    def _solved(
        self, task: PathTask, aim: tuple[float, float, int], run: HeadRun, known: _Head | None,
        before: _Head | None, executor: HeadExecutor,
    ) -> tuple[_Head, Outcome]:  # fmt: skip
        """Solve a cell from where it was, or from the dual variables of the smaller C, or from zero."""
        problem, count = run.problem, partial(CountHits, k=task.topk, class_weights=task.class_weights)
        rows = _HeadRows(self._passes, executor, count, known, before)
        zero = risk_at_zero(problem, self._labels, self._weights[:, run.column])
        ended, outcome = advance_cell(
            rows, problem, task.train, aim,
            None if known is None else known.reached, None if before is None else before.reached, zero,
        )  # fmt: skip
        return _Head(run, reached(aim[0], ended, run.head), rows.replaced), outcome

    def _forget_but(self, task: PathTask) -> None:
        """Let go of the cells of a path that no other one needs."""
        here = {place[2]: place for place in self._heads if place[:2] == (task.name, task.fold)}
        for C in here.keys() - still_needed(here, task.waiting):
            self._passes.forget(self._heads.pop(here[C]).run.head)

    def _smaller(self, place: Place) -> _Head | None:
        """Return the head of the next smaller C on the same path and fold."""
        below = [here for here in self._heads if here[:2] == place[:2] and here[2] < place[2]]
        return self._heads[max(below)] if below else None


class _HeadRows(CellRows):
    """The rows under one head; dual variables that were lost meanwhile are made good where it goes on."""

    def __init__(
        self, passes: SharedPasses, executor: HeadExecutor, request: Callable[..., CountHits],
        known: _Head | None, before: _Head | None,
    ) -> None:  # fmt: skip
        super().__init__(executor)
        self._passes, self._executor, self._request = passes, executor, request
        self._known, self._before = known, before
        #: How often dual variables had been lost when the hits began to be counted.
        self.replaced = -1

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        """Copy the best multiple of the dual variables of another head."""
        share, state = before.best_multiple(problem)
        source, pending = before.duals, before.state.pending_step
        lost = self._before is None or self._before.replaced != self._passes.replaced

        def copy(times: float) -> None:
            self._executor.copy_duals(CopyDuals(source, times, pending))

        try:
            if not lost:
                copy(share)
                return state
        except DualsReplacedError as error:
            logger.warning("%s: the fit at C = %g starts from what is left", error, before.C)
        while True:
            try:
                copy(1.0)
                return state_of_best_multiple(problem, self._executor, copy)
            except DualsReplacedError as error:
                logger.warning("%s: it is copied again", error)

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:
        """Return the state that the head goes on from, rebuilt where its dual variables were lost."""
        if self._known is not None and self._known.replaced == self._passes.replaced:
            return known.state, known.measured
        state = known.state.with_point(pending_step=None)
        while True:
            try:
                W, conjugate_mean, mean_sq_dual = rebuild(problem, self._executor, state.point)
            except DualsReplacedError as error:
                logger.warning("%s: the fit at C = %g goes on from what is left", error, known.C)
                continue
            found = state.with_point(W=W, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
            return replace(found, passes=state.passes + 1), None

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        """Count the hits among the rows that are held out."""
        # What is lost from here on is made good when the cell is taken up again.
        if self.replaced < 0:
            self.replaced = self._passes.replaced
        return self._executor.count_hits(self._request(W=W, radius=radius))


@contextmanager
def open_shared(plan: SweepPlan, cluster: ClusterConfig, client: Client | None) -> Iterator[SharedRunner]:
    """Yield a runner over rows on the workers of `client` or of a cluster, or in this process."""
    config = plan.config
    transforms = Transforms.fit(config.transforms, lambda: iter(()), seed=config.seed)
    rows = TrainingRows(plan.dataset, "train", transforms, only=plan.sample)
    blocks = 1 if cluster.workers == 0 else max(1, math.ceil(rows.nbytes / ASCENT_BLOCK_BYTES))
    there = client is not None or cluster.scheduler is not None
    if not there and cluster.workers != 0:
        asked, workers = worker_count(cluster), min(worker_count(cluster), blocks)
        threads = max(cluster.threads_per_worker, asked * cluster.threads_per_worker // workers)
        cluster = cluster.model_copy(update={"workers": workers, "threads_per_worker": threads})
    workers = max(cluster.workers or 1, 1)
    most = len(plan.paths) * plan.config.folds
    memory, at_once = plan_cells(most, rows, cluster, workers, blocks)
    with given_or_own_client(cluster, client, rows.nbytes, memory.worker_bytes) as found:
        executor: Executor
        if found is None:
            executor = SerialExecutor(dual_bytes=memory.dual_bytes, threads=CPU_COUNT)
            rows = CachedRows(rows, memory.cache_bytes)
        else:
            executor = DaskExecutor(
                found,
                bounds=rows.block_bounds(blocks),
                cache_bytes=memory.cache_bytes,
                dual_bytes=memory.dual_bytes,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        try:
            yield SharedRunner(plan, executor, rows, at_once)
        finally:
            executor.close()
