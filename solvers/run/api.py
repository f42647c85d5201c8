"""The public calls: `solve`, its variants for joint features and along C, and a progress callback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from topline.solvers.blocks.block import inside
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.problem import (
    MEAN_RISK,
    LabelledRows,
    Risk,
    SmoothingKind,
    checked_rows,
    positive_number,
)
from topline.solvers.core.state import (
    IterationRecord,
    SolveResult,
    SolverState,
    StoppingCriteria,
    scored_rows,
)
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.executors import DualRows, Executor
from topline.solvers.kernels import (
    KernelExpansion,
    KernelFeatures,
    KernelResult,
    as_kernel,
    certified_on_matrix,
    in_memory,
    judged_by_gap,
)
from topline.solvers.losses import LabelSets, Loss, make_loss
from topline.solvers.methods import method_named
from topline.solvers.methods.auto import AutoMemory
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.solvers.names import DEFAULT_METHOD
from topline.solvers.run.loop import Callback
from topline.solvers.run.task import ProblemSpec, Task, run_task
from topline.solvers.typing import Float64Array


class PrintProgress:
    """Print a line for the first round of a run, and whenever the gap has halved since the last line.

    `verbose=True` adds one to `solve` and the estimators; it can stand among other `callbacks`.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, PrintProgress, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = solve(X, y, MaxHinge(), lam=0.1, callbacks=[PrintProgress()])  # doctest: +ELLIPSIS
    1 pass, ... s: primal 1, dual 0, relative gap 1.0e+00
    2 passes, ... s: primal ..., dual ..., relative gap ...
    """

    def __init__(self) -> None:
        self._below: float | None = None
        self._round = -1

    def __call__(self, record: IterationRecord, state: SolverState) -> None:  # noqa: ARG002 - a callback
        """Print a line about the round if the gap has halved since the last one."""
        convex = record.stationarity is None
        left = record.relative_gap if record.stationarity is None else record.stationarity
        begins, self._round = record.round <= self._round, record.round
        if self._below is not None and not begins and not left <= self._below:
            return
        self._below = 0.5 * left
        bound = f", dual {record.dual:.6g}, relative gap {left:.1e}"
        sys.stdout.write(
            f"{how_many(record.passes, 'passes')}, {record.seconds:.1f} s: primal {record.primal:.6g}"
            + (bound if convex else f", gradient at {left:.1e} of its first size")
            + "\n"
        )
        sys.stdout.flush()


def solve(
    X: Any,
    y: Any,
    loss: Loss | str,
    lam: float | None = None,
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
    C: float | None = None,
    risk: Risk = MEAN_RISK,
    smoothing_kind: SmoothingKind = "moreau",
    label_sets: LabelSets | None = None,
    keep_duals: bool = False,
    verbose: bool = False,
    time_limit: float | None = None,
    m: int | None = None,
    state: SolverState | None = None,
    duals: Iterable[DualRows] | None = None,
    duals_near: bool = False,
    of_duals: bool = False,
) -> SolveResult:
    """Minimise lam/2 |W|^2 + (1/n) sum_i w_i Phi_gamma(W^T x_i; y_i) and certify the result.

    With ``risk=AverageTopK(k)`` the mean of the k largest losses replaces the second term.

    Parameters
    ----------
    X : (n, d) features, one example per row: NumPy array, memory map, Zarr array or SciPy CSR matrix.
    y : (n,) whole numbers from 0 to m - 1, also as floats; with a multilabel loss an indicator matrix (n, m),
        or the numbers (n,) of `label_sets`.
    loss : one of the losses of this package, such as ``TopKHinge(5)``, or the name of one without k.
    lam, C : weight of the regulariser, or the C of lam = 1/(n C); give one of the two.
    smoothing : gamma of the Moreau envelope; 0 trains on the loss itself.
    method : "auto" (the method with the shortest forecast time: dual_ascent or newton for a hinge, lbfgs or
        dual_ascent for a smooth loss, switching when the run proves the forecast wrong; dual_ascent with a
        kernel, fw_fully_corrective for a risk other than the mean; `result.method` and `result.why` name the
        choice), "dual_ascent" (exact column updates, repeated sweeps over the rows that move), "sdca" (the
        same updates in plain passes over all rows), "newton" (semismooth Newton steps inside a proximal point
        method on the dual; its passes do not depend on the blocks), "lbfgs" (smooth problems only), "fw"
        (Frank-Wolfe with exact steps), "fw_open_loop" (steps 2/(t+1)), "projected_gradient" (steps 1/t,
        projected on a ball), "fw_away", "fw_pairwise", "fw_fully_corrective" (over whole-matrix atoms),
        "fw_away_columns" or "fw_pairwise_columns" (over the atoms of every example).
    kernel : None for the features as they are; "linear", "rbf", "polynomial", "chi2" or a value such as
        ``RBFKernel(0.5)``; or "precomputed", with X = K(train, train).  The result is a `KernelResult`.
        ``KernelFeatures.of(kernel, X)`` serves many calls on the same rows.
    sample_weight : (n,) how often each example counts, not negative: the risk is (1/n) sum_i w_i Phi_i, not
        divided by the sum of the weights, so example i has the C_i = w_i C of a weighted SVM.
    tol : relative gap to reach; for truncated_topk_entropy, which is not convex and needs lbfgs, the ratio
        |grad P(W)| / |grad P(0)|: nothing is certified then, and dual and gap are NaN.
    max_passes : budget of passes over the examples.
    seed : of the random orders of dual_ascent and sdca; the other methods are deterministic.
    executor : where to run; by default threads of this process.  It stays bound, so its duals can be read.
    callbacks : called after each round with (IterationRecord, SolverState); the record has passes, seconds,
        primal, dual and relative_gap.  A callback that returns False ends the run.
    risk : ``MeanRisk()``, or ``AverageTopK(k)`` for the mean of the k largest losses
        (`topline.solvers.core.problem`), which needs a Frank-Wolfe method and excludes weights and kept
        duals; fw_fully_corrective is then a bundle method with a separate W_dual.  If k is below the number
        of examples that no W gets right, the optimum may be W = 0: ``result.collapsed``.
    smoothing_kind : "moreau" smooths in all m scores, "others" in those of the other classes only, which is
        Lapin's smooth top-k hinge.
    label_sets : the label sets that y numbers; None where y holds classes.
    keep_duals : keep A (n, m) also with a Frank-Wolfe method without smoothing, which does not need it.
    verbose : print a line of passes, seconds, primal, dual and relative gap whenever the gap has halved
        (`PrintProgress`).  Compilation is always reported.
    time_limit : seconds.
    m : number of classes; by default the largest label + 1, and then every class needs an example.
    state, duals : continue from a SolverState and, where A is kept, from
        ``executor.duals(state.pending_step)`` or ``[(0, n, result.A)]`` of the same problem.  Duals alone
        start a new run from their best multiple, at the cost of one pass; they may come from other features,
        weights, lam, smoothing or another loss: rows outside their domain move to its nearest point.
    duals_near : whether `duals` alone come from nearly the same problem, for example before a few rows came
        or went: dual ascent then skips measuring in the first round and, unless the loss is smooth, works on
        the few rows that move.  Another lam is not near.
    of_duals : return W(A) and judge by it, where A is kept, instead of the best W of all rounds; for callers
        that keep only A.

    Raises
    ------
    InvalidProblemError : the data or a parameter cannot make a problem.
    UnsupportedCombinationError : a loss, smoothing, kernel and method that cannot be combined.
    NonFiniteError : features hold NaN or infinity; names the rows.
    StateLostError : the duals that belong to `state` are missing or do not fit.
    CertificateError : the dual value exceeds the primal one by more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import TopKHinge, solve
    >>> X, y = np.eye(6).repeat(5, axis=0), np.arange(6).repeat(5)
    >>> result = solve(X, y, TopKHinge(k=2), lam=0.01, tol=1e-3)
    >>> result.status, result.relative_gap <= 1e-3, result.W.shape
    (<Status.SOLVED: 'solved'>, True, (6, 6))

    A callback sees every round, and may end the run:

    >>> seen = []
    >>> def watch(record, state):
    ...     seen.append(record.relative_gap)
    ...     return record.passes < 100
    >>> result = solve(X, y, TopKHinge(k=2), lam=0.01, callbacks=[watch])
    >>> seen[-1] <= 1e-3
    True
    """
    if (lam is None) == (C is None):
        raise InvalidProblemError(f"lam is {lam} and C is {C}; give one of them, where lam = 1/(n C)")
    loss = make_loss(loss) if isinstance(loss, str) else loss
    spec = ProblemSpec(
        loss, lam, C, smoothing, smoothing_kind, risk, method, kernel,
        weights=None if sample_weight is None else "sample_weight", keep_duals=keep_duals or None,
        of_duals=of_duals,
    )  # fmt: skip
    criteria = StoppingCriteria(tol=tol, max_passes=max_passes, time_limit=time_limit)
    examples = LabelledRows.of(loss, X, y, m=m, label_sets=label_sets, sample_weight=sample_weight)
    task = Task(spec, examples, criteria, seed, executor, callbacks, state, duals, duals_near)
    if verbose:
        task = replace(task, callbacks=(*callbacks, PrintProgress()))
    return run_task(task) if kernel is None else _with_kernel(task)


def _with_kernel(task: Task) -> KernelResult:
    """Run a task in a kernel's space: on blocks that compute the kernel, or on features that factor it.

    A result on factored features is certified on the kernel matrix itself.
    """
    examples, problem, rows = task.examples, task.problem, task.examples.rows
    began, features = time.perf_counter(), None
    if task.spec.on_blocks(problem, task.method.name):
        kernel = as_kernel(task.spec.kernel).resolved(rows)
        task = replace(task, kernel=kernel)
    else:
        features = KernelFeatures.of(task.spec.kernel, rows)
        if features.dropped > 0.0 and not (problem.form.family.bounded or task.duals_kept):
            raise UnsupportedCombinationError(
                f"nothing bounds the dual variables of {problem.loss.name}, so a kernel matrix that is"
                f" singular needs them, and the method {task.method.name} keeps none here: use the mean risk"
                " with auto or dual_ascent, or Nystroem in place of the kernel"
            )
        kernel, task = features.kernel, replace(task, examples=replace(examples, rows=features.rows))
    begun = time.perf_counter()
    result = run_task(task)
    solved, A = time.perf_counter(), result.A
    if A is None and task.duals_kept and task.executor is not None:
        A = np.concatenate([part for _, _, part in task.executor.duals(result.state.pending_step)])
        A = result.dual_share * inside(problem, A, examples.labels, examples.weights)
    found: dict[str, Any] = {part.name: getattr(result, part.name) for part in fields(SolveResult)}
    if features is None:
        C = problem.scale * np.asarray(A, dtype=np.float64)
        found["expansion"] = KernelExpansion.of(kernel, in_memory(rows), np.arange(problem.n), C)
    else:
        found |= certified_on_matrix(features, problem, examples.labels, examples.weights, result, A)
        found["kernel_seconds"] = begun - began + time.perf_counter() - solved
    return judged_by_gap(KernelResult(**{**found, "A": A}), task.criteria.tol)


def regularisation_path(
    X: Any,
    y: Any,
    loss: Loss,
    Cs: Iterable[float],
    smoothing: float = 0.0,
    method: str = DEFAULT_METHOD,
    *,
    keep_duals: bool = False,
    **options: Any,
) -> list[SolveResult]:
    """Solve for each C, with lam = 1/(n C), and return the certified results in the order of `Cs`.

    The smallest C is solved first, from zero; each further one starts from the previous dual variables, which
    are feasible for every C, or from the previous weights where the method keeps no duals.  Smooth losses and
    closely spaced C gain most: without smoothing the last digits of a gap cost the same from any start.

    Parameters
    ----------
    X, y, loss, smoothing, method : as for `solve`; a method that always keeps A, auto, or lbfgs.
    Cs : positive numbers.
    keep_duals : keep A (n, m) with every result; otherwise no result has it.
    options : other arguments of `solve`, except lam, state and duals.

    Raises
    ------
    InvalidProblemError : no C, one that is not positive, or a problem that `solve` refuses.
    UnsupportedCombinationError : a method that cannot start from a solution, or a combination `solve`
        refuses.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import Softmax, regularisation_path
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> results = regularisation_path(X, y, Softmax(), Cs=[0.1, 1.0])
    >>> results[0].primal > results[1].primal
    True
    """
    if not (method_named(method).keeps_duals or method == "lbfgs"):
        raise UnsupportedCombinationError(
            f"the method {method} starts from no earlier solution; use auto, dual_ascent, sdca or lbfgs"
        )
    if not isinstance(Cs, Iterable):
        raise InvalidProblemError(f"Cs is {Cs!r}; give a sequence of positive numbers")
    values = [positive_number("C", C) for C in Cs]
    if not values:
        raise InvalidProblemError("there is no C; give at least one")
    if options.get("kernel") is not None:
        # One matrix and one factor serve every C.
        options["kernel"] = KernelFeatures.of(options["kernel"], checked_rows(X))
    n = int(checked_rows(X).shape[0])
    results: dict[float, SolveResult] = {}
    last: SolveResult | None = None
    for C in sorted(set(values)):
        start = {} if last is None else start_from(last)
        last = solve(X, y, loss, 1.0 / (n * C), smoothing, method, keep_duals=keep_duals, **options, **start)
        results[C] = last if keep_duals else replace(last, A=None)
    return [results[C] for C in values]


def start_from(result: SolveResult) -> dict[str, Any]:
    """Return the arguments that make `solve` start from another solution of the same rows."""
    state, last = result.state, result.method.rpartition(", ")[2]
    if isinstance(state.memory, AutoMemory):
        state = replace(state, memory=state.memory.memory)
    if last == "lbfgs" or (last == "newton" and result.problem.form.smooth):
        rows = state.recalled(LbfgsMemory).rows
        return {"state": replace(SolverState.at(result.W), memory=LbfgsMemory(rows=rows))}
    if result.A is None:
        raise UnsupportedCombinationError(
            f"{result.method} left no dual variables here that the next C could start from; leave executor "
            "and risk out"
        )
    return {"duals": [(0, len(result.A), result.A)]}


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedResult(SolveResult):
    """The result of a run with a feature map: `W` and `W_dual` hold V, in the shape of the map.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import ClassEmbeddings, MaxHinge, solve_with_features
    >>> X, y = np.eye(2).repeat(4, axis=0), np.arange(2).repeat(4)
    >>> result = solve_with_features(X, y, MaxHinge(), 0.1, ClassEmbeddings(np.eye(2)))
    >>> result.decision_function(X, ClassEmbeddings(np.array([[1.0, 0.0]]))).shape
    (8, 1)
    """

    feature_map: FeatureMap = field(repr=False)

    def decision_function(self, X: Any, feature_map: FeatureMap | None = None) -> Float64Array:
        """Return the scores of X (rows, d) for the classes of the map, or of another one with the same V."""
        rows, classes = scored_rows(X, self.problem.d), feature_map or self.feature_map
        if classes.shape(self.problem.d) != self.W.shape:
            raise InvalidProblemError(
                f"the feature map has weights of the shape {classes.shape(self.problem.d)}, and the result's"
                f" have {self.W.shape}"
            )
        return np.asarray(rows @ classes.class_weights(self.W))


def solve_with_features(
    X: Any,
    y: Any,
    loss: Loss,
    lam: float,
    feature_map: FeatureMap,
    smoothing: float = 0.0,
    method: str = "auto",
    sample_weight: Any = None,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
    executor: Executor | None = None,
    callbacks: Sequence[Callback] = (),
    time_limit: float | None = None,
) -> MappedResult:
    """Minimise lam/2 |V|^2 + (1/n) sum_i w_i Phi_gamma(<V, psi(x_i, .)>; y_i) and certify the result.

    `feature_map` gives psi(x, j), such as ``ClassEmbeddings(C)`` with psi(x, j) = x c_j^T; everything else is
    as for `solve`, every method included.  Classes need no examples.

    Raises InvalidProblemError where the map's classes are not the problem's, and all errors of `solve`.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import ClassEmbeddings, MaxHinge, solve_with_features
    >>> X, y = np.eye(2).repeat(4, axis=0), np.arange(2).repeat(4)
    >>> known = ClassEmbeddings(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]))
    >>> result = solve_with_features(X, y, MaxHinge(), lam=0.1, feature_map=known)
    >>> result.W.shape, result.decision_function(X).shape
    ((2, 2), (8, 3))
    """
    if not isinstance(feature_map, FeatureMap):
        raise InvalidProblemError(
            f"the feature map is {feature_map!r}; give a value such as ClassEmbeddings(C)"
        )
    spec = ProblemSpec(loss, lam, smoothing=smoothing, method=method)
    criteria = StoppingCriteria(tol=tol, max_passes=max_passes, time_limit=time_limit)
    examples = LabelledRows.of(loss, X, y, m=feature_map.classes, sample_weight=sample_weight)
    result = run_task(Task(spec, examples, criteria, seed, executor, callbacks, feature_map=feature_map))
    return MappedResult(
        **{part.name: getattr(result, part.name) for part in fields(result)}, feature_map=feature_map
    )
