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
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.answers import LossAnswer
from topline.solvers.core.codec import stored
from topline.solvers.core.deflation import Deflation
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Point, SolverState
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
#: So many rounds of a near start are not measured: one of the rows with alpha_i != 0 alone, until their gap
#: is so many times the tolerance, and one of all rows.  A smooth loss has no other rows, and takes one round.
_UNMEASURED, _LOOSE = 2, 10.0
#: The share of the gap ending a run that is enough in the rows that a round still visits: those at rest
#: have some too.
_SURE = 0.8
#: A rise of the dual below this share of the gap, and of the dual itself, says that float32 has nothing more
#: to give: a round of sweeps otherwise closes a tenth of the distance or so.
_STALLED = 1e-3


@stored
@dataclass(frozen=True, eq=False)
class NearStart:
    """A start from nearly the right dual variables, for a run to the relative gap `tol`.

    `rounds` of it that are not measured are yet to come, and those so far have taken `passes`, a fraction.
    """

    tol: float
    passes: float
    rounds: int

    @classmethod
    def of(cls, problem: Problem, tol: float, passes: float, blocks: int) -> NearStart:
        """Return the start after a fraction of a pass."""
        return cls(tol, passes, 0 if blocks > 1 else 1 if problem.form.smooth else _UNMEASURED)

    def after(self, passes: float) -> tuple[NearStart, int]:
        """Return the start after a round that was not measured, and the whole passes that it completes."""
        spent = self.passes + passes
        whole = math.ceil(spent) - math.ceil(self.passes)
        return replace(self, passes=spent, rounds=self.rounds - 1), whole


