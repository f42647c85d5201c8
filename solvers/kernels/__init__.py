"""SVM kernels: k(x, y) as a value, its matrix and factor, and the kernel problem.

A problem with a kernel is solved in the features of the factor and certified on the matrix itself.  A kernel
never means a compiled function here.
"""

from __future__ import annotations

from topline.solvers.kernels.functions import (
    KERNELS,
    ChiSquaredKernel,
    FeatureGroup,
    Gamma,
    IntersectionKernel,
    Kernel,
    LaplacianKernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    ProductKernel,
    RBFKernel,
    SumKernel,
    WithConstant,
    as_kernel,
    is_positive,
    kernel_from_dict,
    make_kernel,
)
from topline.solvers.kernels.problem import (
    KernelExpansion,
    KernelFeatures,
    KernelResult,
    certified_on_matrix,
    factor,
    gram_matrix,
    in_memory,
    is_precomputed,
    judged_by_gap,
    values_on_matrix,
)
