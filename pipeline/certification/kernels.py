"""Kernel values for certificates, through scikit-learn and apart from the solvers' own.

With C = A / (lam n) the scores of a row x are sum_j k(x, x_j) c_j and |W|^2 = tr(C^T K C): a kernel model is
a linear one whose features are the rows of K and whose weights are C, but for that norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack
from sklearn.metrics.pairwise import chi2_kernel, linear_kernel, polynomial_kernel, rbf_kernel

from topline.pipeline.errors import InputError
from topline.pipeline.rows import TrainingRows
from topline.storage.models import Model

Array = NDArray[np.float64]

# Rows whose kernel values with all training rows are in memory at once.
TILE_ROWS = 512


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The training rows (n, d) in float64, their coefficients C (n, m), and the kernel's record."""

    record: Mapping[str, Any]
    rows: Any
    C: Array

    @classmethod
    def of(cls, model: Model, training: TrainingRows) -> KernelRows:
        """Read all rows and A; `InputError` for a kernel that is not known here."""
        record = model.record
        kernel = dict(record.kernel or {})
        if kernel.get("name") not in KERNELS:
            raise InputError(f"the kernel {kernel.get('name')!r} of model {record.id} is not known")
        parts = [X.astype(np.float64) for _, _, X in training.tiles()]
        rows = csr_matrix(vstack(parts, format="csr")) if issparse(parts[0]) else np.concatenate(parts)
        A = np.asarray(model.duals(0, record.n), dtype=np.float64)
        return cls(kernel, rows, A / (record.lam * record.n))

    def values(self, X: Any) -> Array:
        """Give K(X, training rows), the features of rows X."""
        parameters = {key: value for key, value in self.record.items() if key != "name"}
        return np.asarray(KERNELS[self.record["name"]](X, self.rows, **parameters), dtype=np.float64)


KERNELS: Mapping[str, Any] = {
    "linear": linear_kernel,
    "rbf": rbf_kernel,
    "polynomial": polynomial_kernel,
    "chi2": chi2_kernel,
}
