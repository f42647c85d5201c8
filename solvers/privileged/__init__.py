"""Few examples: SVM+ with privileged features, SVMs with instance weights, and learned weights.

Pure functions on kernel matrices are here; `SVMPlusClassifier`, `WeightedSVC` and `LearnedWeightsSVC` are
their scikit-learn faces, loaded when they are asked for.  Problems are small by nature, and solved to a
duality gap at the limit of float64 by one interior point method (`interior_point`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topline.solvers.privileged.equivalence import (
    PrivilegedConstruction,
    most_favourable_weights,
    rho,
    svm_plus_from_weights,
    weights_from_svm_plus,
)
from topline.solvers.privileged.margin_losses import Logistic, MarginLoss, TwiceSmoothHinge
from topline.solvers.privileged.svm_plus import SVMPlusResult, solve_svm_plus
from topline.solvers.privileged.weight_learning import (
    LearnedWeights,
    hypergradient,
    learn_weights,
    solve_lower,
)
from topline.solvers.privileged.weighted_svm import WeightedSVMResult, solve_weighted_svm

if TYPE_CHECKING:
    from topline.solvers.privileged.estimators import SVMPlusClassifier, WeightedSVC
    from topline.solvers.privileged.learned_weights import LearnedWeightsSVC

__all__ = [
    "LearnedWeights",
    "LearnedWeightsSVC",
    "Logistic",
    "MarginLoss",
    "PrivilegedConstruction",
    "SVMPlusClassifier",
    "SVMPlusResult",
    "TwiceSmoothHinge",
    "WeightedSVC",
    "WeightedSVMResult",
    "hypergradient",
    "learn_weights",
    "most_favourable_weights",
    "rho",
    "solve_lower",
    "solve_svm_plus",
    "solve_weighted_svm",
    "svm_plus_from_weights",
    "weights_from_svm_plus",
]


def __getattr__(name: str) -> Any:
    """Load the estimators when they are first asked for, as `solvers` does."""
    if name in ("SVMPlusClassifier", "WeightedSVC"):
        from topline.solvers.privileged import estimators

        return getattr(estimators, name)
    if name == "LearnedWeightsSVC":
        from topline.solvers.privileged.learned_weights import LearnedWeightsSVC

        return LearnedWeightsSVC
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
