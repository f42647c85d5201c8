"""Three ways to train T tasks on one kernel matrix, with scores K(new, train) @ coefficients.

`ascend`, the one loop below them, is dual coordinate ascent on the hinge losses of T tasks, with the scores
of all tasks in one small product.  The weights of task t live in the space of a kernel K of examples, and
tasks may share theirs through a matrix M (T, T), positive semi-definite.  With dual variables a_ti,
0 <= y_ti a_ti <= 1, and C > 0,

    scores            s_t = C sum_u M_tu K a_u                                            (n,)
    primal            P = 1/T sum_t [ (1/n) sum_i phi_gamma(y_ti s_ti) + <a_t, s_t> / (2 n) ]
    dual              D = 1/T sum_t [ (1/n) sum_i (y_ti a_ti - gamma/2 a_ti^2) - <a_t, s_t> / (2 n) ]

M = I gives T independent support vector machines (thesis, (B.1) to (B.6), C = 1/(lambda n)); with
M = W^T W the minimiser is the shared representation U for fixed predictors W ((4.4) to (4.7) and (B.7), C =
1/(mu n T)).  The thesis uses C a_ti in place of a_ti, and skips examples with K_ii = 0, which leaves their
loss of 1 in the gap for ever.  Only the box bounds such a variable, so here it moves to the end of the box.

MTL-SDCA finds predictors and their shared representation in turns (thesis, algorithms 4.1 and B.1).  U (d, T)
is never formed: U = X^T Q with Q (n, T), and it maps the examples to Z = K Q. Then K_Z = Z Z^T = K A
M A^T K is the kernel of the predictors, W = Z^T B C their weights and M = W^T W. Each turn solves a convex
problem to a certified gap.  F never rises: each task keeps its old solution unless the new one is better.

    F(U, W) = (1/T) sum_t [ (1/n) sum_i phi_gamma(y_ti <w_t, U^T x_i>) + lambda/2 |w_t|^2 ] + mu/2 |U|_F^2

(thesis, (4.1) and (4.2)) is convex in U and in W, but not jointly.  Yet lambda/(2T) |W|^2 + mu/2 |U|^2 is at
least tau |U W|_*, the sum of the singular values of V = U W times tau = sqrt(lambda mu / T), and as much for
the best factors of V. So F is bounded from below by a convex problem in V,

    min_V (1/(nT)) sum_ti phi_gamma(y_ti <v_t, x_i>) + tau |V|_*,

and with as many factors as tasks both minima are the same.  Duals a of any of the subproblems, times a factor
that makes the largest singular value of (1/(nT)) X^T A at most tau, are dual feasible here, and their value
is a lower bound of F for every U and W. The smooth hinge phi_gamma(z) = max over 0 <= v <= 1 of v (1 - z) -
gamma/2 v^2 is 0 for z >= 1, (1 - z)^2 / (2 gamma) for 1 - gamma <= z < 1 and 1 - z - gamma/2 below; gamma =
0 is the hinge (4.2.1).  Source: N. Srebro, J. Rennie, T. Jaakkola, "Maximum-margin matrix factorization",
2004, lemma 1; the thesis has no such bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topline.solvers.core.problem import inner, positive_integer, positive_number, squared_norm
from topline.solvers.core.state import HasObjective, Objective, Status, StoppingCriteria, relative_gap
from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import jit
from topline.solvers.privileged.machines import checked_kernel_matrix
from topline.solvers.typing import Float64Array, Int64Array


@dataclass(frozen=True, eq=False)
class TaskDuals:
    """End point of an ascent: duals A (n, T), 0 <= y a <= 1, and `products` K A, freshly computed.

    `primal` and `dual` (T,) are the terms of P and D, for independent tasks their own objective values;
    `gaps` (T,) are the relative gap of each independent task, or the joint one T times.  The status is
    NO_PROGRESS if a pass changed nothing.
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

    K (n, n) is symmetric and positive semi-definite, `signs` (n, T) holds labels of 1.0 and -1.0, and M (T,
    T) couples the tasks; with None, the identity, each task is certified and finished alone.  `start` (n, T)
    is clipped to the box; None for zeros.

    The gap is a sum of non-negative Fenchel-Young terms whatever K is; it bounds the suboptimality only if K
    is positive semi-definite, which the caller guarantees.
    """
    # Tasks are rows here, so that each is contiguous.
    signs = np.ascontiguousarray(signs.T, dtype=np.float64)
    T, n = signs.shape
    coupling = np.eye(T) if M is None else M

    def measured() -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return the terms of P and of D of each task, and its relative gap: its own, or the joint one."""
        scores = C * (products if M is None else M @ products)
        half = 0.5 * np.einsum("ti,ti->t", A, scores) / n
        primal = smooth_hinge(signs * scores, smoothing).mean(axis=1) + half
        dual = (signs * A - 0.5 * smoothing * np.square(A)).mean(axis=1) - half
        pairs = zip(primal, dual, strict=True) if M is None else [(primal.mean(), dual.mean())] * T
        return primal, dual, np.array([relative_gap(p - d, p) for p, d in pairs])

    A = np.zeros_like(signs)
    if start is not None:
        A = np.ascontiguousarray(signs * np.clip(signs * start.T, 0.0, 1.0))
    products = A @ K
    random = np.random.default_rng(seed)
    passes, changed, fresh = 0, 1, True
    while True:
        primal, dual, gaps = measured()
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
            tasks = random.permutation(unsolved)
            orders = random.permuted(np.tile(np.arange(n), (len(tasks), 1)), axis=1)
            changed = int(visit_tasks(K, signs, tasks, orders, C, smoothing, coupling, A, products))
            passes, fresh = passes + 1, False


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
    updated during the turn through K a_t alone.  `tasks` (v,) and `orders` (v, n) are the order of the turns
    and of the examples in each; A and the products K a_t (T, n) are updated, like the signs a row a task.
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
    """One turn: predictors, then representation.

    F after each (`objective_tasks`, `objective`), the relative duality gaps of both subproblems, the largest
    among tasks, the best lower bound of F so far, the root mean square change of all 2 n T dual variables in
    [-1, 1], and the passes over the examples so far.
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
        # The predictors for a fixed representation (STL-SDCA on Z), and the other way round (U-SDCA).
        tasks = ascend(
            point.Z @ point.Z.T, problem.signs, problem.C_tasks, None, criteria, smoothing=problem.smoothing,
            seed=seed + 2 * len(history), start=point.B,
        )  # fmt: skip
        halfway = _with_predictors(problem, point, tasks)
        shared = ascend(
            problem.K, problem.signs, problem.C_shared, halfway.W.T @ halfway.W, criteria,
            smoothing=problem.smoothing, seed=seed + 2 * len(history) + 1, start=halfway.A,
        )  # fmt: skip
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


def _with_predictors(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take the weights W = C Z^T B of the tasks that they do not make worse."""
    W = problem.C_tasks * (point.Z.T @ found.A)
    better = problem.task_terms(point.Z, W) <= problem.task_terms(point.Z, point.W)
    return replace(point, W=np.where(better, W, point.W), B=found.A)


