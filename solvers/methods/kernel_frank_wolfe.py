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

from topline.solvers.core.answers import BlockStats
from topline.solvers.core.kernel_rows import (
    Change,
    CollectRequest,
    Mark,
    MixRequest,
    PickRequest,
    VertexRequest,
    VertexSpreadRequest,
)
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.base import Advance, Measurement, rises
from topline.solvers.methods.kernel_scores import (
    COLLECTED,
    KernelMethod,
    gathered,
    mark_of,
    refuse_stale,
    values_of_rows,
    with_round,
)
from topline.solvers.methods.step_rules import Direction, ExactStep
from topline.solvers.operations import Runner

#: Name in `SolverState.memory`: rebuild and round of the vertices whose scores the blocks hold.
_VERTICES = "kernel.vertices"
#: A relative gap from which on scores and A are in float64.
_SINGLE = 1e-5


@dataclass(frozen=True)
class KernelFrankWolfe(KernelMethod):
    """Frank-Wolfe with exact steps, with the kernel `kernel`."""

    def measure(self, problem: Problem, run: Runner, state: SolverState) -> Measurement:
        """Sum the rows' shares of P and D."""
        if problem.smoothing == 0 and not problem.form.sparse_vertices:
            # Rounded to float32 a dense vertex lies outside its domain.
            state = replace(state, exact=True)
        stats = run(self._look(state))
        if stats.stale:
            state = self.with_scores(problem, run, state)
            stats = run(self._look(state))
        refuse_stale(stats)
        primal, dual, conjugate_mean, mean_sq_dual = values_of_rows(problem, stats)
        before = replace(state, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
        return Measurement(primal, dual, "true", before, stats, passes=0)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Find the vertices, move their scores to them, and step towards them."""
        before = measured.before
        mark, exact = mark_of(before), before.exact
        found, parts, columns = self._vertices(problem, run, before)
        mixed = MixRequest(kernel=self.kernel, mark=mark, exact=exact, parts=parts)
        sums = run(mixed)
        refuse_stale(sums)
        direction = _direction(problem, measured, found, sums)
        step = ExactStep().step(before.round, direction)
        after = with_vertices(before)
        refuse_stale(run(replace(mixed, step=step, after=mark_of(after))))
        return self._stepped(problem, measured, found, after, columns, step, stuck=not rises(direction))

    def _vertices(self, problem: Problem, run: Runner, before: SolverState) -> tuple[BlockStats, int, int]:
        """Find the vertices and move their scores; return their sums, and in how many parts and columns."""
        mark, exact = mark_of(before), before.exact
        found = run(VertexRequest(kernel=self.kernel, mark=mark, exact=exact, of=_vertices_of(before)))
        refuse_stale(found)
        parts = columns = 0
        for change in self._changes(problem, run, before, found.visited):
            request = VertexSpreadRequest(
                kernel=self.kernel, mark=mark, exact=exact, change=change, part=parts
            )
            refuse_stale(run(request))
            parts, columns = parts + 1, columns + len(change.numbers)
        return found, parts, columns

    def _stepped(
        self, problem: Problem, measured: Measurement, found: BlockStats, after: SolverState, columns: int,
        step: float, *, stuck: bool,
    ) -> Advance:  # fmt: skip
        """Return where a round went that computed so many columns of K; `stuck` where D does not rise."""
        exact, gap = measured.before.exact, measured.primal - measured.dual
        after, passes = with_round(problem, after, columns)
        return Advance(
            step=step,
            # A round that brings nothing in float32 is the occasion to go over to float64, not the end.
            moved=not (stuck and exact),
            after=replace(after, exact=exact or stuck or gap < _SINGLE * abs(measured.primal)),
            active=found.active,
            passes=passes,
        )

    def _look(self, state: SolverState) -> PickRequest:
        return PickRequest(kernel=self.kernel, mark=mark_of(state), exact=state.exact)

    def _changes(self, problem: Problem, run: Runner, state: SolverState, rows: int) -> Iterator[Change]:
        """Yield the change of the vertices, which `rows` rows have, a few at a time."""
        most = COLLECTED if rows > COLLECTED else problem.n

        def change_of(start: int) -> Change | None:
            stats = run(
                CollectRequest(
                    kernel=self.kernel, mark=mark_of(state), exact=state.exact,
                    start=start, stop=min(problem.n, start + most), vertices=True,
                )
            )  # fmt: skip
            refuse_stale(stats)
            return stats.change

        return gathered(change_of(start) for start in range(0, problem.n if rows else 0, most))


def with_vertices(before: SolverState) -> SolverState:
    """Return the next round's state, which knows the vertices of this one."""
    mark = mark_of(before)
    memory = {**before.memory, _VERTICES: np.array([float(mark.built), float(mark.round)])}
    return replace(before, round=before.round + 1, memory=memory)


def _vertices_of(state: SolverState) -> Mark | None:
    """Return the round whose vertices the blocks hold the scores of, None where scores were rebuilt since."""
    held = state.memory.get(_VERTICES)
    if held is None or int(held[0]) != mark_of(state).built:
        return None
    return Mark(int(held[0]), int(held[1]))


def _direction(problem: Problem, measured: Measurement, found: BlockStats, sums: BlockStats) -> Direction:
    """Return the direction U - A, of which the dual knows these sums alone."""
    n, state, gamma = problem.n, measured.before, problem.smoothing
    own, mixed, theirs = measured.stats.alpha_u / n, sums.alpha_u / n, sums.u_sq / n
    linear = found.conjugate_u / n - state.conjugate_mean
    cross = found.alpha_u / n - state.mean_sq_dual
    square = max(found.u_sq / n - 2.0 * found.alpha_u / n + state.mean_sq_dual, 0.0)
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
        + abs(state.conjugate_mean)
        + gamma * (abs(cross) + state.mean_sq_dual),
    )
