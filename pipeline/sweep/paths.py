"""One path of C on one fold, taken further a round at a time: the unit of work of a sweep.

A round asks for some cells of the path with a relative gap each.  In the first one each cell starts from the
dual variables of the next smaller C, which are feasible whatever C is (`topline.solvers.run.warm_start`).
Later it continues from where the last round left it, or again from the smaller C, which is more exact by now:
that is the better start where the duals hardly depend on C, though their gap may be a little larger, because
what a coarse solution lacks comes slowest.  What a path has reached stays in the process that took it there;
a task names every round so far, so that any other process comes to the same numbers by taking them again, and
one that has taken the last round already gives its answer again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InterruptedRunError
from topline.pipeline.options import TrainConfig
from topline.pipeline.sweep.folds import FoldData, FoldSource, fold_data
from topline.solvers.blas_threads import one_blas_thread
from topline.solvers.core.held_out import HitCount, ball_radius, count_hits
from topline.solvers.core.problem import squared_norm
from topline.solvers.core.state import IterationRecord, SolveResult, SolverState
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import Loss
from topline.solvers.run import Callback, solve

#: The hits of a cell are counted where its gap was last so many times the one that is asked for, too.
EARLIER = 2.0
#: The smaller C is the start where it is at most so many times as far below the primal value.
NEAR = 2.0
#: What nobody has asked for so long was left behind by a sweep that was killed, or is solved again.
IDLE_SECONDS = 6 * 3600.0

#: The cells of one round: C, ascending, and the relative gap to reach.
Round: TypeAlias = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class PathTask:
    """Take the path of `train` (its C aside) on one fold through `rounds`; only the last may be new.

    `name` tells paths apart that a process may hold at the same time.  Accuracies are those among the first
    `topk`, a row of class c counting `class_weights[c]` times.
    """

    name: str
    source: FoldSource
    train: TrainConfig
    loss: Loss
    fold: int
    topk: int
    rounds: tuple[Round, ...]
    class_weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Measurement:
    """A cell on one fold after a round: what it costs, how exact it is, and how it does on the held-out rows.

    `passes` and `seconds` are those of this round; passes count the last, exact one too.  The exact solution
    has between `low` and `high` hits.  `earlier` are the hits when the gap was last `EARLIER` times the one
    that was asked for, or more; None where it never was, but at zero.
    """

    C: float
    fold: int
    rows: float
    hits: float
    low: float
    high: float
    primal: float
    gap: float
    relative_gap: float
    passes: int
    seconds: float
    status: str
    earlier: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return dict(self.__dict__)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Read what `to_dict` gave; JSON has null for what overflowed."""
        unknown = {name: math.nan for name in ("primal", "gap", "relative_gap") if values[name] is None}
        return cls(**{**values, **unknown})


@dataclass(frozen=True, eq=False)
class Reached:
    """What a cell has come to: W, b and the other sums in its state, and A, sparse, where it lies here."""

    C: float
    state: SolverState
    A: Any
    primal: float
    dual: float

    @classmethod
    def of(cls, C: float, result: SolveResult) -> Reached:
        """Take it from the result of a solve in this process."""
        if result.A is None:
            raise AssertionError("the serial executor keeps A")
        W = result.W if result.W_dual is None else result.W_dual
        state = replace(result.state, W=W, conjugate_mean=result.conjugate_mean, pending_step=None)
        return cls(C, state, csr_matrix(result.A), result.primal, result.dual)

    def dual_for(self, C: float, n: int, smoothing: float) -> float:
        """Return the dual value of the best multiple of A for another C: W(A) is as many times larger."""
        W = (C / self.C) * self.state.W
        square = squared_norm(W) / (n * C) + smoothing * self.state.mean_sq_dual
        share = min(self.state.conjugate_mean / square, 1.0) if square > 0.0 else 1.0
        return share * self.state.conjugate_mean - 0.5 * share**2 * square


@dataclass(eq=False)
class _Path:
    """What a process knows of a path: the answers so far, and what each cell has come to."""

    answers: list[tuple[Measurement, ...]] = field(default_factory=list)
    cells: dict[float, Reached] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    used: float = field(default_factory=time.monotonic)
    forgotten: bool = False

    def goes_on(self, record: IterationRecord, state: SolverState) -> bool:  # noqa: ARG002 - a callback
        """End a solve that nobody waits for any more."""
        return not self.forgotten


_paths: dict[tuple[str, int], _Path] = {}
_registry = threading.Lock()


def advance_paths(tasks: Sequence[PathTask]) -> list[tuple[Measurement, ...]]:
    """Take paths through their last round, one after the other, and return the outcome of each."""
    return [_advance(task) for task in tasks]


