"""The scikit-learn estimator for examples with several labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from numbers import Real
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import KFold
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import Tags, check_consistent_length
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data

from topline.solvers.core.state import SolveResult
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import (
    ROWS,
    ScoringClassifier,
    Training,
    combined_weights,
    refuse_one_class,
    seed_of,
)
from topline.solvers.estimators.multilabel_metrics import THRESHOLD_RULES, tuned_thresholds
from topline.solvers.losses import LabelSets, Loss, checked_k, make_loss
from topline.solvers.names import DEFAULT_METHOD, not_known
from topline.solvers.run import Callback
from topline.solvers.typing import Float64Array, Int64Array


class TargetForm(Enum):
    """Format of the labels that an estimator receives and returns."""

    INDICATOR = "indicator"
    SETS = "sets"
    SINGLE = "single"


@dataclass(frozen=True, eq=False)
class Targets:
    """The labels of n examples: their format, the labels (m,) of the columns, and sets by number (n,)."""

    form: TargetForm
    classes: np.ndarray[Any, Any]
    sets: LabelSets
    codes: Int64Array

    @classmethod
    def of(cls, y: Any) -> Targets:
        """Read an indicator matrix (n, m), n sets of labels, or n single labels; else InvalidProblemError."""
        if are_sets(y):
            binarizer = MultiLabelBinarizer(sparse_output=True)
            Y = binarizer.fit_transform(y)
            return cls._several(TargetForm.SETS, binarizer.classes_, Y)
        if np.ndim(y) == 2 and np.shape(y)[1] > 1:
            kind = type_of_target(y)
            if kind != "multilabel-indicator":
                raise InvalidProblemError(
                    f"y is a matrix of the type {kind}; give 1 where an example has the label and 0 elsewhere"
                )
            return cls._several(TargetForm.INDICATOR, np.arange(np.shape(y)[1]), y)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        classes, codes = np.unique(labels, return_inverse=True)
        refuse_one_class(classes)
        m = len(classes)
        return cls(TargetForm.SINGLE, classes, LabelSets(np.arange(m + 1), np.arange(m), m), codes)

    @classmethod
    def _several(cls, form: TargetForm, classes: np.ndarray[Any, Any], Y: Any) -> Targets:
        refuse_one_class(classes)
        sets, codes = LabelSets.from_indicator(Y)
        return cls(form, classes, sets, codes)

    @property
    def indicator(self) -> NDArray[np.bool_]:
        """A mask (n, m), True where an example has the label."""
        return self.sets.indicator(self.codes)


def are_sets(y: Any) -> bool:
    """Return whether y is a sequence of sets; equal-length lists are indicator rows, others refused."""
    listed = isinstance(y, Sequence) or (isinstance(y, np.ndarray) and y.dtype == object and y.ndim == 1)
    if not listed or not len(y):
        return False
    if all(isinstance(labels, set | frozenset) for labels in y):
        return True
    if all(isinstance(labels, list | tuple) for labels in y) and len({len(labels) for labels in y}) > 1:
        raise InvalidProblemError(
            "y is a sequence of lists of different lengths; give a set of labels per row, such as"
            " [set(labels) for labels in y]"
        )
    return False


def indicator_of(
    y: Any, form: TargetForm, classes: np.ndarray[Any, Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return labels as an indicator (n, m), and a mask (n,) of rows with only labels seen in the fit."""
    if form is TargetForm.INDICATOR:
        dense: Any = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
        if dense.ndim != 2 or dense.shape[1] != len(classes):
            raise InvalidProblemError(
                f"y has the shape {dense.shape}; give an indicator matrix with {len(classes)} columns"
            )
        return np.asarray(dense != 0), np.ones(len(dense), dtype=np.bool_)
    if form is TargetForm.SINGLE:
        rows = np.asarray(column_or_1d(y)[:, None] == classes)
        return rows, np.asarray(rows.any(axis=1))
    if not are_sets(y):
        raise InvalidProblemError(
            "y is not a sequence of sets, as it was in fit; give a set of labels per row"
        )
    place = {label: j for j, label in enumerate(classes.tolist())}
    rows = np.zeros((len(y), len(classes)), dtype=np.bool_)
    for i, labels in enumerate(y):
        rows[i, [place[label] for label in labels if label in place]] = True
    return rows, np.asarray(rows.sum(axis=1) == np.array([len(labels) for labels in y]))


