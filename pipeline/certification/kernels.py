"""Kernel values for certificates, through scikit-learn: nothing here comes from the solvers.

With C = A / (lam n) the scores of a row x are sum_j k(x, x_j) c_j and |W|^2 = tr(C^T K C): a kernel model is
a linear one whose features are the rows of K and whose weights are C, but for that norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError

Array = NDArray[np.float64]

# The function of scikit-learn that computes each kernel.
KERNELS = {
    "linear": "linear_kernel",
    "rbf": "rbf_kernel",
    "polynomial": "polynomial_kernel",
    "chi2": "chi2_kernel",
}


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The training rows (n, d) in float64, their coefficients C (n, m), and the kernel's record."""

    record: Mapping[str, Any]
    rows: Any
    C: Array

    def values(self, X: Any) -> Array:
        """Return K(X, training rows), the features of rows X; `InputError` for a kernel not known here."""
        from sklearn.metrics import pairwise  # scikit-learn takes a second to import

        name = self.record.get("name")
        if name not in KERNELS:
            raise InputError(f"the kernel {name!r} is not known here: the known ones are {sorted(KERNELS)}")
        parameters = {key: value for key, value in self.record.items() if key != "name"}
        return np.asarray(getattr(pairwise, KERNELS[name])(X, self.rows, **parameters), dtype=np.float64)
