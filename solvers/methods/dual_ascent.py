"""Dual block ascent: every block makes exact column updates on its own, one line search joins the blocks.

Each round measures the gap at W, lets every block find a change dA of its own dual rows from there, and
steps along the summed change: D(A + g dA) is a parabola in g whose coefficients are the sums that the blocks
return, so the best g in [0, 1] is known exactly and the dual never decreases, for any number of blocks.  For
a loss whose conjugate is not linear the parabola is a lower bound of D, because -Phi* is concave, which
touches it at g = 0 and g = 1: the dual still never decreases.

Blocks that move at the same time overshoot together, so each takes the curvature for larger than it is, by
a safety factor (sigma' of CoCoA).  How much they need depends on the data and on C, and the line search
tells: where the top of the parabola lies before g = 1 they have overshot.  The factor follows it, quickly up
and slowly down.

A run that starts from the dual variables of nearly the same problem knows how its first rounds end: not
solved.  On one block they are not measured, begin with the rows whose alpha_i is not 0, for a fraction of
a pass, and end by the gap of the rows that they visit: a lower bound of that which a pass over all measures.
Where that bound is within the tolerance the certificate follows at once, in the place of a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core import deflation
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.deflation import DeflatedDirection
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import (
    Advance,
    Measurement,
    Method,
    change_of,
    may_be_separated,
    measured_at,
    rises,
    stepped,
    with_stretched,
)
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import Ascend, Evaluate, Runner
from topline.solvers.typing import Float64Array

#: Sweeps of the first rounds, for easy problems are solved by then, and of a stage in all later ones.
_SWEEPS = (1, 2, 3, 6)
#: Sweeps where several blocks move: what more of them bring on one block, the others undo.
_SWEEPS_TOGETHER = 2
#: The safety factor at first is this power of the number of blocks,
_SAFETY_POWER = 0.7
#: and from one round to the next it changes by these factors at most.
_SAFETY_DOWN, _SAFETY_UP = 0.95, 2.0
#: Passes after which rows are looked for that look alike and have different labels, at a gap of so many times
#: the tolerance: that takes up to a pass.
_SLOW, _FAR = 25, 100.0
#: Name in `SolverState.memory` of whether they are moved together.
_ALIKE = "ascent.alike"
#: Name of the safety factor in `SolverState.memory`.
_SAFETY_FACTOR = "ascent.spread"
#: Name in `SolverState.memory` of a start from nearly the right dual variables: the tolerance, the passes
#: that its rounds have taken which were not measured, a fraction, and how many of them are still to come.
_WARM = "ascent.near"
#: So many of its rounds are not measured: one of the rows with alpha_i != 0 alone, until their gap is so
#: many times the tolerance, and one of all rows.  A smooth loss has no other rows, and takes one round.
_UNMEASURED, _LOOSE = 2, 10.0
#: The share of the gap ending a run that is enough in the rows that a round still visits: those at rest
#: have some too.
_SURE = 0.8
#: A rise of the dual below this share of the gap, and of the dual itself, says that float32 has nothing more
#: to give: a round of sweeps otherwise closes a tenth of the distance or so.
_STALLED = 1e-3
#: A relative gap from which on A is kept in float64: rounded to float32 it is feasible to a few times 6e-8.
_SINGLE = 1e-5


@dataclass(frozen=True)
class DualAscent(Method):
    """Dual block ascent with exact column updates.

    `blocks` is the number of blocks that move at the same time, `seed` fixes the random orders.
    """

    blocks: int = 1
    seed: int = 0
    advances_by_passes: ClassVar[bool] = True
    #: Whether several blocks keep the direction that all examples share apart
    #: (`topline.solvers.core.deflation`).
    deflates: ClassVar[bool] = True
    #: Whether rows that look alike and have different labels are moved together.
    joins: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W; with smoothing the gap is the true one: the upper bound closes far more slowly."""
        if (bounds := _bounds_at_zero(problem, state)) is not None:
            return bounds
        looks = self.deflates and self.blocks > 1 and not deflation.looked_for(state.memory)
        stretched = may_be_separated(problem, state)
        stats = run(
            Evaluate(state.W, state.pending_step, exact=state.exact, total=looks, stretched=stretched)
        )
        mean_sq_dual = stats.alpha_sq / problem.n
        # Where it is no linear function the line search knew only a bound of it.
        conjugate_mean = (
            state.conjugate_mean if problem.form.linear_conjugate else stats.conjugate_alpha / problem.n
        )
        primal = problem.primal(state.W, stats.loss / problem.n)
        dual = problem.dual(state.W, conjugate_mean, mean_sq_dual)
        memory = state.memory
        if looks:
            memory = deflation.found(problem, stats.row_sum, stats.row_sq, self.blocks)
        measured = measured_at(
            problem, state, stats, primal, dual,
            conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual, memory=memory,
        )  # fmt: skip
        return with_stretched(problem, measured) if stretched else measured

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Let the blocks sweep, and step along their summed change."""
        before = measured.before
        # A run that was begun on several blocks may go on in one, which needs no direction apart.
        shared = deflation.remembered(before.memory) if self.blocks > 1 else None
        apart, memory = None, before.memory
        if shared is not None:
            apart, memory = deflation.drawn_to_point(shared, before.W, before.memory)
        alike = self.joins and (_ALIKE in memory or _is_slow(measured))
        if alike:
            memory = {**memory, _ALIKE: np.ones(1)}
        stats = run(replace(self._request(problem, measured, shared, apart), alike=alike))
        direction = change_of(problem, before.W, stats)
        step = ExactStep().step(before.round, direction)
        rise = direction.rise(step)
        gap = measured.primal - measured.dual
        unmeasured = unmeasured_rounds(before)
        stalled = unmeasured == 0 and (
            rise < _STALLED * min(gap, measured.dual + rise) or gap < _SINGLE * abs(measured.primal)
        )
        stuck = before.exact and not rises(direction)
        if stuck and shared is not None:
            memory = deflation.without()
        passes = math.ceil(stats.visited / problem.n)
        if unmeasured:
            memory, passes = _one_less(memory, stats.visited / problem.n)
        after = replace(
            stepped(before, direction, step),
            exact=before.exact or stalled,
            pending_step=PendingStep(round=before.round, step=step),
            memory=memory
            if self.blocks == 1
            else {**memory, _SAFETY_FACTOR: self._next_safety_factor(before, direction)},
        )
        return Advance(
            step=step,
            # A round that brings nothing in float32 is the occasion to go over to float64, and one that
            # brings nothing with a direction kept apart to do without it; neither is the end.
            moved=not stuck or shared is not None or unmeasured > 0,
            after=after,
            active=stats.active,
            passes=passes,
            claims=self.blocks == 1 and _WARM in before.memory and stats.left <= _enough(problem, before),
        )

    def _request(
        self,
        problem: Problem,
        measured: Measurement,
        shared: DeflatedDirection | None,
        apart: Float64Array | None,
    ) -> Ascend:
        """Return the request by which the blocks find their changes."""
        state = measured.before
        warm, enough = _WARM in state.memory, 0.0
        if warm:
            enough = _enough(problem, state)
        elif self.blocks == 1:
            enough = _SURE * measured.tol * max(measured.dual, 0.0) * problem.n
        support = unmeasured_rounds(state) == _UNMEASURED
        return Ascend(
            round=state.round,
            W=state.W,
            pending_step=state.pending_step,
            sweeps=self._sweeps(problem, state),
            safety_factor=self._safety_factor(state),
            seed=self.seed,
            exact=state.exact,
            shared=shared,
            apart=apart,
            warm=warm,
            support=support,
            enough=_LOOSE * enough if support else enough,
        )

    def _sweeps(self, problem: Problem, state: SolverState) -> int:
        """Return how many sweeps the request of a round asks for."""
        if self.blocks > 1:
            return _SWEEPS_TOGETHER
        warm = _WARM in state.memory and not problem.form.smooth
        return _SWEEPS[-1 if warm else min(state.round, len(_SWEEPS) - 1)]

    def _safety_factor(self, state: SolverState) -> float:
        """Return the factor on the curvature that blocks take in this round, 1 for a single one."""
        known = state.memory.get(_SAFETY_FACTOR)
        return (
            float(self.blocks**_SAFETY_POWER) if known is None else min(float(known[0]), float(self.blocks))
        )

    def _next_safety_factor(self, state: SolverState, direction: Direction) -> Float64Array:
        """Return the factor for the next round, after a change whose best step was slope / curvature."""
        overshot = 1.0
        if direction.slope > 0.0 and direction.curvature > 0.0:
            overshot = min(max(direction.curvature / direction.slope, _SAFETY_DOWN), _SAFETY_UP)
        return np.array([min(max(self._safety_factor(state) * overshot, 1.0), float(self.blocks))])


def warm_memory(problem: Problem, tol: float, passes: float, *, blocks: int) -> dict[str, Float64Array]:
    """Return what a state remembers that starts near the optimum, after a fraction of a pass."""
    unmeasured = 0 if blocks > 1 else 1 if problem.form.smooth else _UNMEASURED
    return {_WARM: np.array([tol, passes, unmeasured])}


def _is_slow(measured: Measurement) -> bool:
    """Return whether a run has taken many passes and is far from its end."""
    state = measured.before
    far = state.best_primal - measured.dual > _FAR * measured.tol * abs(state.best_primal)
    return far and state.passes >= _SLOW and unmeasured_rounds(state) == 0


def _enough(problem: Problem, state: SolverState) -> float:
    """Return n (P - D) where a state that started near the optimum is within the tolerance."""
    dual = problem.dual(state.W, state.conjugate_mean, state.mean_sq_dual)
    return float(state.memory[_WARM][0]) * abs(dual) * problem.n


def unmeasured_rounds(state: SolverState) -> int:
    """Return how many rounds there are to be yet that are not measured."""
    return int(state.memory[_WARM][2]) if _WARM in state.memory else 0


def _bounds_at_zero(problem: Problem, state: SolverState) -> Measurement | None:
    """Return P(0) and D(A), which take no pass, before a round that is not measured."""
    if unmeasured_rounds(state) == 0 or state.primal_at_zero is None:
        return None
    dual = problem.dual(state.W, state.conjugate_mean, state.mean_sq_dual)
    zero = np.zeros_like(state.W)
    return Measurement(
        state.primal_at_zero, dual, "true", state, BlockStats(rows=problem.n), passes=0, W=zero
    )


def _one_less(memory: Mapping[str, Float64Array], passes: float) -> tuple[Mapping[str, Float64Array], int]:
    """Return a memory after a round that was not measured, and the whole passes that its fraction makes."""
    tol, spent, rounds = (float(value) for value in memory[_WARM])
    now = spent + passes
    return {**memory, _WARM: np.array([tol, now, rounds - 1.0])}, math.ceil(now) - math.ceil(spent)


@dataclass(frozen=True)
class Sdca(DualAscent):
    """Plain stochastic dual coordinate ascent (Lapin's thesis, algorithm 1).

    DualAscent whose rounds are one sweep each: a block visits every row once, and none again, nothing is
    extrapolated, no rows are moved together and no direction kept apart.
    """

    deflates: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    def _sweeps(self, problem: Problem, state: SolverState) -> int:  # noqa: ARG002 - as in every round
        return 1
