"""Paths of C, each on one fold, advanced a round at a time, in this process or on Dask workers.

A round asks for some cells of a path at a relative gap each (`topline.pipeline.sweep.cells`).  A path's state
stays in the process that solved it; a task names all rounds so far, so that any other process can repeat them
with the same numbers, and one that has done the last round answers from memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from distributed import Client
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.cluster import LOSSES_IN_A_ROW, Call, WorkerCalls, WorkersLost, too_many_losses
from topline.pipeline.errors import InterruptedRunError
from topline.pipeline.options import TrainConfig
from topline.pipeline.sweep.cells import CellRows, Outcome, Path, Reached, advance_cell
from topline.pipeline.sweep.folds import FoldData, FoldSource, fold_data, forget_folds
from topline.solvers.core.held_out import HitCount, count_hits
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.crew import one_blas_thread
from topline.solvers.executors import SerialExecutor
from topline.solvers.methods import Measurement
from topline.solvers.run import ProblemSpec
from topline.solvers.run.task import risk_at_zero

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
    """Solves one path at a time on every worker; a path stays with its worker, which has its state.

    The paths of a lost worker go to others, which repeat all rounds with the same numbers; workers answer
    repeated questions from memory.
    """

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