def _with_representation(problem: SharedProblem, point: Shared, found: TaskDuals) -> Shared:
    """Take U = C X^T A W^T unless it is worse."""
    Q = problem.C_shared * (found.A @ point.W.T)
    Z = problem.C_shared * (found.products @ point.W.T)
    if problem.objective(Q, Z, point.W) <= problem.objective(point.Q, point.Z, point.W):
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
    objective : for "single" and "stacked" the mean P and D of the tasks' (last) support vector machines,
        given the first layer; for "multi" F, and a lower bound of it over all U and W.
    subproblem_gap : the largest relative duality gap of the convex problems solved last: the support vector
        machines, and for "multi" also the representation.
    passes : passes over the examples, all stages together.
    alternations, shared : of "multi": a record per turn; representation, predictors and duals.
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

    For each task, a column of `signs` (n, T) of 1 and -1, it minimises |w|^2 / 2 + C sum_i phi_gamma(y_i <w,
    x_i>) divided by C n, C = 1/(lambda n), as SVC(kernel="precomputed") does with an intercept.  K (n, n) is
    symmetric and positive semi-definite, and `smoothing` the gamma of the smooth hinge, 0 for the hinge.
    """
    K, signs = _checked(K, signs, smoothing, C=C)
    criteria = StoppingCriteria(tol, max_passes)
    found = ascend(K, signs, C, None, criteria, smoothing=smoothing, seed=seed)
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
    first = ascend(K, signs, C, None, criteria, smoothing=smoothing, seed=seed)
    scores = C * first.products
    kernel = scores @ scores.T
    second = ascend(kernel, signs, C_tasks, None, criteria, smoothing=smoothing, seed=seed + _SECOND)
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
    first = ascend(K, signs, C, None, criteria, smoothing=smoothing, seed=seed)
    problem = SharedProblem(K, signs, C_tasks, C_shared, smoothing)
    point, turns, status = alternate(
        problem, C * first.A, criteria, max_alternations=max_alternations, change_tol=change_tol,
        seed=seed + _SECOND,
    )  # fmt: skip
    primal, dual, passes = turns[-1].objective, turns[-1].lower_bound, turns[-1].passes
    if certify and Objective(primal, dual).relative_gap > tol:
        bounds, more = trace_norm_bounds(problem, 0.5 * tol, max_passes)
        dual, passes = max(dual, bounds.dual), passes + more
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


def _mean(found: TaskDuals) -> Objective:
    """Return the mean of the tasks' P and D; D exceeds P only by rounding."""
    primal = float(found.primal.mean())
    return Objective(primal, min(float(found.dual.mean()), primal))


