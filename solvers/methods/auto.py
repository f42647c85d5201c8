"""Which method serves a problem, and a change of method where a run shows that another one is cheaper.

Dual ascent needs the fewest passes wherever features are tame, and any number where they are not: rows that
are standardised, a large C, several blocks.  Newton's method takes some tens of passes more on the first and
a hundred or two on the others.  What a problem will be shows in the rounds of dual ascent itself, whose A is
a good place for Newton's method to start from.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.objective import relative_gap
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.rows import Rows, RowSource, as_rows, compute_dtype, gives_sparse, squared_norms
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.dual_ascent import AscentMemory, DualAscent
from topline.solvers.methods.newton import NewtonMemory, ProximalNewton, warm_start
from topline.solvers.methods.newton_steps import factors_hessian
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.solvers.operations import OperationRunner, Runner
from topline.solvers.typing import Float64Array

logger = logging.getLogger(__name__)

#: Passes between two forecasts, of one block and of several, which show sooner what they are.
_WATCHED = (40, 12)
#: A forecast of so many passes costs more than Newton's method as a rule, where W has up to so many numbers
#: and where it has more.
_FEW_NUMBERS = 512
_TOO_MANY = (120.0, 250.0)
#: On one block the whole Hessian of W, so often factored, adds to that, up to so many passes in all.
_FACTORS, _MOST = 2.0, 500.0
#: Dual variables of a smooth loss up to which it takes dual ascent, where C |x|^2 is at most so large in
#: samples of so many rows.
_MOST_DUALS, _MODERATE = 1 << 24, 128.0
_SAMPLES, _SAMPLE_ROWS = 8, 128
#: What rows that are not sparse must have besides: so many features and classes, for else a visit costs much
#: more than its products, and a C |x|^2 that is at least the first where W has so many numbers, at least the
#: second where it has fewer, and at most the third: below L-BFGS is done after a few passes.  Of more numbers
#: than so many workers take a share each, and L-BFGS minds no blocks.
_WIDE_FEATURES, _WIDE_CLASSES, _MOST_WIDE = 512, 16, 1 << 27
_MANY_NUMBERS, _WIDE_SIZES = 1 << 16, (0.75, 2.0, 16.0)
#: One row in so many of the samples shows how far rows lie along the same directions.
_THINNED = 4
#: A relative gap from which on a start is that of a new run, and the W of several blocks no place for it.
_FAR = 0.5
#: A forecast goes to this share of D, and below it to a tenth of the present gap.
_AIM = 1e-3


class Choice(NamedTuple):
    """The name of a method, and why it was taken."""

    method: str
    why: str

    @property
    def begins_with(self) -> str:
        """The method of the first rounds."""
        return "dual_ascent" if self.method == "auto" else self.method


def choose(
    problem: Problem,
    *,
    kernel: bool,
    rows: RowSource | None = None,
    weights: Float64Array | None = None,
    begun: str | None = None,
) -> Choice:
    """Return the method for a problem; "auto" for dual ascent that may become Newton's method on the way.

    Of the rows, where they are known and one block, it matters whether they are sparse or wide and how long
    some of them are, each as heavy as the heaviest.  A run that was `begun` goes on as it did.
    """
    if not problem.mean_risk:
        return Choice("fw_fully_corrective", f"the risk {problem.risk.name} weighs examples anew each round")
    if not problem.form.convex:
        return Choice("lbfgs", f"the loss {problem.loss.name} is not convex")
    if kernel:
        return Choice("dual_ascent", "a model with a kernel is its dual variables")
    if problem.form.smooth:
        smooth = f"the loss {problem.loss.name} is smooth"
        if begun is not None:
            return Choice(begun, f"{smooth} and the run began with {begun}")
        if rows is not None and (kind := _suits_ascent(problem, rows, weights)) is not None:
            return Choice("dual_ascent", f"{smooth}, the rows are {kind} and C |x|^2 is moderate")
        return Choice("lbfgs", smooth)
    return Choice("auto", "")


def begun_by(state: SolverState, *, duals: bool) -> str:
    """Return the method that a run with a smooth loss goes on with from a state, with or without its duals.

    Dual ascent goes on from W(A) alone, which L-BFGS and Newton's method leave.
    """
    leaves_duals = isinstance(state.memory, LbfgsMemory | NewtonMemory)
    return "dual_ascent" if duals and not leaves_duals else "lbfgs"


def _suits_ascent(problem: Problem, rows: RowSource, weights: Float64Array | None) -> str | None:
    """Return what rows are that suit dual ascent: dual variables few, and C |x|^2 moderate in a sample.

    It takes about 1 + C |x|^2 passes (S. Shalev-Shwartz and T. Zhang, J. Mach. Learn. Res. 14, 2013) where
    L-BFGS takes as many as the Hessian is ill conditioned.  On sparse rows a pass of it costs little more
    than a gradient, on others more, and there rows must have so much in common that the loss is more curved
    than lam is along what they consist of, by 1/m a class at W = 0: else L-BFGS has little to find.
    """
    n, sparse = problem.n, gives_sparse(rows)
    wide = problem.d >= _WIDE_FEATURES and problem.m >= _WIDE_CLASSES and n * problem.d <= _MOST_WIDE
    if n * problem.m > _MOST_DUALS or not (sparse or wide):
        return None
    dtype = compute_dtype(rows.dtype)
    starts = range(0, n, max(n // _SAMPLES, _SAMPLE_ROWS))
    samples = [as_rows(rows[start : min(start + _SAMPLE_ROWS, n)], dtype) for start in starts]
    longest = max(float(squared_norms(sample).max()) for sample in samples)
    heaviest = 1.0 if weights is None else float(weights.max())
    size = heaviest * longest / (problem.lam * n)
    if sparse:
        return "sparse" if size <= _MODERATE else None
    least, most = _WIDE_SIZES[problem.d * problem.m < _MANY_NUMBERS], _WIDE_SIZES[-1]
    return "wide" if least <= size <= most and _mean_eigenvalue(samples) >= problem.lam * problem.m else None


def _mean_eigenvalue(samples: list[Rows]) -> float:
    """Return sum mu^2 / sum mu over the eigenvalues mu of (1/n) sum_i x_i x_i^T, from some of the rows."""
    some = np.concatenate([sample[::_THINNED] for sample in samples])
    gram = some @ some.T
    squares = np.diag(gram)
    among = squared_norm(gram) - squared_norm(squares)
    return among / max(len(some) - 1, 1) / max(float(squares.sum()), float(np.finfo(np.float64).tiny))


@stored
@dataclass(frozen=True)
class Forecast:
    """Passes, and the gap there, from which the fall of the gap is forecast."""

    passes: int
    gap: float


@stored
@dataclass(frozen=True)
class Change:
    """Where the method was changed: passes, the relative gap, and how many more passes were forecast."""

    passes: int
    gap: float
    forecast: float


@stored
@dataclass(frozen=True, eq=False)
class AutoMemory:
    """The memory of the method whose turn it is, since when its gap is watched, and where it was changed."""

    method: object = None
    since: Forecast | None = None
    change: Change | None = None

    @classmethod
    def of(cls, state: SolverState) -> AutoMemory:
        """Return what a state remembers, which may be the start of dual ascent."""
        return state.memory if isinstance(state.memory, cls) else cls(state.memory)


def change_of_method(state: SolverState) -> Choice:
    """Return what a run that began with dual ascent came to, and why."""
    change = AutoMemory.of(state).change
    if change is None:
        return Choice("dual_ascent", "the loss is a hinge, and newton was not forecast to be cheaper")
    more = "no end" if math.isinf(change.forecast) else f"some {change.forecast:,.0f} passes"
    return Choice(
        "dual_ascent, newton",
        f"newton from pass {change.passes:,.0f} on, at a gap of {change.gap:.1e} with {more} to go",
    )


@dataclass(frozen=True)
class AscentThenNewton(Method):
    """Dual ascent that goes over to Newton's method where its own forecast is too long.

    `blocks` and `seed` are those of DualAscent.
    """

    #: As those of DualAscent do.
    advances_by_passes: ClassVar[bool] = True

    blocks: int = 1
    seed: int = 0

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure as the method does whose turn it is."""
        memory = AutoMemory.of(state)
        measured = self._current_method(memory).measure(problem, run, replace(state, memory=memory.method))
        remembered = replace(memory, method=measured.before.memory)
        return replace(measured, before=replace(measured.before, memory=remembered))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a round of the method whose turn it is, or change it."""
        before, memory = measured.before, AutoMemory.of(measured.before)
        own = replace(before, memory=memory.method)
        if memory.change is None and not own.recalled(AscentMemory).unmeasured:
            gap = before.best.primal - measured.dual
            since = memory.since or Forecast(before.passes, gap)
            passes = before.passes - since.passes
            if passes >= _WATCHED[self.blocks > 1]:
                forecast = passes * _passes_per_decade(gap, since.gap, measured.dual)
                if forecast > self.too_many(problem):
                    left = relative_gap(gap, before.best.primal)
                    return self._changed(measured, Change(before.passes, left, forecast))
                since = Forecast(before.passes, gap)
            memory = replace(memory, since=since)
        method = self._current_method(memory)
        advance = method.advance(problem, run, replace(measured, before=own))
        return replace(advance, memory=replace(memory, method=advance.memory))

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Return a state whose W(A), b and |A|^2 / n were computed anew from A."""
        memory = AutoMemory.of(state)
        own = replace(state, memory=memory.method)
        rebuilt = self._current_method(memory).rebuilt(problem, executor, own)
        return replace(rebuilt, memory=replace(memory, method=rebuilt.memory))

    def _changed(self, measured: Measurement, change: Change) -> Advance:
        """Go over to Newton's method."""
        before, near = measured.before, change.gap < _FAR
        # W of blocks that undid each other's work, or that is worse than none, is no place to begin.
        at_zero = math.inf if before.primal_at_zero is None else before.primal_at_zero
        from_zero = not near and (self.blocks > 1 or measured.primal > at_zero)
        W = np.zeros_like(before.W) if from_zero else before.W
        memory = AutoMemory(warm_start(before, measured.dual, near=near), change=change)
        logger.info("%s", change_of_method(replace(before, memory=memory)).why)
        point = replace(before.point, round=before.round + 1, W=W)
        return Advance(0.0, point, memory, active=measured.stats.active, passes=0)

    def too_many(self, problem: Problem) -> float:
        """Return how many passes more cost as much as Newton's method.

        A factor of (d m)^3 / 3 steps in float64 takes the time of (d m)^2 / (6 n) passes of 4 n d m in
        float32.  Several blocks may have passes without end.
        """
        side = problem.d * problem.m
        few = _TOO_MANY[side > _FEW_NUMBERS]
        if self.blocks > 1 or not factors_hessian(problem):
            return few
        return min(few + _FACTORS * side**2 / (6.0 * problem.n), max(few, _MOST))

    def _current_method(self, memory: AutoMemory) -> Method:
        return DualAscent(self.blocks, self.seed) if memory.change is None else ProximalNewton()


def _passes_per_decade(gap: float, gap_then: float, dual: float) -> float:
    """Return how many times as many passes more the gap takes if it goes on falling as it did.

    It is the gap itself whose fall is looked at: where D is small beside P the relative one hardly moves.
    """
    if not 0.0 < gap < gap_then:
        return math.inf if gap > 0.0 else 0.0
    goal = min(_AIM * dual, 0.1 * gap) if dual > 0.0 else 0.1 * _AIM * gap
    return math.log(gap / goal) / math.log(gap_then / gap)
