"""L-BFGS on the primal, with the certificate that every gradient carries.

The gradient of P at W is lam (W - W(U)), where u_i = -grad Phi_gamma(W^T x_i) is dual feasible.  By Fenchel
and Young's equality the dual value of U is below P(W) by

    P(W) - D(U) = lam/2 |W - W(U)|^2 = |grad P(W)|^2 / (2 lam),

so an evaluation, one pass over the examples, gives P, its gradient and a dual bound.  Each round is one
evaluation: it tries a step, which is then accepted or changed.  A loss that is not convex has no dual bound:
the run ends once the gradient is small relative to that at W = 0, and claims no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from topline.solvers.core.answers import VectorSums
from topline.solvers.core.dual_points import FoundAt, best_multiple
from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.core.state import FinalValues, Objective, SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, product_of, with_loss_at_zero
from topline.solvers.methods.certificate import are_proven, of_answer
from topline.solvers.methods.quasi_newton.memory import (
    STALLED,
    BestPoint,
    LbfgsMemory,
    Line,
    Metric,
    Pairs,
    RowMoments,
    gradient_step,
    most_pairs,
)
from topline.solvers.methods.quasi_newton.metrics import (
    ClassMetric,
    RowMetric,
    alike_classes,
    arrays_of_classes,
    arrays_of_metric,
    find_moments,
    misled,
    wants_metric,
    with_asked,
    with_classes,
    with_openness,
)
from topline.solvers.methods.step_rules import Bracket
from topline.solvers.operations import FindVertices, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Most steps tried along one direction.
_TRIALS = 20
#: A gradient below this share of its terms is rounding, of float32 products or of float64 ones.
_ROUNDING_FLOAT32 = 1e-6
_ROUNDING = 1e-15


@dataclass(frozen=True)
class Lbfgs(Method):
    """L-BFGS that remembers `most_pairs` steps; W of the state is the point to try next."""

    #: W is no W(A): A is set from W only at the end.
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and the resulting dual point at W."""
        memory, point, passes = state.recalled(LbfgsMemory), state.point, 1
        if not problem.form.convex and memory.first is None:
            zero = np.zeros_like(point.W)
            at_zero = run(FindVertices(point.round, zero, envelope=True, exact=point.exact))
            steepness = squared_norm(gradient_of(problem, zero, at_zero))
            memory, passes = replace(memory, first=math.sqrt(steepness)), 2
        asked = memory.classes.asked
        stats = run(
            FindVertices(point.round, point.W, envelope=True, exact=point.exact, least_openness=asked)
        )
        value = problem.primal(point.W, stats.loss / problem.n)
        steepness = squared_norm(gradient_of(problem, point.W, stats))
        best = memory.best or BestPoint(point.W, value, steepness, value)
        best = best.or_better(point.W, value, steepness)
        memory = replace(memory, best=best)
        before = replace(with_loss_at_zero(problem, state, stats), memory=memory)
        if not problem.form.convex:
            objective = Objective.without_dual(best.value, _stationarity(best.steepness, memory))
            return Measurement(objective, before, stats, passes, W=best.W)
        proof = partial(of_answer, problem, before, stats) if are_proven(problem) else None
        measured = replace(at_gradient(problem, before, stats), proof=proof)
        return with_openness(problem, measured)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Accept the tried step and start along the next direction, or change the step."""
        before, stats = measured.before, measured.stats
        memory, exact, W = before.recalled(LbfgsMemory), before.point.exact, before.W
        line, pairs = memory.line, memory.pairs or Pairs()
        if line is not None and not pairs.steps and _is_of_all_rows(memory) and misled(problem, stats):
            return _without_metric(problem, measured, memory, line)
        value, gradient = problem.primal(W, stats.loss / problem.n), gradient_of(problem, W, stats)
        stalls = False
        if line is not None:
            slope = inner(gradient, line.direction)
            if not line.search.accepts(value, slope):
                search = line.search.after(value, slope)
                # A shorter step promises less than float32 sums resolve.
                unseen = not exact and -search.step * search.slope <= STALLED * abs(search.value)
                if unseen or search.trials >= _TRIALS:
                    return _without_progress(measured, replace(memory, pairs=Pairs()), bool(pairs.steps))
                memory = replace(memory, pairs=pairs)
                return _towards(measured, replace(line, search=search), memory)
            pairs = pairs.with_pair(W - line.base, gradient - line.gradient, most_pairs(problem))
            stalls = not exact and line.search.value - value <= STALLED * abs(value)
        norm, other = math.sqrt(squared_norm(W)), math.sqrt(squared_norm(W - gradient / problem.lam))
        rounding = (_ROUNDING if exact else _ROUNDING_FLOAT32) * problem.lam * (norm + other)
        if stalls or math.sqrt(squared_norm(gradient)) <= rounding:
            return _without_progress(measured, replace(memory, pairs=pairs))
        memory, metric, passes = _with_metric(problem, run, measured, pairs)
        line, pairs = _descent(problem, W, value, gradient, memory.pairs or pairs, metric)
        return _towards(measured, line, replace(memory, pairs=pairs), passes)

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, tol: float = 0.0
    ) -> FinalValues:
        """Return P and D of the best point by float64 products; without D, |grad P| at W."""
        if problem.form.convex:
            return super().final(problem, executor, state, tol)
        memory = state.recalled(LbfgsMemory)
        W = state.W if memory.best is None else memory.best.W
        stats = executor.run(FindVertices(state.round, W, envelope=True, exact=True))
        steepness = squared_norm(gradient_of(problem, W, stats))
        return FinalValues(
            W,
            conjugate_mean=math.nan,
            objective=Objective.without_dual(
                problem.primal(W, stats.loss / problem.n), _stationarity(steepness, memory)
            ),
            smoothed_gap=math.nan,
        )


def _descent(
    problem: Problem,
    W: Float64Array,
    value: float,
    gradient: Float64Array,
    pairs: Pairs,
    metric: Metric | None,
) -> tuple[Line, Pairs]:
    """Return the line along -H g, and the pairs; if that ascends, the line along -g and no pairs."""
    direction = -pairs.times(gradient, metric)
    slope = inner(gradient, direction)
    if slope < 0.0 and (pairs.steps or metric is not None):
        return Line(W, gradient, direction, Bracket.start(value, slope, 1.0)), pairs
    return _steepest(problem, W, value, gradient), Pairs()


def _steepest(problem: Problem, W: Float64Array, value: float, gradient: Float64Array) -> Line:
    """Return the line along -g."""
    steepness = squared_norm(gradient)
    search = Bracket.start(value, -steepness, gradient_step(problem, value, steepness))
    return Line(W, gradient, -gradient, search)


def _without_progress(measured: Measurement, memory: LbfgsMemory, lost: bool = False) -> Advance:
    """Restart at the best point with float64 products, or without pairs if these have `lost` a line.

    If steepest descent made no progress either, the run is finished.
    """
    point, best = measured.before.point, memory.best
    W = point.W if best is None else best.W
    # Values from float32 and float64 are not comparable.
    memory = replace(memory, line=None, best=best if point.exact else None)
    point = replace(point, round=point.round + 1, W=W)
    spent = not (point.exact and lost)
    return Advance(0.0, point, memory, active=measured.stats.active, passes=0, spent=spent)


def at_gradient(problem: Problem, state: SolverState, stats: VectorSums) -> Measurement:
    """Return the measurement of W by the loss and -grad Phi_gamma there, which form a dual point."""
    value = problem.primal(state.W, stats.loss / problem.n)
    steepness = squared_norm(gradient_of(problem, state.W, stats))
    dual, share = value - steepness / (2.0 * problem.lam), 1.0
    # Far from the optimum W(U) is so large that a multiple of U bounds P better.
    part, multiple = best_multiple(problem, problem.scale * product_of(stats), stats.conjugate_u / problem.n)
    if part < 1.0 and not dual > multiple:
        share, dual = part, multiple
    before = with_loss_at_zero(problem, state, stats)
    return Measurement(Objective(value, dual), before, stats, passes=1, dual_point=FoundAt(state.W, share))


def arrays_of_lbfgs(problem: Problem) -> int:
    """Return how many arrays of the shape of W are remembered: pairs, the best W, a line, and the metric."""
    metric = max(arrays_of_metric(problem), arrays_of_classes(problem))
    return 2 * most_pairs(problem) + 4 + metric


def unfit_for_lbfgs(problem: Problem) -> str | None:
    """Return why a problem is not for L-BFGS, or None."""
    if problem.form.smooth or problem.smoothing > 0:
        return None
    return (
        f"needs a smooth loss, which {problem.loss.name} is not: give smoothing > 0, or use softmax, "
        "topk_entropy or one_vs_all_logistic"
    )


def _with_metric(
    problem: Problem, run: Runner, measured: Measurement, pairs: Pairs
) -> tuple[LbfgsMemory, Metric | None, int]:
    """Return the memory with consistent pairs and the current metric, the metric, and its passes."""
    before, stats, passes = measured.before, measured.stats, 0
    memory = before.recalled(LbfgsMemory)
    classes = with_classes(problem, memory, measured)
    known = ClassMetric.of(problem, classes)
    if known is not None and classes.inverses is not memory.classes.inverses:
        pairs = pairs.consistent_with(known)
    # A single remaining pass is too few for a metric.
    if measured.passes_left >= 1 and wants_metric(problem, before, stats):
        rows = find_moments(problem, run)
        if rows is not None:
            alike = alike_classes(problem, rows, stats) if rows.basis is None else None
            classes = classes if alike is None else replace(classes, inverses=alike)
            memory, passes = replace(memory, rows=rows), 1
    memory = replace(memory, classes=classes, pairs=pairs)
    memory = replace(memory, classes=with_asked(problem, memory, measured))
    metric = ClassMetric.of(problem, memory.classes) or RowMetric.of(problem, memory.rows, stats)
    return memory, metric, passes


def _towards(measured: Measurement, line: Line, memory: LbfgsMemory, passes: int = 0) -> Advance:
    """Try the next step along a line."""
    step, point = line.search.step, measured.before.point
    point = replace(point, round=point.round + 1, W=line.base + step * line.direction)
    return Advance(step, point, replace(memory, line=line), measured.stats.active, passes)


def _is_of_all_rows(memory: LbfgsMemory) -> bool:
    """Return whether the metric of a first step is that of all rows."""
    if memory.classes.inverses is not None:
        return len(memory.classes.inverses) == 1
    return memory.rows.basis is not None


def _without_metric(problem: Problem, measured: Measurement, memory: LbfgsMemory, begun: Line) -> Advance:
    """Return to the start of the first step, and take the steepest descent from there."""
    line = _steepest(problem, begun.base, begun.search.value, begun.gradient)
    rows = RowMoments(moments=memory.rows.moments, misled=True)
    classes = replace(memory.classes, inverses=None)
    return _towards(measured, line, replace(memory, pairs=None, rows=rows, classes=classes))


def gradient_of(problem: Problem, W: Float64Array, stats: VectorSums) -> Float64Array:
    """Return grad P(W) = lam (W - W(U))."""
    return np.asarray(problem.lam * (W - problem.scale * product_of(stats)))


def _stationarity(steepness: float, memory: LbfgsMemory) -> float:
    """Return |grad P(W)| / |grad P(0)|, from the square of the first."""
    tiny = float(np.finfo(np.float64).tiny)
    return math.sqrt(steepness) / max(memory.first or 0.0, tiny)
