"""Kernels by name, for callers, configurations and model records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar

from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels.combined import FeatureGroup, ProductKernel, SumKernel
from topline.solvers.kernels.functions import (
    ChiSquaredKernel,
    IntersectionKernel,
    Kernel,
    LaplacianKernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    RBFKernel,
)
from topline.solvers.kernels.gammas import Gamma
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class WithConstant:
    """k(x, y) + 1: the features of k and one that is always 1, which makes a bias."""

    kernel: Kernel
    name: ClassVar[str] = "with_constant"

    def resolved(self, X: Any) -> WithConstant:
        """Resolve the kernel inside."""
        return WithConstant(self.kernel.resolved(X))

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) + 1."""
        return self.kernel.matrix(X, Y) + 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "kernel": self.kernel.to_dict()}


#: Every kernel that a name stands for.
KERNELS: Mapping[str, type[Any]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            LinearKernel,
            RBFKernel,
            PolynomialKernel,
            ChiSquaredKernel,
            LaplacianKernel,
            IntersectionKernel,
            PrecomputedKernel,
        )
    }
)


#: Kernels made of others.
COMBINED: Mapping[Any, Any] = MappingProxyType({kind.name: kind for kind in (SumKernel, ProductKernel)})


def make_kernel(
    name: str, gamma: Gamma = None, degree: int | None = None, coef0: float | None = None
) -> Kernel:
    """Make a kernel from what a command line or configuration says; what it does not take is refused.

    Raises InvalidProblemError for an unknown name and for a parameter that the kernel does not take.

    Examples
    --------
    >>> from topline.solvers.kernels import make_kernel
    >>> make_kernel("rbf", gamma=0.5)
    RBFKernel(gamma=0.5)
    """
    kind = _look_up(name)
    parameters = {"gamma": gamma, "degree": degree, "coef0": coef0}
    given = {key: value for key, value in parameters.items() if value is not None}
    surplus = sorted(set(given) - {field.name for field in fields(kind)})
    if surplus:
        raise InvalidProblemError(f"the kernel {name} takes no {' and no '.join(surplus)}; leave it out")
    kernel: Kernel = kind(**given)
    return kernel


def as_kernel(kernel: Any) -> Kernel:
    """Return a kernel from its name or itself."""
    if isinstance(kernel, str):
        return make_kernel(kernel)
    if isinstance(kernel, type) or not isinstance(kernel, Kernel):
        raise InvalidProblemError(
            f"the kernel is {kernel!r}; give one of {', '.join(KERNELS)} or a value such as RBFKernel(0.5)"
        )
    return kernel


def is_positive(kernel: Kernel) -> bool:
    """Whether a kernel is an inner product by its formula; of any other K itself has to tell."""
    inner = kernel.kernel if isinstance(kernel, WithConstant) else kernel
    if isinstance(inner, SumKernel | ProductKernel):
        return all(is_positive(group.kernel) for group in inner.groups)
    return type(inner) in KERNELS.values() and not isinstance(inner, PrecomputedKernel)


def kernel_from_dict(record: Mapping[str, Any]) -> Kernel:
    """Make the kernel that `Kernel.to_dict` described; InvalidProblemError where it is not one of ours."""
    parameters = dict(record)
    name = parameters.pop("name", None)
    if name == WithConstant.name and set(parameters) == {"kernel"}:
        return WithConstant(kernel_from_dict(parameters["kernel"]))
    if name in COMBINED and set(parameters) == {"groups"}:
        groups = ({**group, "kernel": kernel_from_dict(group["kernel"])} for group in parameters["groups"])
        combined: Kernel = COMBINED[name](tuple(FeatureGroup(**group) for group in groups))
        return combined
    kind = _look_up(name)
    expected = {field.name for field in fields(kind)}
    if set(parameters) != expected:
        raise InvalidProblemError(
            f"the kernel {name!r} is described by {sorted(parameters)}; it takes {sorted(expected)}"
        )
    kernel: Kernel = kind(**parameters)
    return kernel


def _look_up(name: Any) -> type[Any]:
    if name not in KERNELS:
        raise InvalidProblemError(f"there is no kernel named {name!r}; use one of {', '.join(KERNELS)}")
    return KERNELS[name]
