"""Minimise P by an interior point or, if X is too wide or too sparse for it, a bundle method.

The bundle method is fully corrective.  Every w gives a cut: the weights p of its k largest losses and their
derivatives make a lower bound of P, determined by W = -C X^T u and b.  The next w minimises the best convex
combination of all cuts, a small quadratic program over the simplex.  In the language of
`topline.solvers.methods.atoms` cuts are atoms with lam = 1/C, and this is Frank-Wolfe on (u, p) whose
direction is the top k, fully corrective.

The interior point reaches nine digits with any of the losses, for d up to a few thousand.  With the
variational form of AT_k and the pieces of the losses the problem is

    min |w|^2 / (2 C) + t + (1/k) sum_i s_i
    s.t. v_ij = s_i + t - c_j(<x_i, w>; y_i) >= 0,  s >= 0,  t >= 0,

with multipliers p_ij of v, q_i of s and r of t: sum_j p_ij + q_i = 1/k and sum p + r = 1, so that sum_j p_ij
are weights in the set of AT_k, and make a lower bound, at every iterate.  Steps are Mehrotra's: a round costs
n d^2 multiplications, one factorisation of a matrix (d, d) and two solutions with it.  Source: S. Mehrotra,
"On the implementation of a primal-dual interior point method", SIAM J. Optim. 2, 1992.

With a kernel, by the representer theorem, f = sum_j c_j k(x_j, .) with c = -C u.  The problem is solved in
the features of `topline.solvers.kernels.problem`, and certified on the kernel matrix itself:

    P(c) = AT_k(l(K c)) + c^T K c / (2 C),    D(u, b) = b - (C/2) u^T K u.

With the hinge this is the AT_k-SVM. Times k/n, with rho = 1 - t and C_3 = C n/k, it is eq. 5, and less k/n

    (6)  min over f and 0 <= rho <= 1 of (1/n) sum_i [rho - y_i f(x_i)]_+ - (k/n) rho + |f|^2 / (2 C_3),

whose dual, missing from the paper, is with alpha_i = (k/n) p_i

    max  sum_i alpha_i - k/n - (C_3/2) |sum_i alpha_i y_i k(x_i, .)|^2
    over 0 <= alpha_i <= 1/n, sum_i alpha_i <= k/n.

For k = n that is the C-SVM without a bias.  Where rho <= 1 does not bind, which C_3 (k/n) max_i k(x_i, x_i)
<= 1 implies, it is the nu-SVM without a bias for nu = k/n, but for scale: f and rho are C_3 times those at
C_3 = 1.  Likewise the absolute loss is the nu-SVR without a bias for nu = k/n, with t in the place of its
epsilon.  Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 5 and
6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import linalg

from topline.solvers.average_top.problem import (
    AverageTopProblem,
    AverageTopResult,
    LowerBound,
    Pieces,
    average_top,
    finished,
    is_converged,
)
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import Objective, Status, StoppingCriteria
from topline.solvers.crew import blas_threads_for
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import KernelExpansion, KernelFeatures
from topline.solvers.methods.atoms import Atoms, maximise_on_simplex
from topline.solvers.typing import Float64Array

#: Fraction of the way to the boundary that a step goes.
_TO_BOUNDARY = 0.995
#: Most halvings of a step, made while it multiplies the complementarity by more than this.
_HALVINGS, _GROWTH = 30, 2.0
#: Rounds without a smaller gap before stopping.
_PATIENCE_INSIDE = 30
#: A round makes progress if the gap falls below this fraction of the smallest so far.
_PROGRESS = 0.9
#: Added to a unit diagonal; of the order of rounding.
_RIDGE = 1e-14


@dataclass(frozen=True, eq=False)
class InteriorPoint:
    """Variables and multipliers, or their change in one step; pieces are rows (J, n)."""

    w: Float64Array
    t: Float64Array
    s: Float64Array
    v: Float64Array
    p: Float64Array
    q: Float64Array
    r: Float64Array

    def complementarity(self) -> float:
        """Return the mean product of a variable >= 0 with its multiplier."""
        total = np.vdot(self.p, self.v) + self.q @ self.s + self.r @ self.t
        return float(total) / (self.p.size + len(self.q) + 1)

    def moved(self, step: InteriorPoint, length: float) -> InteriorPoint:
        """Return the point after a step of this length."""
        return InteriorPoint(
            **{name: value + length * getattr(step, name) for name, value in vars(self).items()}
        )

    def room(self, step: InteriorPoint) -> float:
        """Return the longest step, at most 1, that keeps the bounds."""
        lengths = [1.0]
        for name in ("t", "s", "v", "p", "q", "r"):
            value, change = getattr(self, name), getattr(step, name)
            falls = change < 0.0
            if falls.any():
                lengths.append(float((value[falls] / -change[falls]).min()))
        return min(lengths)


def newton_steps(
    problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces
) -> Callable[[float, InteriorPoint | None], InteriorPoint]:
    """Return the solution of the Newton equations of one round, reduced to w and t.

    It takes the target of the products, and a first step for whose own products the step is corrected.  For
    each example everything but its score and t is eliminated.  With theta_j = p_j / v_j (J, n), phi = q / s
    and both = sum_j theta_j + phi, the rest are ratios and means in which nothing cancels as theta or phi
    grow without bound: tied = sum theta / both, loose = phi / both, mean = sum theta a / sum theta of the
    slopes a of the pieces.  Raises LinAlgError if rounding leaves nothing to factor.
    """
    X, a = problem.X, pieces.slopes
    theta, phi = point.p / point.v, point.q / point.s
    total = theta.sum(axis=0)
    both = total + phi
    tied, loose = total / both, phi / both
    mean = (theta * a).sum(axis=0) / total
    bend = (point.p * pieces.curvatures + theta * (a - mean) ** 2).sum(axis=0) + mean**2 * total * loose
    scaled = X * np.sqrt(bend)[:, None]
    matrix = scaled.T @ scaled
    matrix[np.diag_indices(problem.d)] += 1.0 / problem.C
    # Factored after scaling to a unit diagonal.
    scale = 1.0 / np.sqrt(np.diag(matrix))
    matrix *= scale[:, None] * scale
    matrix[np.diag_indices(problem.d)] += _RIDGE
    lower = linalg.cho_factor(matrix, overwrite_a=True)

    def solved(right: Float64Array) -> Float64Array:
        return np.asarray(scale * linalg.cho_solve(lower, scale * right))

    coupling = -(X.T @ (mean * total * loose))
    solved_coupling = solved(coupling)
    pivot = float((total * loose).sum() + point.r[0] / point.t[0] - coupling @ solved_coupling)

    def step(target: float, second: InteriorPoint | None) -> InteriorPoint:
        products: tuple[Any, Any, Any] = (0.0, 0.0, 0.0)
        if second is not None:
            products = (second.p * second.v, second.q * second.s, second.r * second.t)
        to_p = (target - products[0]) / point.v - point.p
        to_q = (target - products[1]) / point.s - point.q
        to_r = (target - products[2]) / point.t - point.r
        short_v = point.v - point.s - point.t + pieces.values
        short_t = 1.0 - point.p.sum() - point.r
        # The change of q beyond what closes the gap of sum_j p + q to 1/k.
        even_q = to_q - (1.0 / problem.k - point.p.sum(axis=0) - point.q)
        lifted = to_p + theta * short_v
        shared = loose * lifted.sum(axis=0) - tied * even_q
        force = ((a - mean) * lifted).sum(axis=0) + mean * shared
        free = -solved(point.w / problem.C + X.T @ ((point.p * a).sum(axis=0) + force))
        t = (shared.sum() + to_r - short_t - coupling @ free) / pivot
        w = free - solved_coupling * t
        z = X @ w
        s = (lifted.sum(axis=0) + even_q) / both - tied * (t - mean * z)
        mean_short = (theta * short_v).sum(axis=0) / theta.sum(axis=0)
        v = (to_p.sum(axis=0) + even_q) / both + loose * (t - a * z - short_v)
        v = v + tied * ((mean_short - short_v) + (mean - a) * z)
        r = to_r - point.r / point.t * t
        return InteriorPoint(w=w, t=t, s=s, v=v, p=to_p - theta * v, q=to_q - phi * s, r=r)

    return step


def mehrotra_step(problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces) -> InteriorPoint:
    """Return Mehrotra's step, which aims at a complementarity set by how far the plain step gets."""
    with np.errstate(all="ignore"):
        solution = newton_steps(problem, point, pieces)
        plain = solution(0.0, None)
        before = point.complementarity()
        after = point.moved(plain, point.room(plain)).complementarity()
        step = solution((after / before) ** 3 * before, plain)
    if not all(np.isfinite(value).all() for value in vars(step).values()):
        raise linalg.LinAlgError("the step is not finite")
    return step


