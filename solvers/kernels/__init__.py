"""Kernels of the SVM: k(x, y) as a value, its matrix and factor, and the problem that they make.

A problem with a kernel is solved in the features of the factor and certified on the matrix itself.  Functions
compiled by Numba are not meant by the word.
"""

from __future__ import annotations

from topline.solvers.kernels.functions import (
    ChiSquaredKernel,
    Gamma,
    Kernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    RBFKernel,
)
from topline.solvers.kernels.low_rank import (
    KernelFeatures,
    factor,
    gram_matrix,
    is_precomputed,
)
from topline.solvers.kernels.problem import (
    KernelExpansion,
    KernelResult,
    judged_by_gap,
    solve_with_kernel,
    values_on_matrix,
)
from topline.solvers.kernels.registry import (
    KERNELS,
    WithConstant,
    as_kernel,
    kernel_from_dict,
    make_kernel,
)

__all__ = [
    "KERNELS",
    "ChiSquaredKernel",
    "Gamma",
    "Kernel",
    "KernelExpansion",
    "KernelFeatures",
    "KernelResult",
    "LinearKernel",
    "PolynomialKernel",
    "PrecomputedKernel",
    "RBFKernel",
    "WithConstant",
    "as_kernel",
    "factor",
    "gram_matrix",
    "is_precomputed",
    "judged_by_gap",
    "kernel_from_dict",
    "make_kernel",
    "solve_with_kernel",
    "values_on_matrix",
]
