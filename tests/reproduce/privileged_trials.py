"""One comparison of the SVM with weighted ones: the same training, validation and test examples for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reproduce.label_probabilities import best_bandwidth, nadaraya_watson, probability_weights
from topline.solvers.kernels import RBFKernel
from topline.solvers.privileged.margin_losses import TwiceSmoothHinge
from topline.solvers.privileged.weight_learning import learn_weights
from topline.solvers.privileged.weighted_svm import solve_weighted_svm
from topline.solvers.typing import Float64Array

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
        distances = np.sqrt(np.maximum(_squares(near), 0.0))
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


def _squares(X: Float64Array) -> Float64Array:
    norms = np.einsum("ij,ij->i", X, X)
    return np.asarray(norms[:, None] + norms - 2.0 * (X @ X.T))
