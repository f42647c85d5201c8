"""The scikit-learn face of `solve`.

Importing it loads scikit-learn, which takes longer than everything else; `from topline import TopKClassifier`
does so when it is first asked for.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    ProbabilityMap,
    SetsBy,
    fit_probabilities,
    tuned_weighings,
)
from topline.solvers.core.inputs import scale_note
from topline.solvers.core.problem import SmoothingKind
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.estimators.base import (
    Examples,
    ScoringClassifier,
    Training,
    WarmStart,
    chosen_loss,
    combined_weights,
    seed_of,
)
from topline.solvers.losses import Loss, Softmax, checked_k
from topline.solvers.methods import method_named
from topline.solvers.names import DEFAULT_K, DEFAULT_LOSS, DEFAULT_METHOD, default_k, k_note
from topline.solvers.run import Callback, PrintProgress, regularisation_path
from topline.solvers.typing import Float64Array, Int64Array, IntArray

# Streams of the draws of sets: those of rows that are compared and kept are independent.
_TUNING, _CALIBRATION = 0, 1


def _has_probabilities(model: Any) -> bool:
    """Return whether there is anything that makes probabilities of the scores."""
    return model._probability_map() is not None


class CalibratedScores:
    """Mixin of classifiers with `loss`, `classes_` and `_scores(X)`: what their scores are worth."""

    loss: Any
    classes_: np.ndarray[Any, Any]

    @property
    def _fitted_loss(self) -> Any:
        """The loss of the fit, or before one the parameter."""
        return self.__dict__.get("loss_", self.loss)

    def __getattr__(self, name: str) -> Any:
        if name in ("predict_proba", "predict_log_proba"):
            loss = getattr(self._fitted_loss, "name", self._fitted_loss)
            raise AttributeError(
                f"scores of the loss {loss!s} are not probabilities: fit them on rows that trained nothing,"
                " by fit_probabilities(X, y) or scikit-learn's CalibratedClassifierCV"
            )
        return super().__getattr__(name)  # type: ignore[misc]

    def fit_probabilities(self, X: Any, y: Any) -> Self:
        """Fit probabilities on validation rows X (n, d) with labels y (n,), which must not be training rows.

        One number, the temperature, and for one-vs-all losses the slope and offset of normalised sigmoids.
        From here on there are `predict_proba` and `predict_log_proba`.  Calibration rows are forgotten, for
        what was kept of them followed from earlier probabilities.
        """
        scores, labels = self._scored_labels(X, y)
        one_vs_all = str(getattr(self._fitted_loss, "name", self._fitted_loss)).startswith("one_vs_all")
        found = fit_probabilities(scores, labels, one_vs_all=one_vs_all)
        weighings = tuned_weighings(found, scores, labels, _draws(len(labels), 0, _TUNING))
        self.calibration_ = Calibration(self._names(), found, len(labels), weighings)
        return self

    def conformalize(self, X: Any, y: Any, *, seed: int = 0) -> Self:
        """Keep calibration rows X (n, d) with labels y (n,) for `predict_set`.

        They must serve nothing else: neither training, nor the choice of a model, nor `fit_probabilities`,
        which comes before.  `seed` is that of the draws that settle ties.
        """
        scores, labels = self._scored_labels(X, y)
        found = self._probability_map()
        p = None if found is None else found.probabilities(scores)
        rows = CalibrationRows.of(scores, p, labels, _draws(len(labels), seed, _CALIBRATION))
        known = self.__dict__.get("calibration_") or Calibration(self._names(), found)
        self.calibration_ = replace(known, rows=rows)
        return self

    def predict_set(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        per_class: bool = False,
        sets_by: SetsBy | None = None,
        seed: int = 0,
        never_empty: bool = False,
        labels: bool = False,
    ) -> Any:
        """Return which classes are in the set of each row, (rows, m), in the order of `classes_`.

        The set of a new row holds its class with a probability of at least `coverage`, and of at most
        1/(n+1) more with n calibration rows; `per_class` promises that for the rows of every class.  An empty
        set says that the row is like none of the classes.

        Parameters
        ----------
        X : rows as `predict` takes them, exchangeable with the calibration rows
        coverage : share of rows whose set holds their class
        per_class : whether each class has a threshold from its own calibration rows; a class that has too few
            is in every set, which a UserWarning says
        sets_by : "adaptive", "rank" or "probability"; by default what makes the smallest sets on the rows of
            `fit_probabilities`, "rank" without them
        seed : of the draws that settle ties between rows; a row's follows from its scores, so that its set is
            the same alone as among others
        never_empty : whether a set that would be empty holds the best class
        labels : whether the sets are given as a list of arrays of labels, instead of as (rows, m)

        Raises
        ------
        InvalidProblemError (a ValueError) : without calibration rows, and for a coverage that so few of them
            cannot give.

        """
        check_is_fitted(self, "classes_")
        known = self.__dict__.get("calibration_") or Calibration(self._names())
        rule = known.rule(coverage, per_class=per_class, sets_by=sets_by)
        if rule.note is not None:
            warnings.warn(rule.note, UserWarning, stacklevel=2)
        scores = self._plain_scores(X)
        found = replace(rule, never_empty=never_empty).sets(scores, _draws_of(scores, seed))
        return [self.classes_[members] for members in found] if labels else found

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Float64Array:
        """Return the logarithms of the probabilities of the classes, (rows, m).

        They are there for the loss "softmax", whose likelihood they are, and after `fit_probabilities`.
        Hinges look at the order of scores alone, and a top-k entropy at the likelihood of k guesses: without
        rows to fit on nothing made of their scores would be a probability.  With sample or class weights
        softmax's probabilities are those of examples drawn with these weights.
        """
        found = self._probability_map()
        return np.asarray(found.log_probabilities(self._plain_scores(X)))

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Float64Array:
        """Return the probabilities of the classes, (rows, m), in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))

    def _probability_map(self) -> Any:
        known = self.__dict__.get("calibration_")
        if known is not None and known.probabilities is not None:
            return known.probabilities
        if isinstance(self._fitted_loss, Softmax) or bool(self._fitted_loss == Softmax.name):
            return ProbabilityMap("temperature", 1.0)
        return None

    def _plain_scores(self, X: Any) -> Float64Array:
        """Return scores (rows, m) that differ as the classes' own; `_scores` of two differ by twice that."""
        scores: Float64Array = self._scores(X)
        return scores if scores.shape[1] > 2 else 0.5 * scores

    def _scored_labels(self, X: Any, y: Any) -> tuple[Float64Array, Int64Array]:
        """Return scores (n, m) and places of the labels in `classes_` (n,)."""
        check_is_fitted(self, "classes_")
        scores, y = self._plain_scores(X), column_or_1d(y)
        check_consistent_length(scores, y)
        place = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        unknown = self.classes_[place] != y
        if unknown.any():
            raise InvalidProblemError(
                f"the label {y[int(np.argmax(unknown))]!s} is not one of the {len(self.classes_)} classes of"
                " training: leave its rows out"
            )
        return scores, np.asarray(place, dtype=np.int64)

    def _names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.classes_.tolist())


