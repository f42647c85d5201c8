"""A sweep: compare C, k, losses and smoothings by cross-validation, only as far as the decision needs.

A round solves every running cell to a smaller relative gap on every fold, with each path of C as one task;
then `topline.pipeline.sweep.race` decides which cells are finished and which can no longer win.  Answers are
stored before they count, so that an interrupted sweep continues with the same decisions.

A path's state stays in the process that solved it; a task names all rounds so far, so that any other process
can repeat them with the same numbers.

If the rows do not fit into every process, the cells at one place on their paths are the heads of
`topline.solvers.run.shared`, which request the rows at the same time.  A fold is a column of weights, 0 for
held-out rows, so that there is one copy of the rows, in memory if they fit, otherwise read again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from dask.system import CPU_COUNT
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.cluster import (
    LOSSES_IN_A_ROW,
    Call,
    DaskExecutor,
    WorkerCalls,
    WorkersLost,
    given_or_own_client,
    too_many_losses,
)
from topline.pipeline.errors import ClusterError, InputError, InterruptedRunError
from topline.pipeline.interrupts import terminating, whole_interrupts
from topline.pipeline.options import Cell, ClusterConfig, SweepConfig, TrainConfig
from topline.pipeline.progress import Progress, begin
from topline.pipeline.rows import CachedRows, TrainingRows, example_weights
from topline.pipeline.sweep.plan import (
    FoldData,
    FoldSource,
    SharedMemory,
    SweepPlan,
    fold_data,
    forget_folds,
    place_cells,
    plan_sweep,
    stratified_folds,
    variant_of,
)
from topline.pipeline.sweep.race import (
    CellRows,
    Outcome,
    Path,
    Reached,
    Standing,
    advance_cell,
    best_cell,
    contested,
    due,
    grown,
    judged,
    may_go_on,
    next_step,
    skipped,
)
from topline.pipeline.sweep.result import SweepResult, concluded, write_page
from topline.pipeline.training import train
from topline.solvers.core.held_out import HitCount, count_hits
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.crew import one_blas_thread
from topline.solvers.errors import DualsReplacedError
from topline.solvers.executors import Executor, SerialExecutor
from topline.solvers.methods import Measurement
from topline.solvers.methods.certificate import rebuild
from topline.solvers.operations import CopyDuals, CountHits, Head
from topline.solvers.run import ProblemSpec, compile_jit_functions
from topline.solvers.run.shared import HeadExecutor, SharedPasses
from topline.solvers.run.task import risk_at_zero, state_of_best_multiple
from topline.storage.runs import add_answer, finish_sweep, read_answers

#: Paths idle for this long belong to a sweep that was killed, or are solved again.
IDLE_SECONDS = 6 * 3600.0

#: The cells of one round: C, ascending, and the relative gap to reach.
Round: TypeAlias = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class PathTask:
    """Take the path of `train` and its `spec` (C aside) on one fold through `rounds`; the last may be new.

    `name` distinguishes simultaneous paths in a process; `waiting` are the C of unfinished cells: states that
    start none of these are dropped afterwards.  Accuracies are top-`topk`, with a row of class c counting
    `class_weights[c]` times.
    """

    name: str
    source: FoldSource
    train: TrainConfig
    spec: ProblemSpec
    fold: int
    topk: int
    rounds: tuple[Round, ...]
    waiting: tuple[float, ...]
    class_weights: tuple[float, ...] | None = None


@dataclass(eq=False)
class _PathHere(Path):
    """A path held by this process, with the answers so far."""

    answers: list[tuple[Outcome, ...]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: float = field(default_factory=time.monotonic)
    forgotten: bool = False

    def goes_on(self, record: IterationRecord, state: SolverState) -> bool:  # noqa: ARG002 - a callback
        """Return False, which ends the solve, if nobody waits for it any more."""
        return not self.forgotten


_paths: dict[tuple[str, int], _PathHere] = {}
_registry = threading.Lock()


def advance_path(task: PathTask) -> tuple[Outcome, ...]:
    """Take a path through its last round and return the outcome of each cell."""
    with _registry:
        now = time.monotonic()
        for key in [key for key, path in _paths.items() if now - path.used > IDLE_SECONDS]:
            del _paths[key]
        path = _paths.setdefault((task.name, task.fold), _PathHere())
        path.used = now
    # An abandoned task may still be running when it is asked for again.
    with path.lock, one_blas_thread():
        for number in range(len(path.answers), len(task.rounds)):
            path.answers.append(_take_round(path, task, task.rounds[number]))
        path.forget(task.waiting)
        return path.answers[len(task.rounds) - 1]


def forget_paths(name: str) -> None:
    """Drop the paths whose names begin with `name`, and stop solving them."""
    with _registry:
        for key in [key for key in _paths if key[0].startswith(name)]:
            _paths.pop(key).forgotten = True


def _take_round(path: _PathHere, task: PathTask, cells: Round) -> tuple[Outcome, ...]:
    data, config = fold_data(task.source, task.fold), task.train
    n, d = data.X.shape
    weights = data.weights(config.class_weight)
    rows = _FoldRows(task, data)
    found = []
    for C, gap in cells:
        problem = replace(task.spec, C=C).problem(n, d, data.m)
        zero = risk_at_zero(problem, data.y, weights)
        rows.bind(problem, weights)
        found.append(advance_cell(rows, path, problem, config, (C, gap, task.fold), zero, (path.goes_on,)))
        if path.forgotten:
            raise InterruptedRunError("the sweep was stopped")
    rows.close()
    return tuple(found)


class _FoldRows(CellRows):
    """The rows of one fold in this process; the A of waiting cells is sparse."""

    def __init__(self, task: PathTask, data: FoldData) -> None:
        self._task, self._data, self.executor = task, data, SerialExecutor()

    def bind(self, problem: Problem, weights: NDArray[np.float64] | None) -> None:
        """Start with A = 0."""
        self.executor.bind(problem, self._data.X, self._data.y, keep_duals=True, weights=weights)

    def start_from(self, before: Reached, problem: Problem) -> SolverState:
        share, state = before.best_multiple(problem)
        self._load(before, share)
        return state

    def go_on(self, known: Reached, problem: Problem) -> tuple[SolverState, Measurement | None]:  # noqa: ARG002
        self._load(known, 1.0)
        # A includes the state's pending step.
        state, measured = known.state.with_point(pending_step=None), known.measured
        return state, None if measured is None else replace(measured, before=state)

    def count(self, W: NDArray[np.float64], radius: float) -> HitCount:
        task, data = self._task, self._data
        return count_hits(
            data.held_out, data.held_out_y, W, task.topk, radius, task.class_weights, data.held_out_rows
        )

    def duals(self, state: SolverState) -> csr_matrix:
        """Return A after the state's pending step."""
        parts = self.executor.duals(state.pending_step)
        return csr_matrix(vstack([csr_matrix(rows) for _, _, rows in parts], format="csr"))

    def close(self) -> None:
        """Release the rows."""
        self.executor.close()

    def _load(self, cell: Reached, share: float) -> None:
        rows = np.asarray(cell.duals.toarray())
        self.executor.load_duals([(0, len(rows), rows * rows.dtype.type(share))])


