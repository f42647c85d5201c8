"""Classifiers along the path of C: one for each value, and the one chosen by cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import StratifiedGroupKFold, check_cv
from sklearn.utils import Tags
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from topline.solvers.core.problem import positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.base import combined_weights, seed_of, with_constant
from topline.solvers.estimators.topk import LOSS_PARAMETERS, TopKClassifier, TopKModel, fitted_path
from topline.solvers.losses import Loss
from topline.solvers.names import DEFAULT_LOSS, DEFAULT_METHOD, default_k
from topline.solvers.run.search import Found, Goal, Part, Search, Trial, unseen_classes
from topline.solvers.typing import Float64Array, IntArray

#: Decades spanned when C is given as a number of values.
_LOW, _HIGH = -3, 2


# scikit-learn has no types.
@dataclass(eq=False, repr=False)
class RegularisationPath(BaseEstimator):  # type: ignore[misc]
    """Fits of a classifier for many C, each warm-started from the next smaller C.

    Every fit has the same certificate as a fit on its own, in fewer passes.

    Parameters
    ----------
    estimator : template of the fits, except for C and warm_start; None is ``TopKClassifier()``.  Its method
        must be "auto", "dual_ascent", "sdca" or "lbfgs".
    Cs : int or sequence of floats; the values of C; a number is that many from 1e-3 to 1e2, evenly spread on
        a logarithmic scale

    Attributes
    ----------
    Cs_ : (p,) the values of C, ascending and each once.
    models_ : list of p fitted classifiers, in the order of `Cs_`.
    coef_path_ : (p, m, d) weights of the fits, (p, 1, d) with two classes; none with a kernel.
    relative_gaps_ : (p,), the certified gap of each.
    passes_ : (p,), the passes over the examples of each.
    classes_ : (m,) labels, sorted.
    n_features_in_ : int, and `feature_names_in_` where X has column names.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from topline import RegularisationPath, TopKClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> path = RegularisationPath(TopKClassifier(k=1), Cs=[0.1, 1.0]).fit(X, y)
    >>> path.coef_path_.shape
    (2, 3, 4)
    >>> bool((path.relative_gaps_ <= 1e-3).all())
    True
    """

    estimator: TopKClassifier | None = None
    Cs: Any = 6

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d) and y (n,) for each C, from the smallest to the largest.

        Raises InvalidProblemError (a ValueError) for a value of C that is not positive, and
        UnsupportedCombinationError (a ValueError) for a method without warm starts.
        """
        if not isinstance(self.estimator, TopKClassifier | None):
            raise InvalidProblemError(f"estimator is {self.estimator!r}; give a TopKClassifier")
        self.Cs_ = checked_values(self.Cs)
        template = TopKClassifier() if self.estimator is None else clone(self.estimator)
        self.models_ = fitted_path(template.set_params(warm_start=False), self.Cs_, X, y, sample_weight)
        self.relative_gaps_ = np.array([model.relative_gap_ for model in self.models_])
        self.passes_ = np.array([model.n_iter_ for model in self.models_])
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.models_[0], name):
                setattr(self, name, getattr(self.models_[0], name))
        return self

    @property
    def coef_path_(self) -> Float64Array:
        """The weights of the fits, stacked."""
        check_is_fitted(self, "models_")
        return np.stack([model.coef_ for model in self.models_])

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        template = TopKClassifier() if self.estimator is None else self.estimator
        tags.input_tags = template.__sklearn_tags__().input_tags
        tags.target_tags.required = True
        return tags


def checked_values(Cs: Any) -> Float64Array:
    """Return the distinct values of C given by a parameter, ascending."""
    if isinstance(Cs, int | np.integer) and not isinstance(Cs, bool):
        if Cs < 1:
            raise InvalidProblemError(f"Cs is {Cs}; give at least one value of C")
        return np.logspace(_LOW, _HIGH, int(Cs))
    if isinstance(Cs, str) or not isinstance(Cs, Iterable):
        raise InvalidProblemError(f"Cs is {Cs!r}; give a number of values or a sequence of positive numbers")
    values = sorted({positive_number("C", C) for C in Cs})
    if not values:
        raise InvalidProblemError("there is no C; give at least one")
    return np.array(values)


#: The `scoring` for the share of rows whose label is among `k_` guesses.
TOP_K = "top_k"
#: The `scoring` for mean accuracy over classes, and the `loss` that requests a search.
MACRO, AUTO = "macro", "auto"


