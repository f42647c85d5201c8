"""Average top-k loss for binary classification and regression, certified.

The mean of the k largest losses replaces the mean of all.  `minimise` and `minimise_with_kernel`, the
AT_k-SVM, return the optimum and a lower bound; `problem` and `solving` derive them.

Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017.
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
