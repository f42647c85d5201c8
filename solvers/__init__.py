"""Solvers of the top-k family: losses, projections, Frank-Wolfe; no files, no cluster."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solvers.api import available_cores, solve
from solvers.block_stats import BlockStats, Node, TreeMerger, leaf, tree_merge, tree_total
from solvers.blocks import Block
from solvers.errors import (
    CertificateError,
    InvalidProblemError,
    NonFiniteError,
    SolverError,
    StateLostError,
    UnsupportedCombinationError,
)
from solvers.executor import DualRows, Executor, SerialExecutor, ThreadExecutor, block_bounds
from solvers.iteration import Callback
from solvers.kernel_cache import forget_stale_kernels
from solvers.kernel_features import KernelFeatures
from solvers.kernel_functions import (
    ChiSquaredKernel,
    Kernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    RBFKernel,
)
from solvers.kernel_problem import KernelResult
from solvers.kernel_registry import KERNELS, kernel_from_dict, make_kernel
from solvers.label_sets import LabelSets
from solvers.losses import (
    LOSSES,
    Loss,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    OneVsAll,
    Softmax,
    StructuredHinge,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    TruncatedTopKEntropy,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    loss_from_dict,
    make_loss,
)
from solvers.method_registry import METHODS
from solvers.orders import Commit, EvaluateOrder, OracleOrder, Order, RebuildOrder
from solvers.path import regularisation_path
from solvers.problem import Problem
from solvers.rank_weights import exponential, flat, linear
from solvers.risks import AverageTopK, MeanRisk, Risk
from solvers.rows import RowSource
from solvers.state import IterationRecord, SolveResult, SolverState
from solvers.stopping import Status, StoppingCriteria

if TYPE_CHECKING:
    from solvers.average_top.estimators import AverageTopKClassifier, AverageTopKRegressor
    from solvers.estimators import TopKClassifier
    from solvers.multilabel_estimator import MultilabelClassifier
    from solvers.multitask.estimator import MultitaskClassifier
    from solvers.privileged import LearnedWeightsSVC, SVMPlusClassifier, WeightedSVC

__all__ = [
    "KERNELS",
    "LOSSES",
    "METHODS",
    "AverageTopK",
    "AverageTopKClassifier",
    "AverageTopKRegressor",
    "Block",
    "BlockStats",
    "Callback",
    "CertificateError",
    "ChiSquaredKernel",
    "Commit",
    "DualRows",
    "EvaluateOrder",
    "Executor",
    "InvalidProblemError",
    "IterationRecord",
    "Kernel",
    "KernelFeatures",
    "KernelResult",
    "LabelSets",
    "LearnedWeightsSVC",
    "LinearKernel",
    "Loss",
    "MaxHinge",
    "MeanRisk",
    "MultilabelClassifier",
    "MultilabelHinge",
    "MultilabelSoftmax",
    "MultitaskClassifier",
    "Node",
    "NonFiniteError",
    "OneVsAll",
    "OracleOrder",
    "Order",
    "PolynomialKernel",
    "PrecomputedKernel",
    "Problem",
    "RBFKernel",
    "RebuildOrder",
    "Risk",
    "RowSource",
    "SVMPlusClassifier",
    "SerialExecutor",
    "Softmax",
    "SolveResult",
    "SolverError",
    "SolverState",
    "StateLostError",
    "Status",
    "StoppingCriteria",
    "StructuredHinge",
    "ThreadExecutor",
    "TopKClassifier",
    "TopKEntropy",
    "TopKHinge",
    "TopKOthersHinge",
    "TreeMerger",
    "TruncatedTopKEntropy",
    "UnsupportedCombinationError",
    "UsunierHinge",
    "WeightedSVC",
    "WeightedTopKHinge",
    "WeightedUsunierHinge",
    "available_cores",
    "block_bounds",
    "exponential",
    "flat",
    "kernel_from_dict",
    "leaf",
    "linear",
    "loss_from_dict",
    "make_kernel",
    "make_loss",
    "regularisation_path",
    "solve",
    "tree_merge",
    "tree_total",
]


#: Estimators are loaded when first asked for: scikit-learn would double the time of this import.
_ESTIMATORS = {
    "AverageTopKClassifier": "solvers.average_top.estimators",
    "AverageTopKRegressor": "solvers.average_top.estimators",
    "MultilabelClassifier": "solvers.multilabel_estimator",
    "TopKClassifier": "solvers.estimators",
    "LearnedWeightsSVC": "solvers.privileged",
    "MultitaskClassifier": "solvers.multitask.estimator",
    "SVMPlusClassifier": "solvers.privileged",
    "WeightedSVC": "solvers.privileged",
}


forget_stale_kernels(Path(__file__).parent)


def __getattr__(name: str) -> Any:
    """Load an estimator."""
    if name in _ESTIMATORS:
        return getattr(import_module(_ESTIMATORS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
