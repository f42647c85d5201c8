"""L-BFGS on the primal, with the certificate that every gradient carries.

The gradient of P at W is lam (W - W(U)), where u_i = -grad Phi_gamma(W^T x_i) is dual feasible.  By Fenchel
and Young's equality the dual value of U is below P(W) by

    P(W) - D(U) = lam/2 |W - W(U)|^2 = |grad P(W)|^2 / (2 lam),

so an evaluation, one pass over the examples, gives P, its gradient and a dual bound.  Each round is one
evaluation: it tries a step, which is then taken or changed; where P is a sum over the classes, one of each
class (`parts`).  A loss that is not convex has no dual bound: there the run ends where the gradient is small
beside that at W = 0, and claims no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.answers import VectorSums
from topline.solvers.core.dual_points import FoundAt, best_multiple
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, product_of, with_loss_at_zero
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.methods.quasi_newton.memory import (
    NONE,
    STALLED,
    BestParts,
    LbfgsMemory,
    Line,
    Lines,
    Metric,
    Pairs,
    Parts,
    RowMoments,
    chosen,
    gradient_steps,
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
    with_renewed,
    with_turns,
)
from topline.solvers.operations import FindVertices, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Steps that are tried along one direction before it is given up.
_TRIALS = 20
#: A gradient below this share of the terms that it is the difference of is rounding, of float32 products or
#: of float64 ones.
_ROUNDING_FLOAT32 = 1e-6
_ROUNDING = 1e-15


@dataclass(frozen=True, eq=False)
class Searches:
    """The line searches after an evaluation.

    Attributes
    ----------
    lines : with another step to try where that is to be.
    taken : parts whose step is good enough.
    rest : parts that find nowhere to go, now or before.
    lost : those of them whose line, made of pairs, led nowhere: without these there may be another.
    pairs : with the steps taken, and without those of a line that led nowhere.
    """

    lines: Lines
    taken: NDArray[np.bool_]
    rest: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    pairs: Pairs

    @classmethod
    def of(cls, problem: Problem, before: SolverState, values: Float64Array, gradient: Float64Array) -> Self:
        """Return them after an evaluation that gave P of the parts, and the gradient."""
        memory, parts, exact = before.recalled(LbfgsMemory), Parts.of(problem), before.point.exact
        pairs, line = memory.pairs or Pairs(parts=parts), memory.line
        rest = lost = np.zeros(len(values), dtype=np.bool_)
        taken, lines = ~rest, Lines.start(values, np.zeros_like(values), np.ones_like(values))
        if line is not None:
            lines = line.lines
            rested, slopes = lines.slopes == 0.0, parts.inner(gradient, line.direction)
            taken = rested | lines.accept(values, slopes)
            lines = lines.after(values, slopes, taken)
            # A shorter step promises less than sums of float32 products tell.
            unseen = -lines.steps * lines.slopes <= STALLED * np.abs(lines.values)
            vain = ~taken & ((unseen & (not exact)) | (lines.trials >= _TRIALS))
            stalled = taken & (lines.values - values <= STALLED * np.abs(values)) & (not exact)
            rest, lost = rested | vain | stalled, (vain & pairs.known) | (rested & (lines.trials > 0))
            if taken.any():
                step = chosen(taken, before.W - line.base, NONE)
                change = chosen(taken, gradient - line.gradient, NONE)
                pairs = pairs.with_pair(step, change, most_pairs(problem))
            pairs = pairs.of_parts(~vain)
        rounding = _ROUNDING if exact else _ROUNDING_FLOAT32
        terms = problem.lam * (parts.norm(before.W) + parts.norm(before.W - gradient / problem.lam))
        rest = rest | (taken & (parts.norm(gradient) <= rounding * terms))
        return cls(lines.at_rest(rest, lost), taken, rest, lost, pairs)

    @property
    def tried(self) -> NDArray[np.bool_]:
        """The parts that try another step."""
        return ~self.taken & ~self.rest

    @property
    def off(self) -> NDArray[np.bool_]:
        """The parts that set off in another direction."""
        return self.taken & ~self.rest

    def are_over(self, memory: LbfgsMemory, *, exact: bool) -> bool:
        """Return whether no part goes on, or those that float32 cannot move have most of the gap."""
        if exact or memory.best is None or not self.rest.any():
            return bool(self.rest.all())
        gaps = memory.best.steepness
        return bool(self.rest.all() or gaps[self.rest].sum() >= gaps[~self.rest].sum())


@dataclass(frozen=True, eq=False)
class Descent:
    """A direction of descent, for the parts that set off.

    Attributes
    ----------
    direction : (d, m), and the slopes along it, 0 of other parts.
    scaled : the parts in which pairs or a metric have made it.
    pairs : those that it was made with.
    """

    direction: Float64Array
    slopes: Float64Array
    scaled: NDArray[np.bool_]
    pairs: Pairs

    @classmethod
    def of(cls, gradient: Float64Array, pairs: Pairs, metric: Metric | None, off: NDArray[np.bool_]) -> Self:
        """Return it for a gradient; where pairs lead up, that of the gradient itself."""
        inner = pairs.parts.inner
        direction = -pairs.times(gradient, metric)
        slopes = inner(gradient, direction)
        wrong = off & ~(slopes < 0.0)
        if wrong.any():
            pairs, direction = pairs.of_parts(~wrong), chosen(wrong, -gradient, direction)
            slopes = np.where(wrong, -inner(gradient, gradient), slopes)
        scaled = ~wrong & (pairs.known if metric is None else True)
        return cls(direction, np.where(off, slopes, 0.0), scaled, pairs)

    def lines(self, problem: Problem, values: Float64Array) -> Lines:
        """Return the searches along it, from P of every part; where that is scaled the first step is 1."""
        steps = np.ones_like(values)
        if not self.scaled.all():
            steps = np.where(self.scaled, steps, gradient_steps(problem, values, self.slopes))
        return Lines.start(values, self.slopes, steps)


@dataclass(frozen=True)
class Lbfgs(Method):
    """L-BFGS that remembers `most_pairs` steps; in the state, W is the point to try next."""

    #: W is no W(A): only at the end does A become what belongs to W.
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        parts, memory, point, passes = Parts.of(problem), state.recalled(LbfgsMemory), state.point, 1
        if not problem.form.convex and memory.first is None:
            zero = np.zeros_like(point.W)
            at_zero = run(FindVertices(point.round, zero, envelope=True, exact=point.exact))
            steepness = squared_norm(gradient_of(problem, zero, at_zero))
            memory, passes = replace(memory, first=math.sqrt(steepness)), 2
        stats = run(
            FindVertices(
                point.round, point.W, envelope=True, exact=point.exact, least_openness=memory.classes.asked
            )
        )
        gradient = gradient_of(problem, point.W, stats)
        here = parts.values(problem, point.W, stats), parts.inner(gradient, gradient)
        best = memory.best
        best = BestParts(point.W, *here, here[0]) if best is None else best.with_point(point.W, *here)
        memory = replace(memory, best=best)
        before = replace(with_loss_at_zero(problem, state, stats), memory=memory)
        if not problem.form.convex:
            return Measurement(
                Objective.without_dual(
                    float(best.values[0]), _stationarity(float(best.steepness[0]), memory)
                ),
                before, stats, passes, W=best.W,
            )  # fmt: skip
        measured = at_gradient(problem, before, stats)
        return _at_best_of_parts(problem, measured, best) if parts.apart else with_openness(problem, measured)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take the steps that were tried and set off in the next direction, or change them."""
        before, stats, parts = measured.before, measured.stats, Parts.of(problem)
        memory = before.recalled(LbfgsMemory)
        begun = memory.line
        first_step = begun is not None and not (memory.pairs and memory.pairs.steps)
        if begun is not None and first_step and _is_of_all_rows(memory) and misled(problem, stats):
            return _without_metric(problem, measured, memory, begun)
        values, gradient = parts.values(problem, before.W, stats), gradient_of(problem, before.W, stats)
        searches = Searches.of(problem, before, values, gradient)
        if searches.are_over(memory, exact=before.point.exact):
            return _without_progress(measured, memory, searches)
        lines, pairs, off, passes = searches.lines, searches.pairs, searches.off, 0
        direction = NONE if begun is None else begun.direction
        if off.any():
            memory, pairs, metric, passes = _with_metric(problem, run, measured, searches)
            descent = Descent.of(gradient, pairs, metric, off)
            pairs, direction = descent.pairs, chosen(off, descent.direction, direction)
            lines = descent.lines(problem, values).where(off, lines)
        line = Line(
            base=chosen(searches.taken, before.W, NONE if begun is None else begun.base),
            gradient=chosen(searches.taken, gradient, NONE if begun is None else begun.gradient),
            direction=chosen(~searches.rest, direction, NONE),
            lines=lines,
        )
        return _towards(measured, line, replace(memory, pairs=pairs), passes)

    def final(
        self,
        problem: Problem,
        executor: OperationRunner,
        state: SolverState,
        *,
        duals_kept: bool,
    ) -> FinalValues:
        """Return P and D of what was found best by float64 products; where there is no D, |grad P| at W."""
        if problem.form.convex:
            return super().final(problem, executor, state, duals_kept=duals_kept)
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


