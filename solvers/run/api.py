"""The one call that people make."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from topline.solvers.blas_threads import available_cores, one_blas_thread
from topline.solvers.blocks.duals import inside
from topline.solvers.core.inputs import checked_problem, checked_seed, checked_weights
from topline.solvers.core.problem import Problem, SmoothingKind, problem_key, relative_gap
from topline.solvers.core.requests import InsideRequest
from topline.solvers.core.risks import MEAN_RISK, AverageTopK, Risk
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import Status, StoppingCriteria
from topline.solvers.errors import InvalidProblemError, StateLostError, UnsupportedCombinationError
from topline.solvers.executors import DualRows, Executor, SerialExecutor, ThreadExecutor, TopLossExecutor
from topline.solvers.kernels import (
    as_kernel,
    solve_with_kernel,
)
from topline.solvers.losses import LabelSets, Loss
from topline.solvers.methods import Choice, MethodSpec, change_of_method, chosen_method
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run.kernel_blocks import is_for_blocks, solve_in_process
from topline.solvers.run.loop import Callback, Run, iterate
from topline.solvers.run.warm_start import started
from topline.solvers.run.zero_weights import risk_at_zero
from topline.solvers.typing import Float64Array, FloatArray, IntArray

logger = logging.getLogger(__name__)

#: Multiplications a round below which threads cost more than they bring.
_SMALL_ROUND = 1e8

#: By which share of P(0) weights are better than none, at least; less is rounding.
_NO_BETTER = 1e-9


def solve(
    X: Any,
    y: Any,
    loss: Loss,
    lam: float,
    smoothing: float = 0.0,
    method: str = DEFAULT_METHOD,
    kernel: Any = None,
    sample_weight: Any = None,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
    executor: Executor | None = None,
    callbacks: Sequence[Callback] = (),
    *,
    risk: Risk = MEAN_RISK,
    smoothing_kind: SmoothingKind = "moreau",
    label_sets: LabelSets | None = None,
    keep_duals: bool = False,
    time_limit: float | None = None,
    m: int | None = None,
    state: SolverState | None = None,
    duals: Iterable[DualRows] | None = None,
    duals_near: bool = False,
    of_duals: bool = False,
) -> SolveResult:
    """Minimise lam/2 |W|^2 + (1/n) sum_i w_i Phi_gamma(W^T x_i; y_i) and certify the result.

    With ``risk=AverageTopK(k)`` the mean of the k largest losses takes the place of the second term.

    Parameters
    ----------
    X : (n, d) features, one example per row: NumPy array, memory map, Zarr array or SciPy CSR matrix.
    y : (n,) whole numbers from 0 to m - 1; with a loss of several labels an indicator matrix (n, m), or the
        numbers (n,) of `label_sets`.
    loss : one of the losses of this package, such as ``TopKHinge(5)``.
    lam : weight of the regulariser; C = 1/(lam n).
    smoothing : gamma of the Moreau envelope; 0 trains on the loss itself.
    method : "auto" (what the problem asks for: dual_ascent that goes over to newton where that is cheaper,
        lbfgs or newton for a smooth loss, dual_ascent with a kernel, fw_fully_corrective for another risk
        than the mean; `result.method` and `result.why` say what it took), "dual_ascent" (exact column
        updates, many sweeps over the rows that move), "sdca" (the same in plain passes over all rows),
        "newton" (proximal steps on the dual around semismooth Newton steps, whose passes do not depend on the
        blocks), "lbfgs" (smooth problems only), "fw" (Frank-Wolfe with exact steps), "fw_open_loop" (steps
        2/(t+1)), "projected_gradient" (steps 1/t and the ball), "fw_away", "fw_pairwise",
        "fw_fully_corrective" (over whole-matrix atoms), "fw_away_columns" or "fw_pairwise_columns" (over the
        atoms of every example).
    kernel : None for the features as they are; "linear", "rbf", "polynomial", "chi2" or a value such as
        ``RBFKernel(0.5)``; or "precomputed", with X = K(train, train).  The result is a `KernelResult`.
        ``KernelFeatures.of(kernel, X)`` serves many calls on the same rows.
    sample_weight : (n,) how often each example counts, not negative: the risk is (1/n) sum_i w_i Phi_i and is
        not divided by the sum of the weights, so that example i has the C_i = w_i C of a weighted SVM.
    tol : relative gap to reach; for truncated_topk_entropy, which is not convex and takes lbfgs, the share
        |grad P(W)| / |grad P(0)|: then nothing is certified and dual and gap are NaN.
    max_passes : budget of passes over the examples.
    seed : of the random orders of dual_ascent and sdca; the others have none.
    executor : where to run; by default threads of this process.  It stays bound, so that its duals can be
        read.
    callbacks : called after each round with (IterationRecord, SolverState); one that returns False ends the
        run.
    risk : ``MeanRisk()``, or ``AverageTopK(k)`` for the mean of the k largest losses in the place of the mean
        of all (`topline.solvers.core.risks`); with the Frank-Wolfe methods, of which fw_fully_corrective then
        is a bundle method with a W_dual of its own, and without weights and kept duals.  Where k is below the
        number of examples that no W gets right the optimum may be W = 0: ``result.collapsed``.
    smoothing_kind : "moreau" smooths in all m scores, "others" in those of the other classes only, which is
        Lapin's smooth top-k hinge.
    label_sets : the label sets that y numbers; None where it does not.
    keep_duals : keep A (n, m) also with a Frank-Wolfe method and no smoothing, where it is not needed.
    time_limit : seconds.
    m : number of classes; by default the largest label + 1, and then every class needs an example.
    state, duals : continue from a SolverState and, where A is kept, from
        ``executor.duals(state.pending_step)`` or ``[(0, n, result.A)]`` of the same problem.  Duals alone
        start a new run from their best multiple, by one pass more; they may be those of other features,
        another lam, smoothing, loss or other weights: rows outside their domain are put at its nearest point.
    duals_near : whether `duals` alone are those of nearly this problem, as where few rows came or went: dual
        ascent then works on the few rows that move from its first round on.  Another lam is not near.
    of_duals : give W(A) and judge by it, where A is kept, not the best W of all rounds: for those who keep A
        alone.

    Raises
    ------
    InvalidProblemError : the data or a parameter cannot make a problem.
    UnsupportedCombinationError : a loss, smoothing, kernel and method that do not go together.
    NonFiniteError : features hold NaN or infinity; names the rows.
    StateLostError : the duals that `state` belongs to are missing or do not fit.
    CertificateError : the dual value exceeds the primal one by more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import TopKHinge, solve
    >>> X, y = np.eye(6).repeat(5, axis=0), np.arange(6).repeat(5)
    >>> result = solve(X, y, TopKHinge(k=2), lam=0.01, tol=1e-3)
    >>> result.status, result.relative_gap <= 1e-3, result.W.shape
    (<Status.SOLVED: 'solved'>, True, (6, 6))
    """
    criteria = StoppingCriteria(tol=tol, max_passes=max_passes, time_limit=time_limit)
    problem, rows, labels = checked_problem(
        X, y, loss, lam, smoothing, smoothing_kind, m, risk, label_sets=label_sets
    )
    weights, seed = checked_weights(sample_weight, problem.n), checked_seed(seed)
    spec, choice = chosen_method(method, problem, kernel=kernel is not None or of_duals)
    spec.refuse(problem, kernel=kernel is not None or of_duals)
    if spec.name != method:
        logger.info("%s: %s", spec.name, choice.why)
    _refuse_counts(problem, weights, keep_duals=keep_duals)
    if method == DEFAULT_METHOD and duals is not None and not spec.dual_free:
        keep_duals = True
    if kernel is None:
        _refuse_duals(problem, spec, keep_duals=keep_duals)
    else:
        keep_duals = keep_duals or spec.keeps_duals or (spec.smooths_through_duals and problem.mean_risk)
        linear = partial(
            solve, y=labels, loss=loss, lam=lam, smoothing=smoothing, method=spec.name, sample_weight=weights,
            tol=tol, max_passes=max_passes, seed=seed, executor=executor, callbacks=callbacks,
            smoothing_kind=smoothing_kind, keep_duals=keep_duals, time_limit=time_limit, m=problem.m,
            state=state, duals=duals, duals_near=duals_near, risk=risk, label_sets=problem.label_sets,
            of_duals=True,
        )  # fmt: skip
        if is_for_blocks(kernel, problem, spec.name):
            with ExitStack() as stack:
                blocks = executor or stack.enter_context(ThreadExecutor(available_cores()))
                return solve_in_process(
                    as_kernel(kernel), problem, rows, labels, weights, blocks, criteria, choice, seed=seed,
                    callbacks=callbacks, state=state, duals=duals,
                )  # fmt: skip
        remote = executor if keep_duals and executor is not None and not executor.in_process else None
        result = solve_with_kernel(kernel, problem, rows, labels, weights, linear, tol, remote)
        return replace(result, method=choice.method, why=choice.why)
    duals_kept = keep_duals or spec.needs_duals(problem.form, problem.smoothing)
    key = problem_key(problem, labels, weights)
    _check_state(problem, key, state, duals_kept=duals_kept, duals_given=duals is not None)
    with ExitStack() as stack:
        # Between requests too: threads that share the norm of a matrix wait longer than one takes alone.
        stack.enter_context(one_blas_thread())
        if executor is None:
            executor = default_executor(problem, spec)
            stack.callback(executor.close)
        spec.refuse_budget(problem, executor.dual_bytes)
        executor.bind(problem, rows, labels, keep_duals=duals_kept, weights=weights)
        state = replace(started(problem, executor, state, duals, near=duals_near, tol=tol), problem_key=key)
        of_duals = of_duals and duals_kept
        state = _with_zero(problem, labels, weights, state, of_duals=of_duals)
        method_here = spec.method_for(problem, executor.blocks, seed)
        blocks = TopLossExecutor(executor, problem, risk) if isinstance(risk, AverageTopK) else executor
        run = iterate(
            problem, blocks, method_here, criteria, state, callbacks, duals_kept=duals_kept, of_duals=of_duals
        )
        A = final_duals(problem, executor, run, labels, weights) if duals_kept else None
    return result_of(problem, run, A, criteria.tol, choice)


def final_duals(
    problem: Problem, executor: Executor, run: Run, labels: IntArray, weights: Float64Array | None
) -> FloatArray | None:
    """Return A as it was certified, of an interrupted run as it is; None where it lies elsewhere."""
    if run.status is Status.SOLVED:
        # Nobody goes on from here, so that the blocks may hold what was certified.
        executor.run(InsideRequest(run.state.pending_step))
    if not executor.in_process:
        return None
    A = _collected_duals(executor, run.state)
    return (
        A if run.status is Status.INTERRUPTED else run.final.dual_share * inside(problem, A, labels, weights)
    )


def _refuse_duals(problem: Problem, spec: MethodSpec, *, keep_duals: bool) -> None:
    """Refuse to keep dual variables that there are none of."""
    if keep_duals and spec.dual_free:
        raise UnsupportedCombinationError(
            f"the method {spec.name} never knows the dual variables; leave keep_duals out or take another "
            "method"
        )
    if keep_duals and not problem.form.convex:
        raise UnsupportedCombinationError(
            f"the loss {problem.loss.name} is not convex and has no dual variables; leave keep_duals out"
        )


def _with_zero(
    problem: Problem, labels: IntArray, weights: Float64Array | None, state: SolverState, *, of_duals: bool
) -> SolverState:
    """Tell a state what W = 0 is worth, unless W is to be W(A) whatever it is worth."""
    if not of_duals:
        state = replace(state, primal_at_zero=risk_at_zero(problem, labels, weights))
    if state.loss_at_zero is not None or not state.W.any():
        return state
    return replace(state, loss_at_zero=risk_at_zero(problem, labels, weights, smoothed=False))


def _refuse_counts(problem: Problem, weights: Float64Array | None, *, keep_duals: bool) -> None:
    """Refuse what belongs to examples that count a fixed number of times."""
    if problem.mean_risk:
        return
    if weights is not None:
        raise UnsupportedCombinationError(
            f"sample_weight does not go with the risk {problem.risk.name}, which chooses what each example "
            "counts; leave one of the two out"
        )
    if keep_duals:
        raise UnsupportedCombinationError(
            f"keep_duals does not go with the risk {problem.risk.name}, whose weights move with every round; "
            "leave it out"
        )


def _check_state(
    problem: Problem, key: str, state: SolverState | None, *, duals_kept: bool, duals_given: bool
) -> None:
    if duals_given and not duals_kept:
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
    if duals_kept and state.round > 0 and not duals_given:
        raise StateLostError(f"the state of round {state.round} is given without its duals; load both")


def default_executor(problem: Problem, spec: MethodSpec) -> Executor:
    """Return an executor of this process; on several blocks only where that is quicker."""
    # Two blocks that ascend at the same time take several times the rounds of one; Frank-Wolfe does not mind.
    if spec.one_block or float(problem.n) * problem.d * problem.m < _SMALL_ROUND:
        return SerialExecutor()
    return ThreadExecutor(workers=available_cores())


def _collected_duals(executor: Executor, state: SolverState) -> FloatArray:
    return np.concatenate([rows for _, _, rows in executor.duals(state.pending_step)])


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
