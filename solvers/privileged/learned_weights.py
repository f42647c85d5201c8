"""The scikit-learn face of weight learning."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array

from topline.solvers.core.inputs import positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS
from topline.solvers.kernels import Gamma, Kernel, KernelFeatures
from topline.solvers.privileged.estimators import BinaryKernelClassifier
from topline.solvers.privileged.margin_losses import TwiceSmoothHinge
from topline.solvers.privileged.weight_learning import learn_weights
from topline.solvers.typing import Float64Array, Int64Array


class LearnedWeightsSVC(BinaryKernelClassifier):
    """Support vector classifier whose example weights are learned from validation examples.

    Weights c >= 0 are sought for which the classifier trained with them, by the twice smooth hinge L_delta,
    has the least loss on validation examples (Theorem 3.5).  These should be at least as many as the training
    examples, each of which has a weight to learn: with fewer the weights overfit.

    Parameters
    ----------
    C : float, default=1.0
        All weights to begin with.
    delta : float, default=0.1
        Smoothness of the loss; it tends to the hinge as delta tends to 0.
    validation_fraction : float, default=2/3
        Share of each class that `fit` sets aside where it is given no validation examples.
    kernel, gamma, degree, coef0 : as in `WeightedSVC`.
    max_iter : int, default=100
        Steps of L-BFGS-B; to stop early regularises the weights.
    random_state : int, RandomState or None, default=0
        Of the split.

    Attributes
    ----------
    weights_ : (n,) learned weights, 0 for examples set aside; ``WeightedSVC(C=1).fit(X, y, weights_)`` trains
        with them and the hinge.
    training_rows_, validation_rows_ : places of both parts; the second is empty where `fit` was given others.
    validation_losses_ : tuple of floats, mean loss on validation examples from the start to the end.
    n_iter_ : int, steps.
    classes_, support_, dual_coef_, intercept_, coef_, kernel_ : as in `WeightedSVC`.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import LearnedWeightsSVC
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.where(X[:, 0] > 0, 1, 0)
    >>> model = LearnedWeightsSVC(kernel="linear", max_iter=20).fit(X, y)
    >>> model.validation_losses_[-1] <= model.validation_losses_[0]
    True
    """

    def __init__(
        self,
        C: float = 1.0,
        delta: float = 0.1,
        *,
        validation_fraction: float = 2.0 / 3.0,
        kernel: str | Kernel = "rbf",
        gamma: Gamma = None,
        degree: int | None = None,
        coef0: float | None = None,
        max_iter: int = 100,
        random_state: Any = 0,
    ) -> None:
        self.C = C
        self.delta = delta
        self.validation_fraction = validation_fraction
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any, X_validation: Any = None, y_validation: Any = None) -> Self:
        """Train on X (n, d) and y (n,), weighing examples by their use for the validation examples (N, d).

        Without these a part of X and y is set aside.  For a precomputed kernel X_validation is K(validation,
        train).

        Raises
        ------
        InvalidProblemError (a ValueError) : a parameter or the data cannot make a problem.
        NonFiniteError : kernel values overflow.
        """
        X, y = self._validated(X, y)
        features = KernelFeatures.of(self._chosen_kernel(), X)
        loss, C = TwiceSmoothHinge(self.delta), positive_number("C", self.C)
        if (X_validation is None) != (y_validation is None):
            raise InvalidProblemError("X_validation and y_validation belong together; give both or neither")
        rows, aside = np.arange(len(y)), np.zeros(0, dtype=np.int64)
        if X_validation is None:
            rows, aside = self._split(y)
            kernel_rows, signs = features.K[np.ix_(aside, rows)], y[aside]
        else:
            kernel_rows, signs = self._validation(features, X_validation, y_validation)
        learned = learn_weights(
            features.K[np.ix_(rows, rows)], y[rows], kernel_rows, signs, loss, C, max_steps=self.max_iter
        )
        coefficients, self.weights_ = np.zeros(len(y)), np.zeros(len(y))
        coefficients[rows], self.weights_[rows] = learned.solution.a, learned.c
        self._keep_classifier(features, coefficients, learned.solution.b)
        self.training_rows_, self.validation_rows_ = rows, aside
        self.validation_losses_ = learned.validation_losses
        self.n_iter_ = max(len(learned.validation_losses) - 1, 1)
        return self

    def _split(self, y: Float64Array) -> tuple[Int64Array, Int64Array]:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return stratified_split(y, self.validation_fraction, np.random.default_rng(seed))

    def _validation(self, features: KernelFeatures, X: Any, y: Any) -> tuple[Float64Array, Float64Array]:
        """Return K(validation, train) and the labels as signs."""
        X = check_array(X, order="C", input_name="X_validation", **ROWS)
        labels = np.asarray(y)
        if X.shape[1] != self.n_features_in_ or labels.shape != (X.shape[0],):
            raise InvalidProblemError(
                f"X_validation has the shape {X.shape} and y_validation {labels.shape}; give rows of"
                f" {self.n_features_in_} features and a label for each"
            )
        strange = ~np.isin(labels, self.classes_)
        if strange.any():
            raise InvalidProblemError(
                f"the validation label {labels[strange][0]} is not there in training; leave its rows out"
            )
        return features.kernel.matrix(X, features.train), np.where(labels == self.classes_[1], 1.0, -1.0)


def stratified_split(y: Any, share: float, rng: np.random.Generator) -> tuple[Int64Array, Int64Array]:
    """Return the places of the examples outside and inside a random `share` of every class, both in order.

    Every class is on both sides.  Raises InvalidProblemError where one has a single example, or for a share
    outside (0, 1).
    """
    if not 0.0 < share < 1.0:
        raise InvalidProblemError(f"the share of a split is {share!r}; give a number between 0 and 1")
    y = np.asarray(y)
    outside: list[Int64Array] = []
    inside: list[Int64Array] = []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < 2:
            raise InvalidProblemError(
                f"the class {label} has 1 example, and a split wants one on each side; give more examples"
            )
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        inside.append(rows[:count])
        outside.append(rows[count:])
    return np.sort(np.concatenate(outside)), np.sort(np.concatenate(inside))
