"""The thesis's experiment on weight learning (section 3.6.3, figure 3.7) as a pure function.

One half of the examples is for tests.  Of the other a sample is drawn again and again and split into training
and validation examples; every method sees just these.  Hyperparameters are those with the fewest errors on
the validation examples, of equals those with the least hinge loss there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from solvers.errors import InvalidProblemError
from solvers.kernel_functions import RBFKernel
from solvers.privileged.margin_losses import TwiceSmoothHinge
from solvers.privileged.probabilities import best_bandwidth, nadaraya_watson, probability_weights
from solvers.privileged.splits import stratified_split
from solvers.privileged.weight_learning import learn_weights
from solvers.privileged.weighted_svm import solve_weighted_svm
from solvers.typing import Float64Array

_COSTS = tuple(10.0 ** np.arange(-1.0, 5.0))
#: Widths of the kernel as multiples of the median distance of training examples.
_WIDTHS = tuple(2.0 ** np.arange(-3.0, 3.0))
_POWERS = (0.5, 1.0, 2.0)
_DELTAS = (0.1, 0.3, 1.0)
_CERTAIN = 0.999
_LEARNING_STEPS = 50
_SVM_TOL = 1e-5


@dataclass(frozen=True, eq=False)
class WeightLearningRow:
    """Test errors of one sample size and ratio of training to validation examples.

    `errors` holds for "svm", "probability" (weights from P(Y | X)) and "learnt" the share of errors in every
    repeat, paired: the same examples in the same repeat.
    """

    sample: int
    ratio: tuple[int, int]
    errors: Mapping[str, tuple[float, ...]]

    def mean(self, method: str) -> float:
        """Give the mean error."""
        return float(np.mean(self.errors[method]))

    def spread(self, method: str) -> float:
        """Give the standard deviation of the error over the repeats; 0 for a single one."""
        return _spread(self.errors[method])

    def gain(self, method: str) -> tuple[float, float]:
        """Give by how much the error is below the SVM's: mean and standard deviation of the differences."""
        differences = np.subtract(self.errors["svm"], self.errors[method])
        return float(differences.mean()), _spread(differences)


def weight_learning_experiment(
    X: Any,
    y: Any,
    *,
    samples: Sequence[int] = (486,),
    ratios: Sequence[tuple[int, int]] = ((1, 2), (2, 1)),
    repeats: int = 20,
    seed: int = 0,
) -> tuple[WeightLearningRow, ...]:
    """Compare the SVM with weights from P(Y | X) and with learnt weights; a row a sample size and ratio.

    X (n, d) is dense and is scaled to [0, 1] by the training half; y (n,) has two values.  The kernel is RBF.
    At 486 examples a repeat takes 5 seconds for the ratio 1 to 2 and 15 for 2 to 1.

    Raises InvalidProblemError where y has not two values, or a sample is larger than half the examples.
    """
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
    values = np.unique(y)
    if len(values) != 2:
        raise InvalidProblemError(f"y has {len(values)} values; give two classes")
    signs = np.where(y == values[1], 1.0, -1.0)
    pool, test = stratified_split(signs, 0.5, np.random.default_rng(seed))
    if max(samples) > len(pool):
        raise InvalidProblemError(
            f"a sample of {max(samples)} is larger than the training half of {len(pool)}; give smaller ones"
        )
    low, high = X[pool].min(axis=0), X[pool].max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)
    rows = []
    for sample in samples:
        for ratio in ratios:
            errors: dict[str, list[float]] = {"svm": [], "probability": [], "learnt": []}
            for repeat in range(repeats):
                rng = np.random.default_rng([seed, sample, repeat])
                drawn = pool if sample == len(pool) else pool[_part(signs[pool], sample / len(pool), rng)]
                train, aside = stratified_split(signs[drawn], ratio[1] / sum(ratio), rng)
                trial = _Trial.of(X, signs, drawn[train], drawn[aside], test)
                for name, error in trial.errors().items():
                    errors[name].append(error)
            frozen = MappingProxyType({name: tuple(found) for name, found in errors.items()})
            rows.append(WeightLearningRow(sample, ratio, frozen))
    return tuple(rows)


def _part(signs: Float64Array, share: float, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return stratified_split(signs, share, rng)[1]


def _spread(values: Any) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


@dataclass(frozen=True, eq=False)
class _Choice:
    """A trained classifier: its quality on the validation examples, and its errors on the test examples."""

    quality: tuple[float, float]
    error: float
    settings: tuple[float, float]


@dataclass(frozen=True, eq=False)
class _Trial:
    """Training, validation and test examples of one repeat, and the median distance in training."""

    X: tuple[Float64Array, Float64Array, Float64Array]
    y: tuple[Float64Array, Float64Array, Float64Array]
    median: float

    @classmethod
    def of(cls, X: Float64Array, y: Float64Array, train: Any, aside: Any, test: Any) -> _Trial:
        """Take the rows of each part."""
        near = X[train]
        distances = np.sqrt(np.maximum(_squares(near), 0.0))
        median = float(np.median(distances[np.triu_indices(len(near), 1)]))
        return cls((near, X[aside], X[test]), (y[train], y[aside], y[test]), median if median > 0 else 1.0)

    def errors(self) -> dict[str, float]:
        """Give the test error of each method."""
        ones = np.ones(len(self.y[0]))
        svm = self.best_svm({0.0: ones})
        h = best_bandwidth(self.X[1], self.y[1], self.X[0], self.y[0])
        # Short of certainty no example, and so no class, loses all weight.
        eta = np.clip(nadaraya_watson(self.X[1], self.y[1], self.X[0], h), -_CERTAIN, _CERTAIN)
        likely = {tau: probability_weights(eta, self.y[0], tau) for tau in _POWERS}
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
        for width in _WIDTHS:
            K, aside, test = self.kernels(width)
            for c in weights.values():
                for cost in _COSTS:
                    result = solve_weighted_svm(K, self.y[0], cost * c, tol=_SVM_TOL)
                    coefficients = result.alpha * self.y[0]
                    scores = [rows @ coefficients + result.bias for rows in (aside, test)]
                    found.append(self.choice(scores[0], scores[1], (cost, width)))
        return min(found, key=lambda choice: choice.quality)

    def learnt(self, cost: float, width: float) -> float:
        """Give the test error of learnt weights, that start from the SVM's cost, at its width."""
        K, aside, test = self.kernels(width)
        found = []
        for delta in _DELTAS:
            loss = TwiceSmoothHinge(delta)
            learnt = learn_weights(
                K, self.y[0], aside, self.y[1], loss, cost, max_steps=_LEARNING_STEPS
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
