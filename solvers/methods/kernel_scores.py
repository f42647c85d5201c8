"""What methods on a kernel matrix share that nobody holds: scores in the blocks, values as sums over rows.

The blocks keep the scores S = K A / (lam n) of their rows, so that P, D and each row's share of the gap are
sums over rows at any time.  They are computed anew from A at the end, in float64, and wherever they
belong to another A.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from topline.solvers.core.codec import stored
from topline.solvers.core.kernel_rows import Change, Mark, PairValues
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.methods.base import Method
from topline.solvers.methods.certificate import FinalValues
from topline.solvers.operations import OperationRunner, PutInside, Runner
from topline.solvers.operations.kernel import CollectRows, KernelAnswer, PickedSums, PickRows, SpreadChange

#: Rows that one request gives of A, or of a change.
COLLECTED = 4096
#: A round counts as columns of at least this share of n, so that a budget of passes ends every run.
_LEAST_COLUMNS = 0.001
#: A gap below minus this share of P and b is a mistake, not rounding.
_ROUNDING = 1e-6


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
    atoms : those of Frank-Wolfe over atoms (`topline.solvers.methods.kernel_atoms`), None before its first
        round.
    """

    built: int = 0
    columns: float = 0.0
    vertices: Mark | None = None
    roots: float | None = None
    gap: float = 0.0
    atoms: object = None

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

    kernel: PairValues
    advances_by_passes: ClassVar[bool] = True

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
        stats = executor.run(PickRows(kernel=self.kernel, mark=mark_of(state), exact=True))
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


def mark_of(state: SolverState) -> Mark:
    """Return the mark that the scores bear in a state."""
    return Mark(state.recalled(KernelMemory).built, state.round)


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
