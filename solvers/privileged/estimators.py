"""scikit-learn faces of the methods for limited data: two classes, kernels, a bias that is not penalised."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight, check_array

from topline.solvers.core.inputs import positive_integer, positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS, ScoringClassifier
from topline.solvers.estimators.support import combined_weights
from topline.solvers.kernels import Gamma, Kernel, KernelExpansion, KernelFeatures, as_kernel, make_kernel
from topline.solvers.privileged.svm_plus import solve_svm_plus
from topline.solvers.privileged.weighted_svm import DualSVMResult, solve_weighted_svm
from topline.solvers.typing import Float64Array


# scikit-learn has no types.
class BinaryKernelClassifier(ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """What the classifiers share: f(x) = sum_i a_i k(x_i, x) + b, positive for the second class."""

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _validated(self, X: Any, y: Any) -> tuple[Any, Float64Array]:
        """Check X and y, keep the classes, and give X with labels of -1 and +1."""
        X, classes, codes = self._examples(X, y)
        if len(classes) > 2:
            raise InvalidProblemError(
                "Only binary classification is supported. The type of the target is"
                f" {type_of_target(codes)}; wrap {type(self).__name__} in sklearn's OneVsRestClassifier"
            )
        self.classes_ = classes
        return X, np.where(codes > 0, 1.0, -1.0)

    def _raw_scores(self, X: Any) -> Float64Array:
        """Return f of checked rows, (rows, 1), adding the bias, which is not part of the kernel."""
        return np.asarray(self._expansion.scores(X) + self.intercept_)

    def _keep_classifier(self, features: KernelFeatures, coefficients: Float64Array, bias: float) -> None:
        """Keep what scores new rows."""
        rows = np.arange(len(coefficients))
        expansion = KernelExpansion.of(features.kernel, features.train, rows, coefficients[:, None])
        self._keep_expansion(expansion, two_as_one=False)
        self.intercept_ = np.array([bias])

    def _keep_result(self, result: DualSVMResult, tol: float) -> None:
        """Keep what is known about the distance from the optimum, and say where it is too much."""
        self._keep_certificate(result, max(result.rounds, 1))
        if result.relative_gap > tol:
            warnings.warn(
                f"training ended at a relative gap of {result.relative_gap:.2g}, short of tol = {tol:g};"
                " scale the features, lower C, raise max_iter or raise tol",
                ConvergenceWarning,
                stacklevel=3,
            )


class WeightedSVC(BinaryKernelClassifier):
    """Support vector classifier with a weight for every example, and a duality gap (WSVM).

    It minimises 1/2 |w|^2 + C sum_i s_i max(0, 1 - y_i (<w, phi(x_i)> + b)) over w and b, as SVC does, with
    sample weights s_i.  n examples take memory for a few n x n matrices; for more train `TopKClassifier`.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the losses against the regulariser.
    kernel : str or Kernel, default="rbf"
        "linear", "rbf", "polynomial", "chi2", a value such as ``RBFKernel(0.5)``, or "precomputed", where X
        is K(train, train) in `fit` and K(new, train) afterwards.
    gamma, degree, coef0 : default=None
        Of a kernel given by name, as in `TopKClassifier`.
    tol : float, default=1e-6
        Relative duality gap to reach; a ConvergenceWarning says where it was not.
    max_iter : int, default=100
        Rounds of the interior point method; ten to thirty are usual.
    class_weight : dict or "balanced", default=None
        Weight of each class, times `sample_weight`.

    Attributes
    ----------
    classes_ : (2,) labels, sorted.
    support_, dual_coef_, intercept_ : places of the support (s,), alpha_i y_i of it (1, s), and b (1,).
    coef_ : (1, d), for the kernel "linear".
    kernel_ : the kernel, its parameters resolved.
    n_iter_ : int, rounds.
    primal_, dual_, dual_gap_, relative_gap_ : floats, P, D, P - D and its share of P, measured in float64.

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

    def __init__(
        self,
        C: float = 1.0,
        *,
        kernel: str | Kernel = "rbf",
        gamma: Gamma = None,
        degree: int | None = None,
        coef0: float | None = None,
        tol: float = 1e-6,
        max_iter: int = 100,
        class_weight: Any = None,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.max_iter = max_iter
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or CSR, y (n,) with two classes and sample weights (n,) >= 0, None for 1.

        Raises
        ------
        InvalidProblemError (a ValueError) : a parameter or the data cannot make a problem.
        NonFiniteError : kernel values overflow.
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


class SVMPlusClassifier(BinaryKernelClassifier):
    """Support vector classifier that sees privileged features during training (SVM+), with a duality gap.

    The slacks are a function <w~, phi~(x~_i)> + b~ of privileged features x~, which `predict` does not need.
    It minimises 1/2 (|w|^2 + privileged_penalty |w~|^2) + C sum_i slack_i.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the slacks against the regularisers.
    privileged_penalty : float, default=1.0
        Gamma of the papers: how much the function of the privileged features is held back.
    kernel, gamma, degree, coef0 : of the features, as in `WeightedSVC`.
    privileged_kernel : str or Kernel, default="rbf"
        Of the privileged features; "precomputed" where X_privileged is its matrix.
    privileged_gamma : float, "scale" or "auto", default=None
        Of a privileged kernel given by name.
    tol, max_iter : as in `WeightedSVC`.

    Attributes
    ----------
    instance_weights_ : (n,) weights with which `WeightedSVC(C=1)` gives the same w (Theorem 3.3).
    correction_ : (n,) the modelled slacks.
    privileged_coef_, privileged_intercept_ : (n,) and float, of that function in the privileged kernel.
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

    def __init__(
        self,
        C: float = 1.0,
        privileged_penalty: float = 1.0,
        *,
        kernel: str | Kernel = "rbf",
        gamma: Gamma = None,
        degree: int | None = None,
        coef0: float | None = None,
        privileged_kernel: str | Kernel = "rbf",
        privileged_gamma: Gamma = None,
        tol: float = 1e-6,
        max_iter: int = 100,
    ) -> None:
        self.C = C
        self.privileged_penalty = privileged_penalty
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.privileged_kernel = privileged_kernel
        self.privileged_gamma = privileged_gamma
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, X_privileged: Any = None) -> Self:
        """Train on X (n, d), y (n,) with two classes and privileged features (n, p), dense or CSR.

        Cross-validation passes them on by row: ``cross_val_score(..., params={"X_privileged": ...})`` after
        ``set_fit_request(X_privileged=True)`` with metadata routing.

        Raises
        ------
        InvalidProblemError (a ValueError) : there are no privileged features, or a parameter or the data
            cannot make a problem.
        NonFiniteError : kernel values overflow.
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
        correcting = KernelFeatures.of(self._chosen_privileged_kernel(), privileged)
        limits: dict[str, Any] = {"tol": self.tol, "max_rounds": positive_integer("max_iter", self.max_iter)}
        result = solve_svm_plus(features.K, correcting.K, y, self.C, self.privileged_penalty, **limits)
        self._keep_classifier(features, result.alpha * y, result.bias)
        self.instance_weights_ = result.alpha + result.beta
        self.correction_ = result.correction
        self.privileged_coef_ = result.privileged_coefficients
        self.privileged_intercept_ = result.privileged_bias
        self._keep_result(result, self.tol)
        return self

    def _chosen_privileged_kernel(self) -> Kernel:
        if isinstance(self.privileged_kernel, str):
            return make_kernel(self.privileged_kernel, gamma=self.privileged_gamma)
        if self.privileged_gamma is not None:
            raise InvalidProblemError(
                f"the privileged kernel {self.privileged_kernel!r} is complete; leave privileged_gamma out"
            )
        return as_kernel(self.privileged_kernel)
