"""One comparison of the SVM with weighted ones: the same training, validation and test examples for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.solvers.core.problem import positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import RBFKernel
from topline.solvers.privileged.machines import finite_vector, solve_weighted_svm
from topline.solvers.privileged.weight_learning import TwiceSmoothHinge, learn_weights
from topline.solvers.typing import Float64Array

#: Bandwidths are tried as these multiples of the median distance.
_MULTIPLES = 2.0 ** np.arange(-5.0, 2.0)


def probability_weights(eta: Any, y: Any, tau: float = 1.0) -> Float64Array:
    """Return c_i = ((1 + y_i eta_i) / 2)^tau for eta = E(Y | X) (n,) in [-1, 1] and y of -1 and +1: (3.18).

    Raises InvalidProblemError for an eta outside [-1, 1] or a tau that is negative or no number.
    """
    y = np.asarray(y, dtype=np.float64)
    eta = finite_vector("eta", eta, len(y))
    if float(np.abs(eta).max(initial=0.0)) > 1.0 + 1e-12:
        raise InvalidProblemError(
            f"eta reaches {eta[np.argmax(np.abs(eta))]:g}; give E(Y | X) = 2 P(Y = 1 | X) - 1 in [-1, 1]"
        )
    likely = np.clip(0.5 * (1.0 + y * eta), 0.0, 1.0)
    return np.asarray(likely ** positive_number("tau", tau, or_zero=True))


def nadaraya_watson(X: Any, y: Any, X_new: Any, bandwidth: float) -> Float64Array:
    """Return eta(x) = sum_i K_h(x - x_i) y_i / sum_i K_h(x - x_i) for the rows x of X_new (r, d): (3.27).

    K_h(z) = exp(-|z|^2 / (2 h^2)).  Far from every example the nearest decide, as the limit says.
    """
    h = positive_number("bandwidth", bandwidth)
    return _regression(_squares(X_new, X), np.asarray(y, dtype=np.float64), h)


def best_bandwidth(X: Any, y: Any, X_validation: Any, y_validation: Any, bandwidths: Any = None) -> float:
    """Return the bandwidth whose regression has the least squared error on validation examples.

    By default the median distance times powers of 2 between 1/32 and 2 are tried.
    """
    squares = _squares(X_validation, X)
    y = np.asarray(y, dtype=np.float64)
    truth = np.asarray(y_validation, dtype=np.float64)
    if bandwidths is None:
        median = math.sqrt(float(np.median(squares)))
        bandwidths = (median if median > 0.0 else 1.0) * _MULTIPLES
    tried = [positive_number("bandwidth", float(h)) for h in bandwidths]
    if not tried:
        raise InvalidProblemError("there are no bandwidths to choose from; give at least one")
    errors = [float(np.mean((_regression(squares, y, h) - truth) ** 2)) for h in tried]
    return tried[int(np.argmin(errors))]


def _squares(A: Any, B: Any) -> Float64Array:
    """Return |a - b|^2 of all rows."""
    A, B = np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)
    centre = B.mean(axis=0)
    A, B = A - centre, B - centre
    squares = np.einsum("ij,ij->i", A, A)[:, None] + np.einsum("ij,ij->i", B, B) - 2.0 * (A @ B.T)
    return np.asarray(np.maximum(squares, 0.0))


def _regression(squares: Float64Array, y: Float64Array, h: float) -> Float64Array:
    exponents = squares / (-2.0 * h * h)
    exponents -= exponents.max(axis=1, keepdims=True)
    kernel = np.exp(exponents)
    return np.asarray(kernel @ y / kernel.sum(axis=1))


#: Short of certainty no example, and so no class, loses all weight.
_CERTAIN = 0.999
_SVM_TOL = 1e-5


@dataclass(frozen=True)
class SearchGrid:
    """What is tried: `widths` of the RBF kernel are multiples of the median distance of training examples.

    `costs` are C of the SVM, `powers` tau of the weights from P(Y | X), `deltas` those of the smooth hinge,
    and `steps` the budget of weight learning.
    """

    costs: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
    widths: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
    powers: tuple[float, ...] = (0.5, 1.0, 2.0)
    deltas: tuple[float, ...] = (0.1, 0.3, 1.0)
    steps: int = 50


@dataclass(frozen=True, eq=False)
class _Choice:
    """A trained classifier: its quality on the validation examples, and its errors on the test examples."""

    quality: tuple[float, float]
    error: float
    settings: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Trial:
    """Training, validation and test examples, the median distance in training, and what is tried."""

    X: tuple[Float64Array, Float64Array, Float64Array]
    y: tuple[Float64Array, Float64Array, Float64Array]
    median: float
    grid: SearchGrid

    @classmethod
    def of(
        cls, X: Float64Array, y: Float64Array, train: Any, aside: Any, test: Any, grid: SearchGrid
    ) -> Trial:
        """Take the rows of each part of X (n, d) and y (n,) of -1 and +1."""
        near = X[train]
        distances = np.sqrt(np.maximum(_squares(near, near), 0.0))
        median = float(np.median(distances[np.triu_indices(len(near), 1)]))
        return cls(
            (near, X[aside], X[test]), (y[train], y[aside], y[test]), median if median > 0 else 1.0, grid
        )

    def errors(self) -> dict[str, float]:
        """Give the test error of each method."""
        ones = np.ones(len(self.y[0]))
        svm = self.best_svm({0.0: ones})
        h = best_bandwidth(self.X[1], self.y[1], self.X[0], self.y[0])
        eta = np.clip(nadaraya_watson(self.X[1], self.y[1], self.X[0], h), -_CERTAIN, _CERTAIN)
        likely = {tau: probability_weights(eta, self.y[0], tau) for tau in self.grid.powers}
        probable = min((svm, self.best_svm(likely)), key=lambda choice: choice.quality)
        return {"svm": svm.error, "probability": probable.error, "learnt": self.learnt(*svm.settings)}

    def kernels(self, width: float) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Give the kernel of each part's examples with those of training."""
        kernel = RBFKernel(0.5 / (width * self.median) ** 2)
        train, aside, test = (kernel.matrix(part, self.X[0]) for part in self.X)
        return 0.5 * (train + train.T), aside, test

    def best_svm(self, weights: Mapping[float, Float64Array]) -> _Choice:
        """Choose among weights, costs and widths."""
        found = []
        for width in self.grid.widths:
            K, aside, test = self.kernels(width)
            for c in weights.values():
                for cost in self.grid.costs:
                    result = solve_weighted_svm(K, self.y[0], cost * c, tol=_SVM_TOL)
                    coefficients = result.alpha * self.y[0]
                    scores = [rows @ coefficients + result.bias for rows in (aside, test)]
                    found.append(self.choice(scores[0], scores[1], (cost, width)))
        return min(found, key=lambda choice: choice.quality)

    def learnt(self, cost: float, width: float) -> float:
        """Give the test error of learnt weights, that start from the SVM's cost, at its width."""
        K, aside, test = self.kernels(width)
        found = []
        for delta in self.grid.deltas:
            loss = TwiceSmoothHinge(delta)
            learnt = learn_weights(
                K, self.y[0], aside, self.y[1], loss, cost, max_steps=self.grid.steps
            ).solution
            found.append(self.choice(aside @ learnt.a + learnt.b, test @ learnt.a + learnt.b, (cost, width)))
        return min(found, key=lambda choice: choice.quality).error

    def choice(self, aside: Float64Array, test: Float64Array, settings: tuple[float, float]) -> _Choice:
        """Judge scores."""
        wrong = float(np.mean(np.where(aside > 0.0, 1.0, -1.0) != self.y[1]))
        hinge = float(np.maximum(0.0, 1.0 - self.y[1] * aside).mean())
        error = float(np.mean(np.where(test > 0.0, 1.0, -1.0) != self.y[2]))
        return _Choice((wrong, hinge), error, settings)