@stored
@dataclass(frozen=True, eq=False)
class AscentMemory:
    """What dual ascent remembers.

    Attributes
    ----------
    near : the start from nearly the right dual variables, None of any other.
    alike : whether rows that look alike and have different labels are moved together.
    safety_factor : that of the next round where several blocks move, None in the first.
    deflation : the direction that blocks share, None before it was looked for.
    """

    near: NearStart | None = None
    alike: bool = False
    safety_factor: float | None = None
    deflation: Deflation | None = None

    @property
    def unmeasured(self) -> int:
        """How many rounds there are to be yet that are not measured."""
        return 0 if self.near is None else self.near.rounds


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
        memory, point = state.recalled(AscentMemory), state.point
        if memory.unmeasured and state.primal_at_zero is not None:
            return _bounds_at_zero(problem, state, state.primal_at_zero)
        looks = self.deflates and self.blocks > 1 and memory.deflation is None
        stretched = may_be_separated(problem, state)
        stats = run(
            Evaluate(point.W, point.pending_step, exact=point.exact, total=looks, stretched=stretched)
        )
        mean_sq_dual = stats.alpha_sq / problem.n
        # Where it is no linear function the line search knew only a bound of it.
        conjugate_mean = (
            point.conjugate_mean if problem.form.linear_conjugate else stats.conjugate_alpha / problem.n
        )
        primal = problem.primal(point.W, stats.loss / problem.n)
        dual = problem.dual(point.W, conjugate_mean, mean_sq_dual)
        if looks:
            found = Deflation.of(problem, stats.row_sum, stats.row_sq, self.blocks)
            state = replace(state, memory=AscentMemory(deflation=found))
        measured = measured_at(
            problem,
            state,
            stats,
            Objective(primal, dual),
            conjugate_mean=conjugate_mean,
            mean_sq_dual=mean_sq_dual,
        )
        return with_stretched(problem, measured) if stretched else measured

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Let the blocks sweep, and step along their summed change."""
        point, memory = measured.before.point, measured.before.recalled(AscentMemory)
        apart = None
        # A run that was begun on several blocks may go on in one, which needs no direction apart.
        if self.blocks > 1 and memory.deflation is not None:
            apart, deflation = memory.deflation.moved(point.W)
            memory = replace(memory, deflation=deflation)
        if self.joins and not memory.alike:
            memory = replace(memory, alike=_is_slow(measured, memory))
        stats = run(self._request(problem, measured, memory, apart))
        direction = change_of(problem, point.W, stats)
        step = ExactStep().step(point.round, direction)
        rise = direction.rise(step)
        gap = measured.primal - measured.dual
        # A round that brings nothing in float32 is the occasion to go over to float64, and one that brings
        # nothing with a direction kept apart to do without it; neither is the end.
        spent = not memory.unmeasured and (
            rise < _STALLED * min(gap, measured.dual + rise) or measured.below_float32()
        )
        if point.exact:
            spent = not rises(direction)
            if spent and apart is not None:
                memory, spent = AscentMemory(deflation=Deflation()), False
            spent = spent and not memory.unmeasured
        claims = (
            self.blocks == 1 and memory.near is not None and stats.left <= _enough(problem, point, memory)
        )
        passes = math.ceil(stats.visited / problem.n)
        if memory.near is not None and memory.unmeasured:
            near, passes = memory.near.after(stats.visited / problem.n)
            memory = replace(memory, near=near)
        if self.blocks > 1:
            memory = replace(memory, safety_factor=self._next_safety_factor(measured.before, direction))
        return Advance(
            step=step,
            point=stepped(point, direction, step),
            memory=memory,
            active=stats.active,
            passes=passes,
            spent=spent,
            claims=claims,
        )

    def _request(
        self, problem: Problem, measured: Measurement, memory: AscentMemory, apart: Float64Array | None
    ) -> Ascend:
        """Return the request by which the blocks find their changes."""
        point, enough = measured.before.point, 0.0
        if memory.near is not None:
            enough = _enough(problem, point, memory)
        elif self.blocks == 1:
            enough = _SURE * measured.tol * max(measured.dual, 0.0) * problem.n
        support = memory.unmeasured == _UNMEASURED
        return Ascend(
            round=point.round,
            W=point.W,
            pending_step=point.pending_step,
            sweeps=self._sweeps(problem, measured.before),
            safety_factor=self._safety_factor(measured.before),
            seed=self.seed,
            exact=point.exact,
            shared=None if apart is None or memory.deflation is None else memory.deflation.direction,
            apart=apart,
            warm=memory.near is not None,
            support=support,
            enough=_LOOSE * enough if support else enough,
            alike=self.joins and memory.alike,
        )

    def _sweeps(self, problem: Problem, state: SolverState) -> int:
        """Return how many sweeps the request of a round asks for."""
        if self.blocks > 1:
            return _SWEEPS_TOGETHER
        warm = state.recalled(AscentMemory).near is not None and not problem.form.smooth
        return _SWEEPS[-1 if warm else min(state.round, len(_SWEEPS) - 1)]

    def _safety_factor(self, state: SolverState) -> float:
        """Return the factor on the curvature that blocks take in this round, 1 for a single one."""
        known = state.recalled(AscentMemory).safety_factor
        return float(self.blocks**_SAFETY_POWER) if known is None else min(known, float(self.blocks))

    def _next_safety_factor(self, state: SolverState, direction: Direction) -> float:
        """Return the factor for the next round, after a change whose best step was slope / curvature."""
        overshot = 1.0
        if direction.slope > 0.0 and direction.curvature > 0.0:
            overshot = min(max(direction.curvature / direction.slope, _SAFETY_DOWN), _SAFETY_UP)
        return min(max(self._safety_factor(state) * overshot, 1.0), float(self.blocks))


def _is_slow(measured: Measurement, memory: AscentMemory) -> bool:
    """Return whether a run has taken many passes and is far from its end."""
    state = measured.before
    far = state.best.primal - measured.dual > _FAR * measured.tol * abs(state.best.primal)
    return far and state.passes >= _SLOW and not memory.unmeasured


def _enough(problem: Problem, point: Point, memory: AscentMemory) -> float:
    """Return n (P - D) where a start near the optimum is within its tolerance, 0 of any other start."""
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    return 0.0 if memory.near is None else memory.near.tol * abs(dual) * problem.n


def _bounds_at_zero(problem: Problem, state: SolverState, primal: float) -> Measurement:
    """Return P(0) and D(A), which take no pass, before a round that is not measured."""
    point = state.point
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    zero = np.zeros_like(point.W)
    return Measurement(Objective(primal, dual), state, LossAnswer(rows=problem.n), passes=0, W=zero)


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