def forget_paths(name: str) -> None:
    """Let go of the paths whose names begin with `name`; what is being solved of them ends."""
    with _registry:
        for key in [key for key in _paths if key[0].startswith(name)]:
            _paths.pop(key).forgotten = True


def _advance(task: PathTask) -> tuple[Measurement, ...]:
    with _registry:
        now = time.monotonic()
        for key in [key for key, path in _paths.items() if now - path.used > IDLE_SECONDS]:
            del _paths[key]
        path = _paths.setdefault((task.name, task.fold), _Path())
        path.used = now
    # A task that was given up by who asked may still be running when it is asked for again.
    with path.lock, one_blas_thread():
        for number in range(len(path.answers), len(task.rounds)):
            path.answers.append(_take_round(path, task, task.rounds[number]))
        return path.answers[len(task.rounds) - 1]


def _take_round(path: _Path, task: PathTask, cells: Round) -> tuple[Measurement, ...]:
    data = fold_data(task.source, task.fold)
    measured = []
    before: Reached | None = None
    for C, gap in cells:
        began = time.perf_counter()
        start = better_start(path.cells.get(C), before, C, len(data.y), task.train.smoothing)
        glance = Glance(gap, None if start is None else start.state.W)
        result = _solved(task, data, C, gap, start, (glance, path.goes_on))
        if path.forgotten:
            raise InterruptedRunError("the sweep was stopped")
        path.cells[C] = before = Reached.of(C, result)
        spent = result.passes - (start.state.passes if start is not None and start.C == C else 0) + 1
        earlier = None if glance.W is None else _counted(task, data, glance.W, 0.0).hits
        found = _measured(task, data, C, result, spent, earlier)
        measured.append(replace(found, seconds=time.perf_counter() - began))
    wanted = {C for C, _ in cells}
    path.cells = {C: kept for C, kept in path.cells.items() if C in wanted}
    return tuple(measured)


class Glance:
    """Keeps the last iterate on the way to `gap` whose gap was still `EARLIER` times as large at least.

    `start` is where the way begins, None at zero; a factor does not matter, for it moves no hit.
    """

    def __init__(self, gap: float, start: NDArray[np.float64] | None) -> None:
        self._least, self._last = EARLIER * gap, start
        self.W: NDArray[np.float64] | None = None

    def __call__(self, record: IterationRecord, state: SolverState) -> None:
        """Look at the iterate that the record is about: the one that the round before ended with."""
        if record.relative_gap >= self._least and self._last is not None:
            self.W = self._last
        self._last = state.W


def better_start(
    known: Reached | None, before: Reached | None, C: float, n: int, smoothing: float
) -> Reached | None:
    """Choose between what the cell itself and the smaller C in this round have come to."""
    if known is None or before is None:
        return known or before
    behind = known.primal - before.dual_for(C, n, smoothing)
    return before if behind <= NEAR * (known.primal - known.dual) else known


def _solved(
    task: PathTask,
    data: FoldData,
    C: float,
    gap: float,
    start: Reached | None,
    callbacks: Sequence[Callback],
) -> SolveResult:
    """Solve a cell from where it was, or from the dual variables of the smaller C, or from zero."""
    n, config = len(data.y), task.train
    return solve(
        data.X,
        data.y,
        task.loss,
        1.0 / (n * C),
        config.smoothing,
        config.method,
        sample_weight=data.weights(config.class_weight),
        smoothing_kind=config.smoothing_kind,
        tol=gap,
        max_passes=config.max_passes,
        seed=config.seed,
        executor=SerialExecutor(),
        callbacks=callbacks,
        keep_duals=True,
        m=data.m,
        state=start.state if start is not None and start.C == C else None,
        duals=None if start is None else [(0, n, np.asarray(start.A.toarray()))],
    )


def _counted(task: PathTask, data: FoldData, W: NDArray[np.float64], radius: float) -> HitCount:
    return count_hits(data.held_out, data.held_out_y, W, task.topk, radius, task.class_weights)


def _measured(
    task: PathTask, data: FoldData, C: float, result: SolveResult, passes: int, earlier: float | None
) -> Measurement:
    radius = ball_radius(result.gap, result.primal, result.problem.lam, of_duals=result.W_dual is None)
    count = _counted(task, data, result.W, radius)
    return Measurement(
        C=C,
        fold=task.fold,
        rows=count.rows,
        hits=count.hits,
        low=count.low,
        high=count.high,
        primal=result.primal,
        gap=result.gap,
        relative_gap=result.relative_gap,
        passes=passes,
        seconds=0.0,
        status=result.status.value,
        earlier=earlier,
    )
