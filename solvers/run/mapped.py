"""Training with joint features psi(x, j) of examples and classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from topline.solvers.core.feature_maps import FeatureMap
from topline.solvers.core.inputs import LabelledRows
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import StoppingCriteria
from topline.solvers.errors import InvalidProblemError
from topline.solvers.executors import Executor
from topline.solvers.losses import Loss
from topline.solvers.run.loop import Callback
from topline.solvers.run.problem_spec import ProblemSpec
from topline.solvers.run.task import RunOptions, Task, run_task
from topline.solvers.typing import Float64Array


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
    seed: int = 0,
    executor: Executor | None = None,
    callbacks: Sequence[Callback] = (),
    time_limit: float | None = None,
) -> MappedResult:
    """Minimise lam/2 |V|^2 + (1/n) sum_i w_i Phi_gamma(<V, psi(x_i, .)>; y_i) and certify the result.

    `feature_map` gives psi(x, j), such as ``ClassEmbeddings(C)`` with psi(x, j) = x c_j^T; everything else is
    as for `solve`, every method included.  Classes need no examples.

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
    spec = ProblemSpec(loss, lam, smoothing=smoothing, method=method)
    criteria = StoppingCriteria(tol=tol, max_passes=max_passes, time_limit=time_limit)
    examples = LabelledRows.of(loss, X, y, m=feature_map.classes, sample_weight=sample_weight)
    result = run_task(Task.of(spec, examples, RunOptions(criteria, seed, executor, callbacks), feature_map))
    return MappedResult(
        **{part.name: getattr(result, part.name) for part in fields(result)}, feature_map=feature_map
    )


def _refuse_shape(feature_map: FeatureMap, d: int, shape: tuple[int, ...]) -> None:
    if feature_map.shape(d) != shape:
        raise InvalidProblemError(
            f"the feature map has weights of the shape {feature_map.shape(d)}, and the result's have {shape}"
        )
