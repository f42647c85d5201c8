"""The scikit-learn faces of the average top-k loss; importing them loads scikit-learn."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from topline.solvers.average_top.estimator_support import AverageTopAttributes, loss_of_signs
from topline.solvers.average_top.losses import INDIVIDUAL_LOSSES, individual_loss
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS, ScoringClassifier
from topline.solvers.kernels import Kernel
from topline.solvers.losses import Loss
from topline.solvers.typing import Float64Array


# scikit-learn has no types.
class AverageTopKClassifier(AverageTopAttributes, ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """Classifier that minimises the mean of its k largest losses, with a duality gap that says how well.

    With w = (coef_, intercept_) it minimises

        P(w) = (1/k) sum_{i <= k} l_[i] + |w|^2 / (2 C),    l_[1] >= l_[2] >= ... the losses of the examples,

    the average top-k loss of Fan, Lyu, Ying and Hu (NIPS 2017).  k = n is the C-SVM or logistic regression,
    k = 1 the maximum loss; between them rare groups of examples count more than in the average, and single
    outliers less than in the maximum.  Below the number of examples that no w gets right, all of the k worst
    contradict each other and the optimum is w = 0: `collapsed_` says so, and a warning.

    Parameters
    ----------
    loss : str or Loss, default="hinge"
        "hinge" or "logistic" (in bits, log2(1 + exp(-y z)), so that both are 1 at z = 0).  With more than two
        classes these are max_hinge and softmax (in nats); then, and with two classes as well, any convex loss
        of topline may be given by name or value, such as ``TopKHinge(5)``.
    k : float, default=0.5
        How many losses are averaged: from 1 on their number, lowered to n where there are fewer examples;
        below 1 their share of the examples.  None averages all; 1.0, which could mean either, is refused.
    C : float, default=100.0
        Weight of the losses against the regulariser.  LinearSVC with C = c and TopKClassifier are this with
        k = None and C = n c; the paper's eq. 3 at C_3 is this at C = C_3 k/n.
    method : "auto", "interior_point" or "bundle", default="auto"
        How "hinge" and "logistic" with two classes are solved: exactly, where n d min(n, d) multiplications
        are cheap, or by cuts.  Everything else takes `solve` with fw_fully_corrective.
    tol : float, default=1e-4
        Relative duality gap to reach.
    max_iterations : int, default=1000
        Rounds at most; a ConvergenceWarning says where they ran out.
    fit_intercept : bool, default=True
        Learn a bias through an appended feature that is always 1, as the paper does.  It is regularised like
        every other weight.
    kernel, gamma, degree, coef0 : as in TopKClassifier.
        With the hinge and two classes, this is the AT_k-SVM.

    Attributes
    ----------
    classes_ : (m,) labels, sorted.
    coef_, intercept_ : (1, d) and (1,) with two classes, else (m, d) and (m,).
    k_ : float, the k that was used.
    collapsed_ : bool, whether w = 0 is the optimum as far as the certificate can tell.  Scores are then all
        0, which `predict` takes for the first class; the sign of what rounding leaves would mean nothing.
    kernel_, support_, dual_coef_ : with a kernel, as in TopKClassifier.
    n_features_in_ : int, and `feature_names_in_` where X has column names.
    n_iter_ : int, rounds.
    primal_, dual_, dual_gap_, relative_gap_ : floats, P, a lower bound of it, and how far they are apart.
    status_ : Status, how training ended.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from topline import AverageTopKClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> model = AverageTopKClassifier("hinge", k=0.3, C=10.0).fit(X, y)
    >>> model.collapsed_, model.relative_gap_ <= 1e-4
    (False, True)
    """

    def __init__(
        self,
        loss: str | Loss = "hinge",
        k: float | None = 0.5,
        C: float = 100.0,
        *,
        method: str = "auto",
        tol: float = 1e-4,
        max_iterations: int = 1000,
        fit_intercept: bool = True,
        kernel: str | Kernel | None = None,
        gamma: float | str | None = None,
        degree: int | None = None,
        coef0: float | None = None,
    ) -> None:
        self.loss = loss
        self.k = k
        self.C = C
        self.method = method
        self.tol = tol
        self.max_iterations = max_iterations
        self.fit_intercept = fit_intercept
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, d), dense or sparse, and y (n,), labels of two or more classes.

        Raises InvalidProblemError (a ValueError) where a parameter or the data cannot make a problem, and
        NonFiniteError where the numbers overflowed.
        """
        X, classes, labels = self._examples(X, y)
        loss = loss_of_signs(self.loss)
        if loss is not None and len(classes) == 2:
            self._fit_signs(X, np.where(labels == 1, 1.0, -1.0), loss)
        else:
            self._fit_classes(X, labels, len(classes))
        self.classes_ = classes
        return self