logger = logging.getLogger(__name__)

FORGET_SECONDS = 10.0

Answer = tuple[PathTask, tuple[Outcome, ...]]


class HereRunner:
    """Solves one path after another in this process."""

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer as it finishes."""
        for task in tasks:
            yield task, advance_path(task)

    def close(self, name: str) -> None:
        """Release everything."""
        _forget(name)


class DaskRunner:
    """Solves one path at a time on every worker, where it stays; those of a lost worker are repeated."""

    def __init__(self, client: Client, *, heartbeat_timeout: float, worker_wait: float) -> None:
        self._client = client
        self._calls = WorkerCalls(client, heartbeat_timeout=heartbeat_timeout)
        self._wait = worker_wait
        self._homes: dict[tuple[str, int], str] = {}
        self._hoped_for = 1

    def run(self, tasks: Sequence[PathTask]) -> Iterator[Answer]:
        """Yield each task with its answer as it finishes, in waves of one task per worker."""
        waiting, losses = list(tasks), 0
        while waiting:
            workers = list(self._calls.wait_for_workers(self._hoped_for, self._wait))
            self._hoped_for = len(workers)
            wave = self._dealt(waiting, workers)
            try:
                answers = self._calls.run(
                    [Call(worker, advance_path, (task,)) for worker, task in wave.items()]
                )
            except WorkersLost as lost:
                if (losses := losses + 1) >= LOSSES_IN_A_ROW:
                    raise too_many_losses(losses, lost, "sweep") from lost
                logger.warning("%s: its paths go to others", lost)
                self._homes = {path: home for path, home in self._homes.items() if home not in lost.workers}
                continue
            losses = 0
            for worker, task in wave.items():
                waiting.remove(task)
                yield task, answers[worker]

    def close(self, name: str) -> None:
        """Let the workers drop the paths; lost workers have none."""
        self._calls.let_go()
        if self._client.status == "running":
            # Not as tasks, which may be what has to end; and without waiting for a worker that hangs.
            asking = threading.Thread(
                target=self._client.run, args=(_forget, name), kwargs={"on_error": "ignore"}, daemon=True
            )
            asking.start()
            asking.join(FORGET_SECONDS)

    def _dealt(self, waiting: Sequence[PathTask], workers: Sequence[str]) -> dict[str, PathTask]:
        """Return for every worker one of its own paths, else one without a worker."""
        wave: dict[str, PathTask] = {}
        homeless = []
        for task in waiting:
            home = self._homes.get((task.name, task.fold))
            if home not in workers:
                homeless.append(task)
            elif home not in wave:
                wave[str(home)] = task
        for worker in workers:
            if worker not in wave and homeless:
                wave[worker] = homeless.pop(0)
                self._homes[wave[worker].name, wave[worker].fold] = worker
        return wave


def _forget(name: str) -> None:
    forget_paths(name)
    forget_folds()


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


class _HeadRows(CellRows):
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
                found,
                bounds=rows.block_bounds(shared.blocks),
                memory=memory,
                worker_wait=cluster.worker_wait,
                heartbeat_timeout=cluster.heartbeat_timeout,
            )
        with closing(executor):
            yield SharedRunner(plan, executor, rows, at_once)


#: Path and fold of an answer.
Place: TypeAlias = tuple[int, int]
#: Takes paths through their last round.
Runner: TypeAlias = HereRunner | DaskRunner | SharedRunner


def sweep(
    config: SweepConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> SweepResult:
    """Compare the cells of a grid by cross-validation on the training rows of a dataset.

    `cluster` says where paths are solved (default: one worker per core); an open `client` takes precedence.
    Raises `InterruptedRunError`, whose message holds the command that continues.
    """
    plan = plan_sweep(config)
    cluster = cluster or ClusterConfig()
    began = time.perf_counter()
    try:
        with whole_interrupts(), terminating(), _runner(plan, cluster, client) as runner:
            _compile(plan, progress)
            standings = _Rounds(plan, runner, progress).to_the_end()
    except (KeyboardInterrupt, ClusterError) as error:
        reason = str(error) or "stopped"
        raise InterruptedRunError(f"{reason}; {plan.how_to_resume}") from error
    if best_cell(standings) is None:
        raise InputError(
            f"every cell of sweep {plan.id} overflowed: scale the features (transforms standardize or l2)"
        )
    result = concluded(plan, standings, time.perf_counter() - began)
    result = replace(result, page=write_page(plan.store, result))
    finish_sweep(plan.store, plan.id, result.to_dict())
    if not config.train_best:
        return result
    best = result.best
    chosen = next(path for path in plan.paths if variant_of(path) == best.variant)
    trained = train(chosen.model_copy(update={"C": best.C}), cluster, progress, client)
    return replace(result, trained=trained)


class _Rounds:
    """A sweep between two rounds."""

    def __init__(self, plan: SweepPlan, runner: Runner, progress: Progress | None) -> None:
        self._plan, self._runner, self._progress = plan, runner, progress
        self._standings = [
            Standing(cell, plan.config.folds, effective_rows=plan.effective_rows) for cell in plan.cells
        ]
        self._answers = read_answers(plan.store, plan.id)
        # Unique to this process: states of an earlier process are gone.
        self._name = f"{plan.id}-{uuid.uuid4().hex[:8]}"
        self._rounds: dict[Place, tuple[Round, ...]] = {}

    def to_the_end(self) -> list[Standing]:
        """Run rounds until no cell is running."""
        begin(self._progress, "sweep", len(self._standings), "cells")
        number = 0
        try:
            while wanted := self._wanted():
                self._take(number, wanted)
                number += 1
        finally:
            self._runner.close(self._name)
        return self._standings

    def _wanted(self) -> dict[Place, Round]:
        """Return the cells that are due in this round, by path and fold."""
        config, standings = self._plan.config, self._standings
        asked: dict[Place, list[tuple[float, float]]] = {}
        for one in due(standings, config.rule):
            folds, gap = next_step(one, config.rule, config.tol)
            for fold in folds:
                asked.setdefault((self._path_of(one.cell), fold), []).append((one.cell.C, gap))
        # Fold by fold, so that a fold's rows are read once for all its paths.
        return {place: tuple(asked[place]) for place in sorted(asked, key=lambda place: place[::-1])}

    def _take(self, number: int, wanted: Mapping[Place, Round]) -> None:
        config, found = self._plan.config, self._recorded(number, wanted)
        tasks = [self._task(place, cells) for place, cells in wanted.items() if place not in found]
        for task, answer in self._runner.run(tasks):
            place = (int(task.name.rpartition("/")[2]), task.fold)
            name = variant_of(self._plan.paths[place[0]]).name
            cells = [part.to_dict() for part in answer]
            record = {"round": number, "path": place[0], "name": name, "fold": task.fold, "cells": cells}
            add_answer(self._plan.store, self._plan.id, len(self._answers), record)
            self._answers.append(record)
            found[place] = answer
        before = self._ended
        after = [self._grown(one, found) for one in self._standings]
        after = judged(after, config.rule, config.tol, config.confidence)
        self._standings = contested(skipped(after, config.rule), config.rule)
        if self._progress is not None:
            self._progress.advance(self._ended - before)
            self._progress.note(self._facts(number))

    def _task(self, place: Place, cells: Round) -> PathTask:
        path, fold = place
        self._rounds[place] = (*self._rounds.get(place, ()), cells)
        plan, train = self._plan, self._plan.paths[path]
        left = [one.cell for one in self._standings if may_go_on(one, plan.config.rule)]
        waiting = tuple(cell.C for cell in left if cell.variant == variant_of(train))
        return PathTask(
            f"{self._name}/{path}", plan.source(train), train, plan.spec(train), fold, plan.topk,
            self._rounds[place], waiting, plan.class_weights,
        )  # fmt: skip

    def _recorded(self, number: int, wanted: Mapping[Place, Round]) -> dict[Place, tuple[Outcome, ...]]:
        """Return a round's stored answers; one that lacks a cell is from an older version and is ignored."""
        known = {
            (answer["path"], answer["fold"]): tuple(map(Outcome.from_dict, answer["cells"]))
            for answer in self._answers
            if answer["round"] == number
        }
        return {
            place: known[place]
            for place, cells in wanted.items()
            if place in known and {C for C, _ in cells} <= {part.C for part in known[place]}
        }

    def _grown(self, one: Standing, found: Mapping[Place, Sequence[Outcome]]) -> Standing:
        """Add this round's findings to a cell, fold by fold."""
        path = self._path_of(one.cell)
        parts = tuple(
            part
            for fold in range(self._plan.config.folds)
            for part in found.get((path, fold), ())
            if part.C == one.cell.C
        )
        return grown(one, parts, self._plan.config.rule) if parts else one

    def _path_of(self, cell: Cell) -> int:
        return [variant_of(path) for path in self._plan.paths].index(cell.variant)

    @property
    def _ended(self) -> int:
        # Cells that continue once more already have a reason.
        return sum(one.state != "running" or bool(one.why) for one in self._standings)

    def _facts(self, number: int) -> dict[str, Any]:
        measured = [one for one in self._standings if one.rounds]
        if not measured:
            return {"round": number + 1}
        leader = max(measured, key=lambda one: one.mean)
        accuracy = f"{leader.mean:.1%} with C = {leader.cell.C:g}"
        return {"round": number + 1, f"best {self._plan.metric.column}": accuracy}


@contextmanager
def _runner(plan: SweepPlan, cluster: ClusterConfig, client: Client | None) -> Iterator[Runner]:
    cluster, memory = place_cells(plan, cluster, there=client is not None)
    if memory is not None:
        with open_shared(plan, memory, client) as shared:
            yield shared
        return
    with given_or_own_client(cluster, client, plan.nbytes) as found:
        if found is None:
            yield HereRunner()
        else:
            wait = cluster.worker_wait
            yield DaskRunner(found, heartbeat_timeout=cluster.heartbeat_timeout, worker_wait=wait)


def _compile(plan: SweepPlan, progress: Progress | None) -> None:
    """Compile before the clock starts, and before workers start, which then find the kernels on disk."""
    begin(progress, "compile")
    info = plan.dataset.info
    for path in plan.paths:
        # With a kernel the features are a factor of its matrix.
        factored = path.kernel is not None
        compile_jit_functions(
            replace(plan.spec(path), keep_duals=True),
            plan.n if factored else info.d,
            info.m,
            sparse=not factored and info.layout == "csr",
        )
