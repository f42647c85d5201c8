"""The kernel problem on blocks of rows: K is computed where it is needed, and nobody holds it whole."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import fields, replace

import numpy as np

from topline.solvers.blas_threads import available_cores, one_blas_thread
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import Status
from topline.solvers.errors import InvalidProblemError
from topline.solvers.executors import Executor, ThreadExecutor
from topline.solvers.kernels import KernelExpansion, KernelResult, as_kernel, in_memory
from topline.solvers.methods import method_named
from topline.solvers.methods.kernel import KernelMethod, kernel_method, values_of_rows
from topline.solvers.operations import PutInside
from topline.solvers.operations.kernel import PickRows
from topline.solvers.run.loop import Run, iterate
from topline.solvers.run.task import Task, result_of
from topline.solvers.run.warm_start import checked_duals
from topline.solvers.typing import FloatArray


def solve_on_blocks(task: Task) -> SolveResult:
    """Solve the problem of a kernel, its parameters resolved, on the blocks of the task's executor.

    The result has no W, only zeros in its place, and `A` where the executor lives in this process.  Duals
    without a state may be those of other features, such as a low-rank approximation of the kernel, or of
    another loss or lam: the run begins at their best multiple.

    Raises StateLostError where a state is given without its duals, InvalidProblemError where these are no
    numbers, and what `iterate` raises.
    """
    kernel, examples, options = task.spec.kernel, task.examples, task.options
    executor, start = options.executor, options.start
    if kernel is None or executor is None:
        raise InvalidProblemError("blocks of a kernel need the kernel and an executor; give both")
    # W has no place here: what stands for it has one feature, and stays zero.
    bare = replace(task.problem, d=1)
    task.refuse_start((bare.d, bare.m), duals_kept=True)
    with one_blas_thread():
        executor.bind(bare, examples.rows, examples.labels, keep_duals=True, weights=examples.weights)
        if start.duals is not None:
            executor.load_duals(map(checked_duals, start.duals))
        method = kernel_method(
            kernel, method_named(task.choice.method).make(executor.blocks, options.seed),
            blocks=executor.blocks, seed=options.seed, tile=options.picked,
        )  # fmt: skip
        if start.state is not None:
            state = start.state.with_point(pending_step=None)
        elif start.duals is not None:
            state = _of_best_multiple(bare, executor, method)
        else:
            state = SolverState.start(bare)
        run = iterate(
            bare, executor, method, options.criteria, replace(state, problem_key=task.key),
            options.callbacks, duals_kept=True, of_duals=True,
        )  # fmt: skip
        return result_of(task.problem, run, _duals_of(executor, run), options.criteria.tol, task.choice)


def _of_best_multiple(problem: Problem, executor: Executor, method: KernelMethod) -> SolverState:
    """Return the state of the best multiple of the A that the blocks hold, its rows inside their domains.

    See `topline.solvers.run.warm_start`; lam |W(A)|^2 is the mean of <alpha_i, s_i>.
    """
    executor.run(PutInside(anyway=True))
    state = method.with_scores(problem, executor.run, SolverState.start(problem))
    primal, dual, conjugate_mean, _ = values_of_rows(problem, executor.run(PickRows(**method.asked(state))))
    # D(A) = b - square / 2.
    square = 2.0 * (conjugate_mean - dual)
    if not math.isfinite(primal) or conjugate_mean >= square:
        return state
    share = max(conjugate_mean / square, 0.0)
    executor.load_duals(
        (start, stop, rows.dtype.type(share) * rows) for start, stop, rows in executor.duals()
    )
    return method.with_scores(problem, executor.run, state)


def solve_in_process(task: Task) -> KernelResult:
    """Solve on blocks, of this process by default, and keep the rows that score new ones."""
    rows = task.examples.rows
    kernel = as_kernel(task.spec.kernel).resolved(rows)
    with ExitStack() as stack:
        executor = task.options.executor or stack.enter_context(ThreadExecutor(available_cores()))
        options = replace(task.options, executor=executor)
        result = solve_on_blocks(replace(task, spec=replace(task.spec, kernel=kernel), options=options))
        A = result.A
        if A is None:
            A = np.concatenate([part for _, _, part in executor.duals()])
    C = task.problem.scale * np.asarray(A, dtype=np.float64)
    expansion = KernelExpansion.of(kernel, in_memory(rows), np.arange(task.problem.n), C)
    values = {part.name: getattr(result, part.name) for part in fields(SolveResult)}
    return KernelResult(**{**values, "A": A}, expansion=expansion)


def _duals_of(executor: Executor, run: Run) -> FloatArray | None:
    """Return A, None where it lies elsewhere."""
    if run.status is Status.SOLVED:
        executor.run(PutInside())
    if not executor.in_process:
        return None
    return np.concatenate([rows for _, _, rows in executor.duals()])
