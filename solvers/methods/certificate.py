"""The final numbers of a run: P, D and the gap, by float64 products or float32 ones with a bound of rounding.

Large problems take one reading of the rows, for P at the best W and D at A: in float32 for a smooth loss.

W and the dual point are chosen separately: W from the last iterate, the best of the rounds and W = 0; the
dual point is A where blocks keep it, else the best known to the state.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.dual_points import FoundAt, best_share
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import FinalValues, Objective, Point, SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.operations import Certified, Certify, Evaluate, OperationRunner, Rebuild, VertexSums
from topline.solvers.typing import Float64Array

#: A gap below minus this share of its terms is an error, not rounding.
_ROUNDING = 1e-9
#: Multiplications of a pass from which products are in float32, its unit roundoff, and the share of the gap
#: that rounding may take where the gap ends no run.
_LARGE, _UNIT, _SMALL_SHARE = 1 << 28, 2.0**-24, 0.01
#: Likewise, to end by the products of the last round: below, float64 takes some milliseconds.
_LARGE_SMOOTH = 1 << 25
#: Relative rounding of the bounds themselves, and what underflow may take from a score.
_SLACK, _UNDERFLOW = 1.02, 1e-30
#: Relative decrease of P from which a W of a round is measured again, for float64 and float32 products.
_BETTER, _BETTER_32 = 1e-9, 1e-6


@dataclass(frozen=True, eq=False)
class DualSide:
    """A dual point by its sums, W(A) (d, m), b and |A|^2 / n; `share` of the A that blocks keep."""

    W: Float64Array
    conjugate_mean: float
    mean_sq_dual: float = 0.0
    found_at: FoundAt | None = None
    share: float = 1.0

    def value(self, problem: Problem) -> float:
        """Return D of the point."""
        return problem.dual(self.W, self.conjugate_mean, self.mean_sq_dual)

    def times(self, share: float) -> DualSide:
        """Return a multiple; unless -Phi* is linear its b is a lower bound."""
        return replace(
            self,
            W=share * self.W,
            conjugate_mean=share * self.conjugate_mean,
            mean_sq_dual=share * share * self.mean_sq_dual,
        )


def rebuild(
    problem: Problem,
    executor: OperationRunner,
    point: Point,
    *,
    inside: bool = False,
    feasible: bool = False,
    share: float = 1.0,
) -> tuple[Float64Array, float, float]:
    """Return W(A), b and |A|^2 / n of the stored A (eq. 2 and 3 of `core.problem`).

    `inside` first puts every row into its domain, `feasible` does so for the sums alone, which are those of
    `share` times the rows.
    """
    stats = executor.run(
        Rebuild(point.pending_step, exact=point.exact, inside=inside, feasible=feasible, share=share)
    )
    if stats.rows != problem.n:
        raise StateLostError(f"the rebuilt sum covers {stats.rows} of {problem.n} rows; run it again")
    W = problem.scale * np.asarray(stats.product, dtype=np.float64)
    return W, stats.conjugate / problem.n, stats.alpha_sq / problem.n


def final_values(
    problem: Problem, executor: OperationRunner, state: SolverState, tol: float = 0.0, *, duals_kept: bool
) -> FinalValues:
    """Measure the last state and the best of its rounds, in float64 unless float32 shows a gap of `tol`.

    Rows of A rounded to float32 count as the nearest points of their domains, while A stays as it is.

    Raises CertificateError if D exceeds P by more than rounding.
    """
    known = _at_best(problem, executor, state, tol, duals_kept=duals_kept)
    if known is not None:
        return known
    point = state.best.dual_point
    loss = None
    if isinstance(point, FoundAt):
        dual, loss = _of_gradients(problem, executor, state, point)
    elif duals_kept:
        dual = of_rows(problem, executor, state)
    else:
        # The state's own W and b, or a better point that it remembers.
        dual = DualSide(state.W, state.point.conjugate_mean)
        other = dual if point is None else DualSide(point.W, point.linear)
        dual = other if other.value(problem) > dual.value(problem) else dual
    return with_best_primal(problem, executor, state, dual, loss, duals_kept=duals_kept)


def _at_best(
    problem: Problem, executor: OperationRunner, state: SolverState, tol: float, *, duals_kept: bool
) -> FinalValues | None:
    """Return the values at the best W, from one reading of the rows; None where others would say more.

    For a smooth loss products are in float32. At a V that float32 holds, for any A,

        P(V) - D(A) = (1/n) sum (Phi(s_i) + Phi*(-alpha_i) + <alpha_i, s_i>) + lam/2 |W(A) - V|^2.

    Near the optimum neither part is sensitive: scores off by e_i change the first by <alpha_i - u_i, e_i> and
    half of |e_i|^2 / T for an entropy (in the largest entry, by Pinsker's inequality), and W(A) is near V.
    (At a kink u_i jumps, and the bound of a hinge is often as large as its gap: products are in float64.)
    A sum of t products is off by at most gamma_t = t u / (1 - t u) times their sizes, in any order
    (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).  For a score the sizes
    are bounded by Cauchy and Schwarz; a column of X^T A is off by at most gamma_t sum |x_i| |alpha_ij|, by
    Minkowski's inequality.
    """
    point, n, form = state.best.dual_point, problem.n, problem.form
    found = point if isinstance(point, FoundAt) else None
    wide = not form.smooth
    small = n * problem.d * problem.m < _LARGE or state.exact or not form.convex
    if small or not (wide or _bounds_rounding(problem)):
        return None
    if problem.joint or problem.smoothing > 0 or not problem.mean_risk:
        return None
    W = state.W if state.best.W is None else state.best.W
    if found is None:
        unknown = not duals_kept
    else:
        # Where gradients gave the best D but P is not the smallest, nothing is known at the best W.
        unknown = state.best.W is not None and not np.array_equal(W, found.W)
        W = found.W
    if unknown:
        return None
    V = W if wide else W.astype(np.float32).astype(np.float64)
    share = None if found is None else found.share
    stats = executor.run(Certify(V, share, state.pending_step, exact=wide))
    if stats.rows != n:
        raise StateLostError(f"the certificate covers {stats.rows} of {n} rows; run it again")
    values = _bounded(problem, V, stats)
    if values is None or (state.primal_at_zero is not None and state.primal_at_zero < values.primal):
        return None
    # In float64 P at W(A) may be smaller.
    objective = values.objective
    small_share = not wide and objective.rounding <= _SMALL_SHARE * objective.gap
    if not (objective.reaches(tol) or small_share):
        return None
    return replace(values, found_at=None if found is None else replace(found, W=V))


def are_proven(problem: Problem) -> bool:
    """Return whether the values of `of_answer` have a bound, on a problem where reading the rows shows."""
    known = problem.form.score_roundings is not None and problem.smoothing == 0.0
    large = problem.n * problem.d * problem.m >= _LARGE_SMOOTH
    return large and known and _bounds_rounding(problem)


def of_answer(problem: Problem, state: SolverState, stats: VertexSums) -> FinalValues | None:
    """Return the values at W and minus the gradients there by a round's products; None if not finite.

    Gradients by vectors are, up to a factor, those of scores that are off by some more roundings.
    """
    if stats.rows != problem.n:
        return None
    roundings = problem.form.score_roundings or 0.0
    exact = stats.terms == 0
    V = state.W if exact else state.W.astype(np.float32).astype(np.float64)
    values = _bounded(problem, V, stats.certified(), 0.0 if exact else roundings * _UNIT)
    if values is None or (state.primal_at_zero is not None and state.primal_at_zero < values.primal):
        return None
    return replace(values, found_at=FoundAt(V))


def _bounds_rounding(problem: Problem) -> bool:
    """Return whether the rounding of float32 products has a bound: not that of weights of joint features."""
    return problem.form.curved is not None and problem.form.convex and not problem.joint and problem.mean_risk


def _bounded(problem: Problem, V: Float64Array, sums: Certified, by_row: float = 0.0) -> FinalValues | None:
    """Return P at V and D by these sums, with the bound of `_at_best`; None where they are not finite.

    All scores are off by `by_row` besides.
    """
    n, wide = problem.n, not problem.form.smooth
    W_dual, mean = problem.scale * np.asarray(sums.product, dtype=np.float64), sums.conjugate / n
    apart = math.sqrt(squared_norm(W_dual - V))
    rounding = 0.0
    if not wide:
        # By how much a score of a row of length 1 is off.
        off = _gamma(sums.terms) * math.sqrt(float(np.einsum("ij,ij->j", V, V).max())) + _UNDERFLOW
        off *= _SLACK
        curved = problem.form.curved or 0.0
        squares = (off * math.sqrt(sums.row_sq) + by_row * math.sqrt(sums.weight)) ** 2
        of_scores = _SLACK * (off * sums.slack + 0.5 * curved * squares) / n
        # By how much each column of W(A) is off.
        of_sum = np.zeros(problem.m) if sums.sizes is None else problem.scale * sums.sizes
        of_sum = _SLACK * _gamma(sums.summed + 2 * problem.m * (by_row > 0.0)) * of_sum
        columns = np.sqrt(np.square(W_dual - V).sum(axis=0))
        rounding = of_scores + problem.lam * float(of_sum @ (columns + 0.5 * of_sum))
    primal = problem.primal(V, sums.loss / n)
    dual = mean + 0.5 * problem.lam * (squared_norm(V) - apart**2) - sums.cross / n
    if not math.isfinite(primal - dual + rounding):
        return None
    size = abs(primal) + abs(mean) + rounding / _ROUNDING
    objective = replace(Objective.checked(primal, dual, size, _ROUNDING), rounding=rounding)
    return FinalValues(
        W=V,
        conjugate_mean=mean,
        objective=objective,
        smoothed_gap=objective.gap,
        W_dual=W_dual,
        mean_sq_dual=sums.alpha_sq / n,
    )


def _gamma(terms: int) -> float:
    """Return gamma_t of a float32 sum of t products, whose factors may be rounded besides; 0 for none."""
    rounded = (terms + 4) * _UNIT
    return 0.0 if terms == 0 else rounded / (1.0 - rounded) if rounded < 1.0 else math.inf


def as_measured(state: SolverState, objective: Objective) -> FinalValues:
    """Return the values measured by the rounds of a run, with the best weights of the rounds.

    Nothing is recomputed: P and D are float64 sums of float32 products, and W is as updated by the rounds.
    """
    W = state.W if state.best.W is None else state.best.W
    if state.primal_at_zero is not None and state.primal_at_zero < objective.primal:
        W = np.zeros_like(W)
        objective = Objective(state.primal_at_zero, min(objective.dual, state.primal_at_zero))
    return FinalValues(
        W=W,
        conjugate_mean=state.point.conjugate_mean,
        objective=objective,
        smoothed_gap=objective.gap,
        W_dual=None if np.array_equal(W, state.W) else state.W,
        mean_sq_dual=state.point.mean_sq_dual,
    )


def of_rows(problem: Problem, executor: OperationRunner, state: SolverState, share: float = 1.0) -> DualSide:
    """Return the sums of a share of the A that blocks keep, each row inside its domain."""
    W, conjugate_mean, mean_sq_dual = rebuild(problem, executor, state.point, feasible=True, share=share)
    return DualSide(W, conjugate_mean, mean_sq_dual, share=share)


def with_best_primal(
    problem: Problem,
    executor: OperationRunner,
    state: SolverState,
    dual: DualSide,
    loss_at_point: float | None = None,
    *,
    duals_kept: bool,
) -> FinalValues:
    """Return a dual point with the W of the smallest P.

    `loss_at_point` is the mean loss at the weights where the point was found, if any.
    """
    found = state.best.W
    if not (np.isfinite(dual.W).all() and math.isfinite(dual.conjugate_mean)):
        return FinalValues(dual.W, dual.conjugate_mean, Objective.without_dual(math.nan), math.nan)
    if not duals_kept and dual.found_at is None and dual.value(problem) < 0.0:
        # A = 0, with D = 0, is feasible, and so is every point on the way to it.
        square = problem.lam * squared_norm(dual.W) + problem.smoothing * dual.mean_sq_dual
        dual = dual.times(best_share(dual.conjugate_mean, square))
    bound = 0.5 * problem.smoothing * dual.mean_sq_dual

    def measured(W: Float64Array) -> tuple[float, float, Float64Array]:
        """Return P at W, P of eq. 4 there if A is kept, else inf, and W."""
        stats = executor.run(Evaluate(W, state.pending_step))
        shifted = problem.primal(W, stats.shifted_loss / problem.n) + bound if duals_kept else math.inf
        return problem.primal(W, stats.loss / problem.n), shifted, W

    if loss_at_point is not None and dual.found_at is not None:
        at = dual.found_at.W
        points = [(problem.primal(at, loss_at_point), math.inf, at)]
    else:
        points = [measured(dual.W)]
    primal, _, at = points[0]
    better = state.best.primal < (1.0 - (_BETTER if state.exact else _BETTER_32)) * primal
    if better and found is not None and not np.array_equal(found, at):
        points.append(measured(found))
    if state.primal_at_zero is not None:
        points.append((state.primal_at_zero, math.inf, np.zeros_like(dual.W)))
    primal, shifted, W = min(points, key=operator.itemgetter(0))
    size = abs(primal) + abs(dual.conjugate_mean)
    objective = Objective.checked(primal, dual.value(problem), size, _ROUNDING)
    return FinalValues(
        W=W,
        conjugate_mean=dual.conjugate_mean,
        objective=objective,
        smoothed_gap=shifted - objective.dual if math.isfinite(shifted) else objective.gap,
        W_dual=None if np.array_equal(W, dual.W) else dual.W,
        mean_sq_dual=dual.mean_sq_dual,
        found_at=dual.found_at,
        dual_share=dual.share,
    )


def _of_gradients(
    problem: Problem, executor: OperationRunner, state: SolverState, point: FoundAt
) -> tuple[DualSide, float]:
    """Recompute a point at its weights, into A if blocks keep it; return its sums and the mean loss there."""
    found = executor.run(Certify(point.W, point.share, state.pending_step, exact=True))
    sums = found.conjugate / problem.n, found.alpha_sq / problem.n
    return DualSide(np.asarray(problem.scale * found.product), *sums, point), found.loss / problem.n
