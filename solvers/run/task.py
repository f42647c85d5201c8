"""What is to be solved, and the steps of `solve` after argument checks: the start, the rounds, the result.

`solve`, compiling, training, sweeps and inspection describe their problem as a `ProblemSpec`, the one place
where problems are made and combinations refused; `Problem` checks the numbers of one problem.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse as scipy_sparse

from topline.solvers.blocks.ascent.passes import columns_alike
from topline.solvers.blocks.block import inside
from topline.solvers.blocks.vertices import can_vanish, least_stretch
from topline.solvers.core.dual_rows import pack, unpack
from topline.solvers.core.feature_maps import FeatureMap, MapView, is_ordinary
from topline.solvers.core.problem import (
    MEAN_RISK,
    AverageTopK,
    LabelledRows,
    LargestLosses,
    MeanRisk,
    Problem,
    Risk,
    SmoothingKind,
    positive_integer,
    positive_number,
    problem_key,
    squared_norm,
)
from topline.solvers.core.rows import RowSource, rows_are, widened
from topline.solvers.core.state import (
    FINEST_TOL,
    Objective,
    SolveResult,
    SolverState,
    Status,
    StoppingCriteria,
)
from topline.solvers.crew import ALONE, available_cores, one_blas_thread
from topline.solvers.errors import InvalidProblemError, StateLostError, UnsupportedCombinationError
from topline.solvers.executors import AnsweredBlocks, DualRows, Executor, SerialExecutor, ThreadExecutor
from topline.solvers.kernels import Kernel, KernelFeatures, as_kernel, is_positive, is_precomputed
from topline.solvers.losses import LabelSets, Loss
from topline.solvers.losses.rows import nearest_rows
from topline.solvers.methods import (
    METHODS,
    Auto,
    AutoMemory,
    Choice,
    Lbfgs,
    LbfgsMemory,
    Method,
    MethodSpec,
    Newton,
    NewtonMemory,
    ProximalNewton,
    SampledStep,
    begun_by,
    change_of_method,
    choose,
    method_named,
    priors,
)
from topline.solvers.methods.certificate import rebuild
from topline.solvers.methods.dual_ascent import AscentMemory, NearStart
from topline.solvers.methods.kernel import PICKED_ROWS, KernelMethod, kernel_method
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.operations import OperationRunner, PutInside
from topline.solvers.run.loop import Callback, Run, iterate
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Methods that need only the scores of all rows, with the number of rows up to which the matrix is factored
#: anyway: that takes less time, and gives features for many calls.
ON_BLOCKS = {"dual_ascent": 1000, "fw": 3000, "fw_away": 0, "fw_pairwise": 0, "fw_fully_corrective": 0}
#: C from which dual ascent on the factor of a kernel matrix may take more passes than Newton's method.
_LARGE_C = 10.0


@dataclass(frozen=True)
class ProblemSpec:
    """A loss with its regularisation, smoothing and risk, and how it is solved.

    Attributes
    ----------
    loss, smoothing, smoothing_kind, risk : as in `Problem`.
    lam, C : weight of the regulariser, or the C of lam = 1/(n C); one of the two.
    method : its name.
    kernel : None for features as they are, else a kernel, its name or `KernelFeatures`.
    weights : the option that weights examples, with its value; None where all count once.
    keep_duals : whether A is kept; None lets the method decide.
    of_duals : whether the result is W(A), and judged by it.
    stored : whether the result becomes a stored model, which with a kernel consists of its dual variables.

    Examples
    --------
    >>> from topline import TopKHinge
    >>> from topline.solvers.run import ProblemSpec
    >>> ProblemSpec(TopKHinge(2), C=1.0).problem(n=100, d=8, m=5).lam
    0.01
    """

    loss: Loss
    lam: float | None = None
    C: float | None = None
    smoothing: float = 0.0
    smoothing_kind: SmoothingKind = "moreau"
    risk: Risk = MEAN_RISK
    method: str = DEFAULT_METHOD
    kernel: Any = None
    weights: str | None = None
    keep_duals: bool | None = None
    of_duals: bool = False
    stored: bool = False

    def __post_init__(self) -> None:
        # A class has the methods of its instances, so the protocol check alone would accept it.
        given: Any = self.loss
        if isinstance(given, type) or not isinstance(given, Loss):
            raise InvalidProblemError(
                f"the loss is {given!r}; give one of the losses of topline, such as TopKHinge(5)"
            )
        if not isinstance(self.risk, MeanRisk | AverageTopK):
            raise InvalidProblemError(
                f"the risk is {self.risk!r}; give MeanRisk() or a value such as AverageTopK(50)"
            )

    def problem(
        self, n: int, d: int, m: int, label_sets: LabelSets | None = None, *, joint: bool = False
    ) -> Problem:
        """Return the problem of n examples with d features and m classes; raises the errors of `Problem`."""
        lam: Any = self.lam if self.C is None else 1.0 / (max(n, 1) * positive_number("C", self.C))
        return Problem(
            self.loss, n, d, m, lam, self.smoothing, self.smoothing_kind, label_sets, self.risk, joint
        )

    def chosen(
        self, problem: Problem, rows: RowSource | None = None, begun: str | None = None
    ) -> tuple[MethodSpec, Choice]:
        """Return the method for this problem, or the choice of "auto", and the reason.

        `rows` are given if they are one block, `begun` is the method of a continued run.  Raises
        UnsupportedCombinationError for options that cannot be combined.
        """
        of_duals, method = self.of_duals or self.kernel is not None, method_named(self.method)
        choice = Choice(method.name, "asked for")
        if method.name == "auto":
            # With a large C a hinge on features that factor a kernel may change to Newton's method.
            large = not problem.form.smooth and problem.lam * problem.n * _LARGE_C <= 1.0 + 1e-9
            newton = large and not (self.of_duals or self.on_blocks(problem, "dual_ascent"))
            choice = choose(problem, kernel=of_duals and not newton, rows=rows, begun=begun)
            method = METHODS[choice.method]
        method.refuse(problem, kernel=of_duals)
        if not problem.mean_risk:
            self._refuse_with_risk(problem)
        if self.kernel is not None and self.stored:
            self._refuse_without_duals(method)
        if self.kernel is None and self.keep_duals:
            self._refuse_duals(problem, method)
        return method, choice

    def on_blocks(self, problem: Problem, method: str) -> bool:
        """Return whether blocks compute the kernel on demand and no matrix is factored.

        For a stored model the choice does not depend on the number of rows.
        """
        if self.kernel is None or method not in ON_BLOCKS or not problem.mean_risk:
            return False
        if self.stored:
            return True
        known = not isinstance(self.kernel, KernelFeatures) and is_positive(as_kernel(self.kernel))
        return known and problem.n > ON_BLOCKS[method]

    def _refuse_with_risk(self, problem: Problem) -> None:
        """Refuse options that need examples with fixed weights."""
        risk, kernel = problem.risk.name, self.kernel
        if self.weights is not None:
            raise UnsupportedCombinationError(
                f"{self.weights} does not go with the risk {risk}, which chooses what each example counts;"
                f" leave {self.weights} out, or the risk"
            )
        if self.stored and kernel is not None:
            raise UnsupportedCombinationError(
                f"the risk {risk} does not go with kernel {as_kernel(kernel).name}, whose models are dual"
                " variables; use the transform nystroem or fourier in its place, or topline.solve in Python"
            )
        if self.keep_duals:
            raise UnsupportedCombinationError(
                f"keep_duals does not go with the risk {risk}, whose weights move with every round; leave"
                " keep_duals out"
            )

    def _refuse_without_duals(self, method: MethodSpec) -> None:
        """Refuse a stored kernel model without the dual variables that it consists of."""
        known = method.keeps_duals or method.smooths_through_duals or method.name in ON_BLOCKS
        if known and self.keep_duals is not False:
            return
        lacking = "keep_duals is off" if self.keep_duals is False else f"the method {method.name} knows none"
        raise UnsupportedCombinationError(
            f"a model with a kernel is made of its dual variables, and {lacking}; use dual_ascent, sdca, fw"
            " or fw_fully_corrective, and leave keep_duals out"
        )

    def _refuse_duals(self, problem: Problem, method: MethodSpec) -> None:
        if method.dual_free:
            raise UnsupportedCombinationError(
                f"the method {method.name} never knows the dual variables; leave keep_duals out or use"
                " another method"
            )
        if not problem.form.convex:
            raise UnsupportedCombinationError(
                f"the loss {problem.loss.name} is not convex and has no dual variables; leave keep_duals out"
            )


def started(task: Task, executor: Executor, method: Method) -> SolverState:
    """Return the state to start from, after loading the duals that belong to it into the executor.

    A alone is feasible whatever the features, lam and gamma are, and so is every multiple s A with s in
    [0, 1].  Rows of another loss or of other weights may lie outside their domain, where D bounds nothing:
    each moves to the nearest point of its domain.  W(A) grows as 1/lam, so after a step to a smaller lam the
    whole of A is often worse than 0: s maximises the bound D(s A) >= s b - s^2/2 (lam |W(A)|^2 + gamma aa).
    If A comes `near`, from nearly the same problem, dual ascent uses shorter first rounds until the gap is
    within the tolerance.
    """
    problem, state, duals = task.bound, task.state, task.duals
    if duals is None:
        return SolverState.start(problem) if state is None else state
    if state is not None:
        executor.load_duals(duals)
        # Loaded duals already include the pending step.
        return state.with_point(pending_step=None)
    with_mass = 0

    def counted(duals: Iterable[DualRows]) -> Iterator[DualRows]:
        nonlocal with_mass
        for part in duals:
            start, stop, rows = checked_duals(part)
            with_mass += int(np.count_nonzero(rows.any(axis=1)))
            yield start, stop, rows

    def shrink(share: float) -> None:
        executor.load_duals(
            (start, stop, np.asarray(rows.dtype.type(share) * rows)) for start, stop, rows in executor.duals()
        )

    executor.load_duals(counted(duals))
    if isinstance(method, KernelMethod):
        return method.at_best_multiple(problem, executor, shrink)
    state = state_of_best_multiple(problem, executor, shrink)
    if not task.near or not state.W.any():
        return state
    near_start = NearStart.of(problem, task.criteria.tol, with_mass / problem.n, executor.blocks)
    return replace(state, memory=AscentMemory(near=near_start))


def state_of_best_multiple(
    problem: Problem, executor: OperationRunner, shrink: Callable[[float], None]
) -> SolverState:
    """Return the state of the best multiple of the blocks' A; `shrink` replaces A by that multiple."""
    W, conjugate_mean, mean_sq_dual = rebuild(
        problem, executor, SolverState.start(problem).point, inside=True
    )
    square = problem.lam * squared_norm(W) + problem.smoothing * mean_sq_dual
    if conjugate_mean < square:
        share = max(conjugate_mean / square, 0.0)
        shrink(share)
        W, conjugate_mean, mean_sq_dual = share * W, share * conjugate_mean, share * share * mean_sq_dual
    return replace(SolverState.at(W, conjugate_mean, mean_sq_dual), passes=1)