def interior_point(problem: AverageTopProblem, tol: float, max_iterations: int) -> AverageTopResult:
    """Minimise P to the relative gap `tol`, with features (n, d) dense in memory.

    The status is NO_PROGRESS if rounding stops it earlier; the certificate, computed on the original
    features, holds in any case.
    """
    with blas_threads_for(problem.n * problem.d * min(problem.n, problem.d)):
        rows, basis = rotated(problem.X)
        best, bound, iteration, ended = _iterate(replace(problem, X=rows), tol, max_iterations)
        w = basis @ best
    bound = None if bound is None else problem.lower_bound(bound.u, bound.b, bound.p)
    return finished(
        problem, w, problem.primal(w), -np.inf if bound is None else bound.value, tol=tol,
        iterations=iteration, unsolved=ended, bound=bound,
    )  # fmt: skip


def rotated(X: Any) -> tuple[Float64Array, Float64Array]:
    """Return features (n, r) with diagonal Gram matrix, and the basis (d, r): X = features basis^T.

    Omits directions indistinguishable from zero, so that features may be linearly dependent.
    """
    left, sizes, right = linalg.svd(
        X.toarray() if is_sparse(X) else X, full_matrices=False, check_finite=False
    )
    noise = max(X.shape) * float(np.finfo(np.float64).eps) * float(sizes.max(initial=0.0))
    kept = max(int(np.count_nonzero(sizes > noise)), 1)
    return np.ascontiguousarray(left[:, :kept] * sizes[:kept]), np.ascontiguousarray(right[:kept].T)


