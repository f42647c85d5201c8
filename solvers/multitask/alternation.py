"""MTL-SDCA: predictors and their shared representation in turns (thesis, algorithms 4.1 and B.1).

U (d, T) is never there: U = X^T Q with Q (n, T), and the examples seen through it are Z = K Q.  Then
K_Z = Z Z^T = K A M A^T K is the kernel of the predictors, W = Z^T B C their weights and M = W^T W.

Each turn solves a convex problem to a certified gap.  F never rises: what a solution within the gap does not
improve is left as it was, task by task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.problem import relative_gap
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.multitask.ascent import TaskDuals, ascend
from topline.solvers.multitask.shared import SharedProblem
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class Alternation:
    """One turn of both kinds.

    Attributes
    ----------
    objective_tasks, objective : F after the predictors, and after the representation.
    gap_tasks, gap_shared : relative duality gaps of the two subproblems, of tasks the largest.
    lower_bound : the best lower bound of F so far.
    change : root of the mean square of what the dual variables changed by, of all 2 n T in [-1, 1].
    passes : passes over the examples so far.
    """

    objective_tasks: float
    objective: float
    gap_tasks: float
    gap_shared: float
    lower_bound: float
    change: float
    passes: int


@dataclass(frozen=True, eq=False)
class Shared:
    """Where the alternation is: U = X^T Q, Z = K Q, predictors W, and the duals of both subproblems.

    Q, Z are (n, T), W is (T, T), with one factor a task; A and B are (n, T), zeros at first.
    """

    Q: Float64Array
    Z: Float64Array
    W: Float64Array
    A: Float64Array
    B: Float64Array


def alternate(
    problem: SharedProblem,
    Q: Float64Array,
    criteria: StoppingCriteria,
    *,
    max_alternations: int,
    change_tol: float,
    seed: int = 0,
) -> tuple[Shared, tuple[Alternation, ...], Status]:
    """Minimise F from U = X^T Q (n, T).

    It ends as SOLVED where F is within `criteria.tol` of its lower bound, a certificate of the whole; as
    NO_PROGRESS where the duals change by less than `change_tol` (the thesis's rule): a point that neither
    subproblem improves on, with only the two of them certified; or as MAX_PASSES after `max_alternations`.
    `criteria.max_passes` bounds each subproblem.
    """
    nothing = np.zeros_like(Q)
    point = Shared(Q, problem.K @ Q, np.zeros((Q.shape[1], Q.shape[1])), nothing, nothing)
    history: list[Alternation] = []
    bound, passes = -math.inf, 0
    while True:
        tasks = solve_tasks(problem, point, criteria, seed + 2 * len(history))
        halfway = _with_predictors(problem, point, tasks)
        shared = solve_representation(problem, halfway, criteria, seed + 2 * len(history) + 1)
        after = _with_representation(problem, halfway, shared)
        passes += tasks.passes + shared.passes
        bound = max(bound, *_bounds(problem, after, shared.products))
        history.append(
            Alternation(
                objective_tasks=problem.objective(halfway.Q, halfway.Z, halfway.W),
                objective=problem.objective(after.Q, after.Z, after.W),
                gap_tasks=float(tasks.gaps.max()),
                gap_shared=float(shared.gaps.max()),
                lower_bound=bound,
                change=_change(point, after),
                passes=passes,
            )
        )
        point = after
        status = _ended(history, criteria, max_alternations, change_tol)
        if status is not None:
            return point, tuple(history), status


def solve_tasks(problem: SharedProblem, point: Shared, criteria: StoppingCriteria, seed: int) -> TaskDuals:
    """STL-SDCA on Z: the predictors' duals B for a fixed representation, from those there are."""
    kernel = point.Z @ point.Z.T
    return ascend(
        kernel, problem.signs, problem.C_tasks, None, criteria, smoothing=problem.smoothing, seed=seed,
        start=point.B,
    )  # fmt: skip


def solve_representation(
    problem: SharedProblem, point: Shared, criteria: StoppingCriteria, seed: int
) -> TaskDuals:
    """U-SDCA: the representation's duals A for fixed predictors, from those there are."""
    return ascend(
        problem.K, problem.signs, problem.C_shared, point.W.T @ point.W, criteria,
        smoothing=problem.smoothing, seed=seed, start=point.A,
    )  # fmt: skip


def _with_predictors(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take the weights W = C Z^T B of those tasks for which they are no worse."""
    W = problem.C_tasks * (point.Z.T @ found.A)
    better = problem.task_terms(point.Z, W) <= problem.task_terms(point.Z, point.W)
    return replace(point, W=np.where(better, W, point.W), B=found.A)


def _with_representation(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take U = C X^T A W^T where it is no worse."""
    Q = problem.C_shared * (found.A @ point.W.T)
    Z = problem.C_shared * (found.products @ point.W.T)
    if problem.shared_terms(Q, Z, point.W) <= problem.shared_terms(point.Q, point.Z, point.W):
        return replace(point, Q=Q, Z=Z, A=found.A)
    return replace(point, A=found.A)


def _bounds(problem: SharedProblem, point: Shared, products: Float64Array) -> list[float]:
    """Return lower bounds of F from every set of duals at hand; `products` are K A."""
    slopes = problem.slopes(point.Z, point.W)
    others = [point.B] if slopes is None else [point.B, slopes]
    pairs = [(point.A, products), *((duals, problem.K @ duals) for duals in others)]
    return [problem.lower_bound(duals, product) for duals, product in pairs]


def _change(before: Shared, after: Shared) -> float:
    changes = np.square(after.A - before.A).mean() + np.square(after.B - before.B).mean()
    return math.sqrt(0.5 * float(changes))


def _ended(
    history: list[Alternation], criteria: StoppingCriteria, most: int, change_tol: float
) -> Status | None:
    last = history[-1]
    if relative_gap(last.objective - last.lower_bound, last.objective) <= criteria.tol:
        return Status.SOLVED
    if last.change <= change_tol:
        return Status.NO_PROGRESS
    return Status.MAX_PASSES if len(history) >= most else None
