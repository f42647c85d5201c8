"""Base of all estimators: a kernel by name, labels as numbers, fitted attributes, scores."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from topline.solvers.core.problem import SmoothingKind, positive_number
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import HasObjective, SolveResult, Status
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.solvers.kernels import (
    ChiSquaredKernel,
    Gamma,
    Kernel,
    KernelExpansion,
    KernelResult,
    LinearKernel,
    WithConstant,
    as_kernel,
    is_precomputed,
    make_kernel,
)
from topline.solvers.kernels.problem import plain
from topline.solvers.losses import LabelSets, Loss, checked_k, make_loss
from topline.solvers.names import LOSS_RULES, LossRule
from topline.solvers.run import Callback, solve
from topline.solvers.typing import Float64Array, FloatArray, IntArray


class CollapsedWarning(UserWarning):
    """Training found that no weights are better than none."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Training data of a classifier: rows, classes, labels (n,) as class numbers, weights, loss and k."""

    X: Any
    classes: np.ndarray[Any, Any]
    labels: IntArray
    weights: Float64Array | None
    loss: Any
    k: int


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Dual variables of the last fit, feasible for the same labels, weights and loss, whatever X."""

    loss: Loss
    labels: IntArray
    weights: Float64Array | None
    A: FloatArray

    def fits(self, loss: Loss, labels: IntArray, weights: Float64Array | None) -> bool:
        """Return whether they are feasible for these."""
        if self.loss != loss or (self.weights is None) != (weights is None):
            return False
        same_weights = weights is None or np.array_equal(self.weights, weights)  # type: ignore[arg-type]
        return same_weights and np.array_equal(self.labels, labels)


def seed_of(random_state: Any) -> int:
    """Return the seed of `solve` for scikit-learn's `random_state`."""
    generator = check_random_state(random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def shortfall(result: SolveResult, tol: float) -> str:
    """Return a sentence on how far a run ended from its tolerance."""
    reached = (
        f"at a relative gap of {result.relative_gap:.2g}"
        if result.stationarity is None
        else f"with {result.stationarity:.2g} of the first gradient left"
    )
    passes = how_many(result.passes, "passes")
    if result.status is Status.INTERRUPTED:
        return f"a callback stopped the training after {passes} {reached}, short of tol = {tol:g}"
    return (
        f"training ended after {passes} ({result.status.value}) {reached}, short of tol = {tol:g}; scale the"
        " features, raise max_passes or raise tol"
    )


def with_constant(X: Any) -> Any:
    """Append a feature that is 1 for every row of an array or CSR matrix."""
    if is_sparse(X):
        constant = sparse.csr_array(np.ones((X.shape[0], 1), dtype=X.dtype))
        return sparse.hstack([sparse.csr_array(X), constant], format="csr")
    extended = np.empty((X.shape[0], X.shape[1] + 1), dtype=X.dtype)
    extended[:, :-1] = X
    extended[:, -1] = 1.0
    return extended


def chosen_loss(loss: Any, k: int, **parameters: Any) -> Any:
    """Return a loss by name and its other parameters; values are passed on for `solve` to check."""
    if isinstance(loss, str):
        takes_k = LOSS_RULES.get(loss, LossRule()).parameter == "k" or isinstance(parameters["weights"], str)
        return make_loss(loss, k=k if takes_k else None, **parameters)
    if given := [name for name, value in parameters.items() if value is not None]:
        raise InvalidProblemError(
            f"the loss {loss!r} is complete; leave {' and '.join(given)} out or give its name"
        )
    return loss


def combined_weights(
    sample_weight: Float64Array | None, class_weight: Any, classes: np.ndarray[Any, Any], labels: IntArray
) -> Float64Array | None:
    """Return the weight of each example times that of its class; None if neither is given.

    "balanced" gives every class with positive weights the same share of the total.  InvalidProblemError if
    only one class has positive weight.
    """
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(len(labels)) if sample_weight is None else sample_weight
    if isinstance(class_weight, str) and class_weight == "balanced":
        counts = np.bincount(labels, weights=weights, minlength=len(classes))
        share = counts.sum() / np.count_nonzero(counts)
        weights = weights * (share / np.where(counts > 0.0, counts, np.inf))[labels]
    elif isinstance(class_weight, Mapping):
        weights = weights * compute_class_weight(class_weight, classes=classes, y=classes[labels])[labels]
    elif class_weight is not None:
        raise InvalidProblemError(f"class_weight is {class_weight!r}; give None, 'balanced' or a dict")
    left = np.unique(labels[weights > 0])
    if len(left) == 1:
        raise InvalidProblemError(
            f"every example of positive weight is of the class {classes[left[0]]}; give a second one weight"
        )
    return weights


def chosen_kernel(kernel: Any, **parameters: Any) -> Kernel | None:
    """Return a kernel by name and parameters, None for none; a kernel value takes no parameters."""
    if isinstance(kernel, str):
        return make_kernel(kernel, **parameters)
    for name, value in parameters.items():
        if value is not None:
            whole = "there is no kernel" if kernel is None else f"the kernel {kernel!r} is complete"
            raise InvalidProblemError(
                f"{whole}, and {name} is {value!r}; leave it out or name a kernel that takes it"
            )
    return None if kernel is None else as_kernel(kernel)


#: scikit-learn's checks of rows keep the precision and layout of the features.
ROWS: Final[dict[str, Any]] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
#: Attributes set only by a fit with a kernel.
KERNEL_ATTRIBUTES = ("kernel_", "support_", "dual_coef_", "_expansion")


@dataclass(kw_only=True, eq=False, repr=False)
class FittedModel:
    """Kernel parameters and fitted attributes of an estimator; without `coef_` for nonlinear kernels.

    An estimator is the dataclass of its parameters, as scikit-learn expects of its constructor.
    """

    kernel: str | Kernel | None = None
    gamma: Gamma = None
    degree: int | None = None
    coef0: float | None = None
    # Not a parameter of estimators whose bias is separate from the weights.
    fit_intercept = True

    def __getattr__(self, name: str) -> Any:
        expansion = self.__dict__.get("_expansion")
        if name == "coef_" and expansion is not None:
            raise AttributeError(
                f"the kernel {plain(expansion.kernel).name} has no weights of single features; use"
                " dual_coef_, the coefficients of the training rows support_"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        try:
            kernel = self._chosen_kernel()
        except InvalidProblemError:
            # `fit` refuses parameters that name no kernel.
            return tags
        if kernel is not None:
            tags.input_tags.pairwise = is_precomputed(kernel)
            if isinstance(kernel, ChiSquaredKernel):
                tags.input_tags.sparse, tags.input_tags.positive_only = False, True
        return tags

    def _chosen_kernel(self) -> Kernel | None:
        """Return the kernel given by the parameters, None for the features themselves."""
        return chosen_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)

    def _with_intercept(self, X: Any) -> tuple[Any, Kernel | None]:
        """Return rows and kernel to train with, one of them with a constant if a bias is fitted."""
        kernel = self._chosen_kernel()
        if not self.fit_intercept:
            return X, kernel
        return (with_constant(X), None) if kernel is None else (X, WithConstant(kernel))

    def _keep_expansion(self, expansion: KernelExpansion, *, two_as_one: bool = True) -> None:
        """Set the attributes of a fit with a kernel; `two_as_one` merges two classes into one column."""
        kernel, C = plain(expansion.kernel), expansion.coefficients
        self._expansion = expansion
        self.kernel_ = kernel
        self.support_ = expansion.support
        signed = one_of_two(C) if two_as_one else C
        self.dual_coef_ = np.ascontiguousarray(signed.T)
        self.intercept_ = signed.sum(axis=0) if self.fit_intercept else np.zeros(signed.shape[1])
        self.__dict__.pop("coef_", None)
        if isinstance(kernel, LinearKernel):
            rows = expansion.rows
            weights: Any = rows.T @ signed if is_sparse(rows) else rows.T.astype(np.float64) @ signed
            self.coef_ = np.ascontiguousarray(np.asarray(weights, dtype=np.float64).T)

    def _keep_weights(self, W: Float64Array) -> None:
        """Set the attributes of a fit without a kernel, W (d, scores) with the bias last."""
        for name in KERNEL_ATTRIBUTES:
            self.__dict__.pop(name, None)
        self.intercept_ = W[-1].copy() if self.fit_intercept else np.zeros(W.shape[1])
        self.coef_ = np.ascontiguousarray((W[:-1] if self.fit_intercept else W).T)

    def _keep_certificate(self, result: HasObjective, rounds: int) -> None:
        self.n_iter_ = rounds
        self.primal_, self.dual_ = result.primal, result.dual
        self.dual_gap_, self.relative_gap_ = result.gap, result.relative_gap
        known = self.dual_coef_ if self.__dict__.get("_expansion") is not None else self.coef_
        self.collapsed_ = not np.any(known)

    def _warn_if_collapsed(self, stacklevel: int = 3) -> None:
        """Warn if all weights are 0, unless the run stopped early, which has its own warning."""
        if self.collapsed_ and self.__dict__.get("status_", Status.SOLVED) is Status.SOLVED:
            warnings.warn(
                "W = 0 is as good as any weights to this tol, and every prediction is the same: scale the"
                " columns (StandardScaler), raise C, or take another loss, such as softmax",
                CollapsedWarning,
                stacklevel=stacklevel,
            )

    def _refuse_overflow(self, status: Status) -> None:
        if status is Status.NONFINITE:
            raise NonFiniteError(f"the weights overflowed with C = {self.C}; scale the features or lower C")

    def _raw_scores(self, X: Any) -> Float64Array:
        """Return the scores of checked rows X, one column for each entry of `intercept_`."""
        if self.__dict__.get("_expansion") is not None:
            scores = self._expansion.scores(X)
            return scores if scores.shape[1] == np.size(self.intercept_) else one_of_two(scores)
        return np.asarray(np.asarray(X @ self.coef_.T) + self.intercept_)


# scikit-learn has no types.
class ScoringClassifier(FittedModel, ClassifierMixin):  # type: ignore[misc]
    """A classifier that predicts the class with the highest score, or the k highest."""

    classes_: np.ndarray[Any, Any]
    k_: int

    def decision_function(self, X: Any) -> Float64Array:
        """Return the scores of X (rows, m), or with two classes (rows,): positive for the second class."""
        check_is_fitted(self, "classes_")
        scores = self._raw_scores(validate_data(self, X, reset=False, **ROWS))
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the label with the highest score for each row; ties go to the lower class."""
        best = self._scores(X).argmax(axis=1)
        labels: np.ndarray[Any, Any] = self.classes_[best]
        return labels

    def predict_top_k(self, X: Any, k: int | None = None) -> np.ndarray[Any, Any]:
        """Return the k labels with the highest scores, shape (rows, k), best first; k is `k_` by default."""
        scores = self._scores(X)
        k = self.k_ if k is None else self._checked_k(k, len(self.classes_))
        labels: np.ndarray[Any, Any] = self.classes_[np.argsort(-scores, axis=1, kind="stable")[:, :k]]
        return labels

    def _checked_k(self, k: Any, m: int) -> int:
        checked = checked_k(k, type(self).__name__)
        if checked > m:
            raise InvalidProblemError(f"k is {checked} but there are {m} classes; use k <= {m}")
        return checked

    def _scores(self, X: Any) -> Float64Array:
        """Return scores (rows, m); for two classes only their difference is meaningful."""
        scores = self.decision_function(X)
        return scores if scores.ndim == 2 else np.column_stack([-scores, scores])

    def _examples(self, X: Any, y: Any) -> tuple[Any, np.ndarray[Any, Any], IntArray]:
        """Return checked rows, the two or more classes (m,) and each row's class number (n,)."""
        X, y = validate_data(self, X, y, order="C", **ROWS)
        _refuse_labels(y)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        refuse_one_class(classes)
        return X, classes, labels


def refuse_one_class(classes: np.ndarray[Any, Any]) -> None:
    """Refuse fewer than two classes."""
    if len(classes) < 2:
        given = (
            f"every label is {classes[0]}, which is one class" if len(classes) else "no example has a label"
        )
        raise InvalidProblemError(f"{given}; give examples of at least two classes")


def _refuse_labels(y: np.ndarray[Any, Any]) -> None:
    """Refuse None, Python objects other than text, which may not be sortable, and fractions among labels.

    scikit-learn only looks for NaN; whole floats are classes, and stay floats.  Its estimator checks expect
    the first words of the last two messages.
    """
    if y.dtype.kind == "O" and (missing := [row for row, label in enumerate(y) if label is None]):
        raise InvalidProblemError(f"row {missing[0]} has no label: drop such rows, or give them a label")
    if y.ndim != 1:
        return
    if y.dtype.kind == "O":
        for row, label in enumerate(y):
            if not isinstance(label, str):
                raise InvalidProblemError(
                    f"Unknown label type: the label of row {row}, {label!r}, is a Python object and no text;"
                    " give text, y.astype(str), or numbers, y.astype(int)"
                )
    if y.dtype.kind == "f" and (wrong := np.flatnonzero(y != np.rint(y))).size:
        raise InvalidProblemError(
            f"Unknown label type: the label of row {wrong[0]} is {y[wrong[0]]}, a fraction; give whole"
            " numbers or text, such as y.astype(str)"
        )


def one_of_two(values: Float64Array) -> Float64Array:
    """Return columns of classes (rows, m); for two the second minus the first, which may come alone."""
    return values[:, 1:] - values[:, :1] if values.shape[1] == 2 else values


class Training(FittedModel):
    """Training and its fitted attributes, for an estimator with the parameters declared here."""

    k: int | None
    C: float
    smoothing: Any
    method: str
    tol: float
    max_passes: int
    random_state: Any
    verbose: bool
    callbacks: Sequence[Callback]
    n_features_in_: int

    def _train(
        self,
        X: Any,
        labels: IntArray,
        weights: Float64Array | None,
        loss: Loss,
        smoothing: float,
        smoothing_kind: SmoothingKind = "moreau",
        *,
        label_sets: LabelSets | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> SolveResult:
        """Solve for the rows of X (n, d); `options` are further arguments of `solve`."""
        rows, kernel = self._with_intercept(X)
        return solve(
            rows, labels, loss, 1.0 / (len(labels) * positive_number("C", self.C)), smoothing, self.method,
            kernel, weights, self.tol, self.max_passes, seed_of(self.random_state),
            callbacks=self.callbacks, verbose=self.verbose, smoothing_kind=smoothing_kind,
            label_sets=label_sets, **options,
        )  # fmt: skip

    def _keep_result(self, result: SolveResult, *, two_as_one: bool = True) -> None:
        """Set the fitted attributes; `two_as_one` keeps the second class minus the first of two."""
        self._refuse_overflow(result.status)
        if result.status is not Status.SOLVED:
            warnings.warn(shortfall(result, self.tol), ConvergenceWarning, stacklevel=3)
        if isinstance(result, KernelResult):
            self._keep_expansion(result.expansion, two_as_one=two_as_one)
        else:
            self._keep_weights(one_of_two(result.W) if two_as_one else result.W)
        self._keep_certificate(result, result.passes)
        self.status_ = result.status
        self.method_, self.why_ = result.method, result.why
        self.history_ = result.history
