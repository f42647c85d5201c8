"""Which method serves a problem: what each is forecast to take, and a change where the run shows otherwise.

What a method takes follows from its passes and the seconds of one.  Before the first pass both are a rule of
thumb on what some rows say; from then on the seconds of a pass of the method whose turn it is are measured,
and its passes to go follow from the fall of the gap.  Where another method is forecast to take clearly less
it gets the turn: A goes over to W(A), and W to A as minus the gradients there.
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
from topline.solvers.core.objective import relative_gap
from topline.solvers.core.problem import Problem, squared_norm
from topline.solvers.core.rows import RowSource, as_rows, compute_dtype, gives_sparse, squared_norms
from topline.solvers.core.state import Point, SolverState
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.methods.dual_ascent import AscentMemory, DualAscent
from topline.solvers.methods.newton import (
    Newton,
    NewtonMemory,
    ProximalNewton,
    factors_hessian,
    few_numbers,
    warm_start,
)
from topline.solvers.methods.quasi_newton import Lbfgs, LbfgsMemory
from topline.solvers.methods.quasi_newton.memory import most_pairs
from topline.solvers.methods.quasi_newton.metrics import wants_classes
from topline.solvers.operations import OperationRunner, Rebuild, Runner, TakeGradients
from topline.solvers.typing import Float64Array

logger = logging.getLogger(__name__)

#: Dual variables, and dense features, of a smooth loss up to which it may go over to dual ascent: of more
#: several workers take a share each, and L-BFGS minds no blocks.
_MOST_DUALS, _MOST_FEATURES = 1 << 24, 1 << 27
#: Samples of rows and rows of each, of which one in so many shows how far rows lie along the same directions.
_SAMPLES, _SAMPLE_ROWS, _THINNED = 8, 128, 8
#: A row that is longer than the mean counts for this share of its length.
_LONG = 1 / 8
#: Passes of dual ascent: for a smooth loss and for a hinge, by C |x|^2 and its root.
_ASCENT, _ASCENT_SMOOTH, _ASCENT_HINGE = 7.5, 0.9, 18.0
#: Its seconds a pass beside those of L-BFGS are 1 + this / (d + the second); the first is that of losses
#: whose gradients are found by vectors, which L-BFGS alone makes use of.
_UPDATES, _UPDATES_ALIKE, _FEATURES = 300.0, 80.0, 150.0
#: Passes of L-BFGS: a power of n C mu / m, where mu is the mean eigenvalue of the rows' second moments.  With
#: a metric of the classes these are those around the mean of the rows, and finding it sets a bound.
_LBFGS, _LBFGS_METRIC, _POWER, _METRIC = 5.9, 5.0, 1 / 3, 8.0
#: On sparse rows it takes more passes than dual ascent up to this C |x|^2.
_MODERATE = 128.0
#: Newton's method takes as long as so many passes of dual ascent a feature, at least the second, and at most
#: the third on several blocks or where the whole Hessian is factored, which adds (d m)^2 / n times the
#: fourth; and so many passes of its own.
_NEWTON, _NEWTON_LEAST, _NEWTON_MOST, _FACTORS, _NEWTON_PASSES = 6.0, 80.0, 200.0, 1 / 3, 100.0
#: Passes between two forecasts, and while a method begins, of several blocks and of smooth losses, which show
#: sooner what they are.
_WATCHED, _WATCHED_SOON, _WATCHED_LBFGS = 40, 12, 5
#: A method is left where another is forecast to take this share of its time, at most so many times.
_CLEARLY, _MOST_CHANGES = 0.8, 3
#: Of a smooth loss it takes so many times the passes of L-BFGS without a metric: between 1.0 and 1.7 times
#: where rows are sums of few waves, and between 1.6 and 4.5 times on images, which L-BFGS tells apart soon.
_NEWTON_SMOOTH = 1.7
#: What an array of the shape of W takes, as rows, and the exponentials of a row, as features: L-BFGS goes
#: over two arrays a pair and some more in a pass, Newton's method over some in a product, which takes so many
#: times as long where the loss has no closed form.
_ARRAY, _EXPONENTIALS, _LBFGS_ARRAYS, _NEWTON_ARRAYS, _UNCLOSED = 100.0, 30.0, 5.0, 8.0, 1.5
#: A sweep of one block takes as long as so many evaluations: where blocks agree in between it takes longer.
_SWEEP = 8.0
#: Methods that get ahead faster and faster have so many times as much to go as they have gone, at most.
_AS_LONG = 2.0
#: A relative gap from which on a start is that of a new run, and the W of several blocks no place for it.
_FAR = 0.5


class Choice(NamedTuple):
    """The name of a method, and why it was taken."""

    method: str
    why: str


def choose(
    problem: Problem, *, kernel: bool, rows: RowSource | None = None, begun: str | None = None
) -> Choice:
    """Return the method for a problem; "auto" for one that is found by forecasts.

    `rows` are those of one block, None where there are several.  A run that was `begun` goes on as it did.
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
    ascent = _ASCENT * _cost_of_ascent(problem)
    beaten = problem.by_class or ascent < _CLEARLY * _most_of_lbfgs(problem)
    return Choice("auto", "") if fits and beaten else Choice("lbfgs", smooth)


