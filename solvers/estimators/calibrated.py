"""Probabilities and prediction sets of a fitted classifier, each from rows of its own."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_consistent_length
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d

from topline.solvers.calibration import (
    Calibration,
    CalibrationRows,
    ProbabilityMap,
    SetsBy,
    fit_probabilities,
    tuned_weighings,
)
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import Softmax
from topline.solvers.typing import Float64Array, Int64Array

# Streams of the draws of sets: those of rows that are compared and kept are independent.
_TUNING, _CALIBRATION = 0, 1


def _has_probabilities(model: Any) -> bool:
    """Return whether there is anything that makes probabilities of the scores."""
    return model._probability_map() is not None


class CalibratedScores:
    """Mixin of classifiers with `loss`, `classes_` and `_scores(X)`: what their scores are worth."""

    loss: Any
    classes_: np.ndarray[Any, Any]

    def __getattr__(self, name: str) -> Any:
        if name in ("predict_proba", "predict_log_proba"):
            raise AttributeError(
                f"scores of the loss {getattr(self.loss, 'name', self.loss)!s} are not probabilities: fit"
                " them on rows that trained nothing, by fit_probabilities(X, y) or scikit-learn's"
                " CalibratedClassifierCV"
            )
        return super().__getattr__(name)  # type: ignore[misc]

    def fit_probabilities(self, X: Any, y: Any) -> Self:
        """Fit probabilities on validation rows X (n, d) with labels y (n,), which must not be training rows.

        One number, the temperature, and for one-vs-all losses the slope and offset of normalised sigmoids.
        From here on there are `predict_proba` and `predict_log_proba`.  Calibration rows are forgotten, for
        what was kept of them followed from earlier probabilities.
        """
        scores, labels = self._scored_labels(X, y)
        one_vs_all = str(getattr(self.loss, "name", self.loss)).startswith("one_vs_all")
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
    ) -> NDArray[np.bool_]:
        """Return which classes are in the set of each row, (rows, m), in the order of `classes_`.

        The set of a new row holds its class with a probability of at least `coverage`, and of at most
        1/(n+1) more with n calibration rows; `per_class` promises that for the rows of every class.  An empty
        set says that the row is like none of the classes.

        Parameters
        ----------
        X : rows as `predict` takes them, exchangeable with the calibration rows
        coverage : share of rows whose set holds their class
        per_class : whether each class has a threshold from its own calibration rows
        sets_by : "adaptive", "rank" or "probability"; by default what makes the smallest sets on the rows of
            `fit_probabilities`, "rank" without them
        seed : of the draws that settle ties between rows; a row's follows from its scores, so that its set is
            the same alone as among others

        Raises
        ------
        InvalidProblemError (a ValueError) : without calibration rows, and for a coverage that so few of them
            cannot give.

        """
        check_is_fitted(self, "classes_")
        known = self.__dict__.get("calibration_") or Calibration(self._names())
        rule = known.rule(coverage, per_class=per_class, sets_by=sets_by)
        scores = self._plain_scores(X)
        return rule.sets(scores, _draws_of(scores, seed))

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
        if isinstance(self.loss, Softmax) or bool(self.loss == Softmax.name):
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
