"""Kernels by sums of absolute differences: of Laplace, and the intersection of histograms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels.functions import NamedKernel
from topline.solvers.kernels.gammas import Gamma, checked_gamma, gamma_of, number_of
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class LaplacianKernel(NamedKernel):
    """k(x, y) = exp(-gamma sum_j |x_j - y_j|); `gamma` as for RBFKernel.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import LaplacianKernel
    >>> LaplacianKernel(0.5).matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    gamma: Gamma = None
    name: ClassVar[str] = "laplacian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checked_gamma(self.gamma, self.name))

    def resolved(self, X: Any) -> Self:
        """Take gamma from the training rows; their median distance is that of sums of |x_j - y_j|."""
        return replace(self, gamma=gamma_of(self.gamma, X, power=1))

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return exp(-gamma |x - y|_1)."""
        values = _distances(X, Y, self.name)
        values *= -number_of(self.gamma, self.name)
        return np.asarray(np.exp(values, out=values))


@dataclass(frozen=True)
class IntersectionKernel(NamedKernel):
    """k(x, y) = sum_j min(x_j, y_j) of features >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import IntersectionKernel
    >>> IntersectionKernel().matrix(np.array([[3.0, 1.0]]), np.array([[2.0, 2.0], [0.0, 5.0]]))
    array([[3., 1.]])
    """

    name: ClassVar[str] = "intersection"

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return (|x|_1 + |y|_1 - |x - y|_1) / 2; negative or sparse features are refused."""
        values = _distances(X, Y, self.name)
        for rows in (X, Y):
            if np.asarray(rows).size and float(np.min(rows)) < 0.0:
                raise InvalidProblemError(
                    f"Negative values in data, such as {float(np.min(rows)):g}, are not for the kernel"
                    f" {self.name}; leave out what centres the features, or use another kernel"
                )
        totals = [np.asarray(rows, dtype=np.float64).sum(axis=1) for rows in (X, Y)]
        return np.asarray(0.5 * (totals[0][:, None] + totals[1] - values))


def _distances(X: Any, Y: Any, name: str) -> Float64Array:
    """Return sum_j |x_j - y_j| of dense rows in float64."""
    # The compiled sums are scikit-learn's, whose import would double the time of ours.
    from sklearn.metrics.pairwise import manhattan_distances

    if is_sparse(X) or is_sparse(Y):
        raise UnsupportedCombinationError(
            f"the kernel {name} takes no sparse features; give X.toarray() or use another kernel"
        )
    if min(X.shape[0], Y.shape[0]) == 0:
        return np.zeros((X.shape[0], Y.shape[0]))
    X, Y = (np.asarray(rows, dtype=np.float64) for rows in (X, Y))
    return np.asarray(manhattan_distances(X, Y), dtype=np.float64)