def _without_progress(measured: Measurement, memory: LbfgsMemory, searches: Searches) -> Advance:
    """Begin again at the best point with float64 products, or without pairs where these were in use.

    Nothing more is to be had where the steepest descent had nothing to bring either.
    """
    point, best = measured.before.point, memory.best
    spent = not (point.exact and searches.lost.any())
    W = point.W if best is None else best.W
    # Values of float32 are not to be compared with those of float64.
    memory = replace(memory, line=None, pairs=searches.pairs, best=best if point.exact else None)
    point = replace(point, round=point.round + 1, W=W)
    return Advance(0.0, point, memory, active=measured.stats.active, passes=0, spent=spent)


def _at_best_of_parts(problem: Problem, measured: Measurement, best: BestParts) -> Measurement:
    """Let a measurement stand for the best point: each class has P there, and D from its gradient."""
    measured = measured.with_primal(float(best.values.sum()), best.W)
    dual = measured.primal - float(best.steepness.sum()) / (2.0 * problem.lam)
    if measured.dual > dual:
        return measured
    return replace(measured, objective=replace(measured.objective, dual=dual), dual_point=FoundAt(best.W))


def at_gradient(problem: Problem, state: SolverState, stats: VectorSums) -> Measurement:
    """Return the measurement of W by the loss and -grad Phi_gamma there, which make a dual point."""
    value = problem.primal(state.W, stats.loss / problem.n)
    steepness = squared_norm(gradient_of(problem, state.W, stats))
    dual, share = value - steepness / (2.0 * problem.lam), 1.0
    # Far from the optimum W(U) is so large that a part of U bounds P better.
    part, multiple = best_multiple(problem, problem.scale * product_of(stats), stats.conjugate_u / problem.n)
    if part < 1.0 and not dual > multiple:
        share, dual = part, multiple
    before = with_loss_at_zero(problem, state, stats)
    return Measurement(Objective(value, dual), before, stats, passes=1, dual_point=FoundAt(state.W, share))


