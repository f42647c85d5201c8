"""Probabilities, for the one loss whose scores are logarithms of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.utils.metaestimators import available_if

from topline.solvers.estimators.base import ScoringClassifier
from topline.solvers.losses.entropy import Softmax
from topline.solvers.typing import Float64Array


def _is_softmax(model: Any) -> bool:
    """Return whether the loss is the likelihood of a model of probabilities."""
    return isinstance(model.loss, Softmax) or bool(model.loss == Softmax.name)


class Probabilities(ScoringClassifier):
    """`predict_proba` of an estimator with the loss "softmax"; with any other it does not exist.

    Hinges look at the order of scores alone, and a top-k entropy at the likelihood of k guesses: nothing that
    could be made of their scores would be a probability.  With sample or class weights the probabilities are
    those of examples drawn with these weights.
    """

    @available_if(_is_softmax)
    def predict_log_proba(self, X: Any) -> Float64Array:
        """Return the logarithms of the probabilities of the classes, (rows, m)."""
        scores = self._scores(X)
        # Two columns are minus and plus the whole difference.
        return np.asarray(log_softmax(scores if scores.shape[1] > 2 else 0.5 * scores, axis=1))

    @available_if(_is_softmax)
    def predict_proba(self, X: Any) -> Float64Array:
        """Return the probabilities of the classes, (rows, m), in the order of `classes_`."""
        return np.asarray(np.exp(self.predict_log_proba(X)))
