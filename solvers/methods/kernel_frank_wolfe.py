"""Frank-Wolfe with the exact step on a kernel matrix that nobody holds.

The blocks find the vertices U of their rows at the scores S = K A / (lam n), and keep their scores
T = K U / (lam n).  A round moves T by the columns of K of the rows that changed their vertex, which soon are
few, and the step by scalars alone: with dA = U - A, <A, K A>, <U, K A> and <U, K U> are sums over rows of
<a_i, s_i>, <u_i, s_i> and <u_i, t_i>.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.kernel_rows import Change
from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, rises
from topline.solvers.methods.kernel_scores import (
    COLLECTED,
    KernelMemory,
    KernelMethod,
    gathered,
    mark_of,
    refuse_stale,
    values_of_rows,
)
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import Runner
from topline.solvers.operations.kernel import (
    CollectRows,
    FindKernelVertices,
    KernelVertices,
    MixVertices,
    PickRows,
    SpreadVertices,
    VertexProducts,
)


@dataclass(frozen=True)
class KernelFrankWolfe(KernelMethod):
    """Frank-Wolfe with exact steps, with the kernel `kernel`."""

    def needs_float64(self, problem: Problem) -> bool:
        """Return whether vertices are dense: rounded to float32 they would lie outside their domain."""
        return problem.smoothing == 0 and not problem.form.sparse_vertices

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D."""
        stats = run(self._look(state))
        if stats.stale:
            state = self.with_scores(problem, run, state)
            stats = run(self._look(state))
        refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        before = state.with_point(conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return Measurement(Objective(primal, dual), before, stats, passes=0)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Find the vertices, move their scores to them, and step towards them."""
        before = measured.before
        mark, exact = mark_of(before), before.point.exact
        found, parts, columns = self._vertices(problem, run, before)
        mixed = MixVertices(kernel=self.kernel, mark=mark, exact=exact, parts=parts)
        sums = run(mixed)
        refuse_stale(sums)
        direction = _direction(problem, measured, found, sums)
        step = ExactStep().step(before.round, direction)
        refuse_stale(run(replace(mixed, step=step, after=replace(mark, round=mark.round + 1))))
        memory = replace(before.recalled(KernelMemory), vertices=mark)
        return self._stepped(problem, measured, found, memory, columns, step, stuck=not rises(direction))

    def _vertices(
        self, problem: Problem, run: Runner, before: SolverState
    ) -> tuple[KernelVertices, int, int]:
        """Find the vertices and move their scores; return their sums, and in how many parts and columns."""
        mark, exact, held = mark_of(before), before.point.exact, before.recalled(KernelMemory).vertices
        # Scores that were rebuilt since know no vertices.
        of = held if held is not None and held.built == mark.built else None
        found = run(FindKernelVertices(kernel=self.kernel, mark=mark, exact=exact, of=of))
        refuse_stale(found)
        parts = columns = 0
        for change in self._changes(problem, run, before, found.changed):
            request = SpreadVertices(kernel=self.kernel, mark=mark, exact=exact, change=change, part=parts)
            refuse_stale(run(request))
            parts, columns = parts + 1, columns + len(change.numbers)
        return found, parts, columns

    def _stepped(
        self,
        problem: Problem,
        measured: Measurement,
        found: KernelVertices,
        memory: KernelMemory,
        columns: int,
        step: float,
        *,
        stuck: bool,
    ) -> Advance:
        """Return where a round went that computed so many columns of K; `stuck` where D does not rise."""
        point = measured.before.point
        memory, passes = memory.after_round(problem.n, columns)
        return Advance(
            step=step,
            point=replace(point, round=point.round + 1),
            memory=memory,
            active=found.active,
            passes=passes,
            spent=stuck or (not point.exact and measured.below_float32()),
        )

    def _look(self, state: SolverState) -> PickRows:
        return PickRows(kernel=self.kernel, mark=mark_of(state), exact=state.point.exact)

    def _changes(self, problem: Problem, run: Runner, state: SolverState, rows: int) -> Iterator[Change]:
        """Yield the change of the vertices, which `rows` rows have, a few at a time."""
        most = COLLECTED if rows > COLLECTED else problem.n

        def change_of(start: int) -> Change | None:
            stats = run(
                CollectRows(
                    kernel=self.kernel, mark=mark_of(state), exact=state.point.exact,
                    start=start, stop=min(problem.n, start + most), vertices=True,
                )
            )  # fmt: skip
            refuse_stale(stats)
            return stats.change

        return gathered(change_of(start) for start in range(0, problem.n if rows else 0, most))


def _direction(
    problem: Problem, measured: Measurement, found: KernelVertices, sums: VertexProducts
) -> Direction:
    """Return the direction U - A, of which the dual knows these sums alone."""
    n, point, gamma = problem.n, measured.before.point, problem.smoothing
    own, mixed, theirs = measured.stats.alpha_s / n, sums.u_s / n, sums.u_t / n
    linear = found.conjugate_u / n - point.conjugate_mean
    cross = found.alpha_u / n - point.mean_sq_dual
    square = max(found.u_sq / n - 2.0 * found.alpha_u / n + point.mean_sq_dual, 0.0)
    return Direction(
        weights=np.zeros((0, problem.m)),
        linear=linear,
        cross=cross,
        square=square,
        slope=linear - (mixed - own) - gamma * cross,
        curvature=max(theirs - 2.0 * mixed + own, 0.0) + gamma * square,
        terms=abs(linear)
        + abs(mixed)
        + abs(own)
        + abs(point.conjugate_mean)
        + gamma * (abs(cross) + point.mean_sq_dual),
    )
