"""The one loop: every method, step rule, loss and executor runs through it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from solvers.block_stats import BlockStats
from solvers.certificate import FinalValues, final_values, rebuild
from solvers.executor import Executor
from solvers.frank_wolfe import Method, Round
from solvers.problem import Problem, relative_gap
from solvers.state import IterationRecord, SolverState
from solvers.stopping import ENDS_AT_ITERATE, Status, StoppingCriteria, check

#: Called after every round with its record and the state to go on from; False ends the run as INTERRUPTED.
Callback: TypeAlias = Callable[[IterationRecord, SolverState], bool | None]

#: Rounds between two rebuilds of W from A.  A rebuild multiplies in float64 and costs about four rounds, so
#: one in a hundred stays below a twentieth of the time; a float32 A has then drifted by at most a hundred
#: roundings of 6e-8, far below any gap that float32 products can reach.
REBUILD_EVERY = 100


@dataclass(frozen=True, eq=False)
class Run:
    """How a run ended: its last state, what that state is worth, and one record a round."""

    state: SolverState
    status: Status
    final: FinalValues
    history: tuple[IterationRecord, ...]


def iterate(
    problem: Problem,
    executor: Executor,
    method: Method,
    criteria: StoppingCriteria,
    state: SolverState | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    duals_kept: bool,
) -> Run:
    """Run rounds until `stopping.check` or a callback ends them, then measure the last state in float64.

    The executor is bound to the problem.  `state` continues an earlier run (default: A = 0).
    """
    state = SolverState.start(problem) if state is None else state
    began, seconds_before = time.perf_counter(), state.seconds
    target = criteria
    history: list[IterationRecord] = []
    while True:
        stats, waited = _timed_run(executor, method, state)
        round_ = method.round(problem, state, stats)
        here = time.perf_counter() - began
        record = _record(problem, round_, stats, seconds_before + here, waited)
        history.append(record)
        status = check(record, target, seconds=here, moved=round_.moved)
        # An iterate that ends the run by its own merit is kept as it was measured; else the step counts.
        state = round_.before if status in ENDS_AT_ITERATE else round_.after
        state = replace(state, passes=record.passes, seconds=record.seconds)
        if duals_kept and status not in ENDS_AT_ITERATE and state.round % REBUILD_EVERY == 0:
            W, b, aa = rebuild(problem, executor, state)
            state = replace(state, W=W, b=b, aa=aa)
        if not _go_on(callbacks, record, state) and status is None:
            status = Status.INTERRUPTED
        if status is None:
            continue
        final = final_values(problem, executor, state, duals_kept=duals_kept)
        status = _confirmed(status, final, criteria)
        if status is not None:
            state = replace(state, seconds=seconds_before + time.perf_counter() - began)
            return Run(state=state, status=status, final=final, history=tuple(history))
        # The rounds' own numbers were too good by rounding: ask more of them and go on.
        target = replace(target, tol=0.5 * target.tol)


def _confirmed(status: Status, final: FinalValues, criteria: StoppingCriteria) -> Status | None:
    """Let the final values decide whether a run is solved; None where it claimed so and is not."""
    if status is Status.INTERRUPTED:
        return status
    if not final.finite:
        return Status.NONFINITE
    if final.relative_gap <= criteria.tol:
        return Status.SOLVED
    return None if status is Status.SOLVED else status


def _timed_run(executor: Executor, method: Method, state: SolverState) -> tuple[BlockStats, float]:
    """Give the summed answer of a round, and the seconds in which a worker was idle meanwhile."""
    began = time.perf_counter()
    stats = executor.run(method.order(state))
    busy = (stats.seconds_products + stats.seconds_kernels) / executor.workers
    return stats, max(time.perf_counter() - began - busy, 0.0)


def _go_on(callbacks: Sequence[Callback], record: IterationRecord, state: SolverState) -> bool:
    """Call every callback, also after one that said False."""
    answers = [callback(record, state) for callback in callbacks]
    return all(answer is not False for answer in answers)


def _record(
    problem: Problem, round_: Round, stats: BlockStats, seconds: float, waited: float
) -> IterationRecord:
    gap = round_.primal - round_.dual
    return IterationRecord(
        round=round_.before.round,
        passes=round_.before.passes + 1,
        seconds=seconds,
        primal=round_.primal,
        dual=round_.dual,
        gap=gap,
        relative_gap=relative_gap(gap, round_.primal),
        gap_kind=round_.gap_kind,
        step=round_.step,
        active=stats.active / problem.n,
        seconds_products=stats.seconds_products,
        seconds_kernels=stats.seconds_kernels,
        seconds_waiting=waited,
    )
