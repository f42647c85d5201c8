"""Few examples: SVM+ with privileged features, SVMs with instance weights, and learned weights.

Functions of kernel matrices are here; their scikit-learn faces `SVMPlusClassifier`, `WeightedSVC` and
`LearnedWeightsSVC` come from `topline`.  Problems are small by nature, and solved to a
duality gap at the limit of float64 by one interior point method (`interior_point`).
"""

from __future__ import annotations

from topline.solvers.privileged.svm_plus import SVMPlusResult, solve_svm_plus
from topline.solvers.privileged.weight_learning import (
    LearnedWeights,
    MarginLoss,
    TwiceSmoothHinge,
    hypergradient,
    learn_weights,
    solve_lower,
)
from topline.solvers.privileged.weighted_svm import WeightedSVMResult, solve_weighted_svm
