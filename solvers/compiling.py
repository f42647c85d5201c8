"""Compiling the kernels of a run before its clock starts."""

from __future__ import annotations

import numpy as np
from scipy import sparse as scipy_sparse

from solvers.api import solve
from solvers.executor import SerialExecutor
from solvers.losses.base import Loss
from solvers.problem import SmoothingKind

#: Enough rounds to meet every kernel: the second one applies the step of the first.
_ROUNDS = 2


def compile_kernels(
    loss: Loss,
    m: int,
    smoothing: float,
    method: str,
    *,
    smoothing_kind: SmoothingKind = "moreau",
    keep_duals: bool = False,
    sparse: bool = False,
) -> None:
    """Compile (or load) what float32 features with this loss and method need, by solving a problem of 2 rows.

    Numba keeps compiled kernels beside the package, so that only the first call on a machine takes long: tens
    of seconds on a slow one.  Without this call the first pass takes them.
    """
    X = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], dtype=np.float32)
    solve(
        scipy_sparse.csr_matrix(X) if sparse else X,
        np.array([0, 1]),
        loss,
        lam=0.5,
        smoothing=smoothing,
        method=method,
        tol=1e-15,
        max_passes=_ROUNDS,
        executor=SerialExecutor(),
        smoothing_kind=smoothing_kind,
        keep_duals=keep_duals,
        m=m,
    )