def _iterate(
    problem: AverageTopProblem, tol: float, max_iterations: int
) -> tuple[Float64Array, LowerBound | None, int, Status]:
    """Return the best w and bound found, the number of rounds and the status if tol was not reached."""
    point = _start(problem)
    z = problem.scores(point.w)
    best, least, bound = point.w, np.inf, None
    smallest, stalled = np.inf, 0
    for iteration in range(max_iterations + 1):
        pieces = problem.pieces(z)
        # The multipliers give a lower bound: every piece is a convex lower bound of a loss.
        u = (point.p * pieces.slopes).sum(axis=0)
        b = float(np.vdot(point.p, pieces.values)) - float(u @ z)
        primal, found = problem.value(point.w, pieces), problem.lower_bound(u, b, point.p.sum(axis=0))
        if not (np.isfinite(primal) and np.isfinite(found.value)):
            return best, bound, iteration, Status.NO_PROGRESS
        best, least = (point.w, primal) if primal < least else (best, least)
        bound = found if bound is None or found.value > bound.value else bound
        gap = least - bound.value
        stalled = 0 if gap < _PROGRESS * smallest else stalled + 1
        smallest = min(smallest, gap)
        if is_converged(problem, best, least, bound.value, tol) or stalled > _PATIENCE_INSIDE:
            return best, bound, iteration, Status.NO_PROGRESS
        try:
            point, z = _next(problem, point, pieces)
        except linalg.LinAlgError:
            return best, bound, iteration, Status.NO_PROGRESS
    return best, bound, max_iterations, Status.MAX_PASSES


def _next(
    problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces
) -> tuple[InteriorPoint, Float64Array]:
    """Take one step; return the point and its scores (curved pieces end above their linearisation)."""
    step = mehrotra_step(problem, point, pieces)
    length = min(1.0, _TO_BOUNDARY * point.room(step))
    most = _GROWTH * point.complementarity()
    for _ in range(_HALVINGS):
        there = point.moved(step, length)
        z = problem.scores(there.w)
        there = _feasible(there, problem.pieces(z))
        if there.complementarity() <= most:
            break
        length *= 0.5
    return there, z


def _start(problem: AverageTopProblem) -> InteriorPoint:
    """Return w = 0 with everything else well inside its bounds, at the scale of the losses."""
    n, k = problem.n, problem.k
    pieces = problem.pieces(np.zeros(n))
    losses = pieces.losses()
    scale = max(float(losses.mean()), float(np.finfo(np.float64).tiny) ** 0.5)
    s = np.maximum(losses - scale, 0.0) + scale
    p = np.full(pieces.values.shape, 0.5 / pieces.values.size)
    return InteriorPoint(
        w=np.zeros(problem.d), t=np.array([scale]), s=s, v=s + scale - pieces.values, p=p,
        q=1.0 / k - p.sum(axis=0), r=np.array([0.5]),
    )  # fmt: skip