# scikit-learn has no types.
class AverageTopKRegressor(AverageTopAttributes, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Linear or kernel regression that minimises the mean of its k largest losses, with a duality gap.

    P is that of AverageTopKClassifier.  k = n is ridge regression or least absolute deviations; with the
    absolute loss and any k it is nu-SVR with nu = k/n, but for the bias.

    Parameters
    ----------
    loss : "square", "absolute" or an IndividualLoss, default="square"
        (z - y)^2 or |z - y|.
    k : float, default=0.5
        How many losses are averaged: from 1 on their number, lowered to n where there are fewer examples;
        below 1 their share of the examples.  None averages all; 1.0, which could mean either, is refused.
    C : float, default=100.0
        Weight of the losses against the regulariser.  Ridge with alpha is this with k = None, the square loss
        and C = n / (2 alpha).
    method, tol, max_iterations, fit_intercept : as in AverageTopKClassifier.
        The bias is regularised: centre targets whose mean is far from 0.
    kernel, gamma, degree, coef0 : as in TopKClassifier.

    Attributes
    ----------
    coef_ : (d,) weights, and intercept_, a float.
    collapsed_ : bool, whether w = 0 is the optimum as far as the certificate can tell, and predicts 0.
    k_, kernel_, support_, dual_coef_, n_features_in_, n_iter_, primal_, dual_, dual_gap_, relative_gap_,
    status_ : as in AverageTopKClassifier.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from topline import AverageTopKRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AverageTopKRegressor("absolute", k=0.5).fit(X, y - y.mean())
    >>> model.predict(X).shape, model.relative_gap_ <= 1e-4
    ((442,), True)
    """

    def __init__(
        self,
        loss: Any = "square",
        k: float | None = 0.5,
        C: float = 100.0,
        *,
        method: str = "auto",
        tol: float = 1e-4,
        max_iterations: int = 1000,
        fit_intercept: bool = True,
        kernel: str | Kernel | None = None,
        gamma: float | str | None = None,
        degree: int | None = None,
        coef0: float | None = None,
    ) -> None:
        self.loss = loss
        self.k = k
        self.C = C
        self.method = method
        self.tol = tol
        self.max_iterations = max_iterations
        self.fit_intercept = fit_intercept
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, d), dense or sparse, and y (n,), numbers.

        Raises InvalidProblemError (a ValueError) where a parameter or the data cannot make a problem, and
        NonFiniteError where the numbers overflowed.
        """
        X, y = validate_data(self, X, y, order="C", y_numeric=True, **ROWS)
        loss = individual_loss(self.loss)
        if loss.binary:
            numbers = [name for name, other in INDIVIDUAL_LOSSES.items() if not other.binary]
            raise InvalidProblemError(
                f"the loss {loss.name} needs targets -1 and 1; use {' or '.join(numbers)}"
            )
        self._fit_signs(X, np.asarray(y, dtype=np.float64), loss)
        self.intercept_ = float(self.intercept_[0])
        if "coef_" in self.__dict__:
            self.coef_ = self.coef_[0]
        return self

    def predict(self, X: Any) -> Float64Array:
        """Return the predictions for X (rows, d): (rows,) float64."""
        check_is_fitted(self, "intercept_")
        X = validate_data(self, X, reset=False, **ROWS)
        scores = self._raw_scores(X)
        return scores[:, 0] if scores.ndim == 2 else np.asarray(scores, dtype=np.float64)
