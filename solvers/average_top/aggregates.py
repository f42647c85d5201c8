"""The average of the k largest losses, its variational form, and what C means beside it.

    AT_k(l) = (1/k) sum_{i <= k} l_[i] = max { <p, l> : 0 <= p_i <= 1/k, sum p <= 1 },    l >= 0,

for real k in [1, n]: of k = 7.5 the eighth largest counts half.  k = n is the average, k = 1 the maximum.
Lemma 1 writes it as a minimum,

    AT_k(l) = (n/k) min_{t >= 0} { (1/n) sum_i [l_i - t]_+ + (k/n) t },

whose braces are eq. 2.  The paper's "proportional" hides the factor: eq. 3 at C_3 has the minimiser of

    P(w) = AT_k(l(w)) + |w|^2 / (2 C)    at C = C_3 k/n,

so that a fixed C_3 regularises less and less as k grows.  This package means P and its own C throughout; the
authors' released code does too.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 1 to 3.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


def checked_k(k: Any, n: int) -> float:
    """Return k as a float in [1, n]; InvalidProblemError otherwise."""
    if isinstance(k, bool) or not isinstance(k, Real) or not 1.0 <= float(k) <= n:
        raise InvalidProblemError(f"k is {k!r}; give a number from 1 to the {n} examples that there are")
    return float(k)


def top_weights(losses: Float64Array, k: float) -> Float64Array:
    """Return p (n,) with <p, losses> = AT_k: 1/k on the largest, the rest of k on the next; ties by place."""
    k = checked_k(k, len(losses))
    whole = math.floor(k)
    p = np.zeros(len(losses))
    # A stable sort only of what may count: all that are at least as large as the last.
    last = kth_largest(losses, k)
    candidates = np.flatnonzero(losses >= last)
    order = candidates[np.argsort(-losses[candidates], kind="stable")]
    p[order[:whole]] = 1.0 / k
    if whole < k:
        p[order[whole]] = (k - whole) / k
    return p


def kth_largest(losses: Float64Array, k: float) -> float:
    """Return l_[ceil k], the smallest loss that counts: the top-k loss, and a minimiser t of eq. 2."""
    place = len(losses) - math.ceil(checked_k(k, len(losses)))
    return float(np.partition(losses, place)[place])


def average_top(losses: Float64Array, k: float) -> float:
    """Return AT_k, the average of the k largest losses (n,)."""
    k = checked_k(k, len(losses))
    t = kth_largest(losses, k)
    return t + float(np.maximum(losses - t, 0.0).sum()) / k


def variational(losses: Float64Array, k: float, t: float) -> float:
    """Return the braces of eq. 2, (1/n) sum [l_i - t]_+ + (k/n) t; the minimum over t >= 0 is (k/n) AT_k."""
    return float(np.maximum(losses - t, 0.0).mean()) + checked_k(k, len(losses)) / len(losses) * t


def C_to_equation_3(C: float, k: float, n: int) -> float:  # noqa: N802 - C is the name of the mathematics
    """Return the C at which eq. 3 has the minimiser that P has at this C: C n/k."""
    return C * n / checked_k(k, n)


def C_from_equation_3(C: float, k: float, n: int) -> float:  # noqa: N802
    """Return the C at which P has the minimiser that eq. 3 has at this C: C k/n."""
    return C * checked_k(k, n) / n


def C_from_svm(C: float, n: int) -> float:  # noqa: N802
    """Return the C at which P has, for k = n, the minimiser of |w|^2 / 2 + C sum_i l_i: n C.

    That is the C of scikit-learn's LinearSVC and of TopKClassifier.
    """
    return C * n