#: The rule that predicts the same number of labels for every row.
TOP_K = "top_k"
#: Default gamma of a hinge, as in the thesis's experiments.
_SMOOTHING = 1.0


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class MultilabelClassifier(Training, ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """Multilabel classifier with a duality gap that certifies how far training got.

    It minimises, with W = (coef_, intercept_), lam = 1/(n C) and Y_i the labels of example i,

        P(W) = lam/2 |W|_F^2 + (1/n) sum_i Phi(W^T x_i; Y_i)

    The losses rank the labels of an example above all others (M. Lapin, "Image Classification with Limited
    Training Data and Class Ambiguity", 2017, chapter 6); one threshold on the scores, chosen for a metric,
    decides which are predicted.

    Parameters
    ----------
    loss : "multilabel_hinge", max(0, 1 + max_{j not in Y} s_j - min_{y in Y} s_y); "multilabel_softmax", the
        cross entropy with all labels of Y equally likely, which needs at least one label per row; or binary
        relevance, "one_vs_all_hinge" and "one_vs_all_logistic"; or one of these as a value
    C : weight of the losses against the regulariser
    smoothing : gamma of a hinge's Moreau envelope, 0 for the hinge itself; None for 1 with a hinge
    method : as for `solve`: "auto" chooses by the problem, and `method_` holds the choice
    tol : relative duality gap to reach
    max_passes : budget of passes over the examples; a ConvergenceWarning says if it ran out
    fit_intercept : learn a bias, as the regularised weight of an appended feature that is always 1
    threshold : labels with higher scores are predicted.  A number; or the metric for which it is chosen:
        "f1_micro", "f1_macro", "f1_instance", "accuracy", "subset_accuracy" or "hamming_loss"; or
        "cardinality", as many labels per row on average as in training; or "top_k", the k highest of every
        row instead.
    cv : folds for choosing the threshold on held-out scores, at the cost of one training each.  None chooses
        it on the training rows themselves.  Rows of weight 0 are ignored.
    k : labels of "top_k" and `predict_top_k`; None for the mean number of labels of a row, rounded
    kernel, gamma, degree, coef0 : as in TopKClassifier: None for a linear classifier, or "linear", "rbf",
        "polynomial", "chi2", "precomputed" or a Kernel
    random_state : int, RandomState or None; seed of the order in which examples are visited, and of the folds
    verbose, callbacks : as in TopKClassifier, in each of the trainings

    Attributes
    ----------
    classes_ : (m,) labels; for an indicator matrix its column numbers.
    coef_ : (m, d) float64.
    intercept_ : (m,) float64, zeros without fit_intercept.
    threshold_ : float, already subtracted by `decision_function`; 0 for "top_k" and single labels.
    k_ : int, labels of "top_k".
    multilabel_ : bool, False where `fit` was given one label a row (n,): the highest score is then predicted,
        and with two classes coef_, intercept_ and the scores are the second's minus the first's.
    kernel_, support_, dual_coef_ : with a kernel, as in TopKClassifier; coef_ is there for "linear" only.
    n_features_in_, feature_names_in_, n_iter_, primal_, dual_, dual_gap_, relative_gap_, status_, method_,
    why_, history_ : as in TopKClassifier.

    Examples
    --------
    >>> from sklearn.datasets import make_multilabel_classification
    >>> from topline import MultilabelClassifier
    >>> X, Y = make_multilabel_classification(n_samples=60, n_features=8, n_classes=4, random_state=0)
    >>> model = MultilabelClassifier(C=0.1).fit(X, Y)
    >>> model.predict(X).shape
    (60, 4)
    >>> model.relative_gap_ <= 1e-3
    True
    """

    loss: str | Loss = "multilabel_hinge"
    C: float = 1.0
    smoothing: float | None = None
    method: str = DEFAULT_METHOD
    tol: float = 1e-3
    _: KW_ONLY
    max_passes: int = 1000
    fit_intercept: bool = True
    threshold: float | str = "f1_micro"
    cv: int | None = 3
    k: int | None = None
    random_state: Any = 0
    verbose: bool = False
    callbacks: Sequence[Callback] = ()

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or sparse, float32 or float64, and the labels of its rows.

        y is an indicator matrix (n, m) of 0 and 1, dense or sparse; or n sets of labels, as
        MultiLabelBinarizer takes them; or one label per row, (n,).  `sample_weight` (n,) multiplies the
        losses, 1 by default.  Raises InvalidProblemError (a ValueError) for invalid parameters or data,
        UnsupportedCombinationError (a ValueError) for an unsupported combination of loss, smoothing and
        method, and NonFiniteError if the numbers overflowed.
        """
        X, y = self._checked(X, y)
        targets = Targets.of(y)
        weights = self._weights(sample_weight, X, targets)
        multilabel = targets.form is not TargetForm.SINGLE
        rule, m = self._rule(), len(targets.classes)
        if self.k is not None:
            k = self._checked_k(self.k, m)
        else:
            k = int(np.clip(np.rint(targets.sets.sizes[targets.codes].mean()), 1, m))
        result = self._fitted(X, targets, weights, np.arange(len(targets.codes)))
        self._keep_result(result, two_as_one=not multilabel)
        self._warn_if_collapsed()
        self.classes_, self._form, self.multilabel_ = targets.classes, targets.form, multilabel
        self.k_, self.threshold_, self._by_rank = k, 0.0, rule == TOP_K
        if multilabel and rule != TOP_K:
            self.threshold_ = self._threshold(rule, X, targets, weights)
        return self

    def decision_function(self, X: Any) -> Float64Array:
        """Return the scores of X minus the threshold, (rows, m): labels above 0 are predicted.

        With single labels of two classes (rows,): positive for the second class.
        """
        return np.asarray(super().decision_function(X) - self.threshold_)

    def predict(self, X: Any) -> Any:
        """Return each row's labels as given to `fit`: an indicator (rows, m), sets, or labels (rows,)."""
        scores = self._scores(X)
        if self._form is TargetForm.SINGLE:
            return self.classes_[scores.argmax(axis=1)]
        chosen = self._chosen(scores)
        if self._form is TargetForm.INDICATOR:
            return chosen.astype(np.int64)
        return [set(self.classes_[row].tolist()) for row in chosen]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose labels are predicted exactly (subset accuracy).

        A row with a label unseen in training is a miss.
        """
        scores = self._scores(X)
        check_consistent_length(scores, y)
        relevant, known = indicator_of(y, self._form, self.classes_)
        if self._form is TargetForm.SINGLE:
            right = relevant[np.arange(len(scores)), scores.argmax(axis=1)]
        else:
            right = (relevant == self._chosen(scores)).all(axis=1) & known
        return float(np.average(right, weights=sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        options = {"order": "C", **ROWS}
        if not are_sets(y):
            X, y = validate_data(self, X, y, multi_output=True, **options)
            return X, y
        X = validate_data(self, X, **options)
        check_consistent_length(X, y)
        return X, y

    def _weights(self, sample_weight: Any, X: Any, targets: Targets) -> Float64Array | None:
        if sample_weight is None:
            return None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        single = targets.form is TargetForm.SINGLE
        return combined_weights(weights, None, targets.classes, targets.codes) if single else weights

    def _fitted(
        self, X: Any, targets: Targets, weights: Float64Array | None, rows: NDArray[np.intp]
    ) -> SolveResult:
        loss = make_loss(self.loss) if isinstance(self.loss, str) else self.loss
        smoothing = self.smoothing
        if smoothing is None:
            m = len(targets.classes)
            smoothing = _SMOOTHING if isinstance(loss, Loss) and not loss.form(m).smooth else 0.0
        part = X if len(rows) == X.shape[0] else self._part(X, rows, rows)
        kept = None if weights is None else weights[rows]
        return self._train(part, targets.codes[rows], kept, loss, smoothing, label_sets=targets.sets)

    def _part(self, X: Any, rows: NDArray[np.intp], trained: NDArray[np.intp]) -> Any:
        """Return rows of X; for a kernel matrix only the columns of the training rows."""
        pairwise = self.__sklearn_tags__().input_tags.pairwise
        return X[np.ix_(rows, trained)] if pairwise else X[rows]

    def _threshold(self, rule: float | str, X: Any, targets: Targets, weights: Float64Array | None) -> float:
        """Return a given threshold, or the one of a rule, with folds by scores of models that saw no row."""
        if isinstance(rule, float):
            return rule
        counted = np.arange(X.shape[0]) if weights is None else np.flatnonzero(weights > 0.0)
        relevant = targets.indicator[counted]
        cardinality = float(relevant.sum(axis=1).mean())
        folds = None if self.cv is None else min(checked_k(self.cv, "cv"), len(counted))
        if folds is None or folds < 2:
            return tuned_thresholds(relevant, self._raw_scores(X[counted]), cardinality)[rule]
        scores = np.empty((len(counted), len(targets.classes)))
        splits = KFold(folds, shuffle=True, random_state=seed_of(self.random_state))
        for train, test in splits.split(counted):
            rows = counted[train]
            result = self._fitted(X, targets, weights, rows)
            part, _ = self._with_intercept(self._part(X, counted[test], rows))
            scores[test] = result.decision_function(part)
        return tuned_thresholds(relevant, scores, cardinality)[rule]

    def _chosen(self, scores: Float64Array) -> NDArray[np.bool_]:
        """Return a mask (rows, m) of the predicted labels."""
        if not self._by_rank:
            return np.asarray(scores > 0.0)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.k_]
        chosen = np.zeros(scores.shape, dtype=np.bool_)
        np.put_along_axis(chosen, best, True, axis=1)
        return chosen

    def _rule(self) -> float | str:
        """Return the threshold as a float, or the rule that chooses it."""
        rules, given = (*THRESHOLD_RULES, TOP_K), cast("Any", self.threshold)
        if isinstance(given, str):
            if given not in rules:
                raise InvalidProblemError(not_known("threshold rule", given, rules))
            return given
        if isinstance(given, bool) or not isinstance(given, Real):
            raise InvalidProblemError(f"threshold is {given!r}; give a number or a rule's name")
        return float(given)
