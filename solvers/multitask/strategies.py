"""Three ways to train T tasks on one kernel matrix, with scores K(new, train) @ coefficients.

MTL-SDCA finds predictors and their shared representation in turns (thesis, algorithms 4.1 and B.1).  U (d, T)
is never formed: U = X^T Q with Q (n, T), and it maps the examples to Z = K Q. Then K_Z = Z Z^T = K A
M A^T K is the kernel of the predictors, W = Z^T B C their weights and M = W^T W. Each turn solves a convex
problem to a certified gap.  F never rises: each task keeps its old solution unless the new one is better.

The one loop below them (`ascend`) is dual coordinate ascent on the hinge losses of T tasks, with the scores
of all tasks in one small product.

The weights of task t live in the space of a kernel K of examples, and tasks may share theirs through a
matrix M (T, T), positive semi-definite.  With dual variables a_ti, 0 <= y_ti a_ti <= 1, and C > 0,

    scores            s_t = C sum_u M_tu K a_u                                            (n,)
    primal            P = 1/T sum_t [ (1/n) sum_i phi_gamma(y_ti s_ti) + <a_t, s_t> / (2 n) ]
    dual              D = 1/T sum_t [ (1/n) sum_i (y_ti a_ti - gamma/2 a_ti^2) - <a_t, s_t> / (2 n) ]

M = I gives T independent support vector machines (thesis, (B.1) to (B.6), C = 1/(lambda n)); with
M = W^T W the minimiser is the shared representation U for fixed predictors W ((4.4) to (4.7) and (B.7), C =
1/(mu n T)).  The thesis uses C a_ti in place of a_ti.

Unlike here, the thesis skips examples with K_ii = 0, which leaves their loss of 1 in the gap for ever.
Only the box bounds such a variable, so here it moves to the end of the box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import HasObjective, Objective, Status, StoppingCriteria, relative_gap
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.jit_cache import jit
from topline.solvers.multitask.shared import SharedProblem, task_conjugates, task_losses, trace_norm_bounds
from topline.solvers.typing import Float64Array, Int64Array


@dataclass(frozen=True, eq=False)
class TaskDuals:
    """End point of an ascent; the values use freshly computed products.

    Attributes
    ----------
    A : (n, T) dual variables, 0 <= y a <= 1.
    products : (n, T) float64, K A.
    primal, dual : (T,) terms of P and D; for independent tasks their own objective values.
    gaps : (T,) relative gap of each independent task, or the joint one T times.
    passes : passes over the examples of all tasks.
    status : SOLVED, MAX_PASSES, or NO_PROGRESS if a pass changed nothing.
    """

    A: Float64Array
    products: Float64Array
    primal: Float64Array
    dual: Float64Array
    gaps: Float64Array
    passes: int
    status: Status


def ascend(
    K: Float64Array,
    signs: Float64Array,
    C: float,
    M: Float64Array | None,
    criteria: StoppingCriteria,
    *,
    smoothing: float = 0.0,
    seed: int = 0,
    start: Float64Array | None = None,
) -> TaskDuals:
    """Maximise D by passes in random orders over tasks and examples, until no gap exceeds `criteria.tol`.

    Parameters
    ----------
    K : (n, n) float64, symmetric and positive semi-definite.
    signs : (n, T) labels y of 1.0 and -1.0.
    C : weight of the losses against the regulariser.
    M : (T, T) coupling of the tasks; None for the identity, where each task is certified and finished alone.
    smoothing : gamma of the smooth hinge, 0 for the hinge.
    start : (n, T) duals to start from, clipped to their box; None for zeros.

    The gap is a sum of non-negative Fenchel-Young terms whatever K is; it bounds the suboptimality only if K
    is positive semi-definite, which the caller guarantees.
    """
    run = _Run(K, np.ascontiguousarray(signs.T, dtype=np.float64), C, M, smoothing)
    A = np.zeros_like(run.signs)
    if start is not None:
        A = np.ascontiguousarray(run.signs * np.clip(run.signs * start.T, 0.0, 1.0))
    products = A @ K
    primal, dual = run.values(A, products)
    random = np.random.default_rng(seed)
    passes, changed, fresh = 0, 1, True
    while True:
        gaps = run.gaps(primal, dual)
        unsolved = np.flatnonzero(~(gaps <= criteria.tol))
        done = not len(unsolved) or not changed or passes >= criteria.max_passes
        if done and fresh:
            status = Status.MAX_PASSES if changed else Status.NO_PROGRESS
            status = status if len(unsolved) else Status.SOLVED
            A, products = np.ascontiguousarray(A.T), np.ascontiguousarray(products.T)
            return TaskDuals(A, products, primal, dual, gaps, passes, status)
        if done:
            # Products updated by many small changes are recomputed before they certify anything.
            products, fresh = A @ K, True
        else:
            changed = run.visit(A, products, random.permutation(unsolved), random)
            passes, fresh = passes + 1, False
        primal, dual = run.values(A, products)


@dataclass(frozen=True, eq=False)
class _Run:
    """The constants of an ascent; tasks are rows here, so that each is contiguous."""

    K: Float64Array
    signs: Float64Array
    C: float
    M: Float64Array | None
    gamma: float

    def visit(
        self, A: Float64Array, products: Float64Array, tasks: Int64Array, random: np.random.Generator
    ) -> int:
        """Pass once over all examples of some tasks; return the number of changed variables."""
        n = A.shape[1]
        orders = random.permuted(np.tile(np.arange(n), (len(tasks), 1)), axis=1)
        M = np.eye(len(A)) if self.M is None else self.M
        return int(visit_tasks(self.K, self.signs, tasks, orders, self.C, self.gamma, M, A, products))

    def values(self, A: Float64Array, products: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return the terms of P and D of each task, (T,) each."""
        scores = self.C * (products if self.M is None else self.M @ products)
        half = 0.5 * np.einsum("ti,ti->t", A, scores) / A.shape[1]
        primal = task_losses(self.signs, scores, self.gamma) + half
        return primal, task_conjugates(self.signs, A, self.gamma) - half

    def gaps(self, primal: Float64Array, dual: Float64Array) -> Float64Array:
        """Return the relative gap that counts for each task: its own, or the joint one."""
        if self.M is not None:
            primal, dual = (np.full(len(values), values.mean()) for values in (primal, dual))
        return np.array([relative_gap(p - d, p) for p, d in zip(primal, dual, strict=True)])


