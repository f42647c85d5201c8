"""Features that reproduce a kernel matrix: K = F F^T by a pivoted Cholesky factorisation.

With the pivots first, P^T K P = L L^T + E, where L (n, r) is lower trapezoidal and no diagonal entry of E,
the final Schur complement, exceeds n eps max K_ii.  The rows of F = P L are features of the examples; the
linear problem in them is the kernel problem up to E, so losses and methods need no change.

Source: N. J. Higham, "Accuracy and Stability of Numerical Algorithms", section 10.3; LAPACK's dpstrf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from topline.solvers.core.rows import (
    RowSource,
    as_rows,
    compute_dtype,
    is_sparse,
    refuse_nonfinite,
    without_repeats,
)
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.kernels.functions import Kernel, PrecomputedKernel
from topline.solvers.kernels.registry import WithConstant, as_kernel
from topline.solvers.typing import Float64Array

#: Most bytes that K, its factor and LAPACK's workspace may take together.
MEMORY_BYTES = 4 << 30
#: Peak number of n x n float64 arrays in memory.
ARRAYS = 3
#: A diagonal of E beyond this many times its bound is not rounding: K has negative eigenvalues.
_SLACK = 10.0


@dataclass(frozen=True, eq=False)
class KernelFeatures:
    """Training rows seen through a kernel.

    Attributes
    ----------
    kernel : the kernel, its parameters resolved.
    train : (n, d) training rows; K itself where it was precomputed.
    K : (n, n) float64.
    rows : (n, r) float64 with K = rows rows^T + E.
    pivots : (r,) the examples whose kernel functions span the features; rows[pivots] is lower triangular.
    dropped : Frobenius norm of E, which bounds its largest eigenvalue.
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
    """Return the resolved kernel, the training rows, and their K (n, n) float64.

    X (n, d) holds the rows, or K itself for a precomputed kernel.  Raises what `KernelFeatures.of` does,
    except for an indefinite K.
    """
    kernel = as_kernel(kernel)
    _refuse_size(int(X.shape[0]))
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


def _refuse_size(n: int) -> None:
    needed = ARRAYS * 8 * n * n
    if needed > MEMORY_BYTES:
        most = int((MEMORY_BYTES / (ARRAYS * 8)) ** 0.5)
        raise InvalidProblemError(
            f"the kernel matrix of {n:,} examples and its factor take {needed / 2**30:.1f} GiB, and"
            f" {MEMORY_BYTES / 2**30:.1f} GiB are allowed, enough for {most:,} examples; use Nystroem or"
            " random Fourier features (sklearn.kernel_approximation) and no kernel"
        )
