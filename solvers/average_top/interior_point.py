"""A primal-dual interior point method: any of the losses to nine digits, for d up to a few thousand.

With the variational form of AT_k and the pieces of the losses the problem is

    min |w|^2 / (2 C) + t + (1/k) sum_i s_i
    s.t. v_ij = s_i + t - c_j(<x_i, w>; y_i) >= 0,  s >= 0,  t >= 0,

with multipliers p_ij of v, q_i of s and r of t: sum_j p_ij + q_i = 1/k and sum p + r = 1, so that sum_j p_ij
are weights in the set of AT_k, and make a lower bound, at every iterate.  Steps are Mehrotra's: a round costs
n d^2 multiplications, one factorisation of a matrix (d, d) and two solutions with it.
Source: S. Mehrotra, "On the implementation of a primal-dual interior point method", SIAM J. Optim. 2, 1992.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from topline.solvers.average_top.losses import Pieces
from topline.solvers.average_top.problem import (
    AverageTopProblem,
    AverageTopResult,
    LowerBound,
    finished,
    is_converged,
)
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.stopping import Status
from topline.solvers.crew import blas_threads_for
from topline.solvers.typing import Float64Array

#: Share of the way to the boundary that a step goes.
_TO_BOUNDARY = 0.995
#: A step is halved so often at most, while it multiplies the complementarity by more than this.
_HALVINGS, _GROWTH = 30, 2.0
#: Rounds without a smaller gap after which only rounding is left.
_PATIENCE = 30
#: A round made progress where the gap fell below this share of the smallest so far.
_PROGRESS = 0.9
#: Added to a diagonal of ones: of the size of rounding.
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
        """Return the point that many steps further."""
        return InteriorPoint(
            **{name: value + length * getattr(step, name) for name, value in vars(self).items()}
        )

    def room(self, step: InteriorPoint) -> float:
        """Return how many steps, 1 at most, stay within the bounds."""
        lengths = [1.0]
        for name in ("t", "s", "v", "p", "q", "r"):
            value, change = getattr(self, name), getattr(step, name)
            falls = change < 0.0
            if falls.any():
                lengths.append(float((value[falls] / -change[falls]).min()))
        return min(lengths)


@dataclass(frozen=True, eq=False)
class _Factor:
    """A positive definite matrix (d, d), factored with a diagonal of ones."""

    scale: Float64Array
    lower: tuple[Float64Array, bool]

    @classmethod
    def of(cls, matrix: Float64Array) -> _Factor:
        scale = 1.0 / np.sqrt(np.diag(matrix))
        matrix *= scale[:, None] * scale
        matrix[np.diag_indices(len(matrix))] += _RIDGE
        return cls(scale, linalg.cho_factor(matrix, overwrite_a=True))

    def solve(self, right: Float64Array) -> Float64Array:
        return np.asarray(self.scale * linalg.cho_solve(self.lower, self.scale * right))


@dataclass(frozen=True, eq=False)
class NewtonSystem:
    """The Newton equations of one round, reduced to w and t.

    Of example i everything but its score and t is eliminated.  With theta_j = p_j / v_j (J, n), phi = q / s
    and both = sum_j theta_j + phi, the rest are shares and means in which nothing cancels when theta or phi
    grow without bound:  tied = sum theta / both,  loose = phi / both,  mean = sum theta a / sum theta  of the
    slopes a of the pieces.
    """

    problem: AverageTopProblem
    point: InteriorPoint
    pieces: Pieces
    theta: Float64Array
    phi: Float64Array
    both: Float64Array
    tied: Float64Array
    loose: Float64Array
    mean: Float64Array
    factor: _Factor
    coupling: Float64Array
    solved_coupling: Float64Array
    pivot: float

    @classmethod
    def of(cls, problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces) -> NewtonSystem:
        """Set the equations up at a point; LinAlgError where rounding leaves nothing to factor."""
        theta, phi = point.p / point.v, point.q / point.s
        total = theta.sum(axis=0)
        both = total + phi
        tied, loose = total / both, phi / both
        mean = (theta * pieces.slopes).sum(axis=0) / total
        bend = (point.p * pieces.curvatures + theta * (pieces.slopes - mean) ** 2).sum(axis=0)
        bend += mean**2 * total * loose
        scaled = problem.X * np.sqrt(bend)[:, None]
        matrix = scaled.T @ scaled
        matrix[np.diag_indices(problem.d)] += 1.0 / problem.C
        factor = _Factor.of(matrix)
        coupling = -(problem.X.T @ (mean * total * loose))
        solved = factor.solve(coupling)
        pivot = float((total * loose).sum() + point.r[0] / point.t[0] - coupling @ solved)
        return cls(
            problem, point, pieces, theta, phi, both, tied, loose, mean, factor, coupling, solved, pivot
        )

    def solve(self, target: float, second: InteriorPoint | None = None) -> InteriorPoint:
        """Return the step to products of `target`, less those of a first step `second` where it is given."""
        point, X, a = self.point, self.problem.X, self.pieces.slopes
        products: tuple[Any, Any, Any] = (0.0, 0.0, 0.0)
        if second is not None:
            products = (second.p * second.v, second.q * second.s, second.r * second.t)
        to_p = (target - products[0]) / point.v - point.p
        to_q = (target - products[1]) / point.s - point.q
        to_r = (target - products[2]) / point.t - point.r
        short_v = point.v - point.s - point.t + self.pieces.values
        short_t = 1.0 - point.p.sum() - point.r
        # What q takes on besides what sum_j p + q is short of 1/k.
        even_q = to_q - (1.0 / self.problem.k - point.p.sum(axis=0) - point.q)
        lifted = to_p + self.theta * short_v
        shared = self.loose * lifted.sum(axis=0) - self.tied * even_q
        force = ((a - self.mean) * lifted).sum(axis=0) + self.mean * shared
        free = -self.factor.solve(point.w / self.problem.C + X.T @ ((point.p * a).sum(axis=0) + force))
        t = (shared.sum() + to_r - short_t - self.coupling @ free) / self.pivot
        w = free - self.solved_coupling * t
        z = X @ w
        s = (lifted.sum(axis=0) + even_q) / self.both - self.tied * (t - self.mean * z)
        mean_short = (self.theta * short_v).sum(axis=0) / self.theta.sum(axis=0)
        v = (
            (to_p.sum(axis=0) + even_q) / self.both
            + self.loose * (t - a * z - short_v)
            + self.tied * ((mean_short - short_v) + (self.mean - a) * z)
        )
        return InteriorPoint(
            w=w, t=t, s=s, v=v, p=to_p - self.theta * v, q=to_q - self.phi * s,
            r=to_r - point.r / point.t * t,
        )  # fmt: skip


def mehrotra_step(problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces) -> InteriorPoint:
    """Return Mehrotra's step: how far the plain step gets says how much of the complementarity to aim at."""
    with np.errstate(all="ignore"):
        system = NewtonSystem.of(problem, point, pieces)
        plain = system.solve(0.0)
        before = point.complementarity()
        after = point.moved(plain, point.room(plain)).complementarity()
        step = system.solve((after / before) ** 3 * before, plain)
    if not all(np.isfinite(value).all() for value in vars(step).values()):
        raise linalg.LinAlgError("the step is not finite")
    return step