def _checked(K: Any, signs: Any, smoothing: Any, **weights: Any) -> tuple[Float64Array, Float64Array]:
    """Return K and the signs in float64; refuse invalid input."""
    K = checked_kernel_matrix("the kernel matrix", K, len(K) if hasattr(K, "__len__") else 1)
    signs = np.ascontiguousarray(signs, dtype=np.float64)
    if signs.ndim != 2 or signs.shape[0] != len(K) or not signs.size:
        raise InvalidProblemError(
            f"the labels have the shape {signs.shape}; give {len(K)} rows, as examples, and a column a task"
        )
    if not np.isin(signs, (-1.0, 1.0)).all():
        raise InvalidProblemError(
            "the labels have values other than 1 and -1; give one of the two for each task"
        )
    if float(np.diag(K).min()) < 0.0:
        raise InvalidProblemError(
            "the kernel matrix has a negative diagonal and is not positive semi-definite; give inner products"
        )
    for name, value in weights.items():
        positive_number(name, value)
    positive_number("smoothing", smoothing, or_zero=True)
    return K, signs


def smooth_hinge(margins: Float64Array, gamma: float) -> Float64Array:
    """Return phi_gamma of each margin z = y s, in the shape of `margins`."""
    slack = np.maximum(1.0 - margins, 0.0)
    if gamma == 0.0:
        return slack
    v = np.minimum(slack / gamma, 1.0)
    return np.asarray(v * (slack - 0.5 * gamma * v))


@dataclass(frozen=True, eq=False)
class SharedProblem:
    """F for n examples with the kernel matrix K (n, n) and T tasks with `signs` (n, T) of 1.0 and -1.0.

    `C_tasks` = 1/(lambda n) and `C_shared` = 1/(mu n T) weigh the losses against |w_t|^2 / 2 and |U|^2 / 2.
    """

    K: Float64Array
    signs: Float64Array
    C_tasks: float
    C_shared: float
    smoothing: float = 0.0

    def losses(self, scores: Float64Array) -> Float64Array:
        """Return phi_gamma of each score (n, T), in its shape."""
        return smooth_hinge(self.signs * scores, self.smoothing)

    def task_terms(self, Z: Float64Array, W: Float64Array) -> Float64Array:
        """Return each task's part of F, (T,): loss and |w_t|^2, for Z = X U (n, r) and W (r, T)."""
        squares = np.einsum("rt,rt->t", W, W)
        return np.asarray(self.losses(Z @ W).mean(axis=0) + squares / (2.0 * self.C_tasks * len(Z)))

    def objective(self, Q: Float64Array, Z: Float64Array, W: Float64Array) -> float:
        """Return F at U = X^T Q and W (r, T), with Z = K Q; Q and Z are (n, r)."""
        of_U = inner(Q, Z) / (2.0 * self.C_shared * self.signs.size)
        return float(self.task_terms(Z, W).mean()) + of_U

    def slopes(self, Z: Float64Array, W: Float64Array) -> Float64Array | None:
        """Return the duals (n, T) that are slopes of the losses at the scores Z W; None for the hinge.

        They tend to the optimum of the convex problem as V = U W does, unlike with the kinks of the hinge.
        """
        if self.smoothing == 0.0:
            return None
        slack = (1.0 - self.signs * (Z @ W)) / self.smoothing
        return np.asarray(self.signs * np.clip(slack, 0.0, 1.0))

    def lower_bound(self, A: Float64Array, products: Float64Array) -> float:
        """Return a lower bound of F for all U and W from duals A (n, T), 0 <= y a <= 1, and K A."""
        linear = inner(self.signs, A) / A.size
        square = squared_norm(A) / A.size
        # Squared singular values of X^T A; K A is computed, and rounding must not make them negative.
        spectrum = np.linalg.eigvalsh(A.T @ products)
        largest = math.sqrt(max(float(spectrum[-1]), 0.0))
        tau = 1.0 / math.sqrt(self.C_tasks * self.C_shared)
        scale = min(1.0, tau / largest) if largest > 0.0 else 1.0
        if self.smoothing > 0.0 and square > 0.0:
            scale = min(scale, linear / (self.smoothing * square))
        return scale * linear - 0.5 * self.smoothing * scale**2 * square


