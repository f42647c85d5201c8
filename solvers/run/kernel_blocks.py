"""The kernel problem on blocks of rows: K is computed where it is needed, and nobody holds it whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from topline.solvers.blas_threads import one_blas_thread
from topline.solvers.core.kernel_rows import PickRequest
from topline.solvers.core.problem import Problem, problem_key
from topline.solvers.core.rows import RowSource
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.errors import StateLostError
from topline.solvers.executors import DualRows, Executor
from topline.solvers.kernels import (
    Kernel,
    KernelExpansion,
    KernelFeatures,
    KernelResult,
    as_kernel,
    in_memory,
    is_positive,
)
from topline.solvers.methods import Choice
from topline.solvers.methods.active_set import AtomRule, AwaySteps, FullyCorrective, PairwiseSteps
from topline.solvers.methods.kernel_ascent import PICKED_ROWS, KernelAscent
from topline.solvers.methods.kernel_atoms import KernelAtomFrankWolfe
from topline.solvers.methods.kernel_frank_wolfe import KernelFrankWolfe
from topline.solvers.methods.kernel_scores import KernelMethod, mark_of, values_of_rows
from topline.solvers.operations import PutInside
from topline.solvers.run.loop import Callback, Run, iterate
from topline.solvers.run.task import Task, result_of
from topline.solvers.run.warm_start import checked_duals
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Methods that go by the scores of all rows alone, with the rows whose matrix is factored all the same: that
#: takes less time, and gives features for many calls.
ON_BLOCKS = {"dual_ascent": 1000, "fw": 3000, "fw_away": 0, "fw_pairwise": 0, "fw_fully_corrective": 0}
#: How those weigh their atoms that keep some.
ATOM_METHODS: dict[str, AtomRule] = {
    "fw_away": AwaySteps(), "fw_pairwise": PairwiseSteps(), "fw_fully_corrective": FullyCorrective()
}  # fmt: skip


def is_for_blocks(kernel: Any, problem: Problem, method: str) -> bool:
    """Whether a kernel is computed where it is needed, and not factored whole."""
    known = not isinstance(kernel, KernelFeatures) and is_positive(as_kernel(kernel))
    return known and method in ON_BLOCKS and problem.mean_risk and problem.n > ON_BLOCKS[method]


def solve_on_blocks(
    kernel: Kernel,
    problem: Problem,
    rows: RowSource,
    labels: IntArray,
    weights: Float64Array | None,
    executor: Executor,
    criteria: StoppingCriteria,
    choice: Choice,
    *,
    seed: int = 0,
    picked: int = PICKED_ROWS,
    callbacks: Sequence[Callback] = (),
    state: SolverState | None = None,
    duals: Iterable[DualRows] | None = None,
) -> SolveResult:
    """Solve the problem of a kernel, its parameters resolved, on the blocks of an executor.

    `picked` is how many rows a round of dual ascent updates.  The result has no W, only zeros in its place,
    and `A` where the executor lives in this process.  `duals` without a `state` may be those of other
    features, such as a low-rank approximation of the kernel, or of another loss or lam: the run begins at
    their best multiple.

    Raises StateLostError where `state` is given without its duals, InvalidProblemError where these are no
    numbers, and what `iterate` raises.
    """
    # W has no place here: what stands for it has one feature, and stays zero.
    bare = replace(problem, d=1)
    if state is not None and state.round > 0 and duals is None:
        raise StateLostError(f"the state of round {state.round} is given without its duals; load both")
    with one_blas_thread():
        executor.bind(bare, rows, labels, keep_duals=True, weights=weights)
        if duals is not None:
            executor.load_duals(map(checked_duals, duals))
        method = _method(kernel, choice.method, executor.blocks, seed, picked)
        if state is not None:
            state = replace(state, pending_step=None)
        elif duals is not None:
            state = _of_best_multiple(bare, executor, method)
        else:
            state = SolverState.start(bare)
        state = replace(state, problem_key=problem_key(problem, labels, weights))
        run = iterate(bare, executor, method, criteria, state, callbacks, duals_kept=True, of_duals=True)
        return result_of(problem, run, _duals_of(executor, run), criteria.tol, choice)


def _of_best_multiple(problem: Problem, executor: Executor, method: KernelMethod) -> SolverState:
    """Return the state of the best multiple of the A that the blocks hold, its rows inside their domains.

    See `topline.solvers.run.warm_start`; lam |W(A)|^2 is the mean of <alpha_i, s_i>.
    """
    executor.run(PutInside(anyway=True))
    state = method.with_scores(problem, executor.run, SolverState.start(problem))
    primal, dual, conjugate_mean, _ = values_of_rows(
        problem, executor.run(PickRequest(kernel=method.kernel, mark=mark_of(state), exact=False))
    )
    # D(A) = b - square / 2.
    square = 2.0 * (conjugate_mean - dual)
    if not math.isfinite(primal) or conjugate_mean >= square:
        return state
    share = max(conjugate_mean / square, 0.0)
    executor.load_duals(
        (start, stop, rows.dtype.type(share) * rows) for start, stop, rows in executor.duals()
    )
    return method.with_scores(problem, executor.run, state)


def _method(kernel: Kernel, name: str, blocks: int, seed: int, picked: int) -> KernelMethod:
    if name == "fw":
        return KernelFrankWolfe(kernel)
    if name in ATOM_METHODS:
        return KernelAtomFrankWolfe(kernel, rule=ATOM_METHODS[name])
    return KernelAscent(kernel, blocks, seed, picked)


def solve_in_process(kernel: Kernel, task: Task, executor: Executor) -> KernelResult:
    """Solve with a kernel as `solve_on_blocks` does, and keep the rows that score new ones."""
    problem, rows, kernel = task.problem, task.rows, kernel.resolved(task.rows)
    result = solve_on_blocks(
        kernel, problem, rows, task.labels, task.weights, executor, task.criteria, task.choice,
        seed=task.seed, callbacks=task.callbacks, state=task.state, duals=task.duals,
    )  # fmt: skip
    A = result.A
    if A is None:
        A = np.concatenate([part for _, _, part in executor.duals()])
    C = problem.scale * np.asarray(A, dtype=np.float64)
    expansion = KernelExpansion.of(kernel, in_memory(rows), np.arange(problem.n), C)
    values = {part.name: getattr(result, part.name) for part in fields(SolveResult)}
    return KernelResult(**{**values, "A": A}, expansion=expansion)


def _duals_of(executor: Executor, run: Run) -> FloatArray | None:
    """Return A, None where it lies elsewhere."""
    if run.status is Status.SOLVED:
        executor.run(PutInside())
    if not executor.in_process:
        return None
    return np.concatenate([rows for _, _, rows in executor.duals()])
