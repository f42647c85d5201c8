"""Methods on a kernel matrix that is never stored: dual ascent, and Frank-Wolfe with and without atoms.

The blocks keep the scores S = K A / (lam n) of their rows, so that P, D and each row's share of the gap are
sums over rows at any time.  The scores are recomputed from A at the end, in float64, and whenever they belong
to another A.

**Dual ascent.**  A round picks some rows, with probabilities proportional to the roots of their shares; one
block makes exact column updates within them, with K of these rows alone, and extrapolates now and then, until
a sweep gains little; and all blocks add the effect on their scores.  The dual rises in each round, whatever
the blocks, because the rows are updated one after the other: blocks that update rows of their own in parallel
would undo each other's work, in tens of times as many rounds.  Rows are picked at random because neighbours
have to move together: the rows with the largest shares alone are those missed by the last round, and chase
each other for tens of passes.

**Frank-Wolfe.**  The blocks find the vertices U of their rows at the scores S, and keep their scores
T = K U / (lam n).  A round moves T by the columns of K of the rows with a new vertex, soon few, and the step
needs scalars only: with dA = U - A, <A, K A>, <U, K A> and <U, K U> are sums over rows of <a_i, s_i>,
<u_i, s_i> and <u_i, t_i>.  An atom consists of vertices and their scores, kept by the blocks; the coordinator
knows only b(U_t), the weights and the Gram matrix G_st = <U_s, K U_t> / (lam n^2) + gamma <U_s, U_t> / n.  If
a block lacks an atom, as after the loss of a worker, A itself becomes the one atom to continue from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from topline.solvers.blocks.kernel import ITSELF, Change, Mark, PairValues, extrapolation_bytes
from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import FinalValues, Objective, SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.atoms import Atoms, FullyCorrective
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.frank_wolfe import AtomFrankWolfe, FrankWolfe, Joined, Mixture
from topline.solvers.operations import OperationRunner, PutInside, Runner
from topline.solvers.operations.kernel import (
    CollectRows,
    FindCrossValues,
    FindKernelVertices,
    KernelAnswer,
    KernelVertices,
    MultiplyAtoms,
    PickedSums,
    PickRows,
    ReweighAtoms,
    SpreadChange,
    UpdateRows,
)

#: Rows of A, or of a change, per request.
COLLECTED = 4096
#: Least columns counted for a round, as a share of n, so that a budget of passes ends every run.
_LEAST_COLUMNS = 0.001
#: A gap below minus this share of P and b is an error, not rounding.
_ROUNDING = 1e-6
#: Rows with less than this share of the mean share of the gap are not picked.
_LEAST = 0.01
#: Mean number of rows in an update: fewer take less memory, but more passes and rounds.
PICKED_ROWS = 2048
#: Simultaneous copies of the features of picked rows.
_COPIES = 6
#: Rise of the dual over the gap that exhausts float32, and relative gap that changes the scores to float64.
_STALLED, _SINGLE = 1e-3, 1e-4
#: A smaller share of P and b is no rise of the dual.
_NO_RISE = 1e-15
#: Limit in bytes for the atoms of all blocks together, and on their number.
ATOM_BYTES = 1 << 28
_FEWEST, _MOST = 4, 1024


@stored
@dataclass(frozen=True, eq=False)
class KernelMemory:
    """The memory of methods on the blocks of a kernel.

    Attributes
    ----------
    built : how often the scores were rebuilt.
    columns : columns of K computed so far; a round counts a little even without any.
    vertices : round and rebuild of the vertices whose scores blocks hold, None if they hold none.
    roots, gap : for dual ascent the sum of the roots of the rows' shares of the gap at its last measurement,
        None before, and the gap.
    atoms : the atoms of Frank-Wolfe, None before its first round.
    """

    built: int = 0
    columns: float = 0.0
    vertices: Mark | None = None
    roots: float | None = None
    gap: float = 0.0
    atoms: Atoms | None = None

    def with_columns(self, n: int, columns: float) -> tuple[KernelMemory, int]:
        """Return the memory after `columns` more columns of K (n, n), and the passes completed by them."""
        done = self.columns + columns
        return replace(self, columns=done), int(done // n) - int(self.columns // n)


@dataclass(frozen=True)
class KernelMethod(Method):
    """A method on the blocks of a kernel."""

    kernel: PairValues = field(kw_only=True)
    advances_by_passes: ClassVar[bool] = True

    def look(self, _problem: Problem, state: SolverState) -> PickRows:
        """Return the operation on all rows that measures a state."""
        return PickRows(**self.asked(state))

    def asked(self, state: SolverState) -> dict[str, Any]:
        """Return the arguments common to all operations on the scores of a state."""
        return {"kernel": self.kernel, "mark": mark_of(state), "exact": state.point.exact}

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D."""
        stats = run(self.look(problem, state))
        if stats.stale:
            state = self.with_scores(problem, run, state)
            stats = fresh(run(self.look(problem, state)))
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        gap = max(primal - dual, 0.0)
        memory = replace(state.recalled(KernelMemory), roots=stats.roots, gap=gap)
        before = replace(state, memory=memory)
        before = before.with_point(conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return Measurement(Objective(primal, dual), before, stats, passes=0)

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Recompute the scores of every row from A."""
        return self.with_scores(problem, executor.run, state)

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, _tol: float = 0.0
    ) -> FinalValues:
        """Return P and D of A in float64, from recomputed scores."""
        if not executor.keeps_duals:
            raise StateLostError("a model with a kernel is its dual variables; bind with keep_duals=True")
        executor.run(PutInside(state.pending_step, anyway=True))
        state = self.with_scores(problem, executor.run, state.with_point(exact=True))
        stats = fresh(executor.run(PickRows(**self.asked(state))))
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        objective = Objective(primal, dual)
        if math.isfinite(primal):
            objective = Objective.checked(primal, dual, abs(primal) + abs(conjugate_mean), _ROUNDING)
        return FinalValues(
            W=state.W,
            conjugate_mean=conjugate_mean,
            objective=objective,
            smoothed_gap=objective.gap,
            mean_sq_dual=mean_sq_dual,
        )

    def at_best_multiple(
        self, problem: Problem, executor: OperationRunner, shrink: Callable[[float], None]
    ) -> SolverState:
        """Return the state of the best multiple of the blocks' A, its rows inside their domains.

        `shrink` replaces A by that multiple (`topline.solvers.run.task`); lam |W(A)|^2 is the mean of
        <alpha_i, s_i>.
        """
        executor.run(PutInside(anyway=True))
        state = self.with_scores(problem, executor.run, SolverState.start(problem))
        stats = executor.run(PickRows(**self.asked(state)))
        primal, dual, conjugate_mean, _ = values_of_rows(problem, stats)
        # D(A) = b - square / 2.
        square = 2.0 * (conjugate_mean - dual)
        if not math.isfinite(primal) or conjugate_mean >= square:
            return state
        shrink(max(conjugate_mean / square, 0.0))
        return self.with_scores(problem, executor.run, state)

    def with_scores(self, problem: Problem, run: Runner, state: SolverState) -> SolverState:
        """Recompute all scores: batches of rows of A are collected and spread."""
        memory = state.recalled(KernelMemory)
        memory = replace(memory, built=memory.built + 1)
        exact, columns, mark = state.point.exact, 0, None
        collect = CollectRows(kernel=self.kernel, mark=Mark(), exact=exact)
        # At last no change, after which the scores have the mark of the state.
        for part, change in enumerate(chain(_collected(run, collect, problem.n), [None]), start=1):
            after = Mark(memory.built, state.round, 0 if change is None else part)
            spread = SpreadChange(
                kernel=self.kernel, mark=mark or after, exact=exact, change=change, after=after,
                moves=False, anew=mark is None,
            )  # fmt: skip
            fresh(run(spread))
            mark, columns = after, columns + (0 if change is None else len(change.numbers))
        memory, passes = memory.with_columns(problem.n, columns)
        return replace(state, memory=memory, passes=state.passes + passes).with_point(pending_step=None)


@dataclass(frozen=True)
class KernelAscent(KernelMethod):
    """Dual ascent with the kernel `kernel` on `blocks` blocks.

    `tile` is the mean number of picked rows, whose K is held in memory once.  `seed` fixes the draws.
    """

    blocks: int = 1
    seed: int = 0
    tile: int = PICKED_ROWS

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Update the picked rows, and spread the change."""
        before, rows = measured.before, measured.stats.picked
        point, change, rise = before.point, None, 0.0
        if rows is not None:
            by, values = before.round % self.blocks, None
            if self.kernel.name == "precomputed":
                # The features of the rows do not determine K of them.
                values = run(FindCrossValues(**self.asked(before), numbers=rows.numbers)).values
                if values is None or len(values) != len(rows.numbers):
                    raise StateLostError("the blocks lack rows that were picked; run the round again")
            stats = run(UpdateRows(**self.asked(before), rows=rows, by=by, seed=self.seed, values=values))
            change, rise = stats.change, stats.rise / problem.n
        fresh(run(SpreadChange(**self.asked(before), change=change, after=_after(before))))
        if point.exact:
            terms = abs(measured.primal) + abs(point.conjugate_mean)
            spent = rows is not None and rise <= _NO_RISE * terms
        else:
            slow = rows is not None and rise < _STALLED * (measured.primal - measured.dual)
            spent = slow or measured.below_float32(_SINGLE)
        columns = 0 if change is None else len(change.numbers)
        memory, active = before.recalled(KernelMemory), measured.stats.active
        return replace(_advanced(problem, before, memory, columns, 1.0, active), spent=spent)

    def look(self, problem: Problem, state: SolverState) -> PickRows:
        """Request about `tile` rows according to the last roots; at first every row has the same share."""
        memory = state.recalled(KernelMemory)
        roots = float(problem.n) if memory.roots is None else memory.roots
        rate = self.tile / roots if roots > 0.0 else math.inf
        return PickRows(**self.asked(state), rate=rate, least=_LEAST * memory.gap, seed=self.seed)


class _Found(NamedTuple):
    """Sums over vertices, the arguments for blocks with their scores, and the columns of K taken."""

    sums: KernelVertices
    asked: dict[str, Any]
    columns: int


@dataclass(frozen=True)
class KernelFrankWolfe(KernelMethod, AtomFrankWolfe):
    """Frank-Wolfe on a kernel with a memory of its atoms, weighted by `rule`.

    If it does not `remember` them, A itself is the one atom of every round, and its best mixture with the
    vertices is the exact step towards them.
    """

    remembers: bool = field(default=True, kw_only=True)

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense: rounded to float32 they would lie outside their domain."""
        return problem.smoothing == 0 and not problem.form.sparse_vertices

    def vertices(self, problem: Problem, run: Runner, before: SolverState) -> _Found:
        """Find the vertices and move their scores to them."""
        asked, held = self.asked(before), before.recalled(KernelMemory).vertices
        mark = mark_of(before)
        # Scores rebuilt since then have no vertices.
        of = held if held is not None and held.built == mark.built else None
        sums = fresh(run(FindKernelVertices(**asked, of=of)))
        rows, collect, columns = sums.changed, CollectRows(**asked, vertices=True), 0
        most = COLLECTED if rows > COLLECTED else problem.n
        for change in _collected(run, collect, problem.n if rows else 0, most):
            after = replace(mark, part=mark.part + 1)
            spread = SpreadChange(
                kernel=self.kernel, mark=mark, exact=before.exact, change=change, after=after, moves=False,
                vertices=True,
            )  # fmt: skip
            fresh(run(spread))
            mark, columns = after, columns + len(change.numbers)
        return _Found(sums, {**asked, "found": mark}, columns)

    def joined(self, problem: Problem, run: Runner, measured: Measurement) -> Joined:
        """Find the vertices, and multiply them with the atoms of the blocks."""
        before, point = measured.before, measured.before.point
        found = self.vertices(problem, run, before)
        atoms, stats = before.recalled(KernelMemory).atoms, None
        if atoms is not None:
            stats = run(MultiplyAtoms(**found.asked, atoms=atoms.names))
        if atoms is None or stats is None or stats.stale:
            square = measured.stats.alpha_s / problem.n + problem.smoothing * point.mean_sq_dual
            names = (_FIRST if self.remembers else ITSELF,)
            atoms = Atoms.of(point.conjugate_mean, square, _NO_WEIGHTS, names=names)
            stats = fresh(run(MultiplyAtoms(**found.asked, atoms=names, anew=self.remembers)))
        b = found.sums.conjugate_u / problem.n
        more = atoms.grown(stats.products / problem.n, b, _NO_WEIGHTS, name=before.round)
        return Joined(atoms, more, len(atoms), found.sums.active, found)

    def most(self, problem: Problem) -> int:
        """Return the largest number of atoms."""
        return most_kernel_atoms(problem)

    def land(
        self, problem: Problem, run: Runner, measured: Measurement, joined: Joined, mixture: Mixture
    ) -> Advance:
        """Let the blocks set A and its scores to the mixture of the atoms."""
        before, atoms, names = measured.before, mixture.atoms, joined.more.names
        made = (tuple((names[place], share) for place, share in parts) for parts in mixture.kept)
        weights = zip(atoms.names, atoms.weights, strict=True)
        reweighed = ReweighAtoms(
            **joined.found.asked,
            newest=before.round,
            kept=tuple(zip(atoms.names, made, strict=True)) if self.remembers else (),
            weights=tuple((name, float(weight)) for name, weight in weights if weight > 0),
            after=_after(before),
        )
        fresh(run(reweighed))
        memory = before.recalled(KernelMemory)
        memory = replace(memory, vertices=mark_of(before), atoms=atoms if self.remembers else None)
        return _advanced(problem, before, memory, joined.found.columns, mixture.step, joined.active)

    def spent(self, measured: Measurement, mixture: Mixture) -> bool:
        """Return whether D does not rise, or float32 scores allow no further progress."""
        return not mixture.raised or (not measured.before.point.exact and measured.below_float32())


K = TypeVar("K", bound=KernelAnswer)

#: The name of the atom that A was when the others began.
_FIRST = -1
#: Placeholder for the weights of an atom kept by blocks.
_NO_WEIGHTS = np.zeros((0, 0))


def kernel_method(kernel: PairValues, method: Method, **ascent: int) -> KernelMethod:
    """Return a method's version for blocks of a kernel; `ascent` has blocks, seed and tile of dual ascent."""
    if isinstance(method, FrankWolfe):
        return KernelFrankWolfe(FullyCorrective(), kernel=kernel, remembers=False)
    if isinstance(method, AtomFrankWolfe):
        return KernelFrankWolfe(method.rule, kernel=kernel)
    return KernelAscent(kernel=kernel, **ascent)


def picked_bytes(d: int, m: int, rows: int) -> int:
    """Return the coordinator's bytes for an update of `rows` rows with d features and m classes, and K."""
    return 8 * rows * (_COPIES * (d + 2 * m) + rows) + extrapolation_bytes(rows, m)


def most_kernel_atoms(problem: Problem) -> int:
    """Return the largest number of atoms."""
    return int(np.clip(ATOM_BYTES // _bytes_of_one(problem), _FEWEST, _MOST))


def atom_bytes(problem: Problem) -> int:
    """Return the most bytes of all atoms, over all blocks."""
    return most_kernel_atoms(problem) * _bytes_of_one(problem)


def _bytes_of_one(problem: Problem) -> int:
    """Return the bytes of one atom: float32 scores and sparse vertices."""
    entries = len(problem.form.rho) + 1 if problem.form.sparse_vertices else problem.m
    return problem.n * (4 * problem.m + 8 * min(entries, problem.m))


def mark_of(state: SolverState) -> Mark:
    """Return the mark of the scores in a state."""
    return Mark(state.recalled(KernelMemory).built, state.round)


def _after(state: SolverState) -> Mark:
    """Return the mark of the scores after a round."""
    mark = mark_of(state)
    return replace(mark, round=mark.round + 1)


def _advanced(
    problem: Problem, before: SolverState, memory: KernelMemory, columns: int, step: float, active: int
) -> Advance:
    """Return the end of a round that computed so many columns of K; it counts a little even without any."""
    memory, passes = memory.with_columns(problem.n, max(columns, _LEAST_COLUMNS * problem.n))
    return Advance(step, replace(before.point, round=before.point.round + 1), memory, active, passes)


def values_of_rows(problem: Problem, stats: PickedSums) -> tuple[float, float, float, float]:
    """Return P, D, b and |A|^2 / n; lam |W(A)|^2 is the mean of <alpha_i, s_i>."""
    n = problem.n
    norm, conjugate_mean, mean_sq_dual = stats.alpha_s / n, stats.conjugate_alpha / n, stats.alpha_sq / n
    dual = conjugate_mean - 0.5 * norm - 0.5 * problem.smoothing * mean_sq_dual
    return 0.5 * norm + stats.loss / n, dual, conjugate_mean, mean_sq_dual


def fresh(stats: K) -> K:
    """Return an answer; raises StateLostError if some rows have scores of another A."""
    if stats.stale:
        raise StateLostError(f"the scores of {stats.stale} rows belong to other dual variables; run it again")
    return stats


def _collected(run: Runner, collect: CollectRows, n: int, rows: int = COLLECTED) -> Iterator[Change]:
    """Yield what blocks collect of n rows, so many at a time, in batches."""
    asked = (replace(collect, start=low, stop=min(n, low + rows)) for low in range(0, n, rows))
    return gathered(fresh(run(each)).change for each in asked)


def gathered(changes: Iterable[Change | None]) -> Iterator[Change]:
    """Yield the rows of changes in batches of at most `COLLECTED`, which no change exceeds.

    Large batches pay because spreading each one reads all features.
    """
    held: Change | None = None
    for change in changes:
        if change is None or not len(change.numbers):
            continue
        if held is not None and len(held.numbers) + len(change.numbers) > COLLECTED:
            yield held
            held = None
        held = change if held is None else held.merge(change)
    if held is not None:
        yield held
