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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.answers import VectorSums
from topline.solvers.core.dual_points import FoundAt, best_multiple
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method, product_of, with_loss_at_zero
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.methods.quasi_newton.best_parts import at_best_of_parts, of_these_parts, with_best
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
from topline.solvers.methods.quasi_newton.class_turns import TURNS, with_asked, with_renewed
from topline.solvers.methods.quasi_newton.pairs import CURVATURES, Metric, Pairs, most_pairs
from topline.solvers.methods.quasi_newton.parts import NONE, Lines, Parts, chosen, gradient_steps
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
from topline.solvers.methods.quasi_newton.searches import Descent, Searches
from topline.solvers.operations import FindVertices, OperationRunner, Runner
from topline.solvers.typing import Float64Array

#: Names in `SolverState.memory` of which every round leaves one.
LEFT = "best_values", CURVATURES


@dataclass(frozen=True)
class Lbfgs(Method):
    """L-BFGS that remembers `most_pairs` steps.

    In the state, W is the point to try next; its memory holds the point that the step starts from, the
    direction, the line search of every part, the pairs, and the best point so far, which is what a run gives.
    """

    #: W is no W(A): only at the end does A become what belongs to W.
    follows_duals: ClassVar[bool] = False

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Evaluate P, its gradient and with it a dual point at W."""
        parts = Parts.of(problem)
        memory, passes = of_these_parts(problem, state.memory, parts), 1
        if not problem.form.convex and "first" not in memory:
            zero = np.zeros_like(state.W)
            at_zero = run(FindVertices(state.round, zero, envelope=True, exact=state.exact))
            first = gradient_of(problem, zero, at_zero)
            memory["first"], passes = np.array([math.sqrt(squared_norm(first))]), 2
        least = least_openness(memory)
        stats = run(
            FindVertices(state.round, state.W, envelope=True, exact=state.exact, least_openness=least)
        )
        gradient = gradient_of(problem, state.W, stats)
        memory |= with_best(
            memory, state.W, parts.values(problem, state.W, stats), parts.inner(gradient, gradient)
        )
        before = replace(with_loss_at_zero(problem, state, stats), memory=memory)
        if not problem.form.convex:
            value, steepness = (float(v) for v in memory["best_values"][:2])
            return Measurement(
                value, math.nan, "none", before, stats, passes,
                stationarity=_stationarity(steepness, memory), W=memory["best"],
            )  # fmt: skip
        measured = at_gradient(problem, before, stats)
        return at_best_of_parts(problem, measured) if parts.apart else with_openness(problem, measured)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take the steps that were tried and set off in the next direction, or change them."""
        before, stats, parts = measured.before, measured.stats, Parts.of(problem)
        memory = before.memory
        first_step = "line" in memory and not Pairs.of(memory, parts).steps
        if first_step and _is_of_all_rows(memory) and misled(problem, stats):
            return _without_metric(problem, measured, parts)
        values, gradient = parts.values(problem, before.W, stats), gradient_of(problem, before.W, stats)
        searches = Searches.of(problem, before, values, gradient)
        if searches.are_over(memory, exact=before.exact):
            return self._without_progress(measured, searches)
        lines, pairs, off, passes = searches.lines, searches.pairs, searches.off, 0
        direction = memory.get("direction", NONE)
        if off.any():
            memory, pairs, metric, passes = _with_metric(problem, run, measured, searches)
            descent = Descent.of(gradient, pairs, metric, off)
            pairs, direction = descent.pairs, chosen(off, descent.direction, direction)
            lines = descent.lines(problem, values).where(off, lines)
        base = chosen(searches.taken, before.W, memory.get("base", NONE))
        direction = chosen(~searches.rest, direction, NONE)
        remembered = {
            "base": base,
            "gradient": chosen(searches.taken, gradient, memory.get("gradient", NONE)),
            "direction": direction,
            "line": lines.to_array(),
            **_kept(memory),
            **pairs.to_memory(),
        }
        return replace(_towards(measured, base + lines.steps * direction, lines, remembered), passes=passes)

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
        W = state.memory.get("best", state.W)
        stats = executor.run(FindVertices(state.round, W, envelope=True, exact=True))
        steepness = squared_norm(gradient_of(problem, W, stats))
        return FinalValues(
            W,
            conjugate_mean=math.nan,
            primal=problem.primal(W, stats.loss / problem.n),
            dual=math.nan,
            smoothed_gap=math.nan,
            stationarity=_stationarity(steepness, state.memory),
        )

    def _without_progress(self, measured: Measurement, searches: Searches) -> Advance:
        """Begin again at the best point with float64 products, or without pairs where these were in use.

        The run ends where the steepest descent had nothing to bring either.
        """
        before, pairs = measured.before, searches.pairs
        if before.exact and not searches.lost.any():
            return Advance(0.0, moved=False, after=before, active=measured.stats.active, passes=0)
        after = replace(
            before,
            round=before.round + 1,
            W=before.memory["best"],
            exact=True,
            memory={**(_kept if before.exact else _without_best)(before.memory), **pairs.to_memory()},
        )
        return Advance(0.0, moved=True, after=after, active=measured.stats.active, passes=0)


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
    return Measurement(value, dual, "true", before, stats, passes=1, point=FoundAt(state.W, share))


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
) -> tuple[Mapping[str, Float64Array], Pairs, Metric | None, int]:
    """Return the memory with the metric as it is now, the pairs that hold, the metric, and passes for it."""
    before, stats, pairs = measured.before, measured.stats, searches.pairs
    apart, passes = pairs.parts.apart, 0
    if apart:
        memory, renewed = with_renewed(problem, before.memory, measured, searches.off, searches.tried)
        pairs = pairs.of_parts(~renewed)
    else:
        memory = with_classes(problem, before.memory, measured)
        known = ClassMetric.of(problem, memory)
        if known is not None and memory[CLASSES[0]] is not before.memory.get(CLASSES[0]):
            pairs = pairs.that_hold(known)
    # A budget of a single pass has none for it, and such a run goes on without.
    if measured.passes_left >= 1 and wants_metric(problem, before, stats):
        found = find_metric(problem, run)
        found |= {} if METRIC[0] in found else alike_classes(problem, found, stats)
        memory, passes = {**memory, **found}, int(bool(found))
    if apart:
        memory = with_asked(problem, memory, measured, searches.off)
    else:
        memory = with_least_openness(problem, memory, measured)
    metric = ClassMetric.of(problem, memory) or RowMetric.of(problem, memory, stats)
    return memory, pairs, metric, passes


