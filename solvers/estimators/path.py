"""One classifier for each C, along the path of regularisation, with scikit-learn's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from topline.solvers.core.inputs import positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.estimators.topk import TopKClassifier, fitted_path
from topline.solvers.typing import Float64Array

#: Decades that a number of values of C is spread over.
_LOW, _HIGH = -3, 2


# scikit-learn has no types.
class RegularisationPath(BaseEstimator):  # type: ignore[misc]
    """Fits of a classifier for many C, each from the dual variables of the smaller C before it.

    Every fit has the certificate that it has alone, and takes fewer passes.

    Parameters
    ----------
    estimator : TopKClassifier, default=None
        Whose parameters the fits have, but for C and warm_start; None is ``TopKClassifier()``.  Its method is
        "auto", "dual_ascent", "sdca" or "lbfgs".
    Cs : int or sequence of floats, default=6
        The values of C; a number is that many from 1e-3 to 1e2, evenly spread on a logarithmic scale.

    Attributes
    ----------
    Cs_ : (p,) the values of C, ascending and each once.
    models_ : list of p fitted classifiers, in the order of `Cs_`.
    coef_path_ : (p, m, d), their weights, (p, 1, d) with two classes; with a kernel there are none.
    relative_gaps_ : (p,), the certified gap of each.
    passes_ : (p,), the passes over the examples that each took.
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

    def __init__(self, estimator: TopKClassifier | None = None, Cs: Any = 6) -> None:
        self.estimator = estimator
        self.Cs = Cs

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on X (n, d) and y (n,) for each C, from the smallest to the largest.

        Raises
        ------
        InvalidProblemError (a ValueError) : a value of C is not positive.
        UnsupportedCombinationError (a ValueError) : a method that starts from no earlier solution.
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
        """The weights of the fits, one below the other."""
        check_is_fitted(self, "models_")
        return np.stack([model.coef_ for model in self.models_])

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        template = TopKClassifier() if self.estimator is None else self.estimator
        tags.input_tags = template.__sklearn_tags__().input_tags
        tags.target_tags.required = True
        return tags


def checked_values(Cs: Any) -> Float64Array:
    """Return the values of C that a parameter means, ascending and each once."""
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