@dataclass(eq=False, repr=False)
class TopKClassifierCV(TopKModel):
    """`TopKClassifier` with C, or loss and C, chosen by cross-validation.

    ``loss="auto"`` compares softmax, the hinge, the smooth hinge and, for "top_k", the top-k hinge like
    `topline train --auto`: on a subset of many rows, until paired differences on held-out rows decide, in at
    most six times the passes of one fit, or 10 seconds of computing where that is more.

    Otherwise each fold is trained for all C in ascending order, warm-started and to the same certified gap;
    then the best C, the smallest of equally good ones, is trained on all rows.

    Parameters
    ----------
    Cs : int or sequence of floats; the values of C; a number is that many from 1e-3 to 1e2, evenly spread on
        a logarithmic scale.  With ``loss="auto"`` a number leaves them to the search, which starts from 1 and
        the size of the rows.
    loss : "auto", or as for `TopKClassifier`.
    k, smoothing, tol, smoothing_kind, max_passes, fit_intercept, weights, margins, temperature, class_weight,
    kernel, gamma, degree, coef0, random_state, verbose, callbacks : as for `TopKClassifier`.
    method : "auto", "lbfgs", or one with warm starts: "dual_ascent", "sdca" or "newton"
    cv : int, splitter or iterable; as in scikit-learn: stratified folds (of whole groups where there are
        groups), an object with `split`, or pairs of arrays of row indices
    scoring : str or callable; score of a fold: None is accuracy, "top_k" the share of rows whose label is
        among `k_` guesses, "macro" the mean accuracy over classes, else a name or a scorer of scikit-learn,
        which ``loss="auto"`` does not take

    Attributes
    ----------
    C_ : float, the best C.
    Cs_ : (p,) the values of C, ascending and each once.
    scores_ : (folds, p) scores of the fits on their held-out rows.
    best_index_, best_score_ : int and float, the index of `C_` in `Cs_`, and its mean score.
    passes_ : int, passes over the rows of a fold in cross-validation.
    best_params_, cv_results_ : with ``loss="auto"``, in place of Cs_, scores_ and best_index_: the parameters
        of `TopKClassifier` that were chosen, and a dict of arrays of all that were compared.

    The attributes of `TopKClassifier` describe the fit on all rows.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from topline import TopKClassifierCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = TopKClassifierCV(Cs=[0.01, 1.0], k=1, cv=3).fit(X, y)
    >>> model.C_
    1.0
    >>> model.scores_.shape
    (3, 2)
    """

    Cs: Any = 6
    loss: str | Loss = DEFAULT_LOSS
    k: int | None = None
    smoothing: float = 0.0
    method: str = DEFAULT_METHOD
    tol: float = 1e-3
    _: KW_ONLY
    cv: Any = 5
    scoring: Any = None

    @property
    def C(self) -> float:  # type: ignore[override]  # noqa: N802 - scikit-learn's word
        """The chosen C."""
        check_is_fitted(self, "C_")
        return self.C_

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Choose C by cross-validation on X (n, d) and y (n,), then train on all rows with it.

        `sample_weight` (n,) weights examples in training only; held-out rows count once.  Folds keep `groups`
        (n,) whole.  Raises what `TopKClassifier.fit` does, and InvalidProblemError for values of C that are
        not positive.
        """
        Cs = checked_values(self.Cs)
        rows, classes, labels = self._examples(X, y)
        self.__dict__.pop("best_params_", None)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, rows, dtype=np.float64, ensure_non_negative=True
            )
        if isinstance(self.loss, str) and self.loss == AUTO:
            self._search(rows, classes, labels, sample_weight, groups)
            return super().fit(X, y, sample_weight)
        self.scores_, self.passes_ = self._cross_validated(rows, classes[labels], sample_weight, groups, Cs)
        means = self.scores_.mean(axis=0)
        self.Cs_, self.best_index_ = Cs, int(np.argmax(means))
        self.C_, self.best_score_ = float(Cs[self.best_index_]), float(means[self.best_index_])
        return super().fit(X, y, sample_weight)

    def _folds(self, X: Any, y: Any, groups: Any) -> list[tuple[IntArray, IntArray]]:
        """Return the training rows and the held-out rows of each fold."""
        cv = self.cv
        if groups is not None and (cv is None or isinstance(cv, Integral)):
            cv = StratifiedGroupKFold(5 if cv is None else int(cv))
        folds = list(check_cv(cv, y, classifier=True).split(X, y, groups))
        if unseen := unseen_classes(y, folds):
            warnings.warn(unseen, UserWarning, stacklevel=4)
        return folds

    def _cross_validated(
        self, X: Any, y: Any, weights: Any, groups: Any, Cs: Float64Array
    ) -> tuple[Float64Array, int]:
        """Return the scores on held-out rows (folds, values of C), and the passes spent."""
        given = self.get_params(deep=False)
        own = {name: given[name] for name in TopKClassifier().get_params(deep=False) if name in given}
        template = TopKClassifier(**own)
        scoring = "balanced_accuracy" if self.scoring == MACRO else self.scoring
        score: Any = TopKClassifier.top_k_score
        if self.scoring != TOP_K:
            score = check_scoring(template, scoring=scoring)
        scores, passes = [], 0
        for train, test in self._folds(X, y, groups):
            X_train, y_train = _safe_split(template, X, y, train)
            X_test, y_test = _safe_split(template, X, y, test, train)
            models = fitted_path(template, Cs, X_train, y_train, None if weights is None else weights[train])
            scores.append([float(score(model, X_test, y_test)) for model in models])
            passes += sum(model.n_iter_ for model in models)
        return np.array(scores), passes

    @property
    def _loss_and_smoothing(self) -> tuple[Any, float]:
        chosen = self.__dict__.get("best_params_")
        return (self.loss, self.smoothing) if chosen is None else (chosen["loss"], chosen["smoothing"])

    def _search(
        self, rows: Any, classes: np.ndarray[Any, Any], labels: IntArray, sample_weight: Any, groups: Any
    ) -> None:
        """Search for loss and C on rows (n, d) with labels (n,), and set what was found."""
        m, goal = len(classes), self._goal(len(classes))
        weights = combined_weights(sample_weight, self.class_weight, classes, labels)
        X = with_constant(rows) if self.fit_intercept else rows
        cut = self._folds(rows, classes[labels], groups)
        n, d = X.shape
        used = np.zeros(n, dtype=np.bool_)
        seed = seed_of(self.random_state)
        used[np.random.default_rng(seed).permutation(n)[: Search.rows(n, d, m)]] = True

        def part(_: str, fold: int) -> Part:
            train, out = (np.asarray(side)[used[side]] for side in cut[fold])
            own = None if weights is None else weights[train]
            return Part(X[train], labels[train], X[out], labels[out], own)

        Cs = () if isinstance(self.Cs, int | np.integer) else tuple(checked_values(self.Cs).tolist())
        trials = [Trial("", *loss) for loss in goal.losses(m)]
        C = min(Cs, key=lambda C: abs(np.log(C))) if Cs else 1.0
        search = Search(part, trials, n, m, goal, C, Cs, len(cut), self.tol, seed)
        self._keep_found(search.find(), goal)

    def _goal(self, m: int) -> Goal:
        """Return the criterion of the search; refuse unsupported ones."""
        given = {
            name: getattr(self, name)
            for name in ("kernel", *LOSS_PARAMETERS) if getattr(self, name) is not None
        }  # fmt: skip
        if given or self.smoothing:
            name = next(iter(given), "smoothing")
            raise InvalidProblemError(
                f'loss="auto" compares linear models of its own losses, and {name} is given; leave one out'
            )
        goals = {
            None: Goal(), "accuracy": Goal(), MACRO: Goal(1, per_class=True),
            "balanced_accuracy": Goal(1, per_class=True),
            TOP_K: Goal(min(default_k(m) if self.k is None else self.k, m)),
        }  # fmt: skip
        if not isinstance(self.scoring, str | None) or self.scoring not in goals:
            raise InvalidProblemError(
                f'loss="auto" goes by the scoring accuracy, {TOP_K} or {MACRO}, not {self.scoring!r}; name'
                " one of these, or a loss"
            )
        return goals[self.scoring]

    def _keep_found(self, found: Found, goal: Goal) -> None:
        cells, best = found.cells, found.best
        self.cv_results_ = {
            "loss": np.array([cell.trial.loss.name for cell in cells]),
            "C": np.array([cell.C for cell in cells]),
            "smoothing": np.array([cell.trial.smoothing for cell in cells]),
            "mean_test_score": np.array([found.share(cell, goal) for cell in cells]),
            "folds": np.array([len(cell.ranks) for cell in cells]),
        }
        self.C_, self.best_score_ = best.C, found.share(best, goal)
        self.passes_ = sum(sum(cell.passes) for cell in cells)
        self.best_params_ = {
            "loss": best.trial.loss.name, "k": getattr(best.trial.loss, "k", None), "C": best.C,
            "smoothing": best.trial.smoothing,
        }  # fmt: skip
