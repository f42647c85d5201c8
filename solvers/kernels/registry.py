"""Sums and products of kernels, and every kernel by name for callers, configurations and model records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels.functions import (
    ChiSquaredKernel,
    Gamma,
    IntersectionKernel,
    Kernel,
    LaplacianKernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    RBFKernel,
)
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class FeatureGroup:
    """A kernel over the features [start, stop) (to the last if `stop` is None), times a weight > 0.

    Examples
    --------
    >>> from topline import FeatureGroup, RBFKernel
    >>> FeatureGroup(RBFKernel(0.5), stop=64).weight
    1.0
    """

    kernel: Kernel
    start: int = 0
    stop: int | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0.0):
            raise InvalidProblemError(f"the weight of a group of features is {self.weight}; give one above 0")
        if self.start < 0 or (self.stop is not None and self.stop <= self.start):
            raise InvalidProblemError(
                f"a group of features goes from {self.start} to {self.stop}; give one that is not empty"
            )

    @property
    def features(self) -> slice:
        """The columns of the group."""
        return slice(self.start, self.stop)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "start": self.start,
            "stop": self.stop,
            "weight": self.weight,
            "kernel": self.kernel.to_dict(),
        }


@dataclass(frozen=True)
class _Combined:
    """Base of sums and products."""

    groups: tuple[FeatureGroup, ...]
    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not self.groups:
            raise InvalidProblemError(f"the {self.name} of kernels has no group; give at least one")

    def resolved(self, X: Any) -> Any:
        """Resolve every kernel on its own features of the training rows."""
        resolved = (replace(g, kernel=g.kernel.resolved(_Columns(X, g.features))) for g in self.groups)
        return replace(self, groups=tuple(resolved))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "groups": [group.to_dict() for group in self.groups]}

    def _values(self, X: Any, Y: Any) -> Iterator[Float64Array]:
        for group in self.groups:
            left = X[:, group.features]
            if left.shape[1] == 0 or (group.stop or 0) > X.shape[1]:
                raise InvalidProblemError(
                    f"a group of features goes from {group.start} to {group.stop}, and there are {X.shape[1]}"
                )
            right = left if Y is X else Y[:, group.features]
            yield group.weight * group.kernel.matrix(left, right)


class SumKernel(_Combined):
    """k(x, y) = sum over groups g of weight_g k_g(x_g, y_g).

    Examples
    --------
    >>> import numpy as np
    >>> from topline import FeatureGroup, LinearKernel, RBFKernel, SumKernel
    >>> kernel = SumKernel((FeatureGroup(RBFKernel(1.0), stop=1), FeatureGroup(LinearKernel(), start=1)))
    >>> kernel.matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.3679],
           [0.3679, 2.    ]])
    """

    name: ClassVar[str] = "sum"

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return the sum of the groups' values."""
        return np.asarray(sum(self._values(X, Y)))


class ProductKernel(_Combined):
    """k(x, y) = product over groups g of weight_g k_g(x_g, y_g), an inner product by Schur's theorem.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import FeatureGroup, ProductKernel, RBFKernel
    >>> groups = FeatureGroup(RBFKernel(0.5), stop=1), FeatureGroup(RBFKernel(0.5), start=1)
    >>> ProductKernel(groups).matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    name: ClassVar[str] = "product"

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return the product of the groups' values."""
        return np.asarray(math.prod(self._values(X, Y), start=np.ones((X.shape[0], Y.shape[0]))))


class _Columns:
    """A selection of the features of a row source."""

    def __init__(self, rows: Any, features: slice) -> None:
        self._rows, self._features = rows, features
        self.shape = (int(rows.shape[0]), len(range(int(rows.shape[1]))[features]))
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> Any:
        return self._rows[rows][:, self._features]


@dataclass(frozen=True)
class WithConstant:
    """k(x, y) + 1: appends to the features of k a constant 1, which acts as a bias."""

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


#: Every named kernel.
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
    """Make a kernel from the options of a command line or configuration.

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
    """Return a kernel given by name or as itself."""
    if isinstance(kernel, str):
        return make_kernel(kernel)
    if isinstance(kernel, type) or not isinstance(kernel, Kernel):
        raise InvalidProblemError(
            f"the kernel is {kernel!r}; give one of {', '.join(KERNELS)} or a value such as RBFKernel(0.5)"
        )
    return kernel


def is_positive(kernel: Kernel) -> bool:
    """Return whether the formula makes a kernel positive semi-definite; for others K itself must show it."""
    inner = kernel.kernel if isinstance(kernel, WithConstant) else kernel
    if isinstance(inner, SumKernel | ProductKernel):
        return all(is_positive(group.kernel) for group in inner.groups)
    return type(inner) in KERNELS.values() and not isinstance(inner, PrecomputedKernel)


def kernel_from_dict(record: Mapping[str, Any]) -> Kernel:
    """Make a kernel from its `Kernel.to_dict` record; InvalidProblemError for an unknown one."""
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
