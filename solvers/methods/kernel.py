"""Methods on a kernel matrix that nobody holds: dual ascent, and Frank-Wolfe with and without atoms.

The blocks keep the scores S = K A / (lam n) of their rows, so that P, D and each row's share of the gap are
sums over rows at any time.  They are computed anew from A at the end, in float64, and wherever they
belong to another A.

**Dual ascent.**  A round picks some rows, with probabilities that grow as the roots of their shares; one
block makes exact column updates within them, with K of these rows alone, and extrapolates now and then, until
a sweep brings little; and all blocks add what that changes to their scores.  The dual rises by each round,
whatever the blocks, since the rows are updated one after the other: blocks that each update rows of their own
at the same time would undo each other's work, in tens of times as many rounds.  Rows are picked at random
because neighbours have to move together: the rows with the largest shares alone are those that the round
before has missed, and chase each other for tens of passes.

**Frank-Wolfe.**  The blocks find the vertices U of their rows at the scores S, and keep their scores
T = K U / (lam n).  A round moves T by the columns of K of the rows that changed their vertex, which soon are
few, and the step by scalars alone: with dA = U - A, <A, K A>, <U, K A> and <U, K U> are sums over rows of
<a_i, s_i>, <u_i, s_i> and <u_i, t_i>.  An atom is its vertices and their scores, which the blocks keep; the
coordinator knows b(U_t), the weights and the Gram matrix G_st = <U_s, K U_t> / (lam n^2) + gamma <U_s, U_t> /
n alone.  Where a block lacks an atom, as after a worker was lost, A itself becomes the one atom to go on
from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from topline.solvers.blocks.kernel import Change, Mark, PairValues, PickedRows, extrapolation_bytes
from topline.solvers.core.codec import stored
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.atoms import Atoms
from topline.solvers.methods.base import Advance, Measurement, Method
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.methods.frank_wolfe import AtomFrankWolfe, FrankWolfe, Joined, Landing, Mixture, Way
from topline.solvers.methods.step_rules import Direction
from topline.solvers.operations import OperationRunner, PutInside, Runner
from topline.solvers.operations.kernel import (
    CollectRows,
    FindCrossValues,
    FindKernelVertices,
    KernelAnswer,
    KernelVertices,
    MixVertices,
    MultiplyAtoms,
    PickedSums,
    PickRows,
    ReweighAtoms,
    SpreadChange,
    SpreadVertices,
    UpdateRows,
)
from topline.solvers.typing import Float64Array

#: Rows that one request gives of A, or of a change.
COLLECTED = 4096
#: A round counts as columns of at least this share of n, so that a budget of passes ends every run.
_LEAST_COLUMNS = 0.001
#: A gap below minus this share of P and b is a mistake, not rounding.
_ROUNDING = 1e-6
#: Rows with less than this share of the mean share of the gap are not picked.
_LEAST = 0.01
#: Rows of an update in the mean: fewer take less memory, and more passes and rounds.
PICKED_ROWS = 2048
#: Copies of the features of picked rows that exist at the same time.
_COPIES = 6
#: A rise of the dual below this share of the gap says that float32 has nothing more to give, and a relative
#: gap from which on the scores are kept in float64.
_STALLED, _SINGLE = 1e-3, 1e-4
#: No rise of the dual is less than this share of P and b.
_NO_RISE = 1e-15
#: Bytes that the atoms of all blocks may take together, and how many there may be.
ATOM_BYTES = 1 << 28
_FEWEST, _MOST = 4, 1024


@stored
@dataclass(frozen=True, eq=False)
class KernelMemory:
    """What methods on the blocks of a kernel remember.

    Attributes
    ----------
    built : how often the scores were rebuilt.
    columns : columns of K that were computed; a round counts a little even where it needed none.
    vertices : the round and rebuild of the vertices whose scores blocks hold, None where they hold none.
    roots, gap : of dual ascent the sum of the roots of the rows' shares of the gap when it was last measured,
        None before, and the gap.
    atoms : those of Frank-Wolfe over atoms, None before its first round.
    """

    built: int = 0
    columns: float = 0.0
    vertices: Mark | None = None
    roots: float | None = None
    gap: float = 0.0
    atoms: Atoms | None = None

    def with_columns(self, n: int, columns: float) -> tuple[KernelMemory, int]:
        """Return the memory with so many more columns of K (n, n), and the passes that these complete."""
        done = self.columns + columns
        return replace(self, columns=done), int(done // n) - int(self.columns // n)

    def after_round(self, n: int, columns: int) -> tuple[KernelMemory, int]:
        """Return the same for the columns of a round, which counts a little even where it needed none."""
        return self.with_columns(n, max(columns, _LEAST_COLUMNS * n))


@dataclass(frozen=True)
class KernelMethod(Method):
    """A method on the blocks of a kernel."""

    kernel: PairValues = field(kw_only=True)
    advances_by_passes: ClassVar[bool] = True

    def look(self, _problem: Problem, state: SolverState) -> PickRows:
        """Return what is asked of every row to measure a state."""
        return PickRows(**self.asked(state))

    def asked(self, state: SolverState) -> dict[str, Any]:
        """Return what every operation on the scores of a state is told."""
        return {"kernel": self.kernel, "mark": mark_of(state), "exact": state.point.exact}

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D."""
        stats = run(self.look(problem, state))
        if stats.stale:
            state = self.with_scores(problem, run, state)
            stats = run(self.look(problem, state))
        refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        gap = max(primal - dual, 0.0)
        memory = replace(state.recalled(KernelMemory), roots=stats.roots, gap=gap)
        before = replace(state, memory=memory)
        before = before.with_point(conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return Measurement(Objective(primal, dual), before, stats, passes=0)

    def rebuilt(self, problem: Problem, executor: OperationRunner, state: SolverState) -> SolverState:
        """Compute the scores of every row anew from A."""
        return self.with_scores(problem, executor.run, state)

    def final(
        self, problem: Problem, executor: OperationRunner, state: SolverState, *, duals_kept: bool
    ) -> FinalValues:
        """Return P and D of A in float64, from scores computed anew."""
        if not duals_kept:
            raise StateLostError("a model with a kernel is its dual variables; bind with keep_duals=True")
        executor.run(PutInside(state.pending_step, anyway=True))
        state = self.with_scores(problem, executor.run, state.with_point(exact=True))
        stats = executor.run(PickRows(**self.asked(state)))
        refuse_stale(stats)
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
        """Return the state of the best multiple of the A that the blocks hold, its rows inside their domains.

        `shrink` makes A that one (`topline.solvers.run.task`); lam |W(A)|^2 is the mean of
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
        """Compute all scores anew: a few rows of A at a time are collected, and spread."""
        memory = state.recalled(KernelMemory)
        memory = replace(memory, built=memory.built + 1)
        exact, columns, mark = state.point.exact, 0, None
        for part, change in enumerate(_rows_of_duals(problem, run, self.kernel, exact), start=1):
            after = Mark(memory.built, state.round, part)
            run(
                SpreadChange(
                    kernel=self.kernel, mark=mark or after, exact=exact, change=change, after=after,
                    moves=False, anew=mark is None,
                )
            )  # fmt: skip
            mark = after
            columns += len(change.numbers)
        stats = run(
            SpreadChange(
                kernel=self.kernel, mark=mark or Mark(), exact=exact, after=Mark(memory.built, state.round),
                moves=False, anew=mark is None,
            )
        )  # fmt: skip
        refuse_stale(stats)
        memory, passes = memory.with_columns(problem.n, columns)
        return replace(state, memory=memory, passes=state.passes + passes).with_point(pending_step=None)


@dataclass(frozen=True)
class KernelAscent(KernelMethod):
    """Dual ascent with the kernel `kernel` on `blocks` blocks.

    `tile` is how many rows are picked in the mean; K of these rows is in memory once.  `seed` fixes which.
    """

    blocks: int = 1
    seed: int = 0
    tile: int = PICKED_ROWS

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Update the picked rows, and spread the change."""
        before, rows = measured.before, measured.stats.picked
        point, change, rise = before.point, None, 0.0
        if rows is not None:
            by, values = before.round % self.blocks, self._values_within(run, before, rows)
            stats = run(UpdateRows(**self.asked(before), rows=rows, by=by, seed=self.seed, values=values))
            change, rise = stats.change, stats.rise / problem.n
        refuse_stale(run(SpreadChange(**self.asked(before), change=change, after=_after(before))))
        if point.exact:
            terms = abs(measured.primal) + abs(point.conjugate_mean)
            spent = rows is not None and rise <= _NO_RISE * terms
        else:
            slow = rows is not None and rise < _STALLED * (measured.primal - measured.dual)
            spent = slow or measured.below_float32(_SINGLE)
        columns = 0 if change is None else len(change.numbers)
        landing = _landing(problem, before, before.recalled(KernelMemory), columns)
        active = measured.stats.active
        return Advance(1.0, landing.point, landing.memory, active, landing.passes, spent=spent)

    def look(self, problem: Problem, state: SolverState) -> PickRows:
        """Ask for `tile` rows, as far as the last roots tell; at first every row has the same share."""
        memory = state.recalled(KernelMemory)
        roots = float(problem.n) if memory.roots is None else memory.roots
        rate = self.tile / roots if roots > 0.0 else math.inf
        return PickRows(**self.asked(state), rate=rate, least=_LEAST * memory.gap, seed=self.seed)

    def _values_within(self, run: Runner, state: SolverState, rows: PickedRows) -> Float64Array | None:
        """Return K of the picked rows where these do not tell it."""
        if self.kernel.name != "precomputed":
            return None
        stats = run(FindCrossValues(**self.asked(state), numbers=rows.numbers))
        if stats.values is None or len(stats.values) != len(rows.numbers):
            raise StateLostError("the blocks do not hold the rows that were picked; run the round again")
        return np.asarray(stats.values)


@dataclass(frozen=True)
class KernelVertexMethod(KernelMethod):
    """A method that finds the vertices of all rows, and moves their scores to them."""

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense: rounded to float32 they would lie outside their domain."""
        return problem.smoothing == 0 and not problem.form.sparse_vertices

    def vertices(self, problem: Problem, run: Runner, before: SolverState) -> _Found:
        """Find the vertices and move their scores to them."""
        asked, mark, held = self.asked(before), mark_of(before), before.recalled(KernelMemory).vertices
        # Scores that were rebuilt since know no vertices.
        of = held if held is not None and held.built == mark.built else None
        sums = run(FindKernelVertices(**asked, of=of))
        refuse_stale(sums)
        rows = sums.changed
        most = COLLECTED if rows > COLLECTED else problem.n

        def change_of(start: int) -> Change | None:
            stop = min(problem.n, start + most)
            stats = run(CollectRows(**asked, start=start, stop=stop, vertices=True))
            refuse_stale(stats)
            return stats.change

        parts = columns = 0
        for change in gathered(change_of(start) for start in range(0, problem.n if rows else 0, most)):
            refuse_stale(run(SpreadVertices(**asked, change=change, part=parts)))
            parts, columns = parts + 1, columns + len(change.numbers)
        return _Found(sums, {**asked, "parts": parts}, columns)


class _Found(NamedTuple):
    """Sums over vertices, what is asked of blocks that have their scores, and the columns of K they took."""

    sums: KernelVertices
    asked: dict[str, Any]
    columns: int


@dataclass(frozen=True)
class KernelFrankWolfe(KernelVertexMethod, FrankWolfe):
    """Frank-Wolfe with exact steps, with the kernel `kernel`."""

    def way(self, problem: Problem, run: Runner, measured: Measurement) -> Way:
        """Return the direction U - A, of which the dual knows these sums alone."""
        found = self.vertices(problem, run, measured.before)
        sums = run(MixVertices(**found.asked))
        refuse_stale(sums)
        n, point, gamma, us = problem.n, measured.before.point, problem.smoothing, found.sums
        own, mixed, theirs = measured.stats.alpha_s / n, sums.u_s / n, sums.u_t / n
        linear = us.conjugate_u / n - point.conjugate_mean
        cross = us.alpha_u / n - point.mean_sq_dual
        square = max(us.u_sq / n - 2.0 * us.alpha_u / n + point.mean_sq_dual, 0.0)
        terms = abs(linear) + abs(mixed) + abs(own) + abs(point.conjugate_mean)
        direction = Direction(
            weights=np.zeros((0, problem.m)),
            linear=linear,
            cross=cross,
            square=square,
            slope=linear - (mixed - own) - gamma * cross,
            curvature=max(theirs - 2.0 * mixed + own, 0.0) + gamma * square,
            terms=terms + gamma * (abs(cross) + point.mean_sq_dual),
        )
        return Way(direction, us.active, found)

    def landing(self, problem: Problem, run: Runner, measured: Measurement, way: Way, step: float) -> Landing:
        """Let the blocks go `step` towards the vertices."""
        before, found = measured.before, way.found
        refuse_stale(run(MixVertices(**found.asked, step=step, after=_after(before))))
        memory = replace(before.recalled(KernelMemory), vertices=mark_of(before))
        return _landing(problem, before, memory, found.columns)


@dataclass(frozen=True)
class KernelAtomFrankWolfe(KernelVertexMethod, AtomFrankWolfe):
    """Frank-Wolfe on a kernel with a memory of its atoms, which `rule` weighs."""

    def joined(self, problem: Problem, run: Runner, measured: Measurement) -> Joined:
        """Find the vertices, and multiply them with the atoms that the blocks keep."""
        before, point = measured.before, measured.before.point
        found = self.vertices(problem, run, before)
        atoms, stats = before.recalled(KernelMemory).atoms, None
        if atoms is not None:
            stats = run(MultiplyAtoms(**found.asked, atoms=atoms.names))
        if atoms is None or stats is None or stats.stale:
            # A itself is the one atom.
            square = measured.stats.alpha_s / problem.n + problem.smoothing * point.mean_sq_dual
            atoms = Atoms.of(point.conjugate_mean, square, _NO_WEIGHTS, names=(-1,))
            stats = run(MultiplyAtoms(**found.asked, atoms=atoms.names, anew=True))
            refuse_stale(stats)
        b = found.sums.conjugate_u / problem.n
        more = atoms.grown(stats.products / problem.n, b, _NO_WEIGHTS, name=before.round)
        return Joined(atoms, more, len(atoms), found.sums.active, found)

    def most(self, problem: Problem) -> int:
        """Return how many atoms there may be."""
        return most_kernel_atoms(problem)

    def landing(
        self, problem: Problem, run: Runner, measured: Measurement, joined: Joined, mixture: Mixture
    ) -> Landing:
        """Let the blocks make A and its scores of the atoms."""
        before, atoms, names = measured.before, mixture.atoms, joined.more.names
        made = (tuple((names[place], share) for place, share in parts) for parts in mixture.kept)
        weights = zip(atoms.names, atoms.weights, strict=True)
        reweighed = ReweighAtoms(
            **joined.found.asked,
            newest=before.round,
            kept=tuple(zip(atoms.names, made, strict=True)),
            weights=tuple((name, float(weight)) for name, weight in weights if weight > 0),
            after=_after(before),
        )
        refuse_stale(run(reweighed))
        memory = replace(before.recalled(KernelMemory), vertices=mark_of(before), atoms=atoms)
        return _landing(problem, before, memory, joined.found.columns)

    def spent(self, measured: Measurement, mixture: Mixture) -> bool:
        """Return whether D does not rise, or scores in float32 have nothing more to give."""
        return not mixture.raised or (not measured.before.point.exact and measured.below_float32())


#: What stands for the weights of an atom that blocks keep.
_NO_WEIGHTS = np.zeros((0, 0))


def kernel_method(kernel: PairValues, method: Method, **ascent: int) -> KernelMethod:
    """Return what a method is on blocks of a kernel; `ascent` has blocks, seed and tile of dual ascent."""
    if isinstance(method, FrankWolfe):
        return KernelFrankWolfe(method.rule, kernel=kernel)
    if isinstance(method, AtomFrankWolfe):
        return KernelAtomFrankWolfe(method.rule, kernel=kernel)
    return KernelAscent(kernel=kernel, **ascent)


def picked_bytes(d: int, m: int, rows: int) -> int:
    """Return what so many rows of an update, d features and m classes, and their K take in a coordinator."""
    return 8 * rows * (_COPIES * (d + 2 * m) + rows) + extrapolation_bytes(rows, m)


def most_kernel_atoms(problem: Problem) -> int:
    """Return how many atoms there are at most."""
    return int(np.clip(ATOM_BYTES // _bytes_of_one(problem), _FEWEST, _MOST))


def atom_bytes(problem: Problem) -> int:
    """Return what all atoms take at most, wherever the blocks are."""
    return most_kernel_atoms(problem) * _bytes_of_one(problem)


def _bytes_of_one(problem: Problem) -> int:
    """Return the bytes of scores in float32, and of what is not zero in vertices."""
    entries = len(problem.form.rho) + 1 if problem.form.sparse_vertices else problem.m
    return problem.n * (4 * problem.m + 8 * min(entries, problem.m))


def mark_of(state: SolverState) -> Mark:
    """Return the mark that the scores bear in a state."""
    return Mark(state.recalled(KernelMemory).built, state.round)


def _after(state: SolverState) -> Mark:
    """Return the mark that the scores bear after a round."""
    mark = mark_of(state)
    return replace(mark, round=mark.round + 1)


def _landing(problem: Problem, before: SolverState, memory: KernelMemory, columns: int) -> Landing:
    """Return where a round went that computed so many columns of K."""
    memory, passes = memory.after_round(problem.n, columns)
    return Landing(replace(before.point, round=before.point.round + 1), memory, passes)


def values_of_rows(problem: Problem, stats: PickedSums) -> tuple[float, float, float, float]:
    """Return P, D, b and |A|^2 / n; lam |W(A)|^2 is the mean of <alpha_i, s_i>."""
    n = problem.n
    norm, conjugate_mean, mean_sq_dual = stats.alpha_s / n, stats.conjugate_alpha / n, stats.alpha_sq / n
    dual = conjugate_mean - 0.5 * norm - 0.5 * problem.smoothing * mean_sq_dual
    return 0.5 * norm + stats.loss / n, dual, conjugate_mean, mean_sq_dual


def refuse_stale(stats: KernelAnswer) -> None:
    """Raise StateLostError where some rows have scores of another A."""
    if stats.stale:
        raise StateLostError(f"the scores of {stats.stale} rows belong to other dual variables; run it again")


def _rows_of_duals(problem: Problem, run: Runner, kernel: PairValues, exact: bool) -> Iterator[Change]:
    """Yield the rows of A that are not zero, a few at a time."""
    spans = ((start, min(problem.n, start + COLLECTED)) for start in range(0, problem.n, COLLECTED))
    return gathered(
        run(CollectRows(kernel=kernel, mark=Mark(), exact=exact, start=start, stop=stop)).change
        for start, stop in spans
    )


def gathered(changes: Iterable[Change | None]) -> Iterator[Change]:
    """Yield the rows of changes together, `COLLECTED` at most, which no change exceeds.

    All features are read each time that something is spread over them.
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