@jit
def visit_tasks(
    K: Float64Array,
    signs: Float64Array,
    tasks: Int64Array,
    orders: Int64Array,
    C: float,
    gamma: float,
    M: Float64Array,
    A: Float64Array,
    products: Float64Array,
) -> int:
    """Replace each dual variable of some tasks by its maximiser in turn; return the number changed.

    By (4.7) with the skip rule (B.6): a variable at an end of its box against which the gradient pushes is
    skipped before anything else is computed.  A task's scores are computed at the start of its turn, and
    updated during the turn through K a_t alone.

    Parameters
    ----------
    K : (n, n).
    tasks, orders : (v,) tasks in the order of their turns, (v, n) examples in the order of their visits.
    M : (T, T).
    signs, A, products : (T, n) labels, dual variables and K a_t; the last two are updated.
    """
    n = K.shape[0]
    others = np.empty(n)
    changed = 0
    for turn in range(len(tasks)):
        t = tasks[turn]
        y, a, product = signs[t], A[t], products[t]
        others[:] = 0.0
        for u in range(len(M)):
            if u != t and M[t, u] != 0.0:
                for j in range(n):
                    others[j] += M[t, u] * products[u, j]
        for i in orders[turn]:
            before = y[i] * a[i]
            rest = 1.0 - y[i] * C * (others[i] + M[t, t] * product[i]) - gamma * before
            if (before <= 0.0 and rest <= 0.0) or (before >= 1.0 and rest >= 0.0):
                continue
            curvature = C * M[t, t] * K[i, i] + gamma
            after = 1.0 if rest > 0.0 else 0.0
            if curvature > 0.0:
                after = min(max(before + rest / curvature, 0.0), 1.0)
            step = y[i] * (after - before)
            if step == 0.0:
                continue
            a[i] = y[i] * after
            changed += 1
            row = K[i]
            for j in range(n):
                product[j] += step * row[j]
    return changed


