"""Few examples: SVM+ with privileged features, SVMs with instance weights, and learned weights.

This room works on kernel matrices; `topline` exports the scikit-learn estimators `SVMPlusClassifier`,
`WeightedSVC` and `LearnedWeightsSVC`.  Problems are small, and solved to a duality gap at the limit of
float64 by one interior point method (`interior_point`).
"""

from __future__ import annotations

from topline.solvers.privileged.machines import solve_svm_plus, solve_weighted_svm
from topline.solvers.privileged.weight_learning import (
    TwiceSmoothHinge,
    hypergradient,
    learn_weights,
    solve_lower,
)