def checked_duals(part: DualRows) -> DualRows:
    """Return rows of duals; refuse anything but a numeric array."""
    try:
        start, stop, given = part
        rows = np.asarray(given)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "iuf":
        raise InvalidProblemError(
            "the duals are no list of (first row, row after the last, A of these rows); give "
            "[(0, n, result.A)]"
        )
    if not np.isfinite(rows).all():
        raise InvalidProblemError(
            f"the duals of rows {start}:{stop} hold NaN or infinity; start without them"
        )
    return start, stop, rows if rows.dtype == np.float32 else rows.astype(np.float64)


#: Scores computed at once.
_SCORES = 1 << 20


def risk_at_zero(
    problem: Problem, labels: IntArray, weights: Float64Array | None, *, smoothed: bool = True
) -> float:
    """Return the risk of Phi_gamma, or of Phi itself, at W = 0; labels (n,), weights (n,) or None."""
    codes, places = np.unique(labels, return_inverse=True)
    if problem.form.margins is None and problem.form.label_sets is None:
        # Every label costs the same.
        codes, places = codes[:1], np.zeros_like(places)
    losses, rows = np.empty(len(codes)), max(_SCORES // problem.m, 1)
    for start in range(0, len(codes), rows):
        part = np.ascontiguousarray(codes[start : start + rows], dtype=np.int32)
        scores = np.zeros((len(part), problem.m))
        losses[start : start + rows] = problem.losses(scores, part, smoothed=smoothed)
    of_rows: Float64Array = losses[places.ravel()]
    if isinstance(problem.risk, AverageTopK):
        largest = LargestLosses.of(problem.risk.rows, np.arange(problem.n), of_rows)
        return float(problem.risk.selected(largest, problem.n).weights @ largest.losses) / problem.n
    return float(of_rows.sum() if weights is None else weights @ of_rows) / problem.n


logger = logging.getLogger(__name__)

#: Multiplications per round below which threads cost more than they save.
_SMALL_ROUND = 1e8
#: Least rows of a block, least entries of a block per column of sparse rows, and the most blocks.
_ROWS, _ENTRIES, _MOST_BLOCKS = 1024, 16, 16

#: Least relative improvement over P(0) for weights to count as better than 0; less is rounding.
_NO_BETTER = 1e-9


@dataclass(frozen=True, eq=False)
class Task:
    """A problem with its examples: when its run ends, where it runs and begins, and who watches it.

    Attributes
    ----------
    criteria : bounds of the run.
    seed : of the random orders of dual_ascent and sdca.
    executor : where to run; None for threads of this process, which end with the run.
    callbacks : called after each round, as for `solve`.
    state, duals, near : where it begins: a state with the duals that belong to it, or duals alone, which may
        come from nearly the same problem; by default at A = 0.
    feature_map : what the weights V belong to, if any.
    kernel : with its parameters resolved: blocks compute its values on demand, and W of the result is zero.
    picked : rows that a round of dual ascent then updates.
    problem, bound : the problem, and the one bound to the blocks: with a kernel W is not formed, and d = 1
        stands in for it.
    method, choice : the chosen method, and the reason.
    duals_kept : whether blocks keep A.
    key : `problem_key` of the problem.

    Raises UnsupportedCombinationError as `ProblemSpec.chosen` does.
    """

    spec: ProblemSpec
    examples: LabelledRows
    criteria: StoppingCriteria
    seed: int = 0
    executor: Executor | None = None
    callbacks: Sequence[Callback] = ()
    state: SolverState | None = None
    duals: Iterable[DualRows] | None = None
    near: bool = False
    feature_map: FeatureMap | None = None
    kernel: Kernel | None = None
    picked: int = PICKED_ROWS
    problem: Problem = field(init=False)
    bound: Problem = field(init=False)
    method: MethodSpec = field(init=False)
    choice: Choice = field(init=False)
    duals_kept: bool = field(init=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        seed, examples, begun = positive_integer("seed", self.seed, or_zero=True), self.examples, None
        if callable(self.callbacks):
            raise InvalidProblemError("callbacks is one function: put it in a list, callbacks=[function]")
        joint = self.feature_map is not None and not is_ordinary(self.feature_map)
        spec, (n, d) = self.spec, map(int, examples.rows.shape)
        problem = spec.problem(n, d, examples.m, examples.label_sets, joint=joint)
        if spec.method == DEFAULT_METHOD and self.duals is not None and problem.mean_risk:
            spec = replace(spec, keep_duals=True)
        if self.state is not None:
            begun = begun_by(self.state, duals=self.duals is not None)
        rows = examples.rows if self.feature_map is None else None
        method, choice = spec.chosen(problem, rows=rows, begun=begun)
        # On request, as the stored model, or because the method needs it.
        kept = spec.keep_duals or method.needs_duals(problem.form, problem.smoothing)
        able = method.keeps_duals or (method.smooths_through_duals and problem.mean_risk)
        kept = bool(kept or self.kernel is not None or (spec.kernel is not None and able))
        of_duals = kept and (spec.of_duals or (spec.kernel is not None and method.name != "auto"))
        vars(self).update(
            spec=spec, seed=seed, problem=problem, method=method, choice=choice, duals_kept=kept,
            bound=problem if self.kernel is None else replace(problem, d=1),
            criteria=replace(self.criteria, of_duals=of_duals),
            key=problem_key(problem, examples.labels, examples.weights),
        )  # fmt: skip


def _refuse_start(task: Task) -> None:
    """Refuse a state and duals that do not fit each other or the problem."""
    state, duals, shape = task.state, task.duals, (task.bound.d, task.bound.m)
    if duals is not None and not task.duals_kept:
        raise UnsupportedCombinationError("duals are given but would not be kept; say keep_duals=True")
    if state is None:
        return
    if state.W.shape != shape:
        raise InvalidProblemError(
            f"the state has weights of shape {state.W.shape}; the problem needs {shape}"
        )
    if state.problem_key not in {"", task.key}:
        raise StateLostError(
            "the state belongs to a problem with another loss, lam, smoothing, labels or weights, where"
            " its W and b mean something else; give its duals alone to start from them"
        )
    if task.duals_kept and state.round > 0 and duals is None:
        raise StateLostError(f"the state of round {state.round} is given without its duals; load both")


def run_task(task: Task) -> SolveResult:
    """Bind an executor to the rows, run the rounds, and return the certified result."""
    problem, examples, executor = task.bound, task.examples, task.executor
    if task.method.name != task.spec.method:
        logger.info("%s: %s", task.method.name, task.choice.why)
    _refuse_start(task)
    with ExitStack() as stack:
        # Held between requests too: threads that share the norm of a matrix wait longer than one takes alone.
        stack.enter_context(one_blas_thread())
        goes_on = executor is not None
        if executor is None:
            executor = default_executor(task)
            stack.callback(executor.close)
        task.method.refuse_budget(problem.n, problem.m, executor.dual_bytes)
        executor.bind(
            problem, examples.rows, examples.labels, keep_duals=task.duals_kept, weights=examples.weights
        )
        run = _rounds(task, executor)
        # A dual point found at weights replaces an A that only the method needed.
        kept = task.duals_kept and (run.final.found_at is None or task.spec.keep_duals)
        A = final_duals(problem, executor, run, examples, goes_on=goes_on) if kept else None
    return result_of(task.problem, run, A, task.criteria.tol, task.choice)


def _rounds(task: Task, executor: Executor) -> Run:
    problem, risk, criteria, examples = task.bound, task.problem.risk, task.criteria, task.examples
    seed, blocks = task.seed, executor.blocks
    if task.kernel is None:
        method = task.method.method_for(task.problem, blocks, seed)
        if isinstance(method, Auto):
            known = priors(task.problem, blocks, examples.rows, examples.weights)
            method = replace(method, priors=known, asked=bool(task.spec.keep_duals))
    else:
        plain = method_named(task.choice.method).make(blocks, seed)
        method = kernel_method(task.kernel, plain, blocks=blocks, seed=seed, tile=task.picked)
    state = started(task, executor, method)
    if task.feature_map is not None:
        state = state.with_point(W=np.zeros(task.feature_map.shape(problem.d)))
    if isinstance(state.memory, AutoMemory) and not isinstance(method, Auto):
        state = replace(state, memory=state.memory.memory)
    goes_on = isinstance(method, Auto | ProximalNewton)
    apart: tuple[type, ...] = (LbfgsMemory,) if goes_on else (LbfgsMemory, NewtonMemory)
    if task.duals is not None and isinstance(state.memory, apart) and method.follows(state):
        # W of another method may not be the W(A) of the given duals.
        W, conjugate_mean, mean_sq_dual = rebuild(problem, executor, state.point)
        state = state.with_point(W=W, conjugate_mean=conjugate_mean, mean_sq_dual=mean_sq_dual)
    state = replace(state, problem_key=task.key)
    at_zero = partial(risk_at_zero, task.problem, examples.labels, examples.weights)
    if not criteria.of_duals:
        # W = 0 is no answer where the result must be W(A).
        state = replace(state, primal_at_zero=at_zero())
    if state.loss_at_zero is None and state.W.any():
        state = replace(state, loss_at_zero=at_zero(smoothed=False))
    runner: OperationRunner = executor
    at_will = rows_are("kept", examples.rows, 0, problem.n)
    if state.left_behind and problem.form.convex and isinstance(method, Lbfgs | Newton) and at_will:
        rows = np.ones(problem.n) if examples.weights is None else examples.weights
        method = SampledStep(method, criteria.tol, rows)
    if isinstance(risk, AverageTopK):
        runner = AnsweredBlocks(executor, lambda asked, run: asked.on_largest(run, risk, problem.n))
    if task.feature_map is not None:
        view = MapView(task.feature_map, problem.d)
        runner = AnsweredBlocks(executor, lambda asked, run: asked.through(run, view))
    return iterate(problem, runner, method, criteria, state, task.callbacks)


def default_executor(task: Task) -> Executor:
    """Return an executor of this process, with several blocks only where that is faster."""
    problem, spec = task.problem, task.method
    if task.kernel is not None:
        return ThreadExecutor(available_cores())
    # Two blocks that ascend at once need several times the rounds of one; Frank-Wolfe is not affected.
    if spec.one_block or float(problem.n) * problem.d * problem.m < _SMALL_ROUND:
        return SerialExecutor()
    # Each block sums a product as large as W, which dominates if rows, or entries per column, are few.
    entries = getattr(task.examples.rows, "nnz", None)
    blocks = problem.n // _ROWS if entries is None else int(entries // (_ENTRIES * problem.d))
    if blocks <= 1:
        return SerialExecutor()
    return ThreadExecutor(workers=available_cores(), blocks=min(blocks, _MOST_BLOCKS))


def final_duals(
    problem: Problem, executor: Executor, run: Run, examples: LabelledRows, *, goes_on: bool
) -> FloatArray | None:
    """Return the certified A, or the current A of an interrupted run; None if it lives in another process.

    If the executor `goes_on`, its blocks are moved to the certified A.
    """
    if goes_on and run.status is Status.SOLVED:
        executor.run(PutInside(run.state.pending_step))
    if not executor.in_process:
        return None
    found = executor.duals(run.state.pending_step)
    if run.status is Status.INTERRUPTED:
        return np.concatenate([rows for _, _, rows in found])
    A, labels, weights = np.empty((problem.n, problem.m)), examples.labels, examples.weights
    for start, stop, rows in found:
        part = slice(start, stop)
        A[part] = inside(problem, rows, labels[part], None if weights is None else weights[part])
    if run.final.dual_share != 1.0:
        A *= run.final.dual_share
    return A


def result_of(problem: Problem, run: Run, A: FloatArray | None, tol: float, choice: Choice) -> SolveResult:
    """Return the result of a run; A is as certified."""
    if choice.method == "auto":
        choice = change_of_method(run.state)
    at_zero, collapsed = run.state.primal_at_zero, False
    no_weights = not np.any(run.final.W)
    # Of the mean only W = 0 itself: weights that a large lam keeps near 0 are better.
    counts = no_weights or not problem.mean_risk
    if counts and at_zero is not None and run.final.primal >= (1.0 - _NO_BETTER) * at_zero:
        collapsed = Objective(at_zero, run.final.dual).relative_gap <= tol
    return SolveResult(
        **vars(run.final),
        A=A,
        status=run.status,
        passes=run.state.passes,
        seconds=run.state.seconds,
        history=run.history,
        problem=problem,
        state=run.state,
        collapsed=collapsed,
        method=choice.method,
        why=choice.why,
    )


#: Enough passes to reach every compiled function: the second round applies the step of the first, and
#: dual_ascent extrapolates only after some rounds of plain sweeps.
_PASSES = 60
#: Rows of noise, which no method fits in so few passes.
_TINY_ROWS = 40
#: Small enough that sweeps alone take long, so dual_ascent extrapolates.
_LAM = 1e-3


def compile_jit_functions(
    spec: ProblemSpec, d: int, m: int, *, sparse: bool = False, several: bool = False
) -> None:
    """Compile (or load) the functions that train on features (n, d) of m classes, by solving a tiny problem.

    "auto" compiles its first method only, as most runs never switch; a kernel compiles its blocks' functions.

    Numba caches compiled functions beside the package, so only the first call on a machine is slow, up to
    tens of seconds; without this call the first pass pays for it.  `several` says that examples have label
    sets.
    """
    # Functions that read, pack and add up rows.
    widened(np.zeros(1, dtype=np.float16))
    for part in (np.eye(_TINY_ROWS, dtype=np.float32), np.eye(_TINY_ROWS)):
        unpack(pack(part), 0, _TINY_ROWS, part)
    columns = columns_alike(m, d, smooth=spec.loss.form(m).smooth)
    for dtype in (np.float32, np.float64):
        U, rows_of_dtype = np.zeros((_TINY_ROWS, m), dtype), np.zeros((_TINY_ROWS, columns), dtype)
        ALONE.add_product(U, rows_of_dtype, np.zeros((m, columns)))
    X = np.zeros((_TINY_ROWS, columns), dtype=np.float32)
    X[:, :3] = np.random.default_rng(0).standard_normal((_TINY_ROWS, 3))
    sets, codes = LabelSets.from_lists([{i % m, i // 2 % m} for i in range(_TINY_ROWS)], m)
    label_sets = sets if several else None
    y = np.asarray(codes if several else np.arange(_TINY_ROWS) % m, dtype=np.int32)
    risk = AverageTopK(_TINY_ROWS / 2) if isinstance(spec.risk, AverageTopK) else spec.risk
    method = "dual_ascent" if spec.method == "auto" else spec.method
    tiny = replace(spec, lam=_LAM, C=None, risk=risk, weights=None, method=method)
    if tiny.kernel is not None:
        X = np.abs(X)
        X = X @ X.T if is_precomputed(tiny.kernel) else X
    rows = scipy_sparse.csr_matrix(X) if sparse else X
    with SerialExecutor() as executor:
        criteria = StoppingCriteria(tol=FINEST_TOL, max_passes=_PASSES)
        kernel = None if tiny.kernel is None else as_kernel(tiny.kernel)
        examples = LabelledRows(rows, y, None, m, label_sets)
        task = Task(tiny, examples, criteria, executor=executor, kernel=kernel)
        run_task(task)
    if tiny.kernel is not None:
        return
    # The tiny problem does not reach these functions.
    form, y = task.problem.form, y[:1]
    if can_vanish(form):
        for dtype in (np.float32, np.float64):
            slack = np.zeros(1), np.zeros(m)
            least_stretch(form, np.zeros((1, m), dtype=dtype), y, np.ones(1), slack, 0.0)
    if task.duals_kept:
        # It ends in float64, where rows stay inside their domains without projection.
        nearest_rows(form, np.zeros((1, m)), y)