def arrays_of_lbfgs(problem: Problem) -> int:
    """Return how many arrays of the shape of W are remembered.

    Those are the pairs, the best W, of a line all but its length, which class by class is there before and
    after, and the metric.
    """
    line = 6 if Parts.of(problem).apart else 3
    return 2 * most_pairs(problem) + 1 + line + max(arrays_of_metric(problem), arrays_of_classes(problem))


def unfit_for_lbfgs(problem: Problem) -> str | None:
    """Return why a problem is not for L-BFGS, or None."""
    if problem.form.smooth or problem.smoothing > 0:
        return None
    return (
        f"needs a smooth loss, which {problem.loss.name} is not: give smoothing > 0, or use softmax, "
        "topk_entropy or one_vs_all_logistic"
    )


def _with_metric(
    problem: Problem, run: Runner, measured: Measurement, searches: Searches
) -> tuple[LbfgsMemory, Pairs, Metric | None, int]:
    """Return the memory with the metric as it is now, the pairs that hold, the metric, and passes for it."""
    before, stats, pairs = measured.before, measured.stats, searches.pairs
    memory, apart, passes = before.recalled(LbfgsMemory), pairs.parts.apart, 0
    if apart:
        classes, renewed = with_renewed(problem, memory, measured, searches.off, searches.tried)
        pairs = pairs.of_parts(~renewed)
    else:
        classes = with_classes(problem, memory, measured)
        known = ClassMetric.of(problem, classes)
        if known is not None and classes.inverses is not memory.classes.inverses:
            pairs = pairs.consistent_with(known)
    # A budget of a single pass has none for it, and such a run goes on without.
    if measured.passes_left >= 1 and wants_metric(problem, before, stats):
        rows = find_moments(problem, run)
        if rows is not None:
            alike = alike_classes(problem, rows, stats) if rows.basis is None else None
            classes = classes if alike is None else replace(classes, inverses=alike)
            memory, passes = replace(memory, rows=rows), 1
    memory = replace(memory, classes=classes)
    ask = partial(with_turns, off=searches.off) if apart else with_asked
    memory = replace(memory, classes=ask(problem, memory, measured))
    metric = ClassMetric.of(problem, memory.classes) or RowMetric.of(problem, memory.rows, stats)
    return memory, pairs, metric, passes


