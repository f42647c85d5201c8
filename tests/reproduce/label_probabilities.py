"""Instance weights from an estimate of P(Y | X), as in section 3.5.2 of Lapin's thesis.

An example whose label is likely weighs more than one on the wrong side: c_i = P(Y = y_i | X = x_i)^tau, with
tau = 0 for the plain SVM.  The estimate may come from annotators or, without any, from Nadaraya and Watson's
regression of the labels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from topline.solvers.core.inputs import number_from_zero, positive_number
from topline.solvers.errors import InvalidProblemError
from topline.solvers.privileged.checks import finite_vector
from topline.solvers.typing import Float64Array

#: Bandwidths are tried as these multiples of the median distance.
_MULTIPLES = 2.0 ** np.arange(-5.0, 2.0)


def probability_weights(eta: Any, y: Any, tau: float = 1.0) -> Float64Array:
    """Return c_i = ((1 + y_i eta_i) / 2)^tau for eta = E(Y | X) (n,) in [-1, 1] and y of -1 and +1: (3.18).

    Raises InvalidProblemError for an eta outside [-1, 1] or a tau that is negative or no number.
    """
    y = np.asarray(y, dtype=np.float64)
    eta = finite_vector("eta", eta, len(y))
    if float(np.abs(eta).max(initial=0.0)) > 1.0 + 1e-12:
        raise InvalidProblemError(
            f"eta reaches {eta[np.argmax(np.abs(eta))]:g}; give E(Y | X) = 2 P(Y = 1 | X) - 1 in [-1, 1]"
        )
    likely = np.clip(0.5 * (1.0 + y * eta), 0.0, 1.0)
    return np.asarray(likely ** number_from_zero("tau", tau))


def nadaraya_watson(X: Any, y: Any, X_new: Any, bandwidth: float) -> Float64Array:
    """Return eta(x) = sum_i K_h(x - x_i) y_i / sum_i K_h(x - x_i) for the rows x of X_new (r, d): (3.27).

    K_h(z) = exp(-|z|^2 / (2 h^2)).  Far from every example the nearest decide, as the limit says.
    """
    h = positive_number("bandwidth", bandwidth)
    return _regression(_squares(X_new, X), np.asarray(y, dtype=np.float64), h)


def best_bandwidth(X: Any, y: Any, X_validation: Any, y_validation: Any, bandwidths: Any = None) -> float:
    """Return the bandwidth whose regression has the least squared error on validation examples.

    By default the median distance times powers of 2 between 1/32 and 2 are tried.
    """
    squares = _squares(X_validation, X)
    y = np.asarray(y, dtype=np.float64)
    truth = np.asarray(y_validation, dtype=np.float64)
    if bandwidths is None:
        median = math.sqrt(float(np.median(squares)))
        bandwidths = (median if median > 0.0 else 1.0) * _MULTIPLES
    tried = [positive_number("bandwidth", float(h)) for h in bandwidths]
    if not tried:
        raise InvalidProblemError("there are no bandwidths to choose from; give at least one")
    errors = [float(np.mean((_regression(squares, y, h) - truth) ** 2)) for h in tried]
    return tried[int(np.argmin(errors))]


def _squares(A: Any, B: Any) -> Float64Array:
    """Return |a - b|^2 of all rows."""
    A, B = np.asarray(A, dtype=np.float64), np.asarray(B, dtype=np.float64)
    centre = B.mean(axis=0)
    A, B = A - centre, B - centre
    squares = np.einsum("ij,ij->i", A, A)[:, None] + np.einsum("ij,ij->i", B, B) - 2.0 * (A @ B.T)
    return np.asarray(np.maximum(squares, 0.0))


def _regression(squares: Float64Array, y: Float64Array, h: float) -> Float64Array:
    exponents = squares / (-2.0 * h * h)
    exponents -= exponents.max(axis=1, keepdims=True)
    kernel = np.exp(exponents)
    return np.asarray(kernel @ y / kernel.sum(axis=1))
