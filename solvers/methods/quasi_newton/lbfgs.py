"""L-BFGS on the primal, with the certificate that every gradient carries.

The gradient of P at W is lam (W - W(U)), where u_i = -grad Phi_gamma(W^T x_i) is dual feasible.  By Fenchel
and Young's equality the dual value of U is below P(W) by

    P(W) - D(U) = lam/2 |W - W(U)|^2 = |grad P(W)|^2 / (2 lam),

so an evaluation, one pass over the examples, gives P, its gradient and a dual bound.  Each round is one
evaluation: it tries a step, which is then taken or changed.  A loss that is not convex has no dual bound:
there the run ends where the gradient is small beside that at W = 0, and claims no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.block_stats import BlockStats
from topline.solvers.core.dual_points import FoundAt, best_multiple
from topline.solvers.core.problem import Problem, inner, squared_norm
from topline.solvers.core.requests import OracleRequest
from topline.solvers.core.state import SolverState
from topline.solvers.executors import RequestRunner
from topline.solvers.methods.base import Advance, Measurement, Method, Runner, product_of, with_loss_at_zero
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.methods.line_search import Bracket
from topline.solvers.methods.quasi_newton.class_metric import (
    CLASSES,
    ClassMetric,
    alike_classes,
    arrays_of_classes,
    least_openness,
    with_classes,
    with_least_openness,
    with_openness,
)
from topline.solvers.methods.quasi_newton.pairs import CURVATURES, Pairs, most_pairs
from topline.solvers.methods.quasi_newton.row_metric import (
    METRIC,
    RowMetric,
    arrays_of_metric,
    find_metric,
    misled,
    of_rows,
    wants_metric,
    without_metric,
)
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory` of which every round leaves one.
LEFT = "best_values", CURVATURES
#: Steps that are tried along one direction before it is given up.
_TRIALS = 20
#: A step that lowers P by a smaller share is where float64 products begin, and points whose P differ by less
#: are told apart by their gradients.
_STALLED = 1e-7
#: A gradient below this share of the terms that it is the difference of is rounding, of float32 products or
#: of float64 ones.
_ROUNDING_FLOAT32 = 1e-6
_ROUNDING = 1e-15


@dataclass(frozen=True)
class Lbfgs(Method):
    """L-BFGS that remembers `most_pairs` steps.

    In the state, W is the point to try next; its memory holds the point that the step starts from, the
    direction, the line search, the pairs, and the best point so far, which is what a run gives.
    """

    #: W is no W(A): only at the end does A become what belongs to W.
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        memory, passes = dict(state.memory), 1
        if not problem.form.convex and "first" not in memory:
            zero = np.zeros_like(state.W)
            at_zero = run(OracleRequest(state.round, zero, envelope=True, exact=state.exact))
            first = gradient_of(problem, zero, at_zero)
            memory["first"], passes = np.array([math.sqrt(squared_norm(first))]), 2
        least = least_openness(memory)
        stats = run(
            OracleRequest(state.round, state.W, envelope=True, exact=state.exact, least_openness=least)
        )
        value = problem.primal(state.W, stats.loss / problem.n)
        steepness = squared_norm(gradient_of(problem, state.W, stats))
        if _is_best(value, steepness, memory):
            lowest = min(value, float(memory["best_values"][2])) if "best_values" in memory else value
            memory |= {"best": state.W, "best_values": np.array([value, steepness, lowest])}
        before = replace(with_loss_at_zero(problem, state, stats), memory=memory)
        if not problem.form.convex:
            value, steepness = (float(v) for v in memory["best_values"][:2])
            return Measurement(
                value, math.nan, "none", before, stats, passes,
                stationarity=_stationarity(steepness, memory), W=memory["best"],
            )  # fmt: skip
        return with_openness(problem, at_gradient(problem, before, stats))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take the step that was tried and set off in the next direction, or change it."""
        before, stats = measured.before, measured.stats
        memory = before.memory
        value = problem.primal(before.W, stats.loss / problem.n)
        gradient = gradient_of(problem, before.W, stats)
        pairs = Pairs.of(memory)
        first_step = "line" in memory and not pairs.steps
        if first_step and _is_of_all_rows(memory) and misled(problem, stats):
            return _without_metric(measured)
        if "line" in memory:
            line = Bracket.of(memory["line"])
            slope = inner(gradient, memory["direction"])
            if not line.accepts(value, slope):
                line = line.after(value, slope)
                # A shorter step promises less than sums of float32 products tell.
                unseen = not before.exact and -line.step * line.slope <= _STALLED * abs(line.value)
                if unseen or line.trials >= _TRIALS:
                    return self._without_progress(measured, Pairs())
                W = memory["base"] + line.step * memory["direction"]
                return _towards(measured, W, line, {**memory, "line": line.to_array()})
            pairs = pairs.with_pair(
                before.W - memory["base"], gradient - memory["gradient"], most_pairs(problem)
            )
            if not before.exact and line.value - value <= _STALLED * abs(value):
                return self._without_progress(measured, pairs)
        rounding = _ROUNDING if before.exact else _ROUNDING_FLOAT32
        terms = problem.lam * (_norm(before.W) + _norm(before.W - gradient / problem.lam))
        if _norm(gradient) <= rounding * terms:
            return self._without_progress(measured, pairs)
        memory = with_classes(problem, memory, measured)
        if (renewed := _renewed(problem, memory, before)) is not None:
            pairs = pairs.that_hold(renewed)
        # A budget of a single pass has none for it, and such a run goes on without.
        found = {}
        if measured.passes_left >= 1 and wants_metric(problem, before, stats):
            found = find_metric(problem, run)
            found |= {} if METRIC[0] in found else alike_classes(problem, found, stats)
            memory = {**memory, **found}
        memory = with_least_openness(problem, memory, measured)
        metric = ClassMetric.of(problem, memory) or RowMetric.of(problem, memory, stats)
        direction = -pairs.times(gradient, metric)
        slope = inner(gradient, direction)
        if not slope < 0.0:
            pairs, metric, direction, slope = Pairs(), None, -gradient, -squared_norm(gradient)
        # P is not negative, so that without a scale the step at which its tangent is zero is not too short.
        scaled = metric is not None or pairs.steps
        line = Bracket.start(value, slope, 1.0 if scaled else value / -slope)
        remembered = {
            "base": before.W,
            "gradient": gradient,
            "direction": direction,
            "line": line.to_array(),
            **_kept(memory),
            **pairs.to_memory(),
        }
        towards = _towards(measured, before.W + line.step * direction, line, remembered)
        return replace(towards, passes=1) if found else towards

    def final(
        self,
        problem: Problem,
        executor: RequestRunner,
        state: SolverState,
        *,
        duals_kept: bool,
    ) -> FinalValues:
        """Return P and D of what was found best by float64 products; where there is no D, |grad P| at W."""
        if problem.form.convex:
            return super().final(problem, executor, state, duals_kept=duals_kept)
        W = state.memory.get("best", state.W)
        stats = executor.run(OracleRequest(state.round, W, envelope=True, exact=True))
        steepness = squared_norm(gradient_of(problem, W, stats))
        return FinalValues(
            W,
            conjugate_mean=math.nan,
            primal=problem.primal(W, stats.loss / problem.n),
            dual=math.nan,
            smoothed_gap=math.nan,
            stationarity=_stationarity(steepness, state.memory),
        )

    def _without_progress(self, measured: Measurement, pairs: Pairs) -> Advance:
        """Begin again at the best point with float64 products, or without pairs where these were in use.

        The run ends where the steepest descent had nothing to bring either.
        """
        before = measured.before
        tried = Pairs.of(before.memory).steps
        if before.exact and (pairs.steps or not tried):
            return Advance(0.0, moved=False, after=before, active=measured.stats.active, passes=0)
        after = replace(
            before,
            round=before.round + 1,
            W=before.memory["best"],
            exact=True,
            memory={**(_kept if before.exact else _without_best)(before.memory), **pairs.to_memory()},
        )
        return Advance(0.0, moved=True, after=after, active=measured.stats.active, passes=0)


