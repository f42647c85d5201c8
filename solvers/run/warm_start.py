"""Where a run begins: at zero, whose risk labels alone tell, at a state with its duals, or at duals alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from topline.solvers.blocks.vertices import vertices_of
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.risks import AverageTopK, LargestLosses
from topline.solvers.core.state import SolverState
from topline.solvers.errors import InvalidProblemError
from topline.solvers.executors import DualRows, Executor
from topline.solvers.methods import Method
from topline.solvers.methods.certificate import rebuild
from topline.solvers.methods.dual_ascent import AscentMemory, NearStart
from topline.solvers.methods.kernel import KernelMethod
from topline.solvers.operations import OperationRunner
from topline.solvers.typing import Float64Array, IntArray


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run begins: a state with the duals that belong to it, or duals alone; by default at A = 0.

    `near` says whether duals alone are those of nearly the same problem.
    """

    state: SolverState | None = None
    duals: Iterable[DualRows] | None = None
    near: bool = False


AT_ZERO = Start()


def started(problem: Problem, executor: Executor, start: Start, tol: float, method: Method) -> SolverState:
    """Return the state to go on from, after the executor has loaded the duals that belong to it."""
    state, duals = start.state, start.duals
    if state is None:
        if duals is None:
            return SolverState.start(problem)
        if isinstance(method, KernelMethod):
            executor.load_duals(map(checked_duals, duals))
            return method.at_best_multiple(problem, executor, partial(_shrink, executor))
        return _state_of_duals(problem, executor, duals, near=start.near, tol=tol)
    if duals is None:
        return state
    executor.load_duals(duals)
    # They come with the step that the state was waiting to see applied.
    return state.with_point(pending_step=None)


def _state_of_duals(
    problem: Problem, executor: Executor, duals: Iterable[DualRows], *, near: bool, tol: float
) -> SolverState:
    """Load A into the blocks of an executor, and return the state that belongs to it.

    A is feasible whatever the features, lam and gamma are, and so is every multiple s A with s in [0, 1].
    Rows of another loss or of other weights may lie outside their domain, where D bounds nothing: each is
    put at the nearest point of it.  W(A) grows as 1/lam, so that after a step to a smaller lam the whole of A
    is often worse than nothing: the best s of D(s A) >= s b - s^2/2 (lam |W(A)|^2 + gamma aa) is taken.
    `near` is whether A is that of nearly the same problem, for which dual ascent uses shorter first rounds,
    until the gap is within `tol`.
    """
    with_mass = 0

    def counted() -> Iterator[DualRows]:
        nonlocal with_mass
        for part in duals:
            start, stop, rows = checked_duals(part)
            with_mass += int(np.count_nonzero(rows.any(axis=1)))
            yield start, stop, rows

    executor.load_duals(counted())
    state = state_of_best_multiple(problem, executor, partial(_shrink, executor))
    if not near or not state.W.any():
        return state
    near_start = NearStart.of(problem, tol, with_mass / problem.n, executor.blocks)
    return replace(state, memory=AscentMemory(near=near_start))


def state_of_best_multiple(
    problem: Problem, executor: OperationRunner, shrink: Callable[[float], None]
) -> SolverState:
    """Return the state of the best multiple of the A that the blocks hold; `shrink` makes A that one."""
    W, conjugate_mean, mean_sq_dual = rebuild(
        problem, executor, SolverState.start(problem).point, inside=True
    )
    square = problem.lam * squared_norm(W) + problem.smoothing * mean_sq_dual
    if conjugate_mean < square:
        share = max(conjugate_mean / square, 0.0)
        shrink(share)
        W, conjugate_mean, mean_sq_dual = share * W, share * conjugate_mean, share * share * mean_sq_dual
    return replace(SolverState.at(W, conjugate_mean, mean_sq_dual), passes=1)


def checked_duals(part: DualRows) -> DualRows:
    """Refuse what are no rows of numbers."""
    try:
        start, stop, given = part
        rows = np.asarray(given)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "iuf":
        raise InvalidProblemError(
            "the duals are no list of (first row, row after the last, A of these rows); give "
            "[(0, n, result.A)]"
        )
    if not np.isfinite(rows).all():
        raise InvalidProblemError(
            f"the duals of rows {start}:{stop} hold NaN or infinity; start without them"
        )
    return start, stop, rows if rows.dtype == np.float32 else rows.astype(np.float64)


def _shrink(executor: Executor, share: float) -> None:
    """Let the blocks hold a share of their A."""
    executor.load_duals(
        (start, stop, np.asarray(rows.dtype.type(share) * rows)) for start, stop, rows in executor.duals()
    )


#: Scores that are made at once.
_SCORES = 1 << 20


def risk_at_zero(
    problem: Problem, labels: IntArray, weights: Float64Array | None, *, smoothed: bool = True
) -> float:
    """Return the risk of Phi_gamma, or of Phi itself, at W = 0; labels (n,), weights (n,) or None."""
    codes, places = np.unique(labels, return_inverse=True)
    alike = problem.form.margins is None and problem.form.label_sets is None
    losses = _losses_at_zero(problem, codes[:1] if alike else codes, smoothed=smoothed)
    if alike:
        losses, places = np.repeat(losses, len(codes)), places.ravel()
    of_rows: Float64Array = losses[places]
    if isinstance(problem.risk, AverageTopK):
        largest = LargestLosses.of(problem.risk.rows, np.arange(problem.n), of_rows)
        return float(problem.risk.selected(largest, problem.n).weights @ largest.losses) / problem.n
    return float(of_rows.sum() if weights is None else weights @ of_rows) / problem.n


def _losses_at_zero(problem: Problem, codes: IntArray, *, smoothed: bool) -> Float64Array:
    """Return the loss of each label at scores of 0."""
    losses = np.empty(len(codes))
    rows = max(_SCORES // problem.m, 1)
    vertices = vertices_of(problem, rows, smoothed=smoothed)
    for start in range(0, len(codes), rows):
        part = np.ascontiguousarray(codes[start : start + rows], dtype=np.int32)
        vertices.losses(np.zeros((len(part), problem.m)), part, losses[start : start + len(part)])
    return losses