def interior_point(
    problem: AverageTopProblem, tol: float = 1e-8, max_iterations: int = 200
) -> AverageTopResult:
    """Minimise P to the relative gap `tol`, with features (n, d) dense in memory.

    NO_PROGRESS is the status where rounding stops it before; the certificate, which is computed on the
    features as they were given, holds all the same.
    """
    with blas_threads_for(problem.n * problem.d * min(problem.n, problem.d)):
        rows, basis = rotated(problem.X)
        best, iteration, ended = _iterate(replace(problem, X=rows), tol, max_iterations)
        w = basis @ best.w
    bound = None if best.bound is None else problem.lower_bound(best.bound.u, best.bound.b, best.bound.p)
    return finished(
        problem, w, problem.primal(w), -np.inf if bound is None else bound.value, tol=tol,
        iterations=iteration, unsolved=ended, bound=bound,
    )  # fmt: skip


def rotated(X: Any) -> tuple[Float64Array, Float64Array]:
    """Return features (n, r) with diagonal Gram matrix, and the basis (d, r): X = features basis^T.

    Directions that only rounding tells from zero are left out, so that features may repeat each other.
    """
    left, sizes, right = linalg.svd(
        X.toarray() if is_sparse(X) else X, full_matrices=False, check_finite=False
    )
    noise = max(X.shape) * float(np.finfo(np.float64).eps) * float(sizes.max(initial=0.0))
    kept = max(int(np.count_nonzero(sizes > noise)), 1)
    return np.ascontiguousarray(left[:, :kept] * sizes[:kept]), np.ascontiguousarray(right[:kept].T)


