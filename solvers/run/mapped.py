"""Training with joint features psi(x, j) of examples and classes, by the methods that go by W alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from topline.solvers.blas_threads import available_cores, one_blas_thread
from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.inputs import checked_problem, checked_weights
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.core.stopping import StoppingCriteria
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.executors import Executor, MappedExecutor, ThreadExecutor
from topline.solvers.losses import Loss
from topline.solvers.methods import MethodSpec, method_named
from topline.solvers.run.loop import Callback, iterate
from topline.solvers.run.zero_weights import risk_at_zero
from topline.solvers.typing import Float64Array

#: Methods that ask blocks for nothing but vertices, losses and sums at W.
BY_WEIGHTS = (
    "fw", "fw_open_loop", "projected_gradient", "fw_away", "fw_pairwise", "fw_fully_corrective", "lbfgs",
)  # fmt: skip


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedResult(SolveResult):
    """What a run with a feature map reached: `W` and `W_dual` hold V, in the shape of the map.

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
        shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
        if len(shape) != 2 or shape[1] != self.problem.d:
            raise InvalidProblemError(f"X has the shape {shape}; give rows of {self.problem.d} features")
        classes = feature_map or self.feature_map
        _refuse_shape(classes, self.problem.d, self.W.shape)
        values = X if is_sparse(X) else np.asarray(X, dtype=np.float64)
        return np.asarray(values @ classes.class_weights(self.W))


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
    executor: Executor | None = None,
    callbacks: Sequence[Callback] = (),
    time_limit: float | None = None,
) -> MappedResult:
    """Minimise lam/2 |V|^2 + (1/n) sum_i w_i Phi_gamma(<V, psi(x_i, .)>; y_i) and certify the result.

    `feature_map` gives psi(x, j), such as ``ClassEmbeddings(C)`` with psi(x, j) = x c_j^T; everything else is
    as for `solve`.  Classes need no examples.  "auto" takes lbfgs for a smooth loss and fw_fully_corrective
    for any other; methods that update the weights of one class after the other, such as dual_ascent, are
    refused, because here classes share them.

    Raises InvalidProblemError for a map that is not one of the problem's classes, and what `solve` raises.

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
    problem, rows, labels = checked_problem(X, y, loss, lam, smoothing, "moreau", feature_map.classes)
    weights, spec = checked_weights(sample_weight, problem.n), _chosen(method, problem)
    criteria = StoppingCriteria(tol=tol, max_passes=max_passes, time_limit=time_limit)
    start = np.zeros(feature_map.shape(problem.d))
    duals_kept = spec.needs_duals(problem.form, problem.smoothing)
    with ExitStack() as stack:
        stack.enter_context(one_blas_thread())
        blocks = executor or stack.enter_context(ThreadExecutor(available_cores()))
        blocks.bind(problem, rows, labels, keep_duals=duals_kept, weights=weights)
        state = replace(
            SolverState(round=0, W=start),
            loss_at_zero=risk_at_zero(problem, labels, weights, smoothed=False),
            primal_at_zero=risk_at_zero(problem, labels, weights),
        )
        run = iterate(
            problem, MappedExecutor(blocks, feature_map), spec.method_for(problem, blocks.blocks, 0),
            criteria, state, callbacks, duals_kept=duals_kept,
        )  # fmt: skip
        A = None
        if duals_kept and blocks.in_process:
            A = np.concatenate([part for _, _, part in blocks.duals(run.state.pending_step)])
    known = {part.name for part in fields(SolveResult)}
    final = {name: value for name, value in vars(run.final).items() if name in known}
    return MappedResult(
        **final, A=A, gap_kind="true" if run.final.stationarity is None else "none", status=run.status,
        passes=run.state.passes, seconds=run.state.seconds, history=run.history, problem=problem,
        state=run.state, method=spec.name, feature_map=feature_map,
        why="asked for" if method == spec.name else "classes share weights",
    )  # fmt: skip


def _chosen(method: str, problem: Problem) -> MethodSpec:
    name = ("lbfgs" if problem.form.smooth else "fw_fully_corrective") if method == "auto" else method
    spec = method_named(name)
    if name not in BY_WEIGHTS:
        raise UnsupportedCombinationError(
            f"the method {name} updates the weights of single classes, which share them under a feature map;"
            f" take one of {', '.join(BY_WEIGHTS)}"
        )
    spec.refuse(problem)
    return spec


def _refuse_shape(feature_map: FeatureMap, d: int, shape: tuple[int, ...]) -> None:
    if feature_map.shape(d) != shape:
        raise InvalidProblemError(
            f"the feature map has weights of the shape {feature_map.shape(d)}, and the result's have {shape}"
        )