def _towards(
    measured: Measurement, W: Float64Array, lines: Lines, memory: Mapping[str, Float64Array]
) -> Advance:
    """Try W next."""
    before = measured.before
    after = replace(before, round=before.round + 1, W=W, memory=memory)
    return Advance(float(lines.steps.mean()), moved=True, after=after, active=measured.stats.active, passes=0)


def _is_of_all_rows(memory: Mapping[str, Float64Array]) -> bool:
    """Return whether what scales a first step is a metric of all rows."""
    if CLASSES[0] in memory:
        return len(memory[CLASSES[0]]) == 1
    return METRIC[0] in memory


def _without_metric(problem: Problem, measured: Measurement, parts: Parts) -> Advance:
    """Go back to where the first step began, and descend as the gradient does there."""
    memory = measured.before.memory
    base, gradient, begun = memory["base"], memory["gradient"], Lines.of(memory["line"])
    slopes = -parts.inner(gradient, gradient) * (begun.slopes < 0.0)
    lines = Lines.start(begun.values, slopes, gradient_steps(problem, begun.values, slopes))
    remembered = {
        "base": base,
        "gradient": gradient,
        "direction": -gradient,
        "line": lines.to_array(),
        **without_metric({name: kept for name, kept in _kept(memory).items() if name != CLASSES[0]}),
    }
    return _towards(measured, base - lines.steps * gradient, lines, remembered)


def _kept(memory: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """Return what is remembered whatever the direction."""
    names = ("first", "best", "best_values", *CLASSES, TURNS)
    return {name: memory[name] for name in names if name in memory} | of_rows(memory)


def _without_best(memory: Mapping[str, Float64Array]) -> dict[str, Float64Array]:
    """Return what stays where float64 begins: values of float32 are not to be compared with its own."""
    return {name: memory[name] for name in ("first", *CLASSES, TURNS) if name in memory} | of_rows(memory)


def gradient_of(problem: Problem, W: Float64Array, stats: VectorSums) -> Float64Array:
    """Return grad P(W) = lam (W - W(U))."""
    return np.asarray(problem.lam * (W - problem.scale * product_of(stats)))


def _stationarity(steepness: float, memory: Mapping[str, Float64Array]) -> float:
    """Return |grad P(W)| / |grad P(0)|, from the square of the first."""
    tiny = float(np.finfo(np.float64).tiny)
    return math.sqrt(steepness) / max(float(memory["first"][0]), tiny)


def _norm(W: Float64Array) -> float:
    return math.sqrt(squared_norm(W))