@dataclass
class _Best:
    """The best of what was seen: w and its P, and a bound."""

    w: Float64Array
    primal: float = np.inf
    bound: LowerBound | None = None

    @property
    def dual(self) -> float:
        return -np.inf if self.bound is None else self.bound.value

    def see(self, w: Float64Array, primal: float, bound: LowerBound) -> None:
        if primal < self.primal:
            self.w, self.primal = w, primal
        if bound.value > self.dual:
            self.bound = bound


def _iterate(problem: AverageTopProblem, tol: float, max_iterations: int) -> tuple[_Best, int, Status]:
    """Return the best that was found, the number of rounds and why they ended, should tol not be reached."""
    point = _start(problem)
    z = problem.scores(point.w)
    best, gap, stalled = _Best(point.w), np.inf, 0
    for iteration in range(max_iterations + 1):
        pieces = problem.pieces(z)
        primal, bound = problem.value(point.w, pieces), _bound(problem, point, pieces, z)
        if not (np.isfinite(primal) and np.isfinite(bound.value)):
            return best, iteration, Status.NO_PROGRESS
        best.see(point.w, primal, bound)
        stalled = 0 if best.primal - best.dual < _PROGRESS * gap else stalled + 1
        gap = min(gap, best.primal - best.dual)
        if is_converged(problem, best.w, best.primal, best.dual, tol) or stalled > _PATIENCE:
            return best, iteration, Status.NO_PROGRESS
        try:
            point, z = _next(problem, point, pieces)
        except linalg.LinAlgError:
            return best, iteration, Status.NO_PROGRESS
    return best, max_iterations, Status.MAX_PASSES


def _next(
    problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces
) -> tuple[InteriorPoint, Float64Array]:
    """Take one step; return the point and its scores.

    Curved pieces end above where the equations put them, by the square of the length of the step.
    """
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
    """Return the point with v = s + t - c, but where v is too small, which does no harm.

    Where it is too large that comes from v, half of it at most, of examples that hardly count, and else, or
    beyond, from s.
    """
    short = point.v - point.s - point.t + pieces.values
    idle = point.q > point.p.sum(axis=0)
    taken = np.where(idle, np.clip(short, 0.0, 0.5 * point.v), 0.0)
    rest = np.maximum((short - taken).max(axis=0), 0.0)
    return replace(point, v=point.v - taken, s=point.s + rest)


def _bound(problem: AverageTopProblem, point: InteriorPoint, pieces: Pieces, z: Float64Array) -> LowerBound:
    """Return the lower bound that the multipliers make: every piece is one of a loss, and convex."""
    u = (point.p * pieces.slopes).sum(axis=0)
    return problem.lower_bound(u, float(np.vdot(point.p, pieces.values)) - float(u @ z), point.p.sum(axis=0))
