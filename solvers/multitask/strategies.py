"""Three ways to train T tasks on one kernel matrix; all leave scores K(new, train) @ coefficients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from topline.solvers.core.inputs import number_from_zero, positive_integer, positive_number
from topline.solvers.core.problem import HasGap, relative_gap
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.multitask.alternation import Alternation, Shared, alternate
from topline.solvers.multitask.ascent import TaskDuals, ascend
from topline.solvers.multitask.shared import SharedProblem
from topline.solvers.multitask.trace_norm import trace_norm_bounds
from topline.solvers.typing import Float64Array

#: What tells the seeds of successive stages apart.
_SECOND = 1_000_003


@dataclass(frozen=True, eq=False)
class MultitaskResult(HasGap):
    """T trained tasks.

    Attributes
    ----------
    coefficients : (n, T); the scores of new examples are K(new, train) @ coefficients.
    primal, dual : an objective value and a lower bound of it: of "single" and "stacked" of the mean of the
        tasks' (last) support vector machines, the first layer being given; of "multi" of F, over all U and W.
    subproblem_gap : the largest relative duality gap of a convex problem that was solved last: the support
        vector machines, and with "multi" the representation.
    status : how training ended; of "multi", see `alternate`.
    passes : passes over the examples, all stages together.
    alternations : one record a turn of "multi".
    shared : representation, predictors and duals of "multi".
    """

    coefficients: Float64Array
    primal: float
    dual: float
    subproblem_gap: float
    status: Status
    passes: int
    alternations: tuple[Alternation, ...] = ()
    shared: Shared | None = field(default=None, repr=False)


def solve_single(
    K: Float64Array,
    signs: Float64Array,
    C: float = 1.0,
    *,
    smoothing: float = 0.0,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
) -> MultitaskResult:
    """STL-SDCA: each task a support vector machine without intercept, each to a relative gap of `tol`.

    For one task it minimises |w|^2 / 2 + C sum_i phi_gamma(y_i <w, x_i>) divided by C n, as SVC(kernel=
    "precomputed") does with an intercept.

    Parameters
    ----------
    K : (n, n) symmetric, positive semi-definite kernel matrix.
    signs : (n, T) labels of 1 and -1, one column a task.
    C : weight of the losses, 1/(lambda n) in the thesis's terms.
    smoothing : gamma of the smooth hinge; 0 for the hinge.
    """
    K, signs = _checked(K, signs, smoothing, C=C)
    return _single(_svms(K, signs, C, smoothing, StoppingCriteria(tol, max_passes), seed), C)


def solve_stacked(
    K: Float64Array,
    signs: Float64Array,
    C: float = 1.0,
    C_tasks: float | None = None,
    *,
    smoothing: float = 0.0,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
) -> MultitaskResult:
    """STL-SDCA-Stacked: a second layer of support vector machines (`C_tasks`) on the scores of the first.

    The second layer sees the scores of the examples that the first was trained on, as in the thesis (section
    4.4.4).  Its gap is certified for these scores; `C_tasks` is C where it is not given.
    """
    C_tasks = C if C_tasks is None else C_tasks
    K, signs = _checked(K, signs, smoothing, C=C, C_tasks=C_tasks)
    criteria = StoppingCriteria(tol, max_passes)
    first = _svms(K, signs, C, smoothing, criteria, seed)
    scores = C * first.products
    second = _svms(scores @ scores.T, signs, C_tasks, smoothing, criteria, seed + _SECOND)
    W = C_tasks * (scores.T @ second.A)
    return MultitaskResult(
        coefficients=C * (first.A @ W),
        primal=float(second.primal.mean()),
        dual=float(min(second.dual.mean(), second.primal.mean())),
        subproblem_gap=float(max(first.gaps.max(), second.gaps.max())),
        status=second.status if first.status is Status.SOLVED else first.status,
        passes=first.passes + second.passes,
    )


def solve_multi(
    K: Float64Array,
    signs: Float64Array,
    C: float = 1.0,
    C_tasks: float | None = None,
    C_shared: float | None = None,
    *,
    smoothing: float = 0.0,
    tol: float = 1e-3,
    max_passes: int = 1000,
    max_alternations: int = 50,
    change_tol: float = 1e-3,
    certify: bool = False,
    seed: int = 0,
) -> MultitaskResult:
    """MTL-SDCA: a representation of all tasks and their predictors in it, in turns from W of `solve_single`.

    Only the product of `C_tasks` = 1/(lambda n) and `C_shared` = 1/(mu n T) decides the minimum: with both at
    c it is that of c sum_ti phi_gamma + |V|_*, V = U W.  Both are C where they are not given.  The problem is
    biconvex, so that what the turns promise is that F falls and that either subproblem is solved to `tol`;
    `dual` bounds F from below all the same.  With the hinge itself (smoothing 0, as in the thesis) turns can
    stop where a joint change of U and W would not, since the loss has kinks: how low they get depends on the
    start by several percent on 200 digits of USPS, and the bound of the turns lies far below.  Smoothing
    cures both.  `certify` solves the convex problem below F by itself (`trace_norm_bounds`), to half of `tol`
    or for `max_passes` more: `dual` then comes as near as F is to its least value, with the hinge too.

    Raises InvalidProblemError for parameters or labels that make no problem.
    """
    C_tasks, C_shared = (C if value is None else value for value in (C_tasks, C_shared))
    K, signs = _checked(K, signs, smoothing, C=C, C_tasks=C_tasks, C_shared=C_shared)
    criteria = StoppingCriteria(tol, max_passes)
    positive_integer("max_alternations", max_alternations)
    number_from_zero("change_tol", change_tol)
    first = _svms(K, signs, C, smoothing, criteria, seed)
    problem = SharedProblem(K, signs, C_tasks, C_shared, smoothing)
    point, turns, status = alternate(
        problem, C * first.A, criteria, max_alternations=max_alternations, change_tol=change_tol,
        seed=seed + _SECOND,
    )  # fmt: skip
    primal, dual, passes = turns[-1].objective, turns[-1].lower_bound, turns[-1].passes
    if certify and relative_gap(primal - dual, primal) > tol:
        bounds = trace_norm_bounds(problem, 0.5 * tol, max_passes)
        dual, passes = max(dual, bounds.lower), passes + bounds.passes
        status = Status.SOLVED if relative_gap(primal - dual, primal) <= tol else status
    return MultitaskResult(
        coefficients=point.Q @ point.W,
        primal=primal,
        dual=dual,
        subproblem_gap=max(turns[-1].gap_tasks, turns[-1].gap_shared),
        status=status,
        passes=first.passes + passes,
        alternations=turns,
        shared=point,
    )


def _svms(
    K: Float64Array, signs: Float64Array, C: float, smoothing: float, criteria: StoppingCriteria, seed: int
) -> TaskDuals:
    return ascend(K, signs, C, None, criteria, smoothing=smoothing, seed=seed)


def _single(found: TaskDuals, C: float) -> MultitaskResult:
    return MultitaskResult(
        coefficients=C * found.A,
        primal=float(found.primal.mean()),
        dual=float(min(found.dual.mean(), found.primal.mean())),
        subproblem_gap=float(found.gaps.max()),
        status=found.status,
        passes=found.passes,
    )


def _checked(K: Any, signs: Any, smoothing: Any, **weights: Any) -> tuple[Float64Array, Float64Array]:
    """Return K and the signs in float64, refusing what makes no problem."""
    K, signs = (np.ascontiguousarray(values, dtype=np.float64) for values in (K, signs))
    if K.ndim != 2 or K.shape[0] != K.shape[1] or not len(K):
        raise InvalidProblemError(
            f"the kernel matrix has the shape {K.shape}; give one row and one column per example"
        )
    if signs.ndim != 2 or signs.shape[0] != len(K) or not signs.shape[1]:
        raise InvalidProblemError(
            f"the labels have the shape {signs.shape}; give {len(K)} rows, as examples, and a column a task"
        )
    if not np.isin(signs, (-1.0, 1.0)).all():
        raise InvalidProblemError(
            "the labels have values other than 1 and -1; give one of the two for each task"
        )
    if not np.isfinite(K).all():
        raise NonFiniteError("the kernel matrix holds NaN or infinity; scale the features")
    if float(np.diag(K).min()) < 0.0:
        raise InvalidProblemError(
            "the kernel matrix has a negative diagonal and is not positive semi-definite; give inner products"
        )
    for name, value in weights.items():
        positive_number(name, value)
    number_from_zero("smoothing", smoothing)
    return K, signs
