"""The Newton equations of the interior point method, solved in a form in which nothing cancels.

Variables and names are those of `interior_point`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from topline.solvers.average_top.losses import Pieces
from topline.solvers.average_top.problem import AverageTopProblem
from topline.solvers.typing import Float64Array

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
        """Give the mean product of a variable >= 0 with its multiplier."""
        total = np.vdot(self.p, self.v) + self.q @ self.s + self.r @ self.t
        return float(total) / (self.p.size + len(self.q) + 1)

    def moved(self, step: InteriorPoint, length: float) -> InteriorPoint:
        """Give the point that many steps further."""
        return InteriorPoint(
            **{name: value + length * getattr(step, name) for name, value in vars(self).items()}
        )

    def room(self, step: InteriorPoint) -> float:
        """Give how many steps, 1 at most, stay within the bounds."""
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
        """Give the step to products of `target`, less those of a first step `second` where it is given."""
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
    """Give Mehrotra's step: how far the plain step gets says how much of the complementarity to aim at."""
    with np.errstate(all="ignore"):
        system = NewtonSystem.of(problem, point, pieces)
        plain = system.solve(0.0)
        before = point.complementarity()
        after = point.moved(plain, point.room(plain)).complementarity()
        step = system.solve((after / before) ** 3 * before, plain)
    if not all(np.isfinite(value).all() for value in vars(step).values()):
        raise linalg.LinAlgError("the step is not finite")
    return step