def _draws(n: int, seed: int, stream: int) -> Float64Array:
    return np.random.default_rng([seed, stream]).random(n)


def _draws_of(scores: Float64Array, seed: int) -> Float64Array:
    """Return a draw for each row (n,) by seed and scores (n, m).

    By its place a row that comes alone would have the same draw as every other that does: of such rows far
    more, or far fewer, than promised would have their class in the set.
    """
    # Products of more rows differ in the last bits.
    with np.errstate(over="ignore"):
        rows = scores.astype(np.float32) + np.float32(0.0)
    key = str(seed).encode()
    hashed = (hashlib.blake2b(row, digest_size=8, key=key, person=b"sets").digest() for row in rows)
    found = np.array([int.from_bytes(each, "big") for each in hashed], dtype=np.uint64)
    # The upper 53 bits are what a double holds.
    return (found >> np.uint64(11)).astype(np.float64) * 2.0**-53


#: Of so many training rows is looked at whether they are right, and how the columns differ in size.
LOOKED_AT = 2000
#: Sums of the same weights in another order are equal but for this.
ROUNDING = 1e-9


# scikit-learn has no types.
@dataclass(kw_only=True, eq=False, repr=False)
class TopKModel(CalibratedScores, Training, ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """What classifiers that are trained for top-k accuracy share, by `TopKClassifier`'s names."""

    smoothing_kind: SmoothingKind = "moreau"
    max_passes: int = 1000
    fit_intercept: bool = True
    weights: Any = None
    margins: Any = None
    class_weight: Any = None
    random_state: Any = 0
    verbose: bool = False
    callbacks: Sequence[Callback] = ()
    # A parameter of those alone that train one model.
    warm_start = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or sparse, float32 or float64, and y (n,), labels of two or more classes.

        `sample_weight` (n,) says how often each example counts, None once.

        Raises
        ------
        InvalidProblemError (a ValueError) : a parameter or the data cannot make a problem.
        UnsupportedCombinationError (a ValueError) : warm_start with a method that keeps no dual variables.
        NonFiniteError : the numbers overflowed.
        """
        fit = self._problem_of(X, y, sample_weight)
        result = self._solve(fit.X, fit.labels, fit.weights, fit.loss)
        self._keep_fit(fit, result)
        self._warn_if_useless(fit)
        self._warm = None
        if self.warm_start and result.A is not None:
            self._warm = WarmStart(result.problem.loss, fit.labels, fit.weights, result.A)
        return self

    def top_k_score(self, X: Any, y: Any, k: int | None = None) -> float:
        """Return the share of rows whose label is among the k highest scores; k is `k_` by default.

        Ties count against the model, as in `topline evaluate`: equal scores are right only for k = m.  A
        label that was not there in training is a miss.
        """
        scores = self._scores(X)
        y = column_or_1d(y)
        check_consistent_length(scores, y)
        place = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        own = scores[np.arange(len(y)), place]
        rank = np.count_nonzero(scores >= own[:, None], axis=1)
        return float(
            np.mean(
                (rank <= (self.k_ if k is None else self._checked_k(k, len(self.classes_))))
                & (self.classes_[place] == y)
            )
        )

    def _problem_of(self, X: Any, y: Any, sample_weight: Any) -> Examples:
        """Return what there is to train on, the data and parameters checked."""
        X, classes, labels = self._examples(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weights = combined_weights(sample_weight, self.class_weight, classes, labels)
        m = len(classes)
        k = default_k(m) if self.k is None else checked_k(self.k, type(self).__name__)
        if k > m:
            raise InvalidProblemError(f"k is {k} and there are {m} classes in y; use a k of {m} or less")
        loss = chosen_loss(self._loss_and_smoothing[0], k, self.weights, self.margins)
        counted = getattr(loss, "k", None)
        note = k_note(getattr(loss, "name", ""), counted, m)
        if note is not None:
            warnings.warn(note, UserWarning, stacklevel=3)
        if self.k is None:
            k = counted or min(DEFAULT_K, m)
        return Examples(X, classes, labels, weights, loss, k)

    def _keep_fit(self, fit: Examples, result: SolveResult) -> None:
        """Set the fitted attributes."""
        self._keep_result(result)
        self.__dict__.pop("calibration_", None)
        self.classes_, self.k_, self.loss_ = fit.classes, fit.k, fit.loss

    def _solve(self, X: Any, labels: IntArray, weights: Float64Array | None, loss: Loss) -> SolveResult:
        smoothing = self._loss_and_smoothing[1]
        if not self.warm_start:
            return self._train(X, labels, weights, loss, smoothing, self.smoothing_kind)
        if not method_named(self.method).keeps_duals:
            raise UnsupportedCombinationError(
                f"the method {self.method} has no warm_start; use auto or leave warm_start out"
            )
        warm: WarmStart | None = getattr(self, "_warm", None)
        options = {} if warm is None else warm.options(loss, labels, weights)
        options["keep_duals"] = True
        return self._train(X, labels, weights, loss, smoothing, self.smoothing_kind, options=options)

    @property
    def _loss_and_smoothing(self) -> tuple[Any, float]:
        """What is trained with."""
        return self.loss, self.smoothing

    def _warn_if_useless(self, fit: Examples) -> None:
        """Say so where the model is no better than the largest classes, on rows that it was trained on.

        Examples count as in training, and a loss of k guesses by these.  A run that stopped early says so,
        and what weights of single classes ask for may well be one class.
        """
        self._warn_if_collapsed(stacklevel=4)
        k, m = getattr(fit.loss, "k", 1), len(fit.classes)
        given = isinstance(self.class_weight, Mapping)
        if self.collapsed_ or self.status_ is not Status.SOLVED or k >= m or given:
            return
        looked_at = np.unique(np.linspace(0, len(fit.labels) - 1, LOOKED_AT).astype(np.int64))
        labels, scores = fit.labels[looked_at], self._raw_scores(fit.X[looked_at])
        weights = np.ones(len(labels)) if fit.weights is None else fit.weights[looked_at]
        if not weights.any():
            return
        scores = np.column_stack([-scores, scores]) if scores.shape[1] == 1 else scores
        own = scores[np.arange(len(labels)), labels]
        right = np.count_nonzero(scores >= own[:, None], axis=1) <= k
        largest = np.sort(np.bincount(labels, weights=weights, minlength=m))[-k:].sum() / weights.sum()
        accuracy = float(weights @ right / weights.sum())
        note = None if is_sparse(fit.X) or self.kernel is not None else scale_note(fit.X[looked_at])
        sizes = "" if note is None else f"{note}; "
        remedy = "scale the columns (StandardScaler), raise C, or take another loss or other features"
        if accuracy <= largest + ROUNDING:
            guesses = "" if k == 1 else f" in {k} guesses"
            warnings.warn(
                f"the model is right of {accuracy:.1%} of its own training rows{guesses}, no better than"
                f" always answering the largest: {largest:.1%}; {sizes}{remedy}",
                UserWarning,
                stacklevel=3,
            )
        elif sizes:
            warnings.warn(f"{sizes}{remedy}", UserWarning, stacklevel=3)


@dataclass(eq=False, repr=False)
class TopKClassifier(TopKModel):
    """Classifier trained for top-k accuracy, with a duality gap that says how far training got.

    It minimises, with W = (coef_, intercept_) and lam = 1/(n C),

        P(W) = lam/2 |W|_F^2 + (1/n) sum_i Phi(W^T x_i; y_i)

    which is 1/(n C) times LinearSVC's 1/2 |W|^2 + C sum_i Phi, so that a C means the same there and here.
    With weights Phi counts w_i times: an example of weight 0 might as well be left out, one of weight 2 be
    there twice.

    Parameters
    ----------
    loss : str or Loss, default="softmax"
        "softmax", "max_hinge", "topk_hinge", "usunier_hinge", "weighted_topk_hinge",
        "weighted_usunier_hinge", "structured_hinge", "topk_others_hinge", "topk_entropy", "one_vs_all_hinge",
        "one_vs_all_logistic", "truncated_topk_entropy" (with lbfgs only, and without a certificate), or one
        of the losses of this package as a value, such as ``TopKHinge(5)``.
    k : int, default=None
        How many guesses count: k of the losses that have one (and of rank weights given by name), and the
        default of `predict_top_k` and `top_k_score`; at most the number of classes.  None is 5 or, where
        they are fewer than ten, half of the classes of a loss and all that are guessed; a UserWarning says
        what a loss of more than half of them trades away.  `k_` says which k was used.
    C : float, default=1.0
        Weight of the losses against the regulariser, as in LogisticRegression and LinearSVC; with two
        classes, which have weights each, softmax at C is LogisticRegression at 2 C.
    smoothing : float, default=0.0
        Gamma of the loss's envelope; 0 trains on the loss itself.
    smoothing_kind : "moreau" or "others", default="moreau"
        What is smoothed: all scores, or those of the other classes only.
    method : str, default="auto"
        As for `solve`: "auto" takes what the problem asks for, and `method_` says what that was.
    tol : float, default=1e-3
        Relative duality gap to reach; without a dual, share of the gradient at zero.
    max_passes : int, default=1000
        Budget of passes over the examples; a ConvergenceWarning says where it ran out.
    fit_intercept : bool, default=True
        Learn a bias through an appended feature that is always 1.  It is regularised like every other
        weight, so scale or centre features whose mean is far from 0.
    weights : str or sequence of floats, default=None
        Rank weights of the weighted losses: numbers, or "flat", "linear", "exponential" (of length k).
    margins : array-like (m, m), default=None
        Margins of "structured_hinge", rows (true class) and columns in the order of `classes_`.
    warm_start : bool, default=False
        Start from the dual variables of the last fit where labels, weights and loss are the same, as along a
        path of C; otherwise start afresh.  Keeps an (n, m) array, and takes a method that knows it: "auto",
        "dual_ascent", "sdca" or "newton".
    class_weight : dict or "balanced", default=None
        Weight of each class (1 where a dict has none), times `sample_weight`; "balanced" gives every class
        the same total.
    kernel : str or Kernel, default=None
        None for a linear classifier of the features; "linear" (the same through inner products), "rbf",
        "polynomial", "chi2", a value such as ``RBFKernel(0.5)``, or "precomputed", where X is K(train, train)
        in `fit` and K(new, train) afterwards.  The kernel matrix must fit in memory; for more rows take
        sklearn.kernel_approximation in a pipeline.
    gamma : float, "scale" or "auto", default=None
        Of a kernel given by name, as in SVC: "scale" (the default) is 1 / (d var X) and "auto" 1/d.  chi2
        takes a number, 1 by default.
    degree, coef0 : int and float, default=None
        Of the kernel "polynomial": 3 and 0 by default.
    random_state : int, RandomState or None, default=0
        An int is `seed` of `solve`, the order in which dual_ascent visits the examples; every seed ends
        within the same tolerance.
    verbose : bool, default=False
        Print how far training is, a line whenever the gap has halved.  What compiles says so by itself.
    callbacks : sequence of functions, default=()
        Called after each round with (IterationRecord, SolverState), as those of `solve`; one that returns
        False ends the training.

    Attributes
    ----------
    classes_ : (m,) labels, sorted.
    coef_ : (m, d) float64; with two classes (1, d), the second class's weights minus the first's.
    intercept_ : (m,) float64, or (1,); zeros without fit_intercept.
    k_ : int, the k that was used, and `loss_` the loss, as a value.
    collapsed_ : bool, whether all weights are 0 and every prediction is the same, of which a warning tells;
        another tells of a model that is no better than the largest classes on its own training rows.
    kernel_ : with a kernel, it with its parameters resolved; coef_ is there for "linear" only.
    support_, dual_coef_ : with a kernel, places of the training rows that count (s,), and their coefficients
        (m, s) or (1, s), of which scores are sums: dual_coef_ @ K(support, new) + intercept_.
    n_features_in_ : int, and `feature_names_in_` where X has column names.
    n_iter_ : int, passes over the examples.
    primal_, dual_, dual_gap_, relative_gap_ : floats, P, D, P - D and its share of P, measured in float64;
        all but primal_ are NaN where the loss is not convex.
    status_ : Status, how training ended.
    method_, why_ : what `method` came to, and why.
    history_ : tuple of IterationRecord, one a round (of more than 10,000 an even choice, and the last).
    calibration_ : after `fit_probabilities` or `conformalize`, what they found.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from topline import TopKClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TopKClassifier(k=2).fit(X, y)
    >>> model.predict_top_k(X[:1])
    array([[0, 1]])
    >>> model.relative_gap_ <= 1e-3
    True
    """

    loss: str | Loss = DEFAULT_LOSS
    k: int | None = None
    C: float = 1.0
    smoothing: float = 0.0
    method: str = DEFAULT_METHOD
    tol: float = 1e-3
    _: KW_ONLY
    warm_start: bool = False


def fitted_path(
    template: TopKClassifier, Cs: Float64Array, X: Any, y: Any, sample_weight: Any
) -> list[TopKClassifier]:
    """Return a classifier for each C, ascending, fitted as `template` would be, each from the one before."""
    fit = template._problem_of(X, y, sample_weight)
    rows, kernel = template._with_intercept(fit.X)
    results = regularisation_path(
        rows, fit.labels, fit.loss, Cs, template.smoothing, template.method, kernel=kernel,
        sample_weight=fit.weights, tol=template.tol, max_passes=template.max_passes,
        seed=seed_of(template.random_state), smoothing_kind=template.smoothing_kind,
        callbacks=(*template.callbacks, PrintProgress()) if template.verbose else template.callbacks,
    )  # fmt: skip
    models = []
    for C, result in zip(Cs, results, strict=True):
        model = copy.copy(template).set_params(C=float(C))
        model._keep_fit(fit, result)
        models.append(model)
    return models