@dataclass(frozen=True)
class Alternation:
    """One alternation: predictors, then representation.

    Attributes
    ----------
    objective_tasks, objective : F after the predictors, and after the representation.
    gap_tasks, gap_shared : relative duality gaps of the two subproblems, the largest among tasks.
    lower_bound : the best lower bound of F so far.
    change : root mean square change of all 2 n T dual variables in [-1, 1].
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
    """State of the alternation: U = X^T Q, Z = K Q, predictors W, and the duals of both subproblems.

    Q, Z are (n, T), W is (T, T), with one factor per task; A and B are (n, T), initially zero.
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

    Ends with SOLVED if F is within `criteria.tol` of its lower bound, a certificate of the whole; with
    NO_PROGRESS if the duals change by less than `change_tol` (the thesis's rule), at a point that neither
    certified subproblem improves; or with MAX_PASSES after `max_alternations`.  `criteria.max_passes` limits
    each subproblem.
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
        changes = np.square(after.A - point.A).mean() + np.square(after.B - point.B).mean()
        history.append(
            Alternation(
                objective_tasks=problem.objective(halfway.Q, halfway.Z, halfway.W),
                objective=problem.objective(after.Q, after.Z, after.W),
                gap_tasks=float(tasks.gaps.max()),
                gap_shared=float(shared.gaps.max()),
                lower_bound=bound,
                change=math.sqrt(0.5 * float(changes)),
                passes=passes,
            )
        )
        point = after
        last = history[-1]
        if Objective(last.objective, last.lower_bound).reaches(criteria.tol):
            return point, tuple(history), Status.SOLVED
        if last.change <= change_tol:
            return point, tuple(history), Status.NO_PROGRESS
        if len(history) >= max_alternations:
            return point, tuple(history), Status.MAX_PASSES


def solve_tasks(problem: SharedProblem, point: Shared, criteria: StoppingCriteria, seed: int) -> TaskDuals:
    """Return the predictors' duals B for a fixed representation (STL-SDCA on Z), warm-started."""
    kernel = point.Z @ point.Z.T
    return ascend(
        kernel, problem.signs, problem.C_tasks, None, criteria, smoothing=problem.smoothing, seed=seed,
        start=point.B,
    )  # fmt: skip


def solve_representation(
    problem: SharedProblem, point: Shared, criteria: StoppingCriteria, seed: int
) -> TaskDuals:
    """Return the representation's duals A for fixed predictors (U-SDCA), warm-started."""
    return ascend(
        problem.K, problem.signs, problem.C_shared, point.W.T @ point.W, criteria,
        smoothing=problem.smoothing, seed=seed, start=point.A,
    )  # fmt: skip


def _with_predictors(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take the weights W = C Z^T B of the tasks that they do not make worse."""
    W = problem.C_tasks * (point.Z.T @ found.A)
    better = problem.task_terms(point.Z, W) <= problem.task_terms(point.Z, point.W)
    return replace(point, W=np.where(better, W, point.W), B=found.A)


def _with_representation(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take U = C X^T A W^T unless it is worse."""
    Q = problem.C_shared * (found.A @ point.W.T)
    Z = problem.C_shared * (found.products @ point.W.T)
    if problem.shared_terms(Q, Z, point.W) <= problem.shared_terms(point.Q, point.Z, point.W):
        return replace(point, Q=Q, Z=Z, A=found.A)
    return replace(point, A=found.A)


def _bounds(problem: SharedProblem, point: Shared, products: Float64Array) -> list[float]:
    """Return lower bounds of F from all available duals; `products` are K A."""
    slopes = problem.slopes(point.Z, point.W)
    others = [point.B] if slopes is None else [point.B, slopes]
    pairs = [(point.A, products), *((duals, problem.K @ duals) for duals in others)]
    return [problem.lower_bound(duals, product) for duals, product in pairs]


#: Offset between the seeds of successive stages.
_SECOND = 1_000_003


@dataclass(frozen=True, eq=False)
class MultitaskResult(HasObjective):
    """Result of training T tasks.

    Attributes
    ----------
    coefficients : (n, T); the scores of new examples are K(new, train) @ coefficients.
    objective : an objective value (`primal`) and a lower bound of it (`dual`): for "single" and "stacked" the
        mean of the tasks' (last) support vector machines, given the first layer; for "multi" F, bounded over
        all U and W.
    subproblem_gap : the largest relative duality gap of the convex problems solved last: the support vector
        machines, and for "multi" also the representation.
    status : how training ended; for "multi", see `alternate`.
    passes : passes over the examples, all stages together.
    alternations : one record per turn of "multi".
    shared : representation, predictors and duals of "multi".
    """

    coefficients: Float64Array
    objective: Objective
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
    """STL-SDCA: train a support vector machine without intercept per task, to a relative gap of `tol`.

    For each task it minimises |w|^2 / 2 + C sum_i phi_gamma(y_i <w, x_i>) divided by C n, as
    SVC(kernel="precomputed") does with an intercept.

    Parameters
    ----------
    K : (n, n) symmetric, positive semi-definite kernel matrix.
    signs : (n, T) labels of 1 and -1, one column per task.
    C : weight of the losses, 1/(lambda n) in the thesis's terms.
    smoothing : gamma of the smooth hinge; 0 for the hinge.
    """
    K, signs = _checked(K, signs, smoothing, C=C)
    found = _svms(K, signs, C, smoothing, StoppingCriteria(tol, max_passes), seed)
    gap = float(found.gaps.max())
    return MultitaskResult(C * found.A, _mean(found), gap, found.status, found.passes)


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
    """STL-SDCA-Stacked: train a second layer of support vector machines (`C_tasks`) on the first's scores.

    The second layer sees the first's scores of its own training examples, as in the thesis (section 4.4.4).
    Its gap is certified for these scores; `C_tasks` defaults to C.
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
        objective=_mean(second),
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
    """MTL-SDCA: train a shared representation and the tasks' predictors in turns, from W of `solve_single`.

    Only the product of `C_tasks` = 1/(lambda n) and `C_shared` = 1/(mu n T) determines the minimum: with both
    equal to c it is that of c sum_ti phi_gamma + |V|_*, V = U W. Both default to C. The problem is biconvex,
    so the turns guarantee only that F falls and that either subproblem is solved to `tol`; `dual` is a lower
    bound of F in any case.  With the hinge itself (smoothing 0, as in the thesis) turns can stop at kinks
    where a joint change of U and W would not: the F reached depends on the start by several percent on 200
    digits of USPS, and its bound lies far below.  Smoothing cures both.  `certify` also solves the convex
    relaxation of F (`trace_norm_bounds`), to half of `tol` or for `max_passes` more: `dual` then comes as
    near as F is to its least value, with the hinge too.

    Raises InvalidProblemError for invalid parameters or labels.
    """
    C_tasks, C_shared = (C if value is None else value for value in (C_tasks, C_shared))
    K, signs = _checked(K, signs, smoothing, C=C, C_tasks=C_tasks, C_shared=C_shared)
    criteria = StoppingCriteria(tol, max_passes)
    positive_integer("max_alternations", max_alternations)
    positive_number("change_tol", change_tol, or_zero=True)
    first = _svms(K, signs, C, smoothing, criteria, seed)
    problem = SharedProblem(K, signs, C_tasks, C_shared, smoothing)
    point, turns, status = alternate(
        problem, C * first.A, criteria, max_alternations=max_alternations, change_tol=change_tol,
        seed=seed + _SECOND,
    )  # fmt: skip
    primal, dual, passes = turns[-1].objective, turns[-1].lower_bound, turns[-1].passes
    if certify and Objective(primal, dual).relative_gap > tol:
        bounds = trace_norm_bounds(problem, 0.5 * tol, max_passes)
        dual, passes = max(dual, bounds.lower), passes + bounds.passes
        status = Status.SOLVED if Objective(primal, dual).reaches(tol) else status
    return MultitaskResult(
        coefficients=point.Q @ point.W,
        objective=Objective(primal, dual),
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


def _mean(found: TaskDuals) -> Objective:
    """Return the mean of the tasks' P and D; D exceeds P only by rounding."""
    primal = float(found.primal.mean())
    return Objective(primal, min(float(found.dual.mean()), primal))


def _checked(K: Any, signs: Any, smoothing: Any, **weights: Any) -> tuple[Float64Array, Float64Array]:
    """Return K and the signs in float64; refuse invalid input."""
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
    positive_number("smoothing", smoothing, or_zero=True)
    return K, signs
