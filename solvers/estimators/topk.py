"""The scikit-learn estimator of top-k classification.

Importing this module loads scikit-learn, the slowest import of all; `from topline import TopKClassifier` does
so on first use.
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
    SetsBy,
    fit_guesses,
    fit_probabilities,
    members,
    own_probabilities,
    tuned_weighings,
)
from topline.solvers.core.problem import SmoothingKind, scale_note
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult, Status
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
from topline.solvers.losses import Loss, checked_k
from topline.solvers.methods import method_named
from topline.solvers.names import DEFAULT_K, DEFAULT_LOSS, DEFAULT_METHOD, default_k, k_note
from topline.solvers.run import Callback, PrintProgress, regularisation_path
from topline.solvers.typing import Float64Array, Int64Array, IntArray

# Random streams of the draws for sets, independent for tuning and calibration rows.
_TUNING, _CALIBRATION = 0, 1


def _has_probabilities(model: Any) -> bool:
    """Return whether the model can give probabilities."""
    return model._probability_map() is not None


class CalibratedScores:
    """Mixin that calibrates classifiers with `loss`, `classes_` and `_scores(X)`."""

    loss: Any
    classes_: np.ndarray[Any, Any]

    @property
    def _fitted_loss(self) -> Any:
        """The fitted loss or, before a fit, the parameter."""
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

        Fits the temperature or, for one-vs-all losses, slope and offset of normalised sigmoids, and enables
        `predict_proba` and `predict_log_proba`.  Drops calibration rows, which depended on earlier
        probabilities.
        """
        scores, labels = self._scored_labels(X, y)
        one_vs_all = str(getattr(self._fitted_loss, "name", self._fitted_loss)).startswith("one_vs_all")
        found = fit_probabilities(scores, labels, one_vs_all=one_vs_all)
        weighings = tuned_weighings(found, scores, labels, _draws(len(labels), 0, _TUNING))
        self.calibration_ = Calibration(self._names(), found, len(labels), weighings)
        return self

    def conformalize(self, X: Any, y: Any, *, seed: int = 0) -> Self:
        """Keep calibration rows X (n, d) with labels y (n,) for `predict_set`.

        They must serve nothing else: neither training, model selection, nor `fit_probabilities`, which comes
        first.  `seed` is for the draws that break ties.
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
        """Return a mask (rows, m) of the classes in each row's set, in the order of `classes_`.

        The set of a new row holds its class with probability at least `coverage`, and at most 1/(n+1) more
        with n calibration rows; `per_class` guarantees that within every class.  An empty set means that the
        row resembles none of the classes.

        Parameters
        ----------
        X : rows as `predict` takes them, exchangeable with the calibration rows
        coverage : share of rows whose set holds their class
        per_class : whether each class has a threshold from its own calibration rows; a class with too few is
            in every set, with a UserWarning
        sets_by : "adaptive", "rank" or "probability"; by default the one with the smallest sets on the rows
            of `fit_probabilities`, "rank" without them
        seed : of the draws that break ties; a row's draw depends on its scores alone, so that its set is the
            same alone as among others
        never_empty : whether an otherwise empty set holds the best class
        labels : whether to return a list of arrays of labels instead of the mask

        Raises
        ------
        InvalidProblemError (a ValueError) : without calibration rows, or with too few for the coverage.

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
    def fit_guesses(self, X: Any, y: Any, price: float = 0.05) -> Self:
        """Fit the number of guesses of a row on X (n, d), y (n,), 20 rows or more that trained nothing.

        A miss costs 1, and k guesses cost price log k.  Probabilities come first.  Raises InvalidProblemError
        (a ValueError) for fewer rows or a price that is not positive.
        """
        self.guesses_ = fit_guesses(self._probability_map(), *self._scored_labels(X, y), price)
        return self

    def predict_guesses(self, X: Any) -> list[Any]:
        """Return a list of each row's guesses, best first, as many as `fit_guesses` found to pay."""
        check_is_fitted(self, "guesses_")
        scores = self._plain_scores(X)
        return members(list(self.classes_), self.guesses_.sets(scores), scores)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Float64Array:
        """Return the log probabilities of the classes, (rows, m).

        Available for the loss "softmax", whose likelihood they are, for "sum_exponential", whose least risk
        is at half of their logarithms, and after `fit_probabilities`: hinges depend only on the order of
        scores and top-k entropies on the likelihood of k guesses, so their scores alone give none.  With
        sample or class weights softmax's probabilities are those of examples drawn with these weights.
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
        return own_probabilities(str(getattr(self._fitted_loss, "name", self._fitted_loss)))

    def _plain_scores(self, X: Any) -> Float64Array:
        """Return scores (rows, m) with the classes' own differences, which `_scores` doubles for two."""
        scores: Float64Array = self._scores(X)
        return scores if scores.shape[1] > 2 else 0.5 * scores

    def _scored_labels(self, X: Any, y: Any) -> tuple[Float64Array, Int64Array]:
        """Return scores (n, m) and the class numbers of the labels (n,)."""
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

    Seeding by position would give every single-row call the same draw, so that far more or far fewer of such
    rows than promised would have their class in the set.
    """
    # Products of more rows differ in the last bits.
    with np.errstate(over="ignore"):
        rows = scores.astype(np.float32) + np.float32(0.0)
    key = str(seed).encode()
    hashed = (hashlib.blake2b(row, digest_size=8, key=key, person=b"sets").digest() for row in rows)
    found = np.array([int.from_bytes(each, "big") for each in hashed], dtype=np.uint64)
    # Keep the upper 53 bits, the precision of a double.
    return (found >> np.uint64(11)).astype(np.float64) * 2.0**-53


#: Training rows sampled to check accuracy and the scales of the columns.
LOOKED_AT = 2000
#: What a loss by name may take besides k.
LOSS_PARAMETERS = ("weights", "margins", "temperature")
#: Relative rounding error of sums of the same weights in different orders.
ROUNDING = 1e-9


# scikit-learn has no types.
@dataclass(kw_only=True, eq=False, repr=False)
class TopKModel(CalibratedScores, Training, ScoringClassifier, BaseEstimator):  # type: ignore[misc]
    """Base of classifiers trained for top-k accuracy, with `TopKClassifier`'s parameter names."""

    smoothing_kind: SmoothingKind = "moreau"
    max_passes: int = 1000
    fit_intercept: bool = True
    weights: Any = None
    margins: Any = None
    temperature: float | None = None
    class_weight: Any = None
    random_state: Any = 0
    verbose: bool = False
    callbacks: Sequence[Callback] = ()
    # Only estimators that train one model have this parameter.
    warm_start = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d), dense or sparse, float32 or float64, and y (n,), labels of two or more classes.

        `sample_weight` (n,) multiplies the losses, 1 by default.  Raises InvalidProblemError (a ValueError)
        for invalid parameters or data, UnsupportedCombinationError (a ValueError) for warm_start with a
        method that keeps no dual variables, and NonFiniteError if the numbers overflowed.
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

        Ties count as errors, as in `topline evaluate`: equal scores are right only for k = m.  A label unseen
        in training is a miss.
        """
        scores = self._scores(X)
        y = column_or_1d(y)
        check_consistent_length(scores, y)
        place = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        own = scores[np.arange(len(y)), place]
        rank = np.count_nonzero(scores >= own[:, None], axis=1)
        k = self.k_ if k is None else self._checked_k(k, len(self.classes_))
        return float(np.mean((rank <= k) & (self.classes_[place] == y)))

    def _problem_of(self, X: Any, y: Any, sample_weight: Any) -> Examples:
        """Return the checked training data."""
        X, classes, labels = self._examples(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weights = combined_weights(sample_weight, self.class_weight, classes, labels)
        m = len(classes)
        k = default_k(m) if self.k is None else checked_k(self.k, type(self).__name__)
        if k > m:
            raise InvalidProblemError(f"k is {k} and there are {m} classes in y; use a k of {m} or less")
        own = {name: getattr(self, name) for name in LOSS_PARAMETERS}
        loss = chosen_loss(self._loss_and_smoothing[0], k, **own)
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
        options: dict[str, Any] = {"keep_duals": True}
        if warm is not None and warm.fits(loss, labels, weights):
            options["duals"] = [(0, len(warm.A), warm.A)]
        return self._train(X, labels, weights, loss, smoothing, self.smoothing_kind, options=options)

    @property
    def _loss_and_smoothing(self) -> tuple[Any, float]:
        """The loss and gamma to train with."""
        return self.loss, self.smoothing

    def _warn_if_useless(self, fit: Examples) -> None:
        """Warn if the model is no better on its training rows than predicting the largest classes.

        Examples count as in training, and k guesses for a loss of k.  Skipped for runs that stopped early,
        which have their own warning, and for class weights, which may ask for a single class.
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
        useless, unscaled = accuracy <= largest + ROUNDING, is_sparse(fit.X) or self.kernel is not None
        note = None if unscaled else scale_note(fit.X[looked_at], means=useless)
        found = "" if note is None else f"{note}; "
        if useless:
            guesses = "" if k == 1 else f" in {k} guesses"
            found = (
                f"the model is right of {accuracy:.1%} of its own training rows{guesses}, no better than"
                f" always answering the largest: {largest:.1%}; {found}"
            )
        if found:
            remedy = "scale the columns (StandardScaler), raise C, or take another loss or other features"
            warnings.warn(f"{found}{remedy}", UserWarning, stacklevel=3)


