"""Parts of the estimators that know nothing of scikit-learn's contract."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from solvers.errors import InvalidProblemError
from solvers.losses.base import Loss
from solvers.rows import is_sparse
from solvers.typing import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Dual variables of the last fit; they are feasible for the same labels and loss, whatever X and C."""

    loss: Loss
    labels: IntArray
    A: FloatArray

    def fits(self, loss: Loss, labels: IntArray) -> bool:
        """Say whether they can start a fit with this loss and these labels."""
        return self.loss == loss and np.array_equal(self.labels, labels)


def positive(C: Any) -> float:
    """Give C as a float, refusing what is no positive number."""
    if isinstance(C, bool) or not isinstance(C, Real) or not 0.0 < float(C) < math.inf:
        raise InvalidProblemError(f"C is {C!r}; give a positive number")
    return float(C)


def with_constant(X: Any) -> Any:
    """Append a feature that is 1 for every row of an array or CSR matrix."""
    if is_sparse(X):
        constant = sparse.csr_array(np.ones((X.shape[0], 1), dtype=X.dtype))
        return sparse.hstack([sparse.csr_array(X), constant], format="csr")
    extended = np.empty((X.shape[0], X.shape[1] + 1), dtype=X.dtype)
    extended[:, :-1] = X
    extended[:, -1] = 1.0
    return extended


def warm_options(warm: WarmStart | None, loss: Loss, labels: IntArray) -> dict[str, Any]:
    """Give `solve` the duals of an earlier fit where they are feasible here."""
    if warm is None or not warm.fits(loss, labels):
        return {}
    return {"duals": [(0, len(warm.A), warm.A)]}