#: First smoothing of the hinge, and the factor by which each stage reduces it.
_FIRST, _FALL = 0.5, 0.25
#: Fraction of the tolerance that smoothing may use up.
_SHARE = 0.5


def trace_norm_bounds(
    problem: SharedProblem, tol: float = 1e-3, max_passes: int = 1000
) -> tuple[Objective, int]:
    """Return bounds of the least F, to a relative gap of `tol` or after `max_passes`, and the passes taken.

    F is over all U and W with as many factors as tasks.  A pass is a step, of two products with the examples.

    Accelerated proximal steps in V use a hinge smoothed by g >= gamma, reduced in stages: the slopes at every
    point, y clip((1 - y s)/g, 0, 1), are duals of the problem itself and give a bound each.  Sources: A. Beck
    and M. Teboulle, "A fast iterative shrinkage-thresholding algorithm", 2009; Yu. Nesterov, "Smooth
    minimization of non-smooth functions", 2005.
    """
    rows, signs = _rows(problem.K), problem.signs
    most = float(np.einsum("ij,ij->j", rows, rows).max(initial=0.0))
    tau = 1.0 / math.sqrt(problem.C_tasks * problem.C_shared)
    V = np.zeros((rows.shape[1], signs.shape[1]))
    best, passes = Objective(float(problem.losses(rows @ V).mean()), 0.0), 0
    smooth = 0.0
    while passes < max_passes and best.relative_gap > tol and most > 0.0:
        smooth = max(_FALL * smooth if smooth else _FIRST, problem.smoothing)
        curvature, ahead, momentum = most / smooth, V, 1.0
        final = smooth == problem.smoothing or 0.5 * smooth <= _SHARE * tol * best.primal
        while passes < max_passes and best.relative_gap > tol:
            duals = signs * np.clip((1.0 - signs * (rows @ ahead)) / smooth, 0.0, 1.0)
            gradient = rows.T @ duals
            lower = problem.lower_bound(duals, rows @ gradient)
            moved, norm = _shrunk(ahead + gradient / curvature, tau / curvature)
            upper = float(problem.losses(rows @ moved).mean()) + tau * norm / signs.size
            best, passes = Objective(min(best.primal, upper), max(best.dual, lower)), passes + 1
            if float(np.sum((ahead - moved) * (moved - V))) > 0.0:
                momentum = 1.0  # the momentum points uphill
            faster = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum * momentum))
            ahead, V, momentum = moved + (momentum - 1.0) / faster * (moved - V), moved, faster
            # Now smoothing dominates the gap.
            if not final and upper - lower <= smooth:
                break
        if smooth == problem.smoothing:
            break
    return best, passes


def _rows(K: Float64Array) -> Float64Array:
    """Return rows (n, r) along the eigenvectors of K, whose inner products are K."""
    values, vectors = np.linalg.eigh(K)
    kept = values > 1e-12 * max(float(values[-1]), 0.0)
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept]))


def _shrunk(V: Float64Array, amount: float) -> tuple[Float64Array, float]:
    """Return V with singular values shrunk by `amount`, and their sum."""
    left, values, right = np.linalg.svd(V, full_matrices=False)
    kept = np.maximum(values - amount, 0.0)
    return np.asarray((left * kept) @ right), float(kept.sum())