@dataclass(eq=False, repr=False)
class TopKClassifier(TopKModel):
    """Classifier trained for top-k accuracy, with a duality gap that certifies how far training got.

    It minimises, with W = (coef_, intercept_) and lam = 1/(n C),

        P(W) = lam/2 |W|_F^2 + (1/n) sum_i Phi(W^T x_i; y_i)

    which is 1/(n C) times LinearSVC's 1/2 |W|^2 + C sum_i Phi, so that C means the same in both.  With
    weights Phi counts w_i times: weight 0 leaves an example out, weight 2 repeats it.

    Parameters
    ----------
    loss : "softmax", "max_hinge", "topk_hinge", "usunier_hinge", "weighted_topk_hinge",
        "weighted_usunier_hinge", "structured_hinge", "topk_others_hinge", "topk_entropy", "one_vs_all_hinge",
        "one_vs_all_logistic", "ldr_kl", "sum_exponential", "polyhedral_topk", "truncated_topk_entropy" (with
        lbfgs only, and without a certificate), or one of the losses of this package as a value, such as
        ``TopKHinge(5)``
    k : number of guesses: k of losses that have one (and of rank weights given by name), and the default of
        `predict_top_k` and `top_k_score`; at most the number of classes.  None is 5 or, with fewer than ten
        classes, half of them for a loss and at most all for guesses; a UserWarning says what a loss of more
        than half of them trades away.  `k_` holds the k used.
    C : weight of the losses against the regulariser, as in LogisticRegression and LinearSVC; with two classes
        (a weight vector each) softmax at C is LogisticRegression at 2 C
    smoothing : gamma of the loss's envelope; 0 trains on the loss itself
    smoothing_kind : "moreau" or "others"; what is smoothed: all scores, or those of the other classes only
    method : as for `solve`: "auto" chooses by the problem, and `method_` holds the choice
    tol : relative duality gap to reach; without a dual, norm of the gradient relative to that at zero
    max_passes : budget of passes over the examples; a ConvergenceWarning says if it ran out
    fit_intercept : learn a bias, as the regularised weight of an appended feature that is always 1; so scale
        or centre features whose mean is far from 0
    weights : str or sequence of floats; rank weights of the weighted losses: numbers, or "flat", "linear",
        "exponential" (of length k)
    margins : array-like (m, m); margins of "structured_hinge", rows (true class) and columns in the order of
        `classes_`
    temperature : float; T of "ldr_kl", 0.3 by default: near 0 it is the max hinge
    warm_start : start from the dual variables of the last fit if labels, weights and loss are the same, as
        along a path of C.  Keeps an (n, m) array, and needs the method "auto", "dual_ascent", "sdca" or
        "newton".
    class_weight : dict or "balanced"; weight of each class (1 if missing in a dict), times `sample_weight`;
        "balanced" gives every class the same total
    kernel : None for a linear classifier of the features; "linear" (the same through inner products), "rbf",
        "polynomial", "chi2", a value such as ``RBFKernel(0.5)``, or "precomputed", where X is K(train, train)
        in `fit` and K(new, train) afterwards.  The kernel matrix must fit in memory; for more rows use
        sklearn.kernel_approximation in a pipeline.
    gamma : float, "scale" or "auto"; for a kernel given by name, as in SVC: "scale" (the default) is 1 / (d
        var X) and "auto" 1/d.  chi2 takes a number, 1 by default
    degree, coef0 : int and float; for the kernel "polynomial": 3 and 0 by default
    random_state : int, RandomState or None; an int is `seed` of `solve`, the order in which dual_ascent
        visits the examples; every seed ends within the same tolerance
    verbose : print progress, a line whenever the gap has halved
    callbacks : sequence of functions; called after each round with (IterationRecord, SolverState), as in
        `solve`; one that returns False ends the training

    Attributes
    ----------
    classes_ : (m,) labels, sorted.
    coef_ : (m, d) float64; with two classes (1, d), the second class's weights minus the first's.
    intercept_ : (m,) float64, or (1,); zeros without fit_intercept.
    k_, loss_ : int and Loss, the k and the loss used.
    collapsed_ : bool, whether all weights are 0 and so every prediction the same (with a warning; another
        warns of a model no better than the largest classes on its training rows).
    kernel_ : the kernel, if any, with its parameters resolved; coef_ exists for "linear" only.
    support_, dual_coef_ : with a kernel, indices of the support (s,), and their coefficients (m, s) or
        (1, s); scores are dual_coef_ @ K(support, new) + intercept_.
    n_features_in_ : int, and `feature_names_in_` where X has column names.
    n_iter_ : int, passes over the examples.
    primal_, dual_, dual_gap_, relative_gap_ : floats, P, D, P - D and its share of P, measured in float64;
        all but primal_ are NaN for a non-convex loss.
    status_ : Status, how training ended.
    method_, why_ : the method used, and the reason for it.
    history_ : tuple of IterationRecord, one per round (an even selection beyond 10,000, with the last).
    calibration_ : the Calibration set by `fit_probabilities` or `conformalize`.

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
    """Return a classifier for each C, ascending, fitted like `template`, each from the previous one."""
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