def begun_by(state: SolverState, *, duals: bool) -> str:
    """Return the method that a run with a smooth loss goes on with from a state, with or without its duals.

    Dual ascent goes on from W(A) alone, which L-BFGS and Newton's method leave.
    """
    if isinstance(state.memory, AutoMemory) and duals:
        return "auto"
    leaves_duals = isinstance(state.memory, LbfgsMemory | NewtonMemory | AutoMemory)
    return "dual_ascent" if duals and not leaves_duals else "lbfgs"


class Prior(NamedTuple):
    """What a method takes from W = 0 by rule of thumb: passes, and seconds of one beside those of others."""

    passes: float
    cost: float = 1.0


def priors(
    problem: Problem, blocks: int, rows: RowSource, weights: Float64Array | None = None
) -> Mapping[str, Prior]:
    """Return what may be taken for a problem, by name, and what each is forecast to take.

    Dual ascent takes about 1 + C |x|^2 passes for a smooth loss (S. Shalev-Shwartz and T. Zhang, J. Mach.
    Learn. Res. 14, 2013), and on several blocks any number; L-BFGS takes the more the worse the Hessian is
    conditioned, for which n C mu / m stands: lam is 1 / (n C), and a loss curved by 1/m a class at W = 0.
    """
    n, d, m = problem.n, problem.d, problem.m
    if problem.form.smooth and blocks > 1:
        return {"lbfgs": Prior(math.inf)}
    if not problem.form.smooth:
        cost = max(_NEWTON * d, _NEWTON_LEAST)
        if blocks > 1 or factors_hessian(problem):
            cost = min(cost, _NEWTON_MOST) + _FACTORS * (d * m) ** 2 / n * factors_hessian(problem)
        size = math.inf if blocks > 1 or problem.joint else _sampled(problem, rows, weights)[0]
        return {
            "dual_ascent": Prior(_ASCENT + _ASCENT_HINGE * math.sqrt(size)),
            "newton": Prior(_NEWTON_PASSES, cost / _NEWTON_PASSES),
        }
    size, common, centred = _sampled(problem, rows, weights)
    passes = _LBFGS * (common / (problem.lam * m)) ** _POWER
    newton = _NEWTON_SMOOTH * passes
    if few_numbers(problem):
        newton = min(newton, _NEWTON_PASSES)
    if wants_classes(problem) and not problem.by_class:
        passes = min(_LBFGS_METRIC * (centred / (problem.lam * m)) ** _POWER, _most_of_lbfgs(problem))
    ascent = Prior(_ASCENT + _ASCENT_SMOOTH * size, _cost_of_ascent(problem))
    if gives_sparse(rows) and size <= _MODERATE:
        passes = max(passes, 2.0 * math.prod(ascent))
        newton = math.inf
    return {
        "lbfgs": Prior(passes),
        "dual_ascent": ascent,
        "newton": Prior(newton, _cost_of_newton(problem, passes)),
    }


