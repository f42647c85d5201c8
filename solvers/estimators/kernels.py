"""The kernel half of the estimators: which kernel is meant, and what a fit with one leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np

from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels.factor import is_precomputed, plain
from topline.solvers.kernels.functions import ChiSquaredKernel, Gamma, Kernel, LinearKernel, WithConstant
from topline.solvers.kernels.problem import KernelExpansion
from topline.solvers.kernels.registry import as_kernel, make_kernel
from topline.solvers.typing import Float64Array

#: What a fit with a kernel sets and a fit without one lacks.
KERNEL_ATTRIBUTES = ("kernel_", "support_", "dual_coef_", "_expansion")


class KernelAttributes:
    """Fitted attributes of an estimator with kernels; a nonlinear one has no `coef_`."""

    kernel: str | Kernel | None
    gamma: Gamma
    degree: int | None
    coef0: float | None
    fit_intercept: bool

    def __getattr__(self, name: str) -> Any:
        expansion = self.__dict__.get("_expansion")
        if name == "coef_" and expansion is not None:
            raise AttributeError(
                f"the kernel {plain(expansion.kernel).name} has no weights of single features; take"
                " dual_coef_, the coefficients of the training rows support_"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _chosen_kernel(self) -> Kernel | None:
        """Return the kernel that the parameters mean, None for the features themselves."""
        given = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        extra = [name for name, value in given.items() if value is not None]
        if isinstance(self.kernel, str):
            return make_kernel(self.kernel, **given)  # type: ignore[arg-type]
        if extra:
            whole = "there is no kernel" if self.kernel is None else f"the kernel {self.kernel!r} is complete"
            raise InvalidProblemError(
                f"{whole}, and {extra[0]} is {given[extra[0]]!r}; leave it out or name a kernel that takes it"
            )
        return None if self.kernel is None else as_kernel(self.kernel)

    def _kernel_tags(self, tags: Any) -> Any:
        """Say in scikit-learn's tags what the kernel takes; a kernel that is none takes anything."""
        try:
            kernel = self._chosen_kernel()
        except InvalidProblemError:
            return tags
        if kernel is not None:
            tags.input_tags.pairwise = is_precomputed(kernel)
            if isinstance(kernel, ChiSquaredKernel):
                tags.input_tags.sparse, tags.input_tags.positive_only = False, True
        return tags

    def _keep_expansion(self, expansion: KernelExpansion, *, two_as_one: bool = True) -> None:
        """Set the attributes of a fit with a kernel; `two_as_one` makes one column of two classes."""
        kernel, C = plain(expansion.kernel), expansion.coefficients
        self._expansion = expansion
        self.kernel_ = kernel
        self.support_ = expansion.support
        signed = one_of_two(C) if two_as_one else C
        self.dual_coef_ = np.ascontiguousarray(signed.T)
        self.intercept_ = signed.sum(axis=0) if self.fit_intercept else np.zeros(signed.shape[1])
        self.__dict__.pop("coef_", None)
        if isinstance(kernel, LinearKernel):
            rows = expansion.rows
            weights: Any = rows.T @ signed if is_sparse(rows) else rows.T.astype(np.float64) @ signed
            self.coef_ = np.ascontiguousarray(np.asarray(weights, dtype=np.float64).T)

    def _forget_expansion(self) -> None:
        """Drop what an earlier fit with a kernel left."""
        for name in KERNEL_ATTRIBUTES:
            self.__dict__.pop(name, None)


def with_intercept(kernel: Kernel, *, fit_intercept: bool) -> Kernel:
    """Return the kernel whose features end with a constant, where a bias is fitted."""
    return WithConstant(kernel) if fit_intercept else kernel


def one_of_two(values: Float64Array) -> Float64Array:
    """Return columns of classes (rows, m); of two classes the second minus the first (rows, 1)."""
    return values if values.shape[1] > 2 else values[:, 1:] - values[:, :1]
