"""The choice of a method: forecasts of the time of each, and a change when the run proves them wrong.

The time of a method is its passes times the seconds of one.  Before the first pass both come from rules of
thumb and a sample of the rows; afterwards the seconds of a pass of the current method are measured, and its
remaining passes follow from the fall of the gap.  If another method is forecast to take clearly less, the run
changes to it: A becomes W(A), and W becomes A as minus the gradients there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from scipy import sparse as scipy_sparse

from topline.solvers.core.codec import stored
from topline.solvers.core.dual_points import FoundAt
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.rows import RowSource, as_rows, compute_dtype, gives_sparse, squared_norms
from topline.solvers.core.state import FinalValues, Point, SolverState, relative_gap
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.certificate import final_values
from topline.solvers.methods.dual_ascent import AscentMemory, DualAscent
from topline.solvers.methods.newton import (
    Newton,
    NewtonMemory,
    ProximalNewton,
    few_numbers,
    warm_start,
)
from topline.solvers.methods.quasi_newton import Lbfgs, LbfgsMemory
from topline.solvers.methods.quasi_newton.metrics import wants_classes
from topline.solvers.operations import Certify, DualSums, OperationRunner, Rebuild, Runner
from topline.solvers.typing import Float64Array

logger = logging.getLogger(__name__)

#: Dual variables, and dense features, of a smooth loss up to which it may change to dual ascent: above,
#: workers share the problem, and L-BFGS is insensitive to blocks.
_MOST_DUALS, _MOST_FEATURES = 1 << 24, 1 << 27
#: Samples of rows, rows per sample, their thinning to measure how far rows are parallel, and the fewest left.
_SAMPLES, _SAMPLE_ROWS, _THINNED, _LEAST_ROWS = 8, 128, 8, 32
#: A row longer than the mean counts for this share of its length.
_LONG = 1 / 8
#: Passes of dual ascent on a smooth loss: at least, and by C |x|^2.
_ASCENT, _BY_SIZE = 7.5, 0.5
#: On a hinge: this multiple of the fourth root of C |x|^2 if P falls, and otherwise of C |x| (mu / m)^1/2 as
#: well, where mu is the mean eigenvalue of X^T X / n; P has not fallen above this share of P(0).
_FALLS, _STAYS, _HIGH = 21.0, 65.0, 0.85
#: Passes of L-BFGS: a multiple and a power of n C mu / sqrt(m), where mu is the mean eigenvalue of the rows'
#: second moments around their mean, or the next two around 0 if that is more and there is no metric of the
#: classes; finding that metric sets a bound.
_LBFGS, _POWER, _COMMON, _COMMON_POWER, _METRIC = 3.35, 1 / 3, 1.45, 0.45, 8.0
#: Dual ascent is considered if its least takes this share of the most of L-BFGS, whose forecast is the surer.
_BOUNDED = 0.5
#: On dense rows it is considered from so many multiplications a pass on: below, either takes milliseconds,
#: and L-BFGS ends alike for a row of weight 2 and for two rows.
_LITTLE = 1 << 20
#: On sparse rows it takes more passes than dual ascent up to this C |x|^2.
_MODERATE = 128.0
#: Newton's method on a hinge takes as long as this many passes of dual ascent per feature; at least the third
#: over m, and at most the second: a pass of dual ascent goes through all classes of a row, one of Newton's
#: method through those that compete.
_NEWTON, _FEW_CLASSES, _BY_CLASS = 6.0, 130.0, 2500.0
#: At most this many on several blocks or if the whole Hessian is factored, which adds (d m)^2 / n times the
#: second; and its own passes.
_NEWTON_MOST, _FACTORS, _NEWTON_PASSES = 200.0, 1 / 3, 100.0
#: Passes between forecasts: on a smooth loss, on several blocks, and otherwise half as many as have gone,
#: within these bounds.
_WATCHED_SMOOTH, _WATCHED_BLOCKS, _WATCHED = 5, 12, (3, 40)
#: A labelling of few dense rows, at most this many per feature, can mostly be learnt (T. Cover, IEEE Trans.
#: Electron. Comput. 14, 1965): the loss vanishes.  Then passes of L-BFGS grow by a quarter of its rule from
#: the second on, and those of dual ascent approach the third and a share of the condition of the rows' Gram
#: matrix, n mu / |x|^2.
_FEW_ROWS, _BENT, _FEW_VISITS, _SHARE_OF_GRAM = 4, 60.0, 12.0, 0.25
#: A fall that forecasts so many times the passes of the prior refutes it: the gap hardly moves.  The prior
#: while P is high does not count, as another method may lower such a P.
_STAGNANT = 20.0
#: Passes of dual ascent to go on a smooth loss: this multiple of those so far, of the logarithm of the gap
#: over the goal, and of this power of the gap over D.
_TO_GO, _BY_GAP = 1.5, 0.3
#: A method is left if another is forecast to take this share of its time, a power more after every change, at
#: most this many times.
_CLEARLY, _MOST_CHANGES = 0.8, 3
#: Seconds to go from which a run may return to a method that it left.
_LASTS = 0.25
#: Passes on a smooth loss until a method is as quick from the point of another as from points of its own.
_AFRESH = 8.0
#: Passes of Newton's method on a smooth loss: so many, and this multiple of those of L-BFGS around the mean,
#: times the root of what the largest of their second moments leave: conjugate gradients find these at once.
_NEWTON_SMOOTH = 8.0, 2.0
#: Passes of L-BFGS, by time, from which the least forecast has few dense rows begin with dual ascent.
_LONG_RUN = 45.0
#: A sweep of one block takes as long as this many evaluations, and longer if blocks synchronise in between.
_SWEEP = 8.0
#: Relative gap from which a start counts as new, and the W of several blocks as no place to continue from.
_FAR = 0.5


class _Pace(NamedTuple):
    """Nanoseconds of a pass: of a product, a score, a row, its features, an entry of W, and the rest."""

    product: float
    score: float
    row: float
    feature: float
    entry: float
    itself: float

    def of(self, problem: Problem) -> float:
        """Return those of a pass on a problem with dense rows."""
        n, d, m = problem.n, problem.d, problem.m
        row = self.product * d * m + self.score * m + self.row + self.feature * d
        return n * row + self.entry * d * m + self.itself


#: Fitted to 460 runs on shapes from 203 x 722 to 100,000 x 256 and 5 to 142 classes; only ratios count.
#: First where the loss has gradients (for Newton's method a curvature) by vectors, then where it has none.
_PACES = {
    "lbfgs": (_Pace(0.038, 3.4, 100, 0.46, 13, 346e3), _Pace(0.064, 14, 480, 0.35, 9, 511e3)),
    "dual_ascent": (_Pace(0.056, 13, 290, 0.56, 0, 234e3), _Pace(0.057, 35, 590, 0.7, 0, 429e3)),
    "newton": (_Pace(0.055, 0.8, 51, 0.25, 0, 192e3), _Pace(0.059, 25, 670, 0.52, 0, 145e3)),
}


class Choice(NamedTuple):
    """The name of a method, and the reason for it."""

    method: str
    why: str


def choose(
    problem: Problem, *, kernel: bool, rows: RowSource | None = None, begun: str | None = None
) -> Choice:
    """Return the method for a problem; "auto" for one chosen by forecasts.

    `rows` are those of one block, None for several.  A `begun` run continues with its method.  `kernel` says
    that the result is W(A) of a kernel's A.
    """
    if not problem.mean_risk:
        return Choice("fw_fully_corrective", f"the risk {problem.risk.name} weighs examples anew each round")
    if not problem.form.convex:
        return Choice("lbfgs", f"the loss {problem.loss.name} is not convex")
    if kernel:
        return Choice("dual_ascent", "a model with a kernel is its dual variables")
    if not problem.form.smooth or begun == "auto":
        return Choice("auto", "")
    smooth = f"the loss {problem.loss.name} is smooth"
    if begun is not None:
        return Choice(begun, f"{smooth} and the run began with {begun}")
    dense = 0 if rows is None or gives_sparse(rows) else problem.n * problem.d
    fits = rows is not None and problem.n * problem.m <= _MOST_DUALS and dense <= _MOST_FEATURES
    least = _ASCENT * _cost(problem, "dual_ascent")
    little = 0 < dense * problem.m < _LITTLE
    beaten = problem.by_class or (not little and least < _BOUNDED * _most_of_lbfgs(problem))
    return Choice("auto", "") if fits and beaten else Choice("lbfgs", smooth)


def begun_by(state: SolverState, *, duals: bool) -> str:
    """Return the method with which a run on a smooth loss continues from a state, with or without its duals.

    Dual ascent continues only from W(A), which L-BFGS and Newton's method leave.
    """
    if isinstance(state.memory, AutoMemory) and duals:
        return "auto"
    leaves_duals = isinstance(state.memory, LbfgsMemory | NewtonMemory | AutoMemory)
    return "dual_ascent" if duals and not leaves_duals else "lbfgs"


class Prior(NamedTuple):
    """The rule of thumb for a method from W = 0: passes, relative seconds of one, passes while P is high."""

    passes: float
    cost: float = 1.0
    high: float = 0.0

    @property
    def time(self) -> float:
        """Passes times seconds of one."""
        return self.passes * self.cost


def priors(
    problem: Problem, blocks: int, rows: RowSource, weights: Float64Array | None = None
) -> Mapping[str, Prior]:
    """Return the eligible methods for a problem, by name, with their forecasts, that to begin with first.

    Dual ascent takes about 1 + C |x|^2 passes for a smooth loss (S. Shalev-Shwartz and T. Zhang, J. Mach.
    Learn.  Res.  14, 2013), and unpredictably many on several blocks; the passes of L-BFGS grow with the
    condition number of the Hessian, estimated by n C mu / sqrt(m): lam is 1 / (n C), and a loss has curvature
    1/m per class at W = 0, more where few classes compete.
    """
    n, d, m = problem.n, problem.d, problem.m
    few = n <= _FEW_ROWS * d and not gives_sparse(rows)
    if problem.form.smooth and blocks > 1:
        return {"lbfgs": Prior(math.inf)}
    if not problem.form.smooth:
        cost = max(_NEWTON * d, min(_BY_CLASS / m, _FEW_CLASSES))
        if blocks > 1 or problem.few_weights:
            cost = min(cost, _NEWTON_MOST) + _FACTORS * (d * m) ** 2 / n * problem.few_weights
        proximal = Prior(_NEWTON_PASSES, cost / _NEWTON_PASSES)
        if blocks > 1 or problem.joint:
            return {"dual_ascent": Prior(math.inf), "newton": proximal}
        sample = _sampled(problem, rows, weights)
        falls = _FALLS * sample.size**0.25
        stays = _STAYS * math.sqrt(sample.size * sample.common / (problem.lam * n * m))
        return {"dual_ascent": Prior(falls, high=0.0 if few else stays), "newton": proximal}
    size, common, centred, left = _sampled(problem, rows, weights)
    condition, least, times = 1.0 / (problem.lam * math.sqrt(m)), *_NEWTON_SMOOTH
    passes = _LBFGS * (condition * centred) ** _POWER
    newton = least + times * left**0.5 * _bent(passes, few)
    if few_numbers(problem):
        newton = min(newton, _NEWTON_PASSES)
    if problem.by_class or not wants_classes(problem):
        passes = max(passes, _COMMON * (condition * common) ** _COMMON_POWER)
    passes = min(_bent(passes, few), math.inf if problem.by_class else _most_of_lbfgs(problem))
    visits = _BY_SIZE * size
    if few and visits > 0.0:
        most = _FEW_VISITS + _SHARE_OF_GRAM * centred / (problem.lam * size)
        visits = 1.0 / (1.0 / visits + 1.0 / most)
    visits += _ASCENT
    if gives_sparse(rows) and size <= _MODERATE:
        passes = max(passes, 2.0 * visits * _cost(problem, "dual_ascent"))
        newton = math.inf
    found = {
        "lbfgs": Prior(passes),
        "dual_ascent": Prior(visits, _cost(problem, "dual_ascent")),
        "newton": Prior(newton, _cost(problem, "newton")),
    }
    first = min(found, key=lambda name: found[name].time)
    if few and found[first].time >= _LONG_RUN:
        # The gap of dual ascent soon says how long it takes, and the others continue from a far better W.
        first = "dual_ascent"
    return {first: found[first], **found}


def _cost(problem: Problem, name: str) -> float:
    """Return the time of a pass of a method relative to one of L-BFGS, for a smooth loss."""
    family = problem.form.family
    without = family.gradient_rows is None, family.curvature is None
    return _PACES[name][without[name == "newton"]].of(problem) / _PACES["lbfgs"][without[0]].of(problem)


def _most_of_lbfgs(problem: Problem) -> float:
    """Return the most passes of L-BFGS with a metric of the classes, inf if it makes none."""
    n, d = problem.n, problem.d
    return _METRIC + 0.1 * d + 2.0 * d**2 / n if wants_classes(problem) else math.inf


def _bent(passes: float, few: bool) -> float:
    """Return the passes of L-BFGS, which soon grow less if rows are `few` for their features."""
    return _BENT + (passes - _BENT) / _FEW_ROWS if few and passes > _BENT else passes


class _Sample(NamedTuple):
    """What a sample of rows, each as the heaviest, says of all.

    Attributes
    ----------
    size : C |x|^2; for a smooth loss around the mean, whose direction dual ascent finds in its first pass.
    common, centred : mean eigenvalue of X^T X / n, and around the mean.
    left : what that leaves of the sum of the eigenvalues around the mean, as a share.
    """

    size: float
    common: float
    centred: float
    left: float


@np.errstate(over="ignore", invalid="ignore")
def _sampled(problem: Problem, rows: RowSource, weights: Float64Array | None) -> _Sample:
    """Return what a few rows of each part say."""
    n, dtype = problem.n, compute_dtype(rows.dtype)
    starts = range(0, n, max(n // _SAMPLES, _SAMPLE_ROWS))
    samples = [as_rows(rows[start : min(start + _SAMPLE_ROWS, n)], dtype) for start in starts]
    lengths = np.concatenate([squared_norms(sample) for sample in samples])
    heaviest = 1.0 if weights is None else float(weights.max())
    size = heaviest * max(float(lengths.mean()), _LONG * float(lengths.max())) / (problem.lam * n)
    thinned = [sample[:: max(min(_THINNED, len(lengths) // _LEAST_ROWS), 1)] for sample in samples]
    some = scipy_sparse.vstack(thinned, format="csr") if gives_sparse(rows) else np.concatenate(thinned)
    product = some @ some.T
    gram = (product.toarray() if gives_sparse(rows) else product).astype(np.float64)
    means = gram.mean(axis=1)
    centred = gram - means - means[:, None] + means.mean()
    around_mean = float(np.trace(centred))
    if problem.form.smooth:
        size *= min(around_mean / (float(np.trace(gram)) or 1.0), 1.0)
    mean = _mean_eigenvalue(centred)
    left = max(1.0 - mean * len(gram) / (around_mean or 1.0), 0.0)
    return _Sample(size, _mean_eigenvalue(gram), mean, left)


def _mean_eigenvalue(gram: Float64Array) -> float:
    """Return sum mu^2 / sum mu over the eigenvalues mu of (1/n) sum_i x_i x_i^T, by products of some rows."""
    squares = np.diag(gram)
    among = squared_norm(gram) - squared_norm(squares)
    return max(among, 0.0) / max(len(squares) - 1, 1) / (float(squares.sum()) or 1.0)


@stored
@dataclass(frozen=True)
class Reading:
    """Passes and seconds of a run, and its gap, from which the current method is watched."""

    passes: int
    seconds: float
    gap: float


@stored
@dataclass(frozen=True)
class Change:
    """A change of method: from one to another, at so many passes and this relative gap.

    `left` and `forecast` are the forecast remaining seconds of the two, at `pace` seconds per pass of the one
    left.
    """

    before: str
    after: str
    passes: int
    gap: float
    left: float
    forecast: float
    pace: float


@stored
@dataclass(frozen=True, eq=False)
class AutoMemory:
    """The current method, its memory, its starting pass, the last reading, and all changes.

    `evaluation` is the least time in seconds of measuring a point.
    """

    method: str
    memory: object = None
    began: int = 0
    since: Reading | None = None
    changes: tuple[Change, ...] = ()
    evaluation: float = math.inf


def change_of_method(state: SolverState) -> Choice:
    """Return the methods used so far by a run by forecasts, and the reasons."""
    memory = state.memory
    if not isinstance(memory, AutoMemory):
        return Choice("dual_ascent", "the run has just begun")
    if not memory.changes:
        return Choice(memory.method, f"{memory.method} is forecast to take the least time")
    names = ", ".join((memory.changes[0].before, *(change.after for change in memory.changes)))
    return Choice(names, "; ".join(map(_sentence, memory.changes)))


def _sentence(change: Change) -> str:
    return (
        f"{change.after} from pass {change.passes:,} on, at a gap of {change.gap:.1e}: {change.left:.2g} s "
        f"to go by {change.before} at {change.pace:.2g} s a pass, {change.forecast:.2g} s by {change.after}"
    )


@dataclass(frozen=True)
class Auto(Method):
    """The method with the earliest forecast end, updated as the run progresses.

    `blocks` and `seed` are those of DualAscent.  The first of the eligible methods in `priors` begins, for a
    hinge dual ascent, as A is a good start for the other.  `asked` is whether the caller requested A.
    """

    #: DualAscent advances by passes.
    advances_by_passes: ClassVar[bool] = True

    blocks: int = 1
    seed: int = 0
    priors: Mapping[str, Prior] = field(default_factory=lambda: {"dual_ascent": Prior(math.inf)})
    asked: bool = True

    @property
    def leaves_duals(self) -> bool:
        """Whether the caller requested A."""
        return self.asked

    def follows(self, state: SolverState) -> bool:
        """Return whether D belongs to the blocks' A: always, except while gradients move W."""
        return self._method_named(self._recalled(state).method).follows_duals

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure with the current method."""
        memory = self._recalled(state)
        method = self._method_named(memory.method)
        measured = method.measure(problem, run, replace(state, memory=memory.memory))
        remembered = replace(memory, memory=measured.before.memory)
        return replace(measured, before=replace(measured.before, memory=remembered))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a round of the current method, or change it."""
        before, memory = measured.before, self._recalled(measured.before)
        own = replace(before, memory=memory.memory)
        if measured.passes:
            memory = replace(memory, evaluation=min(memory.evaluation, measured.took))
        if not own.recalled(AscentMemory).unmeasured:
            gap = before.best.primal - (measured.dual if self.follows(before) else before.best.dual)
            here = Reading(before.passes + measured.passes, measured.seconds, gap)
            since = memory.since or here
            if here.passes - since.passes >= self._watched(problem, memory, here.passes):
                change = self._change(problem, measured, memory, since, here)
                if change is not None:
                    return self._changed(problem, run, measured, change)
                since = here
            memory = replace(memory, since=since)
        advance = self._method_named(memory.method).advance(problem, run, replace(measured, before=own))
        return replace(advance, memory=replace(memory, memory=advance.memory))

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, tol: float = 0.0
    ) -> FinalValues:
        """Certify the blocks' A if it is the best dual point, or was requested."""
        if self.follows(state):
            # An A that began at weights has only improved since, and W moves with it.
            state = replace(state, best=replace(state.best, dual_point=None))
        kept = self.asked or state.best.dual_point is None
        return final_values(problem, executor, state, tol, duals_kept=executor.keeps_duals and kept)

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Return a state with W(A), b and |A|^2 / n recomputed from A."""
        memory = self._recalled(state)
        own = replace(state, memory=memory.memory)
        rebuilt = self._method_named(memory.method).rebuilt(problem, executor, own)
        return replace(rebuilt, memory=replace(memory, memory=rebuilt.memory))

    def _recalled(self, state: SolverState) -> AutoMemory:
        """Return the memory of a state; without one, or with another run's, a new turn begins."""
        if isinstance(state.memory, AutoMemory):
            return state.memory
        if isinstance(state.memory, NewtonMemory) and "newton" in self.priors:
            # Its W is no longer W(A).
            return AutoMemory("newton", state.memory)
        return AutoMemory(next(iter(self.priors)), state.memory)

    def _method_named(self, name: str) -> Method:
        newton = Newton() if "lbfgs" in self.priors else ProximalNewton()
        return {"dual_ascent": DualAscent(self.blocks, self.seed), "lbfgs": Lbfgs(), "newton": newton}[name]

    def _watched(self, problem: Problem, memory: AutoMemory, passes: int) -> int:
        """Return how many passes there are between forecasts."""
        if problem.form.smooth:
            return _WATCHED_SMOOTH
        if self.blocks > 1 and memory.method == "dual_ascent":
            return _WATCHED_BLOCKS
        least, most = _WATCHED
        return max(least, min((passes - memory.began) // 2, most))

    def _change(
        self, problem: Problem, measured: Measurement, memory: AutoMemory, since: Reading, here: Reading
    ) -> Change | None:
        """Return the change to a method with a clearly shorter forecast, or None.

        A method that ends within the remaining passes is preferred to one that does not; of two that do not,
        the one that gets closer.
        """
        # A method that ran on one block has no forecast on several.
        if len(memory.changes) >= _MOST_CHANGES or memory.method not in self.priors:
            return None
        name, left = memory.method, {change.before: change for change in memory.changes}
        pace = (here.seconds - since.seconds) / (here.passes - since.passes)
        # Scales the pace to other methods; rounds of several blocks say nothing about it.
        unit = pace / self.priors[name].cost if self.blocks == 1 else _SWEEP * memory.evaluation
        own = self._passes_left(measured, memory, since, here)
        shared = problem.form.smooth and name == "dual_ascent"
        share, more = (_share_left(measured, here.gap), _AFRESH) if shared else (1.0, 0.0)
        found = {
            key: Prior(min(share * each.passes + more, each.passes), each.cost * unit)
            for key, each in self.priors.items()
        }
        # A method that was left resumes where it stopped, at its own seconds: of a short run they are noise.
        lasts = own * pace >= _LASTS
        found |= {
            key: Prior(old.left / old.pace if lasts and old.pace > 0.0 else math.inf, old.pace)
            for key, old in left.items()
        }
        clearly = _CLEARLY ** (1 + len(memory.changes))
        found[name] = Prior(own, clearly * pace)

        def rank(other: str) -> tuple[bool, float]:
            passes, seconds, _ = found[other]
            late = passes > measured.passes_left
            return late, (clearly if late and other == name else 1.0) * passes * (1.0 if late else seconds)

        best = min(found, key=rank)
        if best == name:
            return None
        relative = relative_gap(here.gap, measured.before.best.primal)
        seconds = found[best].time
        return Change(name, best, measured.before.passes, relative, own * pace, seconds, pace)

    def _passes_left(self, measured: Measurement, memory: AutoMemory, since: Reading, here: Reading) -> float:
        """Return the remaining passes of the current method, from the fall of the gap and its prior.

        The prior is the most informative until refuted, but of dual ascent on a smooth loss the gap says as
        much.  The fall is that of the absolute gap, because the relative one hardly moves while D is small.
        """
        gone, prior = here.passes - memory.began, self.priors[memory.method]
        goal = _goal(measured, here.gap)
        left = math.inf
        if goal > 0.0 and memory.method == "dual_ascent" and "lbfgs" in self.priors:
            times = max(here.gap / goal, 1.0)
            left = _TO_GO * gone * (measured.tol * times) ** _BY_GAP * math.log(times)
            return left if gone >= prior.passes else math.sqrt(left * (prior.passes - gone))
        if goal > 0.0 and 0.0 < here.gap < since.gap:
            to_go = math.log(max(here.gap / goal, 1.0)) / math.log(since.gap / here.gap)
            left = (here.passes - since.passes) * to_go
        if memory.method != "dual_ascent":
            # These accelerate: what is left takes no longer than what is done.
            left = min(left, float(gone))
        before = measured.before
        high = before.primal_at_zero is not None and before.best.primal > _HIGH * before.primal_at_zero
        passes = max(prior.passes, prior.high) if high else prior.passes
        refuted = gone >= passes or left > _STAGNANT * prior.passes
        return left if refuted else min(left, passes - gone)

    def _changed(self, problem: Problem, run: Runner, measured: Measurement, change: Change) -> Advance:
        """Change to another method, from W to A or back."""
        before, memory = measured.before, self._recalled(measured.before)
        own, point, passes, kept = replace(before, memory=memory.memory), before.point, 0, None
        old, new = (self._method_named(name).follows_duals for name in (change.before, change.after))
        if not new:
            point = replace(point, W=point.W if before.best.W is None else before.best.W)
        elif change.after == "newton":
            near = change.gap < _FAR
            kept = warm_start(own, measured.dual, near=near)
            # A W of blocks that undid each other's work, or worse than W = 0, is no place to continue from.
            at_zero = math.inf if own.primal_at_zero is None else own.primal_at_zero
            if not near and (self.blocks > 1 or measured.primal > at_zero):
                point = replace(point, W=np.zeros_like(own.W))
        elif old:
            W = own.recalled(NewtonMemory).W_dual
            point = point if W is None else replace(point, W=W)
        else:
            point, passes = _of_gradients(problem, run, before), 1
        point = replace(point, round=before.round + 1)
        began = before.passes + measured.passes + passes
        changes = (*memory.changes, change)
        memory = AutoMemory(change.after, kept, began, None, changes, memory.evaluation)
        logger.info("%s", _sentence(change))
        return Advance(0.0, point, memory, active=measured.stats.active, passes=passes)


def _goal(measured: Measurement, gap: float) -> float:
    """Return the absolute gap that ends a run, as far as D is known."""
    dual = measured.before.best.primal - gap
    return measured.tol * (dual if dual > 0.0 else 0.1 * gap)


def _share_left(measured: Measurement, gap: float) -> float:
    """Return the share of a run's passes that remain, if its gap falls by equal factors from P(0) on."""
    goal, first = _goal(measured, gap), measured.before.primal_at_zero
    if first is None or not goal > 0.0:
        return 1.0
    return min(math.log(max(gap / goal, math.e)) / math.log(max(first / goal, math.e)), 1.0)


def _of_gradients(problem: Problem, run: Runner, before: SolverState) -> Point:
    """Return the point of A, set to the best dual point found at weights, if there is one."""
    point, found = before.point, before.best.dual_point
    if isinstance(found, FoundAt):
        sums: DualSums = run(Certify(found.W, found.share, exact=point.exact))
        point = replace(point, pending_step=None)
    else:
        sums = run(Rebuild(point.pending_step, exact=point.exact))
    return replace(
        point,
        W=problem.scale * sums.product,
        conjugate_mean=sums.conjugate / problem.n,
        mean_sq_dual=sums.alpha_sq / problem.n,
    )