def _feasible(point: InteriorPoint, pieces: Pieces) -> InteriorPoint:
    """Return the point with v = s + t - c, except where v is too small, which is harmless.

    If v is too large, examples that hardly count reduce v itself, by half at most; otherwise s grows.
    """
    short = point.v - point.s - point.t + pieces.values
    idle = point.q > point.p.sum(axis=0)
    taken = np.where(idle, np.clip(short, 0.0, 0.5 * point.v), 0.0)
    rest = np.maximum((short - taken).max(axis=0), 0.0)
    return replace(point, v=point.v - taken, s=point.s + rest)


#: Largest multiplications per round and bytes of dense features for which "auto" takes the interior point.
_MULTIPLICATIONS = 2e10
_BYTES = 1 << 30

#: How many cuts of weight 0 are kept, since they often come back.
_IDLE = 50
#: Rounds without a change of P or D before stopping.
_PATIENCE = 20


def bundle(problem: AverageTopProblem, tol: float, max_iterations: int) -> AverageTopResult:
    """Minimise P to the relative gap `tol`; a round is two passes over the features, array or CSR.

    Rounds grow with 1/tol and with C; large C and small tolerances call for the interior point.  The status
    is MAX_PASSES if the rounds ran out.
    """
    lam = 1.0 / problem.C
    atoms = Atoms(
        W=np.zeros((1, problem.d, 1)), conjugate_means=np.zeros(1), weights=np.ones(1), gram=np.zeros((1, 1))
    )
    w, best_w = np.zeros(problem.d), np.zeros(problem.d)
    primal, dual = np.inf, 0.0
    iteration = stalled = 0
    with blas_threads_for(problem.n * problem.d):
        while True:
            value, cut = problem.evaluated(w)
            if not (math.isfinite(value) and math.isfinite(cut.value)):
                return finished(
                    problem, w, value, cut.value, tol=tol, iterations=iteration, unsolved=Status.NONFINITE
                )
            before = (primal, dual)
            if value < primal:
                best_w, primal = w, value
            atoms, _ = atoms.with_atom(lam, cut.w[:, None], cut.b)
            weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
            atoms = atoms.weighted(weights, idle=_IDLE)
            W, b = atoms.point()
            w = W[:, 0]
            dual = max(dual, b - float(w @ w) / (2.0 * problem.C))
            stalled = 0 if (primal, dual) != before else stalled + 1
            done = is_converged(problem, best_w, primal, dual, tol)
            if done or stalled > _PATIENCE or iteration == max_iterations:
                break
            iteration += 1
    unsolved = Status.MAX_PASSES if iteration == max_iterations else Status.NO_PROGRESS
    return finished(problem, best_w, primal, dual, tol=tol, iterations=iteration, unsolved=unsolved)


METHODS: Mapping[str, Callable[[AverageTopProblem, float, int], AverageTopResult]] = MappingProxyType(
    {"interior_point": interior_point, "bundle": bundle}
)


def minimise(
    X: Any,
    y: Any,
    loss: Any,
    k: float,
    C: float,
    *,
    method: str = "auto",
    tol: float = 1e-6,
    max_iterations: int = 2000,
) -> AverageTopResult:
    """Minimise P(w) = AT_k(l(w)) + |w|^2 / (2 C) to the relative gap `tol`, and certify the result.

    X (n, d) is an array or CSR matrix; a bias is a feature that is always 1.  The targets y (n,) are -1 and 1
    for "hinge" and "logistic", any numbers for "square" and "absolute"; the loss is one of these names in
    `INDIVIDUAL_LOSSES`, or such a value.  k is real, from 1 (the maximum) to n (the average), and `problem`
    converts the C of others.  The method is "interior_point", nine digits if n d min(n, d) multiplications
    are affordable, "bundle" for wide and sparse features and a tol of about 1e-4, or "auto", the first if it
    fits.  Raises as `AverageTopProblem.of`, and InvalidProblemError for an unknown method or bad bounds.
    """
    StoppingCriteria(tol=tol, max_passes=max_iterations)
    return solve_problem(AverageTopProblem.of(X, y, loss, k, C), method, tol, max_iterations)


