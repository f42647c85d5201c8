"""The kernel problem: solved in features that factor the kernel matrix, certified on the matrix itself.

K = F F^T by a pivoted Cholesky factorisation: with the pivots first, P^T K P = L L^T + E, where L (n, r) is
lower trapezoidal and no diagonal entry of E, the final Schur complement, exceeds n eps max K_ii.  The rows of
F = P L are features of the examples; the linear problem in them is the kernel problem up to E, so losses and
methods need no change (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", section 10.3; LAPACK's
dpstrf).

With f(x) = (1/(lam n)) sum_i k(x, x_i) alpha_i, the scores of the training rows are K A / (lam n) and |W|^2 =
tr(A^T K A) / (lam n)^2, so P and D of `topline.solvers.core.problem` need only K and A. Reported values are
computed from these in float64, including what the features of the factor leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from scipy import linalg

from topline.solvers.core.problem import AverageTopK, Problem, inner
from topline.solvers.core.rows import (
    RowSource,
    as_rows,
    compute_dtype,
    is_sparse,
    refuse_nonfinite,
    without_repeats,
)
from topline.solvers.core.state import Objective, SolveResult, Status
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.executors import SerialExecutor
from topline.solvers.kernels.functions import Kernel, PrecomputedKernel, WithConstant, as_kernel
from topline.solvers.operations import Evaluate, Rebuild
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Most bytes that K, its factor and LAPACK's workspace may take together.
MEMORY_BYTES = 4 << 30
#: Peak number of n x n float64 arrays in memory.
ARRAYS = 3
#: A diagonal of E beyond this many times its bound is not rounding: K has negative eigenvalues.
_SLACK = 10.0


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """Training rows seen through a kernel, its parameters resolved.

    `train` are the rows (n, d), or K itself where it was precomputed, K is (n, n) float64, and `rows` (n, r)
    float64 have K = rows rows^T + E.  `pivots` (r,) are the examples whose kernel functions span them;
    rows[pivots] is lower triangular.  `dropped` is the Frobenius norm of E, which bounds its largest
    eigenvalue.
    """

    kernel: Kernel
    train: Any
    K: Float64Array
    rows: Float64Array
    pivots: np.ndarray[Any, np.dtype[np.intp]]
    dropped: float

    @classmethod
    def of(cls, kernel: Any, X: RowSource) -> KernelFeatures:
        """Compute K of the rows of X (n, d), or check a precomputed K, and factor it.

        Raises InvalidProblemError if K does not fit `MEMORY_BYTES` or is not symmetric positive
        semi-definite, and NonFiniteError for non-finite features or kernel values.
        """
        if isinstance(kernel, KernelFeatures):
            if len(kernel.K) != int(X.shape[0]):
                raise InvalidProblemError(
                    f"the kernel was computed for {len(kernel.K)} rows, and there are {int(X.shape[0])}; give"
                    " its parameters instead"
                )
            return kernel
        kernel, train, K = gram_matrix(kernel, X)
        rows, pivots, dropped = factor(K, plain(kernel).name, rounded=is_precomputed(kernel))
        if not len(pivots):
            # K = 0 has one feature, which is always 0.
            rows = np.zeros((len(K), 1))
        return cls(kernel, train, K, rows, pivots, dropped)

    def expansion(self, coefficients: Float64Array, rows: Any = None) -> KernelExpansion:
        """Return the function of these coefficients of the training rows, or of some by their numbers."""
        support = np.arange(len(self.K)) if rows is None else rows
        return KernelExpansion.of(self.kernel, self.train, support, coefficients)

    def coefficients(self, W: Float64Array) -> Float64Array:
        """Return C (r, m) with rows W = K[:, pivots] C up to E, for weights W (r, m) of the features."""
        if not len(self.pivots):
            return np.zeros((0, W.shape[1]))
        solved = linalg.solve_triangular(self.rows[self.pivots], W, lower=True, trans="T")
        return np.asarray(solved, dtype=np.float64)

    def features_of(self, X: Any) -> Float64Array:
        """Return features K(X, pivots) L^-T (q, r) of new rows X (q, d), with L = rows[pivots]."""
        if not len(self.pivots):
            return np.zeros((X.shape[0], 1))
        if is_precomputed(self.kernel):
            values = self.kernel.matrix(X, None)[:, self.pivots]
        else:
            values = self.kernel.matrix(X, self.train[self.pivots])
        return np.asarray(linalg.solve_triangular(self.rows[self.pivots], values.T, lower=True).T)


def gram_matrix(kernel: Any, X: RowSource) -> tuple[Kernel, Any, Float64Array]:
    """Return the resolved kernel, the training rows of X, and their K (n, n) float64.

    Raises what `KernelFeatures.of` does, except for an indefinite K.
    """
    kernel = as_kernel(kernel)
    n = int(X.shape[0])
    needed = ARRAYS * 8 * n * n
    if needed > MEMORY_BYTES:
        most = int((MEMORY_BYTES / (ARRAYS * 8)) ** 0.5)
        raise InvalidProblemError(
            f"the kernel matrix of {n:,} examples and its factor take {needed / 2**30:.1f} GiB, and"
            f" {MEMORY_BYTES / 2**30:.1f} GiB are allowed, enough for {most:,} examples; use Nystroem or"
            " random Fourier features (sklearn.kernel_approximation) and no kernel"
        )
    train = in_memory(X)
    refuse_nonfinite(train)
    if is_precomputed(kernel):
        train = symmetric(train)
    kernel = kernel.resolved(train)
    with np.errstate(over="ignore", invalid="ignore"):
        K = kernel.matrix(train, train)
    if not np.isfinite(K).all():
        raise NonFiniteError(f"the values of the kernel {plain(kernel).name} overflow; scale the features")
    return kernel, train, K


def plain(kernel: Kernel) -> Kernel:
    """Return the kernel without its constant."""
    return kernel.kernel if isinstance(kernel, WithConstant) else kernel


def is_precomputed(kernel: Kernel) -> bool:
    """Return whether features are kernel values already."""
    return isinstance(plain(kernel), PrecomputedKernel)


def factor(
    K: Float64Array, name: str = "precomputed", *, rounded: bool = False
) -> tuple[Float64Array, np.ndarray[Any, np.dtype[np.intp]], float]:
    """Return F (n, r), the pivots (r,) and the norm of E of a symmetric K (n, n) = F F^T + E.

    If entries may have been `rounded` to float32, E may hold what lies below that rounding.  Raises
    InvalidProblemError if K is indefinite beyond rounding.
    """
    n = len(K)
    largest = max(float(np.diag(K).max(initial=0.0)), 0.0)
    tolerances = [n * float(np.finfo(np.float64).eps) * largest]
    if rounded:
        tolerances.append(n**0.5 * float(np.finfo(np.float32).eps) * largest)
    for tolerance in tolerances:
        F, order = _pivoted(K, tolerance)
        rank = F.shape[1]
        rest = order[rank:]
        E = K[np.ix_(rest, rest)] - F[rest] @ F[rest].T
        worst = float(np.abs(E).max(initial=0.0))
        if worst <= _SLACK * tolerance:
            return F, order[:rank], float(np.linalg.norm(E))
    lowest = min(float(np.diag(E).min()), -worst)
    raise InvalidProblemError(
        f"the kernel {name} is not positive semi-definite: {rank} of {n} pivots are positive, and what"
        f" remains has an entry of {lowest:.3g}; add more than that to the diagonal, set its negative"
        " eigenvalues to zero, or use another kernel"
    )


def _pivoted(K: Float64Array, tolerance: float) -> tuple[Float64Array, np.ndarray[Any, np.dtype[np.intp]]]:
    """Factor until no remaining pivot exceeds the tolerance; return F (n, r) and all rows, pivots first."""
    n = len(K)
    packed, order, rank, _ = linalg.lapack.dpstrf(K.T, tol=tolerance, lower=1, overwrite_a=0)
    # LAPACK returns no order if the first pivot is within the tolerance.
    order = np.arange(n) if rank == 0 else np.asarray(order, dtype=np.intp) - 1
    for column in range(1, rank):
        packed[:column, column] = 0.0
    F = np.empty((n, rank))
    F[order] = packed[:, :rank]
    return F, order


def symmetric(K: Any) -> Float64Array:
    """Return a precomputed K, symmetrised, in float64; InvalidProblemError beyond float32 rounding."""
    K = np.array(K.toarray() if is_sparse(K) else K, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise InvalidProblemError(
            f"the precomputed kernel has the shape {K.shape}; give the square matrix of all training rows"
            " with each other"
        )
    scale = float(np.abs(K).max(initial=0.0))
    difference = float(np.abs(K - K.T).max(initial=0.0))
    if difference > 10.0 * float(np.finfo(np.float32).eps) * scale:
        raise InvalidProblemError(
            f"the precomputed kernel is not symmetric: entries differ by up to {difference:.3g} from those"
            " opposite; give K(train, train), or (K + K.T) / 2 where that is rounding"
        )
    return np.asarray(0.5 * (K + K.T), dtype=np.float64) if difference > 0.0 else K


def in_memory(X: RowSource) -> Any:
    """Return the rows of X as one array or CSR matrix."""
    values = X if isinstance(X, np.ndarray) or is_sparse(X) else X[0 : int(X.shape[0])]
    values = without_repeats(values) if is_sparse(values) else values
    return as_rows(values, compute_dtype(X.dtype))


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

    `rows` (s, d) are the features of the support, None for a precomputed kernel, whose rows are K(new,
    train); `support` (s,) are their positions among the n training rows, and the rows of `coefficients` (s,
    m) the c_j.
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
    if not math.isfinite(result.primal):
        unknown = np.full((problem.n, problem.m), math.nan)
        return {"expansion": features.expansion(unknown)}
    of_duals: dict[str, Any] = {}
    if A is not None:
        expansion = features.expansion(problem.scale * np.asarray(A, np.float64))
        of_duals = {"expansion": expansion, **values_on_matrix(features.K, problem, labels, weights, A)}
        if result.W_dual is None:
            return of_duals
    C = features.coefficients(result.W)
    expansion = features.expansion(C, features.pivots)
    if not len(C):
        return {"expansion": expansion}
    columns = np.ascontiguousarray(features.K[:, features.pivots])
    with SerialExecutor() as executor:
        wide = replace(problem, d=len(C))
        executor.bind(wide, columns, labels, keep_duals=False, weights=weights)
        risk, asked = problem.risk, Evaluate(C)
        if isinstance(risk, AverageTopK):
            loss = asked.on_largest(executor.run, risk, wide.n).loss / problem.n
        else:
            loss = executor.run(asked).loss / problem.n
    primal = 0.5 * problem.lam * inner(C, columns[features.pivots] @ C) + loss
    if of_duals:
        dual, conjugate_mean = of_duals["objective"].dual, of_duals["conjugate_mean"]
        if primal >= of_duals["objective"].primal:
            return of_duals
    else:
        dual = result.dual - _loss_of_dual(features, problem, weights)
        conjugate_mean = result.conjugate_mean
    values = _values(primal, dual, primal - dual, conjugate_mean)
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
    form = problem.form
    # The largest |beta|^2 of the domain of the loss.
    most = squares * (2.0 * float(form.rho.sum()) ** 2 if form.family.balanced else float(form.m))
    return 0.5 * features.dropped * most * problem.scale / problem.n