def _cost_of_newton(problem: Problem, passes: float) -> float:
    """Return how many times as long a product of Newton's method takes as a pass of L-BFGS, of so many."""
    n, d = problem.n, problem.d
    rows, array = n * (d + _EXPONENTIALS), _ARRAY * d
    lbfgs = rows + (min(most_pairs(problem), passes / 2.0) + _LBFGS_ARRAYS) * array
    unclosed = _UNCLOSED if problem.form.family.curvature is None else 1.0
    return unclosed * (rows + _NEWTON_ARRAYS * array) / lbfgs


def _cost_of_ascent(problem: Problem) -> float:
    """Return how many times as long a pass of dual ascent takes as one of L-BFGS for a smooth loss."""
    updates = _UPDATES_ALIKE if problem.form.family.gradient_rows is None else _UPDATES
    return 1.0 + updates / (problem.d + _FEATURES)


def _most_of_lbfgs(problem: Problem) -> float:
    """Return how many passes L-BFGS takes with a metric of the classes, inf where it makes none."""
    n, d = problem.n, problem.d
    return _METRIC + 0.1 * d + 2.0 * d**2 / n if wants_classes(problem) else math.inf


def _sampled(problem: Problem, rows: RowSource, weights: Float64Array | None) -> tuple[float, float, float]:
    """Return C |x|^2 and the mean eigenvalue of X^T X / n, also around the mean, of rows as the heaviest."""
    n, dtype = problem.n, compute_dtype(rows.dtype)
    starts = range(0, n, max(n // _SAMPLES, _SAMPLE_ROWS))
    samples = [as_rows(rows[start : min(start + _SAMPLE_ROWS, n)], dtype) for start in starts]
    lengths = np.concatenate([squared_norms(sample) for sample in samples])
    heaviest = 1.0 if weights is None else float(weights.max())
    size = heaviest * max(float(lengths.mean()), _LONG * float(lengths.max())) / (problem.lam * n)
    thinned = [sample[::_THINNED] for sample in samples]
    if gives_sparse(rows):
        some = scipy_sparse.vstack(thinned, format="csr")
        gram = (some @ some.T).toarray()
    else:
        some = np.concatenate(thinned)
        gram = some @ some.T
    gram = gram.astype(np.float64)
    means = gram.mean(axis=1)
    centred = gram - means - means[:, None] + means.mean()
    return size, _mean_eigenvalue(gram), _mean_eigenvalue(centred)


def _mean_eigenvalue(gram: Float64Array) -> float:
    """Return sum mu^2 / sum mu over the eigenvalues mu of (1/n) sum_i x_i x_i^T, by products of some rows."""
    squares = np.diag(gram)
    among = squared_norm(gram) - squared_norm(squares)
    return max(among, 0.0) / max(len(squares) - 1, 1) / (float(squares.sum()) or 1.0)


@stored
@dataclass(frozen=True)
class Reading:
    """Passes and seconds of a run, and the gap there, since when the method in turn is watched."""

    passes: int
    seconds: float
    gap: float


@stored
@dataclass(frozen=True)
class Change:
    """Where the method was changed: from one to another, at so many passes and this relative gap.

    `left` and `forecast` are the seconds that the two were forecast to take from there, at `pace` seconds a
    pass of the one that was left.
    """

    before: str
    after: str
    passes: int
    gap: float
    left: float
    forecast: float
    pace: float

    @property
    def passes_left(self) -> float:
        """The passes that the one that was left was forecast to take."""
        return self.left / self.pace if self.pace > 0.0 else math.inf


@stored
@dataclass(frozen=True, eq=False)
class AutoMemory:
    """The method whose turn it is, its memory, since how many passes, the last reading, and all changes.

    `evaluation` is the least that measuring a point took, in seconds.
    """

    method: str
    memory: object = None
    began: int = 0
    since: Reading | None = None
    changes: tuple[Change, ...] = ()
    evaluation: float = math.inf


def change_of_method(state: SolverState) -> Choice:
    """Return the methods that a run by forecasts took so far, and why."""
    memory = state.memory
    if not isinstance(memory, AutoMemory):
        return Choice("dual_ascent", "the run has just begun")
    if not memory.changes:
        return Choice(memory.method, f"no method was forecast to take less time than {memory.method}")
    names = ", ".join((memory.changes[0].before, *(change.after for change in memory.changes)))
    return Choice(names, "; ".join(map(_sentence, memory.changes)))


def _sentence(change: Change) -> str:
    return (
        f"{change.after} from pass {change.passes:,} on, at a gap of {change.gap:.1e}: {change.left:.2g} s "
        f"to go by {change.before} at {change.pace:.2g} s a pass, {change.forecast:.2g} s by {change.after}"
    )


@dataclass(frozen=True)
class Auto(Method):
    """The method that is forecast to end first, as far as the run has come.

    `blocks` and `seed` are those of DualAscent; `priors` say what may be taken, the first where nothing is
    known of the rows; a hinge begins with it, for A is a good start for the other.  `asked` is whether A is
    asked for, and not kept for the method alone.
    """

    #: As those of DualAscent do.
    advances_by_passes: ClassVar[bool] = True

    blocks: int = 1
    seed: int = 0
    priors: Mapping[str, Prior] = field(default_factory=lambda: {"dual_ascent": Prior(math.inf)})
    asked: bool = True

    def follows(self, state: SolverState) -> bool:
        """Return whether D is that of the A which blocks keep: always, but while gradients move W."""
        return self._method_named(self._recalled(state).method).follows_duals

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Measure as the method does whose turn it is."""
        memory = self._recalled(state)
        method = self._method_named(memory.method)
        measured = method.measure(problem, run, replace(state, memory=memory.memory))
        remembered = replace(memory, memory=measured.before.memory)
        return replace(measured, before=replace(measured.before, memory=remembered))

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Take a round of the method whose turn it is, or change it."""
        before, memory = measured.before, self._recalled(measured.before)
        own = replace(before, memory=memory.memory)
        if measured.passes:
            memory = replace(memory, evaluation=min(memory.evaluation, measured.took))
        if not own.recalled(AscentMemory).unmeasured:
            gap = before.best.primal - (measured.dual if self.follows(before) else before.best.dual)
            here = Reading(before.passes + measured.passes, measured.seconds, gap)
            since = memory.since or here
            soon = problem.form.smooth or self.blocks > 1 or here.passes - memory.began <= _WATCHED
            watched = {"lbfgs": _WATCHED_LBFGS, "newton": _WATCHED}.get(memory.method, _WATCHED_SOON)
            if here.passes - since.passes >= (watched if soon else _WATCHED):
                change = self._change(measured, memory, since, here)
                if change is not None:
                    return self._changed(problem, run, measured, change)
                since = here
            memory = replace(memory, since=since)
        method = self._method_named(memory.method)
        advance = method.advance(problem, run, replace(measured, before=own))
        return replace(advance, memory=replace(memory, memory=advance.memory))

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, *, duals_kept: bool
    ) -> FinalValues:
        """Certify the A of the blocks where it is the best dual point, or somebody asked for it."""
        if self.follows(state):
            # Where A began at weights it has only become better since, and W moves with it.
            state = replace(state, best=replace(state.best, dual_point=None))
        kept = self.asked or state.best.dual_point is None
        return super().final(problem, executor, state, duals_kept=duals_kept and kept)

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Return a state whose W(A), b and |A|^2 / n were computed anew from A."""
        memory = self._recalled(state)
        own = replace(state, memory=memory.memory)
        rebuilt = self._method_named(memory.method).rebuilt(problem, executor, own)
        return replace(rebuilt, memory=replace(memory, memory=rebuilt.memory))

    def _recalled(self, state: SolverState) -> AutoMemory:
        """Return what a state remembers; one that another run left, or none, begins a turn."""
        if isinstance(state.memory, AutoMemory):
            return state.memory
        if isinstance(state.memory, NewtonMemory) and "newton" in self.priors:
            # It has left W(A).
            return AutoMemory("newton", state.memory)
        first, *others = (name for name in self.priors if name != "newton" or "lbfgs" in self.priors)
        times = {first: _CLEARLY * math.prod(self.priors[first])}
        times |= {name: math.prod(self.priors[name]) for name in others}
        return AutoMemory(min(times, key=times.__getitem__), state.memory)

    def _method_named(self, name: str) -> Method:
        newton = Newton() if "lbfgs" in self.priors else ProximalNewton()
        return {"dual_ascent": DualAscent(self.blocks, self.seed), "lbfgs": Lbfgs(), "newton": newton}[name]

    def _change(
        self, measured: Measurement, memory: AutoMemory, since: Reading, here: Reading
    ) -> Change | None:
        """Return the change to the method that is forecast to take clearly less, None where none is.

        One that ends within the passes that are left comes before one that does not; of two that do not, the
        one that comes closer.
        """
        # A method that took its turn on one block has no forecast on several.
        if len(memory.changes) >= _MOST_CHANGES or memory.method not in self.priors:
            return None
        name, left = memory.method, {change.before: change for change in memory.changes}
        pace = (here.seconds - since.seconds) / (here.passes - since.passes)
        # A pass of another one takes its share of this, of which rounds of several blocks say nothing.
        unit = pace / self.priors[name].cost if self.blocks == 1 else _SWEEP * memory.evaluation
        own = self._passes_left(measured, memory, since, here)
        found = {other: Prior(prior.passes, prior.cost * unit) for other, prior in self.priors.items()}
        # A method that had its turn is as far as it was then.
        found |= {other: Prior(change.passes_left, change.pace) for other, change in left.items()}
        found[name] = Prior(own, _CLEARLY * pace)

        def rank(other: str) -> tuple[bool, float]:
            passes, seconds = found[other]
            late = passes > measured.passes_left
            return late, (_CLEARLY if late and other == name else 1.0) * passes * (1.0 if late else seconds)

        best = min(found, key=rank)
        if best == name:
            return None
        relative = relative_gap(here.gap, measured.before.best.primal)
        seconds = math.prod(found[best])
        return Change(name, best, measured.before.passes, relative, own * pace, seconds, pace)

    def _passes_left(self, measured: Measurement, memory: AutoMemory, since: Reading, here: Reading) -> float:
        """Return how many passes the method in turn has to go, by the fall of the gap and by its prior.

        The prior holds as long as it has not been refuted, and says the most.  It is the gap itself whose
        fall is looked at: where D is small beside P the relative one hardly moves.
        """
        gone = here.passes - memory.began
        dual = measured.before.best.primal - here.gap
        goal = measured.tol * (dual if dual > 0.0 else 0.1 * here.gap)
        left = math.inf
        if goal > 0.0 and 0.0 < here.gap < since.gap:
            to_go = math.log(max(here.gap / goal, 1.0)) / math.log(since.gap / here.gap)
            left = (here.passes - since.passes) * to_go
        if memory.method != "dual_ascent":
            left = min(left, _AS_LONG * gone)
        prior = self.priors[memory.method].passes
        return left if gone >= prior else min(left, prior - gone)

    def _changed(self, problem: Problem, run: Runner, measured: Measurement, change: Change) -> Advance:
        """Go over to another method, from W to A or back."""
        before, memory = measured.before, self._recalled(measured.before)
        own, point, passes, kept = replace(before, memory=memory.memory), before.point, 0, None
        old, new = (self._method_named(name).follows_duals for name in (change.before, change.after))
        if not new:
            point = replace(point, W=point.W if before.best.W is None else before.best.W)
        elif change.after == "newton":
            near = change.gap < _FAR
            kept = warm_start(own, measured.dual, near=near)
            # W of blocks that undid each other's work, or that is worse than none, is no place to begin.
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


def _of_gradients(problem: Problem, run: Runner, before: SolverState) -> Point:
    """Return the point of A, which becomes the best dual point that was found at weights, if there is one."""
    point, found = before.point, before.best.dual_point
    if isinstance(found, FoundAt):
        sums = run(TakeGradients(found.W, found.share, exact=point.exact))
        point = replace(point, pending_step=None)
    else:
        sums = run(Rebuild(point.pending_step, exact=point.exact))
    return replace(
        point,
        W=problem.scale * sums.product,
        conjugate_mean=sums.conjugate / problem.n,
        mean_sq_dual=sums.alpha_sq / problem.n,
    )
