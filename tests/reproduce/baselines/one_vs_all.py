"""One binary classifier a class by LIBLINEAR, for the columns "OVA SVM" and "OVA LR" of the tables.

`TopKClassifier(loss="one_vs_all_hinge")` has the same objective, with a certificate; these are here as what
the papers ran.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from topline.solvers.core.problem import checked_rows
from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


@dataclass(frozen=True, eq=False)
class LinearScores:
    """Scores X W + b: `W` (d, m), `b` (m,), classes (m,) in the order of the columns.

    `converged` says whether every class met LIBLINEAR's tolerance within its budget.
    """

    W: Float64Array
    b: Float64Array
    classes: np.ndarray[Any, Any]
    converged: bool

    def scores(self, X: Any) -> Float64Array:
        """Return the scores (rows, m) of X (rows, d), dense or CSR."""
        return np.asarray(X @ self.W + self.b)


def fit_one_vs_all(
    X: Any,
    y: Any,
    loss: Literal["hinge", "logistic"] = "hinge",
    C: float = 1.0,
    *,
    tol: float = 1e-4,
    max_iter: int = 1000,
    seed: int = 0,
) -> LinearScores:
    """Train min 1/2 (|w|^2 + b^2) + C sum_i phi(z_i (<w, x_i> + b)) for each class, z = 1 for it and -1 else.

    X is (n, d), dense or CSR, and y (n,) holds labels of two or more classes, or is an indicator (n, m) of
    the labels that each example has ("binary relevance"); then classes are column numbers, and a label that
    all examples have, or none, scores 1 or -1 everywhere.  "hinge" is LinearSVC's, phi(t) = max(0, 1 - t),
    and "logistic" LogisticRegression's, log(1 + exp(-t)).

    Raises InvalidProblemError for another loss or a single class.
    """
    X, y = checked_rows(X), y.toarray() if is_sparse(y) else np.asarray(y)
    several = y.ndim == 2
    classes = np.arange(y.shape[1]) if several else np.unique(y)
    if loss not in ("hinge", "logistic") or len(classes) < 2:
        raise InvalidProblemError(
            f"one-vs-all was asked for with the loss {loss!r} and {len(classes)} classes; use hinge or"
            " logistic, and examples of at least two classes"
        )
    # scikit-learn takes longer to import than the rest of this room.
    from sklearn.base import clone
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    kind = LinearSVC(loss="hinge") if loss == "hinge" else LogisticRegression(solver="liblinear")
    kind.set_params(C=C, tol=tol, max_iter=max_iter, random_state=seed)
    W, b, converged = np.zeros((X.shape[1], len(classes))), np.zeros(len(classes)), True
    for column, label in enumerate(classes):
        target = np.where(y[:, column] > 0 if several else y == label, 1, -1)
        if abs(int(target.sum())) == len(target):
            b[column] = float(target[0])
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model = clone(kind).fit(X, target)
        converged = converged and not any(issubclass(w.category, ConvergenceWarning) for w in caught)
        W[:, column], b[column] = model.coef_[0], model.intercept_[0]
    return LinearScores(W, b, classes, converged)
