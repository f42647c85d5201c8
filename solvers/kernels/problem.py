"""The kernel problem: solved in the features of `topline.solvers.kernels.low_rank`, certified on K itself.

With f(x) = (1/(lam n)) sum_i k(x, x_i) alpha_i, the scores of the training rows are K A / (lam n) and |W|^2 =
tr(A^T K A) / (lam n)^2, so P and D of `topline.solvers.core.problem` need only K and A. Reported values are
computed from these in float64, including what the features of the factor leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from topline.solvers.core.objective import Objective
from topline.solvers.core.problem import Problem, inner
from topline.solvers.core.risks import AverageTopK
from topline.solvers.core.rows import RowSource, is_sparse
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.errors import InvalidProblemError
from topline.solvers.executors import SerialExecutor, TopLossBlocks
from topline.solvers.kernels.functions import Kernel
from topline.solvers.kernels.low_rank import KernelFeatures, is_precomputed
from topline.solvers.losses import LossForm
from topline.solvers.operations import Evaluate, Rebuild
from topline.solvers.typing import Float64Array, FloatArray, IntArray

ResultT = TypeVar("ResultT", bound=SolveResult)

#: Bytes of kernel values held at once while new rows are scored.
_SCORED_BYTES = 1 << 26
#: A gap below minus this share of P and b is an error, not rounding.
_ROUNDING = 1e-6
#: Support rows are copied out if they are fewer than this share of all rows.
_WORTH_A_COPY = 0.9


@dataclass(frozen=True, eq=False)
class KernelExpansion:
    """f(x) = sum_j k(x, x_j) c_j over the support: all that scoring new rows needs.

    Attributes
    ----------
    kernel : the resolved kernel.
    rows : (s, d) features of the support; None for a precomputed kernel, whose rows are K(new, train).
    support : (s,) positions of the support among the training rows.
    coefficients : (s, m) float64, row j = c_j.
    n : number of training rows.
    """

    kernel: Kernel
    rows: Any
    support: np.ndarray[Any, np.dtype[np.intp]]
    coefficients: Float64Array
    n: int

    @classmethod
    def of(cls, kernel: Kernel, train: Any, support: Any, coefficients: Float64Array) -> KernelExpansion:
        """Keep the training rows with non-zero coefficients."""
        n = int(train.shape[0])
        used = np.flatnonzero(coefficients.any(axis=1))
        if len(used) >= _WORTH_A_COPY * n:
            used = np.arange(len(support))
        support = np.asarray(support, dtype=np.intp)[used]
        # Pivots may be all rows in another order.
        whole = len(support) == n and bool((support == np.arange(n)).all())
        rows = None if is_precomputed(kernel) else train if whole else train[support]
        return cls(kernel, rows, support, coefficients[used], n)

    @property
    def width(self) -> int:
        """Number of columns of the rows it scores."""
        return self.n if self.rows is None else int(self.rows.shape[1])

    def scores(self, X: Any) -> Float64Array:
        """Return f of each row of X (r, d), or of K(new, train) (r, n): (r, m) float64."""
        scores = np.zeros((X.shape[0], self.coefficients.shape[1]))
        if not len(self.support):
            return scores
        tile = max(1, _SCORED_BYTES // (8 * len(self.support)))
        for start in range(0, X.shape[0], tile):
            rows = X[start : start + tile]
            if self.rows is None:
                values = self.kernel.matrix(rows, None)[:, self.support]
            else:
                values = self.kernel.matrix(rows, self.rows)
            scores[start : start + tile] = values @ self.coefficients
        return scores


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class KernelResult(SolveResult):
    """The result of a run with a kernel; `primal`, `dual` and `gap` were computed from K.

    `A` (n, m) holds the dual variables, None for a method without any.  `W` (r, m), `state` and `problem`
    belong to the r features of the factor and serve only to continue this run.  `kernel_seconds` is the time
    for K, its factor and the certificate, which `seconds` leaves out.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, RBFKernel, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = solve(X, y, MaxHinge(), lam=0.1, kernel=RBFKernel(0.5))
    >>> result.kernel, result.decision_function(X).shape
    (RBFKernel(gamma=0.5), (12, 3))
    """

    expansion: KernelExpansion
    kernel_seconds: float = 0.0

    @property
    def kernel(self) -> Kernel:
        """The kernel with its parameters resolved."""
        return self.expansion.kernel

    def decision_function(self, X: Any) -> Float64Array:
        """Return the scores (rows, m) of X (rows, d), or of K(new, train) (rows, n) where precomputed."""
        shape: tuple[int, ...] = tuple(getattr(X, "shape", ()))
        if len(shape) != 2 or shape[1] != self.expansion.width:
            what = "kernel values" if self.expansion.rows is None else "features"
            raise InvalidProblemError(f"X has the shape {shape}; give rows of {self.expansion.width} {what}")
        return self.expansion.scores(X if is_sparse(X) else np.asarray(X))


def judged_by_gap(result: ResultT, tol: float) -> ResultT:
    """Return a result certified on K, no longer solved if the factor leaves too much of K out."""
    if result.status is Status.SOLVED and result.relative_gap > tol:
        return replace(result, status=Status.NO_PROGRESS)
    return result


def certified_on_matrix(
    features: KernelFeatures,
    problem: Problem,
    labels: IntArray,
    weights: Float64Array | None,
    result: SolveResult,
    A: FloatArray | None,
) -> dict[str, Any]:
    """Return P, D and the gap of a result on K itself, and the expansion that gives its scores."""
    kernel, train = features.kernel, features.train
    everyone = np.arange(problem.n)
    if not math.isfinite(result.primal):
        unknown = np.full((problem.n, problem.m), math.nan)
        return {"expansion": KernelExpansion.of(kernel, train, everyone, unknown)}
    if A is not None:
        expansion = KernelExpansion.of(kernel, train, everyone, problem.scale * np.asarray(A, np.float64))
        return {"expansion": expansion, **values_on_matrix(features.K, problem, labels, weights, A)}
    C = features.coefficients(result.W)
    expansion = KernelExpansion.of(kernel, train, features.pivots, C)
    if not len(C):
        return {"expansion": expansion}
    columns = np.ascontiguousarray(features.K[:, features.pivots])
    with SerialExecutor() as executor:
        wide = replace(problem, d=len(C))
        executor.bind(wide, columns, labels, keep_duals=False, weights=weights)
        risk = problem.risk
        run = TopLossBlocks(executor, wide.n, risk).run if isinstance(risk, AverageTopK) else executor.run
        loss = run(Evaluate(C)).loss / problem.n
    primal = 0.5 * problem.lam * inner(C, columns[features.pivots] @ C) + loss
    dual = result.dual - _loss_of_dual(features, problem, weights)
    values = _values(primal, dual, primal - dual, result.conjugate_mean)
    if result.stationarity is not None:
        values["objective"] = Objective.without_dual(primal, result.stationarity)
    return {"expansion": expansion, **values}


def values_on_matrix(
    K: RowSource, problem: Problem, labels: IntArray, weights: Float64Array | None, A: FloatArray
) -> dict[str, Any]:
    """Return b, P, D and smoothed_gap of A (n, m) on K (n, n), in float64; reads K by rows twice."""
    kept: Float64Array = np.asarray(A, dtype=np.float64)
    lam, gamma, n = problem.lam, problem.smoothing, problem.n
    with SerialExecutor() as executor:
        executor.bind(replace(problem, d=n), K, labels, keep_duals=True, weights=weights)
        executor.load_duals([(0, n, kept)])
        stats = executor.run(Evaluate(problem.scale * kept))
        sums = executor.run(Rebuild())
    norm = problem.scale**2 * inner(kept, np.asarray(sums.product, dtype=np.float64))
    conjugate_mean, mean_sq_dual = sums.conjugate / n, sums.alpha_sq / n
    dual = conjugate_mean - 0.5 * lam * norm - 0.5 * gamma * mean_sq_dual
    smoothed_gap = 0.5 * lam * norm + 0.5 * gamma * mean_sq_dual + stats.shifted_loss / n - dual
    return _values(0.5 * lam * norm + stats.loss / n, dual, smoothed_gap, conjugate_mean)


def _values(primal: float, dual: float, smoothed_gap: float, conjugate_mean: float) -> dict[str, Any]:
    objective = Objective.checked(primal, dual, abs(primal) + abs(conjugate_mean), _ROUNDING)
    return {
        "conjugate_mean": conjugate_mean,
        "objective": objective,
        "smoothed_gap": smoothed_gap + (dual - objective.dual),
    }


def _loss_of_dual(features: KernelFeatures, problem: Problem, weights: Float64Array | None) -> float:
    """Bound how far D on K = F F^T + E lies below D on F F^T for an unknown dual point.

    tr(A^T E A) / (2 lam n^2) <= |E| |A|^2 / (2 lam n^2), where |A| is bounded over its domain.
    """
    squares = float(problem.n) if weights is None else float(np.sum(np.square(weights)))
    if isinstance(problem.risk, AverageTopK):
        # sum (n p_i)^2 for p_i <= 1/k and sum p <= 1.
        squares = problem.n**2 / problem.risk.k
    most = squares * _largest_square(problem.form)
    return 0.5 * features.dropped * most * problem.scale / problem.n


def _largest_square(form: LossForm) -> float:
    """Return a bound of |beta|^2 over the domain of a loss."""
    if not form.family.balanced:
        return float(form.m)
    return 2.0 * float(form.rho.sum()) ** 2