def _towards(measured: Measurement, line: Line, memory: LbfgsMemory, passes: int = 0) -> Advance:
    """Try the next step along a line."""
    steps, point = line.lines.steps, measured.before.point
    point = replace(point, round=point.round + 1, W=line.base + steps * line.direction)
    active = measured.stats.active
    return Advance(float(steps.mean()), point, replace(memory, line=line), active, passes)


def _is_of_all_rows(memory: LbfgsMemory) -> bool:
    """Return whether what scales a first step is a metric of all rows."""
    if memory.classes.inverses is not None:
        return len(memory.classes.inverses) == 1
    return memory.rows.basis is not None


def _without_metric(problem: Problem, measured: Measurement, memory: LbfgsMemory, begun: Line) -> Advance:
    """Go back to where the first step began, and descend as the gradient does there."""
    gradient, values = begun.gradient, begun.lines.values
    slopes = -Parts.of(problem).inner(gradient, gradient) * (begun.lines.slopes < 0.0)
    lines = Lines.start(values, slopes, gradient_steps(problem, values, slopes))
    rows = RowMoments(moments=memory.rows.moments, misled=True)
    classes = replace(memory.classes, inverses=None)
    line = Line(begun.base, gradient, -gradient, lines)
    return _towards(measured, line, replace(memory, pairs=None, rows=rows, classes=classes))


def gradient_of(problem: Problem, W: Float64Array, stats: VectorSums) -> Float64Array:
    """Return grad P(W) = lam (W - W(U))."""
    return np.asarray(problem.lam * (W - problem.scale * product_of(stats)))


def _stationarity(steepness: float, memory: LbfgsMemory) -> float:
    """Return |grad P(W)| / |grad P(0)|, from the square of the first."""
    tiny = float(np.finfo(np.float64).tiny)
    return math.sqrt(steepness) / max(memory.first or 0.0, tiny)