def at_gradient(problem: Problem, state: SolverState, stats: BlockStats) -> Measurement:
    """Return the measurement of W by the loss and -grad Phi_gamma there, which make a dual point."""
    value = problem.primal(state.W, stats.loss / problem.n)
    steepness = squared_norm(gradient_of(problem, state.W, stats))
    dual, share = value - steepness / (2.0 * problem.lam), 1.0
    # Far from the optimum W(U) is so large that a part of U bounds P better.
    part, multiple = best_multiple(problem, problem.scale * product_of(stats), stats.conjugate_u / problem.n)
    if part < 1.0 and not dual > multiple:
        share, dual = part, multiple
    before = with_loss_at_zero(problem, state, stats)
    return Measurement(value, dual, "true", before, stats, passes=1, point=FoundAt(state.W, share))


def arrays_of_lbfgs(problem: Problem) -> int:
    """Return how many arrays of the shape of W are remembered.

    Those are the pairs, the best W, of a line all but its length, and the metric.
    """
    return 2 * most_pairs(problem) + 4 + max(arrays_of_metric(problem), arrays_of_classes(problem))


def unfit_for_lbfgs(problem: Problem) -> str | None:
    """Return why a problem is not for L-BFGS, or None."""
    if problem.form.smooth or problem.smoothing > 0:
        return None
    return (
        f"needs a smooth loss, which {problem.loss.name} is not: give smoothing > 0, or use softmax, "
        "topk_entropy or one_vs_all_logistic"
    )