def solve_problem(
    problem: AverageTopProblem, method: str, tol: float, max_iterations: int
) -> AverageTopResult:
    """Minimise a checked problem."""
    if method != "auto" and method not in METHODS:
        raise InvalidProblemError(f"there is no method {method!r}; use auto, {', '.join(METHODS)}")
    if method == "auto":
        n, d = problem.n, problem.d
        fits = n * d * min(n, d) <= _MULTIPLICATIONS and 8 * n * d <= _BYTES
        method = "interior_point" if fits else "bundle"
    # Overflow ends a run with the status NONFINITE, which says more than a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        return METHODS[method](problem, tol, max_iterations)


#: Target gap: a few extra rounds separate the support from the rest.
_SHARP = 1e-10
#: Coefficients below this fraction of the largest are dropped if that costs less than tol.
_NEGLIGIBLE = (1e-3, 1e-5, 1e-7)


@dataclass(frozen=True, eq=False, kw_only=True)
class AverageTopKernelResult(AverageTopResult):
    """Result of a run with a kernel; values are those of the kernel matrix.

    `expansion` scores new rows by the support and its coefficients (s, 1), `coefficients` (n,) are those of
    all training rows, and w (r,) are weights of the factor's features, for internal use.
    """

    expansion: KernelExpansion = field(repr=False)
    coefficients: Float64Array = field(repr=False)


def minimise_with_kernel(
    kernel: Any,
    X: Any,
    y: Any,
    loss: Any,
    k: float,
    C: float,
    *,
    tol: float = 1e-6,
    max_iterations: int = 200,
) -> AverageTopKernelResult:
    """Minimise AT_k(l(f)) + |f|^2 / (2 C) over the functions f of a kernel, and certify the result.

    `kernel` is as for `solve`: a name, a value, "precomputed" with X = K(train, train), or a
    `KernelFeatures`, reusable for many calls on the same rows.  K must fit in memory and a round takes n^3
    multiplications.  `WithConstant` around a kernel adds a bias.  Raises as `minimise` and
    `KernelFeatures.of`.
    """
    features = KernelFeatures.of(kernel, X)
    problem = AverageTopProblem.of(features.rows, y, loss, k, C)
    result = solve_problem(problem, "interior_point", min(0.5 * tol, _SHARP), max_iterations)
    if result.bound is None:
        raise InvalidProblemError("the kernel values are too large for this C; scale the features or lower C")
    with blas_threads_for(problem.n**2):
        u, K = result.bound.u, features.K
        dual = result.bound.b - 0.5 * problem.C * max(float(u @ (K @ u)), 0.0)
        candidates, values = _candidates(result, features, problem), []
        for coefficients in candidates:
            scores = K @ coefficients
            norm = max(float(coefficients @ scores), 0.0)
            loss_mean = average_top(problem.pieces(scores).losses(), problem.k)
            values.append(loss_mean + norm / (2.0 * problem.C))
    enough = min(values) + 0.25 * tol * abs(dual)
    primal, coefficients = next(
        (value, candidate) for value, candidate in zip(values, candidates, strict=True) if value <= enough
    )
    expansion = features.expansion(coefficients[:, None])
    objective = Objective(primal, min(dual, primal))  # but for rounding D is the smaller
    solved = objective.reaches(tol)
    status = Status.SOLVED if solved else result.status
    if not solved and status is Status.SOLVED:
        status = Status.NO_PROGRESS
    return AverageTopKernelResult(
        objective, result.w, status, result.iterations, result.collapsed, result.bound,
        expansion=expansion, coefficients=coefficients,
    )  # fmt: skip


def _candidates(
    result: AverageTopResult, features: KernelFeatures, problem: AverageTopProblem
) -> list[Float64Array]:
    """Return coefficients (n,) of the optimum, those with the smallest support first."""
    if result.collapsed or result.bound is None or not result.bound.u.any():
        return [np.zeros(problem.n)]
    whole = -problem.C * result.bound.u
    sizes = np.abs(whole) / np.abs(whole).max()
    sparse = [np.where(sizes > share, whole, 0.0) for share in _NEGLIGIBLE]
    pivots = np.zeros(problem.n)
    pivots[features.pivots] = features.coefficients(result.w[:, None])[:, 0]
    return [*sparse, whole, pivots]
