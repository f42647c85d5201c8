"""Parts of the estimators: parameters and weights as `solve` takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight

from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import SolveResult
from topline.solvers.core.stopping import Status
from topline.solvers.counts import how_many
from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import Loss, make_loss
from topline.solvers.names import LOSS_RULES, LossRule
from topline.solvers.typing import Float64Array, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Examples:
    """What a classifier trains on: rows, classes, labels (n,) as places in these, weights, the loss and k."""

    X: Any
    classes: np.ndarray[Any, Any]
    labels: IntArray
    weights: Float64Array | None
    loss: Any
    k: int


@dataclass(frozen=True, eq=False)
class WarmStart:
    """Dual variables of the last fit; they are feasible for the same labels, weights and loss, whatever X."""

    loss: Loss
    labels: IntArray
    weights: Float64Array | None
    A: FloatArray

    def options(self, loss: Loss, labels: IntArray, weights: Float64Array | None) -> dict[str, Any]:
        """Return what makes `solve` start from them where they are feasible."""
        pairs = ((self.labels, labels), (self.weights, weights))
        if self.loss == loss and all(_same(before, now) for before, now in pairs):
            return {"duals": [(0, len(self.A), self.A)]}
        return {}


def _same(before: Any, now: Any) -> bool:
    return before is now if before is None or now is None else np.array_equal(before, now)


def seed_of(random_state: Any) -> int:
    """Return the seed of `solve` that scikit-learn's `random_state` stands for."""
    generator = check_random_state(random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(generator.randint(np.iinfo(np.int32).max))


def shortfall(result: SolveResult, tol: float) -> str:
    """Return a sentence on where a run ended short of its tolerance."""
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


def chosen_loss(loss: Any, k: int, weights: Any, margins: Any) -> Any:
    """Return the loss that a name stands for; a value is left to `solve` to check."""
    if isinstance(loss, str):
        takes_k = LOSS_RULES.get(loss, LossRule()).parameter == "k" or isinstance(weights, str)
        return make_loss(loss, k=k if takes_k else None, weights=weights, margins=margins)
    if weights is not None or margins is not None:
        raise InvalidProblemError(
            f"the loss {loss!r} is complete; leave weights and margins out or give its name"
        )
    return loss


def combined_weights(
    sample_weight: Float64Array | None, class_weight: Any, classes: np.ndarray[Any, Any], labels: IntArray
) -> Float64Array | None:
    """Return the weight of each example times that of its class; None where neither is given.

    "balanced" gives every class that counts the same share of the total weight.  InvalidProblemError where
    examples of only one class count.
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
