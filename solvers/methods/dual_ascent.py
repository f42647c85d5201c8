"""Dual block ascent: every block makes exact column updates on its own, and a line search joins the blocks.

Each round measures the gap at W, lets every block find a change dA of its own dual rows from there, and
steps along the summed change: D(A + g dA) is a parabola in g whose coefficients are sums over the blocks, so
the best g in [0, 1] is known exactly and the dual never decreases, for any number of blocks.  For a loss with
a nonlinear conjugate the parabola is a lower bound of D, because -Phi* is concave, which touches it at g = 0
and g = 1: the dual still never decreases.

Blocks that move at the same time overshoot together, so each multiplies the curvature by a safety factor
(sigma' of CoCoA).  The right factor depends on the data and on C, and the line search reveals it: if the
parabola peaks before g = 1 the blocks have overshot.  The factor follows it, quickly up and slowly down.  It
stays near 1 if blocks synchronise often, because between two line searches no block knows what the others do.
So a round of several blocks has many parts.  In each every block visits a share of its rows, in a random
order without repetition, and all step along the summed change.  After one turn of all rows, those that moved
are swept again, and every few sweeps all that are not at rest, until a sweep gains little compared with the
first: only then is the gap measured.

For a loss with kinks P is then that of the mean of W over the parts, the late ones counting most
(polynomial-decay averaging: O. Shamir, T. Zhang, "Stochastic gradient descent for non-smooth optimization",
ICML 2013).  The last W has the noise of the rows visited last: where D was within 3e-5 of the optimum, P was
6e-3 above it, and that of the mean 1.6e-3 (max hinge, 12,000 rows behind a ReLU, 100 classes, two blocks).

The first round of one block is not measured where A = 0: P(0) and D(0) = 0 are known without the rows.

A run that starts from the dual variables of nearly the same problem will not be solved by its first rounds.
On one block these are not measured, begin with the rows whose alpha_i is not 0, for a fraction of a pass, and
end by the gap of the rows that they visit: a lower bound of the full gap.  Once that bound is within the
tolerance the certificate follows at once, instead of a measurement.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from topline.solvers.core.answers import LossAnswer
from topline.solvers.core.codec import stored
from topline.solvers.core.deflation import Deflation
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import Objective, Point, SolverState
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
from topline.solvers.methods.shared_work import MOST_PARTS, SWEEP_WORK, SharedWork
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import Ascend, AscentSums, Evaluate, Runner, Turn
from topline.solvers.typing import Float64Array

#: Sweeps of the first rounds, which solve easy problems, and of a stage in all later ones.
_SWEEPS = (1, 2, 3, 6)
#: Least rows of a block in a part of a sweep.
_ROWS_IN_TURN = 4
#: Most parts of a sweep for every block where no message is sent: the passes of K blocks that agree p times
#: grow with (K - 1) / p (`topline.solvers.methods.shared_work`).
_PARTS_OF_BLOCK = 32
#: A round of several blocks ends after a sweep that gains less than this share of the first one's gain, or
#: after this many visits per row.
_PAYS, _MOST_VISITS = 0.03, 8.0
#: The initial safety factor is this power of the number of blocks,
_SAFETY_POWER = 0.7
#: and it changes by at most these factors from one round to the next.
_SAFETY_DOWN, _SAFETY_UP = 0.95, 2.0
#: Passes, and gap over tolerance, from which alike rows are searched for, at the cost of up to a pass.
_SLOW, _FAR = 25, 100.0
#: Unmeasured rounds of a near start: one over the rows with alpha_i != 0, until their gap is this multiple of
#: the tolerance, and one over all rows.  A smooth loss has no other rows, and takes one round.
_UNMEASURED, _LOOSE = 2, 10.0
#: Share of the final gap at which a round's visited rows are good enough: those at rest have some too.
_SURE = 0.8
#: The mean of W counts part t of a round about t to this power less 1.
_LATE = 4.0
#: Arrays of the shape of W for it: the mean that a round measures, and the one that it makes.
MEANS = 2
#: A rise of the dual below this share of the gap, and of the dual itself, exhausts float32: a round of sweeps
#: otherwise closes about a tenth of the distance.
_STALLED = 1e-3


@stored
@dataclass(frozen=True, eq=False)
class NearStart:
    """A start from nearly the right dual variables, for a run to the relative gap `tol`.

    `rounds` more will not be measured, and those so far have taken a fractional `passes`.
    """

    tol: float
    passes: float
    rounds: int

    @classmethod
    def of(cls, problem: Problem, tol: float, passes: float, blocks: int) -> NearStart:
        """Return the start after a fraction of a pass."""
        return cls(tol, passes, 0 if blocks > 1 else 1 if problem.form.smooth else _UNMEASURED)

    def after(self, passes: float) -> tuple[NearStart, int]:
        """Return the start after an unmeasured round, and the number of whole passes completed by it."""
        spent = self.passes + passes
        whole = math.ceil(spent) - math.ceil(self.passes)
        return replace(self, passes=spent, rounds=self.rounds - 1), whole


@stored
@dataclass(frozen=True, eq=False)
class AscentMemory:
    """The memory of dual ascent.

    Attributes
    ----------
    near : the start from nearly the right dual variables, None for any other.
    alike : whether alike rows with different labels are moved together.
    safety_factor : that of the next round if several blocks move, None in the first.
    exchange : seconds of a part besides work, None before they are measured.
    mean : the mean of W (d, m) over the parts of the last round, None for one block or a smooth loss.
    deflation : the direction common to all examples, None before the search for it.
    """

    near: NearStart | None = None
    alike: bool = False
    safety_factor: float | None = None
    deflation: Deflation | None = None
    exchange: float | None = None
    mean: Float64Array | None = None

    @property
    def unmeasured(self) -> int:
        """Number of remaining unmeasured rounds."""
        return 0 if self.near is None else self.near.rounds


@dataclass(frozen=True)
class DualAscent(Method):
    """Dual block ascent with exact column updates.

    `blocks` is the number of blocks that move at the same time, `seed` fixes the random orders.
    """

    blocks: int = 1
    seed: int = 0
    advances_by_passes: ClassVar[bool] = True
    #: Whether several blocks deflate the direction common to all examples (`topline.solvers.core.deflation`).
    deflates: ClassVar[bool] = True
    #: Whether alike rows with different labels are moved together.
    joins: ClassVar[bool] = True
    #: Whether several blocks visit moved rows again before they measure the gap.
    sweeps_again: ClassVar[bool] = True

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure W; the gap is the true one even with smoothing: the upper bound closes far more slowly."""
        memory, point = state.recalled(AscentMemory), state.point
        # A run without P at W = 0 ends with W(A).
        mean = None if point.exact or state.primal_at_zero is None else memory.mean
        W = point.W if mean is None else mean
        # Several blocks plan their first turns from the work of measuring, and look for a common direction.
        at_zero = self.blocks == 1 and not (state.round or point.mean_sq_dual or point.W.any())
        if (memory.unmeasured or at_zero) and state.primal_at_zero is not None:
            # P(0) and D(A) take no pass.
            dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
            objective, nothing = Objective(state.primal_at_zero, dual), LossAnswer(rows=problem.n)
            return Measurement(objective, state, nothing, passes=0, W=np.zeros_like(point.W))
        looks = self.deflates and self.blocks > 1 and memory.deflation is None
        stretched = may_be_separated(problem, state)
        stats = run(Evaluate(W, point.pending_step, exact=point.exact, total=looks, stretched=stretched))
        mean_sq_dual = stats.alpha_sq / problem.n
        # If nonlinear, the line search knew only a bound of it.
        conjugate_mean = (
            point.conjugate_mean if problem.form.linear_conjugate else stats.conjugate_alpha / problem.n
        )
        primal = problem.primal(W, stats.loss / problem.n)
        dual = problem.dual(point.W, conjugate_mean, mean_sq_dual)
        if looks:
            found = Deflation.of(problem, stats.row_sum, stats.row_sq, self.blocks)
            state = replace(state, memory=AscentMemory(deflation=found))
        measured = measured_at(
            problem, state, stats, Objective(primal, dual), conjugate_mean=conjugate_mean,
            mean_sq_dual=mean_sq_dual,
        )  # fmt: skip
        measured = replace(measured, W=mean)
        return with_stretched(problem, measured) if stretched else measured

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Let the blocks sweep, and step along their summed change: part by part if there are several."""
        memory = measured.before.recalled(AscentMemory)
        if self.joins and not memory.alike:
            # A run that has taken many passes and is far from its end.
            before = measured.before
            far = before.best.primal - measured.dual > _FAR * measured.tol * abs(before.best.primal)
            memory = replace(memory, alike=far and before.passes >= _SLOW and not memory.unmeasured)
        kinks = problem.form.linear_conjugate and problem.smoothing == 0.0
        way = _Way(measured.before.point, memory, averages=kinks and self.blocks > 1, swept=problem.n)
        turn = self._first_turn(problem, measured)
        while True:
            self._take_step(problem, run, measured, way, turn)
            turn = None if turn is None else self._next_turn(problem, measured, way, turn)
            if turn is None:
                return self._at_the_end(problem, measured, way)

    def _take_step(
        self, problem: Problem, run: Runner, measured: Measurement, way: _Way, turn: Turn | None
    ) -> None:
        """Step along the change found by the blocks in one turn, or in all sweeps of a round."""
        began, busy = time.perf_counter(), way.seconds
        apart, deflation = None, way.memory.deflation
        # A run that began on several blocks may continue on one, which needs no deflation.
        if self.blocks > 1 and deflation is not None:
            apart, deflation = deflation.moved(way.point.W)
            way.memory = replace(way.memory, deflation=deflation)
        sums = run(self._request(problem, measured, way, apart, turn))
        direction = change_of(problem, way.point.W, sums)
        way.follow(sums, direction, ExactStep().step(way.point.round, direction), turn)
        if self.blocks > 1:
            # The best step of the change was slope / curvature.
            overshot = 1.0
            if direction.slope > 0.0 and direction.curvature > 0.0:
                overshot = min(max(direction.curvature / direction.slope, _SAFETY_DOWN), _SAFETY_UP)
            factor = min(max(self._safety_factor(way.memory) * overshot, 1.0), float(self.blocks))
            way.memory = replace(way.memory, safety_factor=factor)
            busy = (way.seconds - busy) / max(measured.apart, 1)
            way.exchanges.append(time.perf_counter() - began - busy)

    def _at_the_end(self, problem: Problem, measured: Measurement, way: _Way) -> Advance:
        """Return the result of a round."""
        before, memory, rise = measured.before.point, way.memory, way.rise
        gap = measured.primal - measured.dual
        # A round without gain ends float32, or deflation, before it ends the run.
        spent = not memory.unmeasured and (
            rise < _STALLED * min(gap, measured.dual + rise) or measured.below_float32()
        )
        if before.exact:
            spent = not way.rises
            if spent and self.blocks > 1 and memory.deflation is not None and memory.deflation.direction:
                memory, spent = AscentMemory(deflation=Deflation()), False
            spent = spent and not memory.unmeasured
        claims = self.blocks == 1 and memory.near is not None and way.left <= _enough(problem, before, memory)
        passes = math.ceil(way.visited / problem.n)
        if memory.near is not None and memory.unmeasured:
            near, passes = memory.near.after(way.visited / problem.n)
            memory = replace(memory, near=near)
        # One block has none, and measures its W, though several may have left it theirs.
        memory = replace(memory, mean=None if way.mean is None else np.ascontiguousarray(way.mean))
        return Advance(
            step=way.step,
            point=replace(way.point, round=before.round + 1, W=np.ascontiguousarray(way.point.W)),
            memory=memory,
            active=way.active,
            passes=passes,
            spent=spent,
            claims=claims,
        )

    def _first_turn(self, problem: Problem, measured: Measurement) -> Turn | None:
        """Return the first turn of a round; None for a single block."""
        if self.blocks == 1:
            return None
        work = measured.stats.seconds_products + measured.stats.seconds_kernels
        memory = measured.before.recalled(AscentMemory)
        if memory.exchange is None and measured.apart:
            # Of an exchange only half is measured: W goes out, and sums as large come back.
            memory = replace(memory, exchange=2.0 * (measured.took - work / measured.apart))
        shares = self._shares(problem.n, problem.n, SWEEP_WORK * work, memory, measured)
        return Turn(part=0, sweep=0, share=0, shares=shares)

    def _next_turn(self, problem: Problem, measured: Measurement, way: _Way, turn: Turn) -> Turn | None:
        """Return the next turn, None at the end of the round: sweeps no longer pay, or passes are used up."""
        n = problem.n
        if not math.isfinite(way.step) or way.late or way.visited > measured.passes_left * n - self.blocks:
            return None
        if not turn.ends_sweep:
            # A sweep ends with the last non-empty share, which must be known when it is requested.
            shares = max(min(turn.shares, way.filled), turn.share + 2)
            return replace(turn, part=turn.part + 1, share=turn.share + 1, shares=shares)
        memory = replace(way.memory, exchange=statistics.median(way.exchanges))
        # Seconds of the sweep that ends, in which a row may have cost much less than in the first one.
        work = (way.seconds - way.before) * way.moving / max(way.swept, 1)
        way.memory, way.before, way.swept = memory, way.seconds, way.moving
        pays = turn.sweep == 0 or (way.last > _PAYS * way.first and way.visited < (1.0 + _MOST_VISITS) * n)
        if not (self.sweeps_again and pays and way.moving > 0 and way.first > 0.0):
            return None
        return Turn(turn.part + 1, turn.sweep + 1, 0, self._shares(n, way.moving, work, memory, measured))

    def _shares(self, n: int, rows: int, work: float, memory: AscentMemory, measured: Measurement) -> int:
        """Return the number of parts in which to visit `rows` of n rows, for `work` seconds of computation.

        In this process all parts have about equally many rows; with remote workers only as many parts as pay.
        """
        if not measured.apart or memory.exchange is None:
            most = min(max(n // (self.blocks * _ROWS_IN_TURN), 1), _PARTS_OF_BLOCK * self.blocks)
            return max(math.ceil(most * rows / n), 1)
        # What a block overlooks between two line searches is the share of the moving rows that others visit.
        most = min(max(rows // (self.blocks * _ROWS_IN_TURN), 1), MOST_PARTS)
        work *= self.blocks / measured.apart
        return min(most, SharedWork(self.blocks, work, memory.exchange).parts)

    def _request(
        self,
        problem: Problem,
        measured: Measurement,
        way: _Way,
        apart: Float64Array | None,
        turn: Turn | None,
    ) -> Ascend:
        """Return the request by which the blocks find their changes."""
        point, memory, enough = way.point, way.memory, 0.0
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
            safety_factor=self._safety_factor(memory),
            seed=self.seed,
            exact=point.exact,
            shared=None if apart is None or memory.deflation is None else memory.deflation.direction,
            apart=apart,
            warm=memory.near is not None,
            support=support,
            enough=_LOOSE * enough if support else enough,
            alike=self.joins and memory.alike,
            turn=turn,
            most_passes=measured.passes_left - way.visited / problem.n,
        )

    def _sweeps(self, problem: Problem, state: SolverState) -> int:
        """Return the number of sweeps requested of a single block in a round."""
        warm = state.recalled(AscentMemory).near is not None and not problem.form.smooth
        return _SWEEPS[-1 if warm else min(state.round, len(_SWEEPS) - 1)]

    def _safety_factor(self, memory: AscentMemory) -> float:
        """Return the current safety factor on the curvature, 1 for a single block."""
        known = memory.safety_factor
        return float(self.blocks**_SAFETY_POWER) if known is None else min(known, float(self.blocks))


@dataclass(eq=False)
class _Way:
    """The progress of a round.

    Attributes
    ----------
    point, memory : the current point and memory.
    averages : whether the round measures the mean of W.
    step, rises : the last step, and whether the dual rises along any, beyond rounding.
    rise, first, last : rise of the dual, in all, in the first sweep and in the current one.
    visited, active, moving : rows visited, those changed by the first sweep, and those that a further one
        would visit.
    filled, seconds : shares of the sweep that have rows, and seconds of work of all blocks.
    before, swept : seconds of work before the current sweep, and the rows that it visits.
    exchanges : seconds of each part besides its work.
    mean : the mean of W over the parts so far.
    left : the remaining gap in the rows of the last stage, of one block.
    late : whether the run is out of time.
    """

    point: Point
    memory: AscentMemory
    averages: bool
    step: float = 0.0
    rises: bool = False
    rise: float = 0.0
    first: float = 0.0
    last: float = 0.0
    visited: float = 0.0
    active: int = 0
    moving: int = 0
    filled: int = 0
    seconds: float = 0.0
    before: float = 0.0
    swept: int = 0
    exchanges: list[float] = field(default_factory=list)
    mean: Float64Array | None = None
    left: float = math.inf
    late: bool = False

    def follow(self, sums: AscentSums, direction: Direction, step: float, turn: Turn | None) -> None:
        """Take a step along the change found in one turn, or by one block."""
        sweep, begins, part = (0, True, 0) if turn is None else (turn.sweep, turn.share == 0, turn.part)
        rise = direction.rise(step)
        self.point = replace(stepped(self.point, direction, step, part), round=self.point.round)
        if self.averages:
            late = _LATE / (part + _LATE)
            self.mean = np.zeros_like(self.point.W) if self.mean is None else self.mean
            self.mean *= 1.0 - late
            self.mean += late * self.point.W
        self.step, self.rises = step, self.rises or rises(direction)
        self.rise += rise
        self.last = rise if begins else self.last + rise
        self.visited += sums.visited
        if sweep == 0:
            self.first, self.active = self.last, self.active + sums.active
        self.moving, self.left, self.late = sums.moving, sums.left, sums.late > 0
        self.filled, self.seconds = sums.filled, self.seconds + sums.seconds_products + sums.seconds_kernels


def _enough(problem: Problem, point: Point, memory: AscentMemory) -> float:
    """Return n (P - D) at which a start near the optimum is within its tolerance, 0 for any other start."""
    dual = problem.dual(point.W, point.conjugate_mean, point.mean_sq_dual)
    return 0.0 if memory.near is None else memory.near.tol * abs(dual) * problem.n


@dataclass(frozen=True)
class Sdca(DualAscent):
    """Plain stochastic dual coordinate ascent (Lapin's thesis, algorithm 1).

    DualAscent with rounds of one sweep each: a block visits every row once, without extrapolation, joint
    moves or deflation.
    """

    deflates: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    sweeps_again: ClassVar[bool] = False

    def _sweeps(self, problem: Problem, state: SolverState) -> int:  # noqa: ARG002 - as in every round
        return 1
