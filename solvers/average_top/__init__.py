"""Average top-k loss for binary classification and regression, certified.

The mean of the k largest losses replaces the mean of all:

    P(w) = (1/k) sum_{i <= k} l_[i](<w, x_i>; y_i) + |w|^2 / (2 C)

    minimise(X, y, "hinge", k, C)    the optimum, with a certified lower bound            (`solving`)
    minimise_with_kernel(...)        the same over the functions of a kernel: AT_k-SVM    (`solving`)
    average_top, C_from_svm, ...     the aggregate, and conversions of C                  (`problem`)

Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017.  The docstrings of
`problem` and `solving` derive bounds and methods.
"""

from __future__ import annotations

from topline.solvers.average_top.problem import (
    INDIVIDUAL_LOSSES,
    AverageTopProblem,
    C_from_equation_3,
    C_from_svm,
    C_to_equation_3,
    average_top,
    individual_loss,
    kth_largest,
    top_weights,
)
from topline.solvers.average_top.solving import minimise, minimise_with_kernel
