"""What `solve` does once it has checked what it was given: a run on features, and what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.blas_threads import available_cores, one_blas_thread
from topline.solvers.blocks.duals import inside
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.problem import Problem, problem_key, relative_gap
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.rows import RowSource, kept_in_memory
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.errors import InvalidProblemError, StateLostError, UnsupportedCombinationError
from topline.solvers.executors import (
    DualRows,
    Executor,
    MappedBlocks,
    SerialExecutor,
    ThreadExecutor,
    TopLossBlocks,
)
from topline.solvers.methods import Choice, Lbfgs, MethodSpec, Newton, SampledStep, change_of_method
from topline.solvers.operations import OperationRunner, PutInside
from topline.solvers.run.loop import Callback, Run, is_left_behind, iterate
from topline.solvers.run.warm_start import started
from topline.solvers.run.zero_weights import risk_at_zero
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Multiplications a round below which threads cost more than they bring.
_SMALL_ROUND = 1e8
#: Rows of a block, or entries of every column of sparse rows that it has, and the most blocks.
_ROWS, _ENTRIES, _MOST_BLOCKS = 1024, 16, 16

#: By which share of P(0) weights are better than none, at least; less is rounding.
_NO_BETTER = 1e-9


@dataclass(frozen=True, eq=False)
class Task:
    """What `solve` was asked for, checked; its parameters say what each means.

    `rows` are the features, `labels` the numbers of the classes, `weights` None where every example counts
    once; `spec` is the method and `choice` says why it was taken.  With a `feature_map` weights are V.
    """

    problem: Problem
    rows: RowSource
    labels: IntArray
    weights: Float64Array | None
    spec: MethodSpec
    choice: Choice
    criteria: StoppingCriteria
    seed: int
    executor: Executor | None
    callbacks: Sequence[Callback]
    keep_duals: bool
    state: SolverState | None
    duals: Iterable[DualRows] | None
    duals_near: bool = False
    of_duals: bool = False
    feature_map: FeatureMap | None = None

    @property
    def duals_kept(self) -> bool:
        """Whether blocks keep A."""
        return self.keep_duals or self.spec.needs_duals(self.problem.form, self.problem.smoothing)


def run_task(task: Task) -> SolveResult:
    """Bind an executor, take rounds from the state or the duals that were given, and certify the end."""
    problem, labels, weights = task.problem, task.labels, task.weights
    key = problem_key(problem, labels, weights)
    _check_state(task, key)
    with ExitStack() as stack:
        # Between requests too: threads that share the norm of a matrix wait longer than one takes alone.
        stack.enter_context(one_blas_thread())
        executor = task.executor
        if executor is None:
            executor = default_executor(problem, task.spec, task.rows)
            stack.callback(executor.close)
        task.spec.refuse_budget(problem, executor.dual_bytes)
        executor.bind(problem, task.rows, labels, keep_duals=task.duals_kept, weights=weights)
        run = _rounds(task, executor, key)
        A = None
        if task.duals_kept:
            goes_on = task.executor is not None
            A = final_duals(problem, executor, run, labels, weights, goes_on=goes_on)
    return result_of(problem, run, A, task.criteria.tol, task.choice)


def _rounds(task: Task, executor: Executor, key: str) -> Run:
    """Take the rounds of a task on an executor that its problem is bound to."""
    problem, risk = task.problem, task.problem.risk
    state = started(problem, executor, task.state, task.duals, near=task.duals_near, tol=task.criteria.tol)
    if task.feature_map is not None:
        state = replace(state, W=np.zeros(task.feature_map.shape(problem.d)))
    of_duals = task.of_duals and task.duals_kept
    state = _with_zero(task, replace(state, problem_key=key), of_duals=of_duals)
    method = task.spec.method_for(problem, executor.blocks, task.seed)
    blocks: OperationRunner = executor
    at_will = kept_in_memory(task.rows, 0, problem.n)
    if is_left_behind(state) and problem.form.convex and isinstance(method, Lbfgs | Newton) and at_will:
        rows = np.ones(problem.n) if task.weights is None else task.weights
        method = SampledStep(method, task.criteria.tol, rows)
    if isinstance(risk, AverageTopK):
        blocks = TopLossBlocks(executor, problem.n, risk)
    if task.feature_map is not None:
        blocks = MappedBlocks(executor, task.feature_map, problem.d)
    return iterate(
        problem, blocks, method, task.criteria, state, task.callbacks, duals_kept=task.duals_kept,
        of_duals=of_duals,
    )  # fmt: skip


def default_executor(problem: Problem, spec: MethodSpec, rows: RowSource | None = None) -> Executor:
    """Return an executor of this process; on several blocks only where that is quicker."""
    # Two blocks that ascend at the same time take several times the rounds of one; Frank-Wolfe does not mind.
    if spec.one_block or float(problem.n) * problem.d * problem.m < _SMALL_ROUND:
        return SerialExecutor()
    # Each block sums a product as large as W, beside which its rows may be few, or have few entries a column.
    entries = getattr(rows, "nnz", None)
    blocks = problem.n // _ROWS if entries is None else int(entries // (_ENTRIES * problem.d))
    if blocks <= 1:
        return SerialExecutor()
    return ThreadExecutor(workers=available_cores(), blocks=min(blocks, _MOST_BLOCKS))


def final_duals(
    problem: Problem,
    executor: Executor,
    run: Run,
    labels: IntArray,
    weights: Float64Array | None,
    *,
    goes_on: bool,
) -> FloatArray | None:
    """Return A as it was certified, of an interrupted run as it is; None where it lies elsewhere.

    Where the executor `goes_on` its blocks come to hold what was certified.
    """
    if goes_on and run.status is Status.SOLVED:
        executor.run(PutInside(run.state.pending_step))
    if not executor.in_process:
        return None
    found = executor.duals(run.state.pending_step)
    if run.status is Status.INTERRUPTED:
        return np.concatenate([rows for _, _, rows in found])
    A = np.empty((problem.n, problem.m))
    for start, stop, rows in found:
        part = slice(start, stop)
        A[part] = inside(problem, rows, labels[part], None if weights is None else weights[part])
    if run.final.dual_share != 1.0:
        A *= run.final.dual_share
    return A


def _with_zero(task: Task, state: SolverState, *, of_duals: bool) -> SolverState:
    """Tell a state what W = 0 is worth, unless W is to be W(A) whatever it is worth."""
    problem, labels, weights = task.problem, task.labels, task.weights
    if not of_duals:
        state = replace(state, primal_at_zero=risk_at_zero(problem, labels, weights))
    if state.loss_at_zero is not None or not state.W.any():
        return state
    return replace(state, loss_at_zero=risk_at_zero(problem, labels, weights, smoothed=False))


def _check_state(task: Task, key: str) -> None:
    """Refuse a state and duals that do not belong to the problem or to each other."""
    problem, state = task.problem, task.state
    if task.duals is not None and not task.duals_kept:
        raise UnsupportedCombinationError("duals are given but would not be kept; say keep_duals=True")
    if state is None:
        return
    if state.W.shape != (problem.d, problem.m):
        raise InvalidProblemError(
            f"the state has weights of shape {state.W.shape}; the problem needs ({problem.d}, {problem.m})"
        )
    if state.problem_key not in {"", key}:
        raise StateLostError(
            "the state belongs to a problem with another loss, lam, smoothing, labels or weights, where its "
            "W and b mean something else; give its duals alone to start from them"
        )
    if task.duals_kept and state.round > 0 and task.duals is None:
        raise StateLostError(f"the state of round {state.round} is given without its duals; load both")


def _collapsed(problem: Problem, run: Run, tol: float) -> bool:
    """Return whether W = 0 is as good as what was found and within the tolerance of the optimum.

    That is of a risk that can make it the optimum.  Weights that a large lam keeps near 0 are better than 0.
    """
    at_zero = run.state.primal_at_zero
    if problem.mean_risk or at_zero is None or run.final.primal < (1.0 - _NO_BETTER) * at_zero:
        return False
    return relative_gap(at_zero - run.final.dual, at_zero) <= tol


def result_of(problem: Problem, run: Run, A: FloatArray | None, tol: float, choice: Choice) -> SolveResult:
    """Return what a run came to; A is as it was certified."""
    final = run.final
    if choice.method == "auto":
        choice = change_of_method(run.state)
    return SolveResult(
        W=final.W,
        A=A,
        conjugate_mean=final.conjugate_mean,
        primal=final.primal,
        dual=final.dual,
        gap_kind="true" if final.stationarity is None else "none",
        smoothed_gap=final.smoothed_gap,
        status=run.status,
        passes=run.state.passes,
        seconds=run.state.seconds,
        history=run.history,
        problem=problem,
        state=run.state,
        W_dual=final.W_dual,
        mean_sq_dual=final.mean_sq_dual,
        found_at=final.found_at,
        dual_share=final.dual_share,
        stationarity=final.stationarity,
        collapsed=_collapsed(problem, run, tol),
        method=choice.method,
        why=choice.why,
    )
