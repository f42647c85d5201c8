"""scikit-learn estimators of the average top-k loss; importing them loads scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from topline.solvers.average_top.problem import (
    INDIVIDUAL_LOSSES,
    AverageTopResult,
    IndividualLoss,
    individual_loss,
)
from topline.solvers.average_top.solving import minimise, minimise_with_kernel
from topline.solvers.core.problem import AverageTopK, positive_number
from topline.solvers.core.state import SolveResult, Status
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import ROWS, CollapsedWarning, FittedModel, ScoringClassifier, one_of_two
from topline.solvers.kernels import KernelResult
from topline.solvers.losses import LOSSES, Loss, MaxHinge, Softmax, make_loss
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, IntArray

#: Multiclass counterparts of the binary losses.
_OF_CLASSES: dict[str, Loss] = {"hinge": MaxHinge(), "logistic": Softmax()}


@dataclass(eq=False, repr=False)
class AverageTopModel(FittedModel):
    """Parameters and fitted attributes of both estimators."""

    loss: Any = "hinge"
    k: float | None = 0.5
    C: float = 100.0
    _: KW_ONLY
    method: str = "auto"
    tol: float = 1e-4
    max_iterations: int = 1000
    fit_intercept: bool = True

    def _fit_signs(self, X: Any, y: Float64Array, loss: IndividualLoss) -> None:
        """Fit one score per example."""
        k, C = number_of_losses(self.k, len(y)), positive_number("C", self.C)
        rows, kernel = self._with_intercept(X)
        result: AverageTopResult
        if kernel is None:
            result = minimise(
                rows, y, loss, k, C, method=self.method, tol=self.tol, max_iterations=self.max_iterations
            )
            self._keep_weights(result.w[:, None])
        else:
            result = kernel_result = minimise_with_kernel(
                kernel, X, y, loss, k, C, tol=self.tol, max_iterations=self.max_iterations
            )
            self._keep_expansion(kernel_result.expansion)
        self._keep(result, k, collapsed=result.collapsed, rounds=result.iterations)

    def _fit_classes(self, X: Any, labels: IntArray, m: int) -> None:
        """Fit a score per class."""
        k, C = number_of_losses(self.k, len(labels)), positive_number("C", self.C)
        rows, kernel = self._with_intercept(X)
        if self.method != "auto":
            raise InvalidProblemError(
                f"the method {self.method!r} is for two classes and the losses hinge and logistic; use auto"
            )
        result = solve(
            rows, labels, loss_of_classes(self.loss), 1.0 / C, kernel=kernel, tol=self.tol,
            max_passes=self.max_iterations, risk=AverageTopK(k), m=m,
        )  # fmt: skip
        result = with_collapse(result)
        if isinstance(result, KernelResult):
            self._keep_expansion(result.expansion)
        else:
            self._keep_weights(one_of_two(result.W))
        self._keep(result, k, collapsed=result.collapsed, rounds=result.passes)

    def _keep(
        self, result: AverageTopResult | SolveResult, k: float, *, collapsed: bool, rounds: int
    ) -> None:
        self._refuse_overflow(result.status)
        if result.status is not Status.SOLVED:
            warnings.warn(
                f"training ended after {how_many(rounds, 'rounds')} ({result.status.value}) at a relative gap"
                f" of {result.relative_gap:.2g}, short of tol = {self.tol:g}; scale the features, raise"
                " max_iterations or raise tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        if collapsed:
            warnings.warn(
                f"the optimum is w = 0 for k = {k:g}: the k largest losses contradict each other, or C is too"
                " small for this tol, and every prediction is the same; raise k or C, or clean the labels",
                CollapsedWarning,
                stacklevel=4,
            )
        self.k_ = k
        self._keep_certificate(result, rounds)
        self.status_ = result.status


def with_collapse(result: SolveResult) -> SolveResult:
    """Return the result with W = 0 if that is as good: the signs of its scores would be meaningless."""
    at_zero = result.state.loss_at_zero
    if not result.collapsed or at_zero is None:
        return result
    nothing: dict[str, Any] = {}
    if isinstance(result, KernelResult):
        none = np.zeros_like(result.expansion.coefficients)
        nothing = {"expansion": replace(result.expansion, coefficients=none)}
    objective = replace(result.objective, primal=at_zero)
    return replace(result, W=np.zeros_like(result.W), objective=objective, status=Status.SOLVED, **nothing)


def number_of_losses(k: Any, n: int) -> float:
    """Return the k in [1, n] of the parameter: a number, a fraction of n below 1, or None for n."""
    if k is None:
        return float(n)
    if isinstance(k, bool) or not isinstance(k, Real) or not float(k) > 0.0:
        raise InvalidProblemError(f"k is {k!r}; give a number from 1 on, a share between 0 and 1, or None")
    if float(k) == 1.0 and not isinstance(k, Integral):
        raise InvalidProblemError(
            f"k is {k!r}, which is one loss as a number and all of them as a share; give the whole number 1"
            " for the largest loss alone, or None for all"
        )
    return max(float(k) * n, 1.0) if float(k) < 1.0 else min(float(k), float(n))


def loss_of_classes(loss: Any) -> Any:
    """Return the loss of m scores that the parameter names; values are left for `solve` to check."""
    if isinstance(loss, IndividualLoss) and loss.binary:
        loss = loss.name
    if not isinstance(loss, str):
        return loss
    if loss in _OF_CLASSES:
        return _OF_CLASSES[loss]
    if loss not in LOSSES:
        raise InvalidProblemError(
            f"there is no loss named {loss!r}; use hinge or logistic, or a loss of classes such as"
            " TopKHinge(5)"
        )
    if LOSSES[loss][1] is not None:
        raise InvalidProblemError(f"the loss {loss} has parameters; give it as a value, such as TopKHinge(5)")
    return make_loss(loss)


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class AverageTopKClassifier(AverageTopModel, ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """Classifier that minimises the mean of its k largest losses, with a duality gap.

    With w = (coef_, intercept_) it minimises

        P(w) = (1/k) sum_{i <= k} l_[i] + |w|^2 / (2 C),    l_[1] >= l_[2] >= ... the losses of the examples,

    the average top-k loss of Fan, Lyu, Ying and Hu (NIPS 2017).  k = n is the C-SVM or logistic regression,
    k = 1 the maximum loss; in between rare groups of examples count more than in the average, and single
    outliers less than in the maximum.  With k below the number of examples that no w gets right, the k worst
    contradict each other and the optimum is w = 0: `collapsed_` and a warning say so.

    Parameters
    ----------
    loss : "hinge" or "logistic" (in bits, log2(1 + exp(-y z)), so that both are 1 at z = 0).  With more than
        two classes these are max_hinge and softmax (in nats); then, and with two classes as well, any convex
        loss of topline may be given by name or value, such as ``TopKHinge(5)``.
    k : number of losses to average (lowered to n) or, below 1, their fraction of the examples.  None averages
        all; 1.0 is refused as ambiguous.
    C : weight of the losses against the regulariser.  LinearSVC with C = c and TopKClassifier are this with k
        = None and C = n c; the paper's eq. 3 at C_3 is this at C = C_3 k/n.
    method : "auto", "interior_point" or "bundle"; how "hinge" and "logistic" with two classes are solved:
        exactly, where n d min(n, d) multiplications are cheap, or by cuts.  Everything else takes `solve`
        with fw_fully_corrective.
    tol : relative duality gap to reach
    max_iterations : budget of rounds; a ConvergenceWarning says if it ran out
    fit_intercept : learn a bias, as the regularised weight of an appended feature that is always 1, as in the
        paper
    kernel, gamma, degree, coef0 : as in TopKClassifier.
        With the hinge and two classes, this is the AT_k-SVM.

    Attributes
    ----------
    classes_ : (m,) labels, sorted.
    coef_, intercept_ : (1, d) and (1,) with two classes, else (m, d) and (m,).
    k_ : float, the k used.
    collapsed_ : bool, whether w = 0 is the optimum as far as the certificate can tell.  Scores are then all
        0, and `predict` returns the first class.
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

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, d), dense or sparse, and y (n,), labels of two or more classes.

        Raises InvalidProblemError (a ValueError) for invalid parameters or data, and NonFiniteError if
        numbers overflowed.
        """
        X, classes, labels = self._examples(X, y)
        loss = INDIVIDUAL_LOSSES.get(self.loss) if isinstance(self.loss, str) else self.loss
        if isinstance(loss, IndividualLoss) and loss.binary and len(classes) == 2:
            self._fit_signs(X, np.where(labels == 1, 1.0, -1.0), loss)
        else:
            self._fit_classes(X, labels, len(classes))
        self.classes_ = classes
        return self


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class AverageTopKRegressor(AverageTopModel, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Linear or kernel regression that minimises the mean of its k largest losses, with a duality gap.

    P is that of AverageTopKClassifier.  k = n is ridge regression or least absolute deviations; with the
    absolute loss and any k it is nu-SVR with nu = k/n, but for the bias.

    Parameters
    ----------
    loss : "square", "absolute" or an IndividualLoss; (z - y)^2 or |z - y|
    k : number of losses to average (lowered to n) or, below 1, their fraction of the examples.  None averages
        all; 1.0 is refused as ambiguous.
    C : weight of the losses against the regulariser.  Ridge with alpha is this with k = None, the square loss
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

    loss: Any = "square"

    def fit(self, X: Any, y: Any) -> Self:
        """Train on X (n, d), dense or sparse, and y (n,), numbers.

        Raises InvalidProblemError (a ValueError) for invalid parameters or data, and NonFiniteError if
        numbers overflowed.
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
