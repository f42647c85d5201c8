"""Sums and products of kernels, each over a group of features of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels.functions import Kernel
from topline.solvers.typing import Float64Array


@dataclass(frozen=True)
class FeatureGroup:
    """A kernel over the features [start, stop), to the last where `stop` is None, times a weight > 0.

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
    """What sums and products have in common."""

    groups: tuple[FeatureGroup, ...]
    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not self.groups:
            raise InvalidProblemError(f"the {self.name} of kernels has no group; give at least one")

    def resolved(self, X: Any) -> Any:
        """Resolve every kernel by its own features of the training rows."""
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
    """Some features of rows that are read a few at a time."""

    def __init__(self, rows: Any, features: slice) -> None:
        self._rows, self._features = rows, features
        self.shape = (int(rows.shape[0]), len(range(int(rows.shape[1]))[features]))
        self.dtype = rows.dtype

    def __getitem__(self, rows: slice) -> Any:
        return self._rows[rows][:, self._features]