def _is_best(value: float, steepness: float, memory: Mapping[str, Float64Array]) -> bool:
    """Return whether a point with this P and |grad P|^2 is better than those remembered."""
    if "best_values" not in memory or math.isnan(value):
        return "best_values" not in memory
    lowest = float(memory["best_values"][2])
    if value < (1.0 - _STALLED) * lowest:
        return True
    return value <= (1.0 + _STALLED) * lowest and steepness < memory["best_values"][1]


def _towards(
    measured: Measurement, W: Float64Array, line: Bracket, memory: Mapping[str, Float64Array]
) -> Advance:
    """Try W next."""
    before = measured.before
    after = replace(before, round=before.round + 1, W=W, memory=memory)
    return Advance(line.step, moved=True, after=after, active=measured.stats.active, passes=0)


def _renewed(problem: Problem, memory: Mapping[str, Float64Array], before: SolverState) -> ClassMetric | None:
    """Return the metric of the classes where it is another one than the state before had."""
    name = CLASSES[0]
    return None if memory.get(name) is before.memory.get(name) else ClassMetric.of(problem, memory)


def _is_of_all_rows(memory: Mapping[str, Float64Array]) -> bool:
    """Return whether what scales a first step is a metric of all rows."""
    if CLASSES[0] in memory:
        return len(memory[CLASSES[0]]) == 1
    return METRIC[0] in memory


def _without_metric(measured: Measurement) -> Advance:
    """Go back to where the first step began, and descend as the gradient does there."""
    memory = measured.before.memory
    base, gradient, value = memory["base"], memory["gradient"], Bracket.of(memory["line"]).value
    slope = -squared_norm(gradient)
    line = Bracket.start(value, slope, value / -slope)
    remembered = {
        "base": base,
        "gradient": gradient,
        "direction": -gradient,
        "line": line.to_array(),
        **without_metric({name: kept for name, kept in _kept(memory).items() if name != CLASSES[0]}),
    }
    return _towards(measured, base - line.step * gradient, line, remembered)


def _kept(memory: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """Return what is remembered whatever the direction."""
    names = ("first", "best", "best_values", *CLASSES)
    return {name: memory[name] for name in names if name in memory} | of_rows(memory)


def _without_best(memory: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """Return what stays where float64 begins: values of float32 are not to be compared with its own."""
    return {name: memory[name] for name in ("first", *CLASSES) if name in memory} | of_rows(memory)


def gradient_of(problem: Problem, W: Float64Array, stats: BlockStats) -> Float64Array:
    """Return grad P(W) = lam (W - W(U))."""
    return np.asarray(problem.lam * (W - problem.scale * product_of(stats)))


def _stationarity(steepness: float, memory: Mapping[str, Float64Array]) -> float:
    """Return |grad P(W)| / |grad P(0)|, from the square of the first."""
    tiny = float(np.finfo(np.float64).tiny)
    return math.sqrt(steepness) / max(float(memory["first"][0]), tiny)


def _norm(W: Float64Array) -> float:
    return math.sqrt(squared_norm(W))
