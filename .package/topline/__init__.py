"""Certified top-k classifiers on frozen features: train, certify, evaluate and serve them.

The public names of the Python interface; each is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topline.pipeline.export.estimator import load_estimator
    from topline.pipeline.telemetry import view_run
    from topline.solvers.average_top.estimators import AverageTopKClassifier, AverageTopKRegressor
    from topline.solvers.core.feature_maps import ClassEmbeddings
    from topline.solvers.core.problem import AverageTopK
    from topline.solvers.core.state import SolveResult, Status, StoppingCriteria
    from topline.solvers.errors import (
        CertificateError,
        InvalidProblemError,
        NonFiniteError,
        SolverError,
        UnsupportedCombinationError,
    )
    from topline.solvers.estimators.multilabel import MultilabelClassifier
    from topline.solvers.estimators.path import RegularisationPath, TopKClassifierCV
    from topline.solvers.estimators.topk import TopKClassifier
    from topline.solvers.executors import SerialExecutor, ThreadExecutor
    from topline.solvers.kernels.functions import (
        ChiSquaredKernel,
        FeatureGroup,
        IntersectionKernel,
        Kernel,
        LaplacianKernel,
        LinearKernel,
        PolynomialKernel,
        PrecomputedKernel,
        ProductKernel,
        RBFKernel,
        SumKernel,
    )
    from topline.solvers.losses import (
        LDRKL,
        LOSSES,
        Loss,
        MaxHinge,
        MultilabelHinge,
        MultilabelSoftmax,
        OneVsAll,
        PolyhedralTopK,
        Softmax,
        StructuredHinge,
        SumExponential,
        TopKEntropy,
        TopKHinge,
        TopKOthersHinge,
        TruncatedTopKEntropy,
        UsunierHinge,
        WeightedTopKHinge,
        WeightedUsunierHinge,
    )
    from topline.solvers.losses.base import exponential, flat, linear
    from topline.solvers.losses.label_sets import LabelSets
    from topline.solvers.losses.margins import ldam_margins, logit_adjusted_margins, tree_margins
    from topline.solvers.multitask.estimator import MultitaskClassifier
    from topline.solvers.privileged.estimators import LearnedWeightsSVC, SVMPlusClassifier, WeightedSVC
    from topline.solvers.run.api import PrintProgress, regularisation_path, solve, solve_with_features
    from topline.storage.stores import open_store

_NAMES_OF = {
    "topline.pipeline.export.estimator": ("load_estimator",),
    "topline.pipeline.telemetry": ("view_run",),
    "topline.solvers.average_top.estimators": ("AverageTopKClassifier", "AverageTopKRegressor"),
    "topline.solvers.core.problem": ("AverageTopK",),
    "topline.solvers.core.state": ("SolveResult", "Status", "StoppingCriteria"),
    "topline.solvers.core.feature_maps": ("ClassEmbeddings",),
    "topline.solvers.errors": (
        "CertificateError",
        "InvalidProblemError",
        "NonFiniteError",
        "SolverError",
        "UnsupportedCombinationError",
    ),
    "topline.solvers.estimators.multilabel": ("MultilabelClassifier",),
    "topline.solvers.estimators.path": ("RegularisationPath", "TopKClassifierCV"),
    "topline.solvers.estimators.topk": ("TopKClassifier",),
    "topline.solvers.executors": ("SerialExecutor", "ThreadExecutor"),
    "topline.solvers.kernels.functions": (
        "ChiSquaredKernel",
        "FeatureGroup",
        "IntersectionKernel",
        "Kernel",
        "LaplacianKernel",
        "LinearKernel",
        "PolynomialKernel",
        "PrecomputedKernel",
        "ProductKernel",
        "RBFKernel",
        "SumKernel",
    ),
    "topline.solvers.losses": (
        "LDRKL",
        "LOSSES",
        "Loss",
        "MaxHinge",
        "MultilabelHinge",
        "MultilabelSoftmax",
        "OneVsAll",
        "PolyhedralTopK",
        "Softmax",
        "StructuredHinge",
        "SumExponential",
        "TopKEntropy",
        "TopKHinge",
        "TopKOthersHinge",
        "TruncatedTopKEntropy",
        "UsunierHinge",
        "WeightedTopKHinge",
        "WeightedUsunierHinge",
    ),
    "topline.solvers.losses.label_sets": ("LabelSets",),
    "topline.solvers.losses.margins": ("ldam_margins", "logit_adjusted_margins", "tree_margins"),
    "topline.solvers.losses.base": ("exponential", "flat", "linear"),
    "topline.solvers.multitask.estimator": ("MultitaskClassifier",),
    "topline.solvers.privileged.estimators": ("LearnedWeightsSVC", "SVMPlusClassifier", "WeightedSVC"),
    "topline.solvers.run.api": ("PrintProgress", "regularisation_path", "solve", "solve_with_features"),
    "topline.storage.stores": ("open_store",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "LDRKL",
    "LOSSES",
    "AverageTopK",
    "AverageTopKClassifier",
    "AverageTopKRegressor",
    "CertificateError",
    "ChiSquaredKernel",
    "ClassEmbeddings",
    "FeatureGroup",
    "IntersectionKernel",
    "InvalidProblemError",
    "Kernel",
    "LabelSets",
    "LaplacianKernel",
    "LearnedWeightsSVC",
    "LinearKernel",
    "Loss",
    "MaxHinge",
    "MultilabelClassifier",
    "MultilabelHinge",
    "MultilabelSoftmax",
    "MultitaskClassifier",
    "NonFiniteError",
    "OneVsAll",
    "PolyhedralTopK",
    "PolynomialKernel",
    "PrecomputedKernel",
    "PrintProgress",
    "ProductKernel",
    "RBFKernel",
    "RegularisationPath",
    "SVMPlusClassifier",
    "SerialExecutor",
    "Softmax",
    "SolveResult",
    "SolverError",
    "Status",
    "StoppingCriteria",
    "StructuredHinge",
    "SumExponential",
    "SumKernel",
    "ThreadExecutor",
    "TopKClassifier",
    "TopKClassifierCV",
    "TopKEntropy",
    "TopKHinge",
    "TopKOthersHinge",
    "TruncatedTopKEntropy",
    "UnsupportedCombinationError",
    "UsunierHinge",
    "WeightedSVC",
    "WeightedTopKHinge",
    "WeightedUsunierHinge",
    "exponential",
    "flat",
    "ldam_margins",
    "linear",
    "load_estimator",
    "logit_adjusted_margins",
    "open_store",
    "regularisation_path",
    "solve",
    "solve_with_features",
    "tree_margins",
    "view_run",
]


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
