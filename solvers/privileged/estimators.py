"""scikit-learn estimators for limited data: two classes, kernels, an unpenalised bias."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight, check_array

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS, ScoringClassifier, chosen_kernel, combined_weights
from topline.solvers.kernels import Gamma, Kernel, KernelFeatures
from topline.solvers.privileged.machines import DualSVMResult, solve_svm_plus, solve_weighted_svm
from topline.solvers.privileged.weight_learning import TwiceSmoothHinge, learn_weights
from topline.solvers.typing import Float64Array, Int64Array


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class BinaryKernelClassifier(ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """Base of the classifiers: f(x) = sum_i a_i k(x_i, x) + b, positive for the second class."""

    C: float = 1.0
    _: KW_ONLY
    kernel: str | Kernel = "rbf"
    max_iter: int = 100

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _validated(self, X: Any, y: Any) -> tuple[Any, Float64Array]:
        """Check X and y, set `classes_`, and return X with labels -1 and +1."""
        X, classes, codes = self._examples(X, y)
        if len(classes) > 2:
            raise InvalidProblemError(
                "Only binary classification is supported. The type of the target is"
                f" {type_of_target(codes)}; wrap {type(self).__name__} in sklearn's OneVsRestClassifier"
            )
        self.classes_ = classes
        return X, np.where(codes > 0, 1.0, -1.0)

    def _raw_scores(self, X: Any) -> Float64Array:
        """Return f of checked rows, (rows, 1); the bias is not part of the kernel."""
        return np.asarray(self._expansion.scores(X) + self.intercept_)

    def _keep_classifier(self, features: KernelFeatures, coefficients: Float64Array, bias: float) -> None:
        """Set the attributes that score new rows."""
        self._keep_expansion(features.expansion(coefficients[:, None]))
        self.intercept_ = np.array([bias])

    def _keep_result(self, result: DualSVMResult, tol: float) -> None:
        """Set the attributes of the duality gap, and warn if it exceeds tol."""
        self._keep_certificate(result, max(result.rounds, 1))
        if result.relative_gap > tol:
            warnings.warn(
                f"training ended at a relative gap of {result.relative_gap:.2g}, short of tol = {tol:g};"
                " scale the features, lower C, raise max_iter or raise tol",
                ConvergenceWarning,
                stacklevel=3,
            )


@dataclass(eq=False, repr=False)
class WeightedSVC(BinaryKernelClassifier):
    """Support vector classifier with example weights and a duality gap (WSVM).

    It minimises 1/2 |w|^2 + C sum_i s_i max(0, 1 - y_i (<w, phi(x_i)> + b)) over w and b, as SVC does, with
    sample weights s_i.  Needs memory for a few n x n matrices; for larger n use `TopKClassifier`.

    Parameters
    ----------
    C : weight of the losses against the regulariser
    kernel : "linear", "rbf", "polynomial", "chi2", a value such as ``RBFKernel(0.5)``, or "precomputed",
        where X is K(train, train) in `fit` and K(new, train) afterwards
    gamma, degree, coef0 : parameters of a kernel given by name, as in `TopKClassifier`
    tol : relative duality gap to reach; a ConvergenceWarning says if it was not
    max_iter : rounds of the interior point method; ten to thirty are usual
    class_weight : dict or "balanced"; weight of each class, times `sample_weight`

    Attributes
    ----------
    classes_ : (2,) labels, sorted.
    support_, dual_coef_, intercept_ : indices of the support (s,), its alpha_i y_i (1, s), and b (1,).
    coef_ : (1, d), for the kernel "linear".
    kernel_ : the kernel with its parameters resolved.
    n_iter_ : int, rounds.
    primal_, dual_, dual_gap_, relative_gap_ : floats, P, D, P - D and its ratio to P, measured in float64.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import WeightedSVC
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), [0, 1, 0, 1]
    >>> model = WeightedSVC(C=10.0, kernel="linear").fit(X, y, sample_weight=[1.0, 0.01, 1.0, 1.0])
    >>> model.predict(X)
    array([0, 0, 0, 1])
    >>> model.relative_gap_ <= 1e-6
    True
    """

    _: KW_ONLY
    tol: float = 1e-6
    class_weight: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or CSR, y (n,) with two classes and sample weights (n,) >= 0, default 1.

        Raises InvalidProblemError (a ValueError) for invalid parameters or data, and NonFiniteError if kernel
        values overflow.
        """
        X, y = self._validated(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weights = combined_weights(sample_weight, self.class_weight, self.classes_, (y > 0).astype(np.intp))
        features = KernelFeatures.of(self._chosen_kernel(), X)
        c = positive_number("C", self.C) * (np.ones(len(y)) if weights is None else weights)
        result = solve_weighted_svm(
            features.K, y, c, tol=self.tol, max_rounds=positive_integer("max_iter", self.max_iter)
        )
        self._keep_classifier(features, result.alpha * y, result.bias)
        self._keep_result(result, self.tol)
        return self


@dataclass(eq=False, repr=False)
class SVMPlusClassifier(BinaryKernelClassifier):
    """Support vector classifier with privileged features in training (SVM+) and a duality gap.

    The slacks are a function <w~, phi~(x~_i)> + b~ of privileged features x~, which `predict` does not need.
    It minimises 1/2 (|w|^2 + privileged_penalty |w~|^2) + C sum_i slack_i.

    Parameters
    ----------
    C : weight of the slacks against the regularisers
    privileged_penalty : gamma of the papers: weight of the regulariser of the function of the privileged
        features
    kernel, gamma, degree, coef0 : of the features, as in `WeightedSVC`.
    privileged_kernel : kernel of the privileged features; "precomputed" if X_privileged is its matrix
    privileged_gamma : float, "scale" or "auto"; parameter of a privileged kernel given by name
    tol, max_iter : as in `WeightedSVC`.

    Attributes
    ----------
    instance_weights_ : (n,) weights with which `WeightedSVC(C=1)` gives the same w (Theorem 3.3).
    correction_ : (n,) the modelled slacks.
    privileged_coef_, privileged_intercept_ : (n,) and float, the function of the privileged features.
    classes_, support_, dual_coef_, intercept_, coef_, kernel_, n_iter_, primal_, dual_, dual_gap_,
    relative_gap_ : as in `WeightedSVC`.

    Examples
    --------
    Privileged features that say how hard each example is:

    >>> import numpy as np
    >>> from topline import SVMPlusClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=40) > 0, 1, 0)
    >>> hints = np.maximum(0.0, 1.0 - (2 * y - 1) * X[:, :1].T).T
    >>> model = SVMPlusClassifier(C=0.1, kernel="linear", privileged_kernel="linear")
    >>> model = model.fit(X, y, X_privileged=hints)
    >>> model.predict(X[:3]).shape, model.relative_gap_ <= 1e-6
    ((3,), True)
    """

    privileged_penalty: float = 1.0
    _: KW_ONLY
    privileged_kernel: str | Kernel = "rbf"
    privileged_gamma: Gamma = None
    tol: float = 1e-6

    def fit(self, X: Any, y: Any, X_privileged: Any = None) -> Self:
        """Train on X (n, d), y (n,) with two classes and privileged features (n, p), dense or CSR.

        Cross-validation passes them on by row: ``cross_val_score(..., params={"X_privileged": ...})`` after
        ``set_fit_request(X_privileged=True)`` with metadata routing.  Raises as `WeightedSVC.fit`, and
        InvalidProblemError without privileged features.
        """
        X, y = self._validated(X, y)
        if X_privileged is None:
            raise InvalidProblemError(
                "there are no privileged features; give X_privileged, or train WeightedSVC, which needs none"
            )
        privileged = check_array(X_privileged, order="C", input_name="X_privileged", **ROWS)
        if len(y) != privileged.shape[0]:
            raise InvalidProblemError(
                f"X_privileged has {privileged.shape[0]} rows and X {len(y)}; give one row for each example"
            )
        features = KernelFeatures.of(self._chosen_kernel(), X)
        correcting = KernelFeatures.of(
            chosen_kernel(self.privileged_kernel, gamma=self.privileged_gamma), privileged
        )
        limits: dict[str, Any] = {"tol": self.tol, "max_rounds": positive_integer("max_iter", self.max_iter)}
        result = solve_svm_plus(features.K, correcting.K, y, self.C, self.privileged_penalty, **limits)
        self._keep_classifier(features, result.alpha * y, result.bias)
        self.instance_weights_ = result.alpha + result.beta
        self.correction_ = result.correction
        self.privileged_coef_ = result.privileged_coefficients
        self.privileged_intercept_ = result.privileged_bias
        self._keep_result(result, self.tol)
        return self


@dataclass(eq=False, repr=False)
class LearnedWeightsSVC(BinaryKernelClassifier):
    """Support vector classifier whose example weights are learned from validation examples.

    Minimises the loss on validation examples over the weights c >= 0 with which the classifier is trained, by
    the twice smooth hinge L_delta (Theorem 3.5).  Fewer validation than training examples, each of which has
    a weight to learn, make the weights overfit.

    Parameters
    ----------
    C : initial value of all weights
    delta : smoothness of the loss; it tends to the hinge as delta tends to 0
    validation_fraction : fraction of each class that `fit` sets aside if given no validation examples
    kernel, gamma, degree, coef0 : as in `WeightedSVC`.
    max_iter : steps of L-BFGS-B; early stopping regularises the weights
    random_state : int, RandomState or None; seed of the split

    Attributes
    ----------
    weights_ : (n,) learned weights, 0 for examples set aside; ``WeightedSVC(C=1).fit(X, y, weights_)`` trains
        with them and the hinge.
    training_rows_, validation_rows_ : indices of both parts; the second is empty if `fit` was given others.
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

    delta: float = 0.1
    _: KW_ONLY
    validation_fraction: float = 2.0 / 3.0
    random_state: Any = 0

    def fit(self, X: Any, y: Any, X_validation: Any = None, y_validation: Any = None) -> Self:
        """Train on X (n, d) and y (n,), learning weights to minimise the loss on validation examples (N, d).

        By default a part of X and y is set aside.  For a precomputed kernel X_validation is K(validation,
        train).  Raises as `WeightedSVC.fit`.
        """
        X, y = self._validated(X, y)
        features = KernelFeatures.of(self._chosen_kernel(), X)
        loss, C = TwiceSmoothHinge(self.delta), positive_number("C", self.C)
        if (X_validation is None) != (y_validation is None):
            raise InvalidProblemError("X_validation and y_validation belong together; give both or neither")
        rows, aside = np.arange(len(y)), np.zeros(0, dtype=np.int64)
        if X_validation is None:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            rows, aside = stratified_split(y, self.validation_fraction, np.random.default_rng(seed))
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
    """Return the sorted positions outside and inside a random `share` of every class.

    Every class is on both sides; InvalidProblemError for a class of one example or a share outside (0, 1).
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
