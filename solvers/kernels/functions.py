"""Kernel functions k(x, y) = <phi(x), phi(y)>: their matrices in float64, and their names in records.

A kernel is a frozen value.  `resolved` turns a data-dependent `gamma` ("scale", "auto", "median") into a
number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.rows import RowSource, is_sparse, squared_norms, without_repeats
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.names import not_known
from topline.solvers.typing import Float64Array, FloatArray

#: A number, "scale" = 1 / (d var X) (also None), "auto" = 1 / d, or "median" = 1 / the median of the kernel's
#: distances.
Gamma: TypeAlias = float | str | None
_RULES = ("scale", "auto", "median")

#: Rows read at once, and about how many rows the median distance is estimated from.
_TILE_ROWS, _SAMPLED_ROWS = 4096, 1000


def checked_gamma(gamma: Any, name: str) -> Gamma:
    """Return a valid gamma; InvalidProblemError for any other value."""
    if gamma is None or (isinstance(gamma, str) and gamma in _RULES):
        return gamma
    try:
        return positive_number(f"gamma of the kernel {name}", gamma)
    except InvalidProblemError as refusal:
        raise InvalidProblemError(f'{refusal}, "scale", "auto" or "median"') from None


def gamma_of(gamma: Gamma, X: Any, power: int = 2) -> float:
    """Return gamma as a number for training rows X, "scale" and "auto" as in scikit-learn's SVC.

    "median" takes sum_j |x_j - y_j|^power over pairs of evenly spaced rows, leaving out zeros.
    """
    if isinstance(gamma, float):
        return gamma
    if gamma == "auto":
        return 1.0 / int(X.shape[1])
    if gamma == "median":
        median = _median_distance(X, power)
        return 1.0 / median if median > 0.0 else 1.0
    variance = _variance(X)
    return 1.0 / (int(X.shape[1]) * variance) if variance > 0.0 else 1.0


def _median_distance(X: Any, power: int) -> float:
    step = max(1, int(X.shape[0]) // _SAMPLED_ROWS)
    found = []
    for start in range(0, int(X.shape[0]), _TILE_ROWS):
        rows = X[start : start + _TILE_ROWS][-start % step :: step]
        found.append(np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64))
    rows = np.concatenate(found)
    # Importing this takes a tenth of a second, needed only for this rule.
    from scipy.spatial.distance import pdist

    distances = pdist(rows, "sqeuclidean" if power == 2 else "cityblock")
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if len(distances) else 0.0


def _variance(X: RowSource) -> float:
    """Return the variance of all entries, implicit zeros included, reading a few rows at a time."""
    size = mean = squares = 0.0
    n, d = int(X.shape[0]), int(X.shape[1])
    for start in range(0, n, _TILE_ROWS):
        rows = X[start : start + _TILE_ROWS]
        values = without_repeats(rows).data if is_sparse(rows) else np.asarray(rows)
        new = float(rows.shape[0]) * d
        here = float(values.sum(dtype=np.float64)) / new
        about = float(np.square(values.astype(np.float64) - here).sum()) + (new - values.size) * here**2
        # Chan, Golub and LeVeque's update of the sum of squares about the joint mean.
        shift = here - mean
        squares += about + shift**2 * size * new / (size + new)
        size += new
        mean += shift * new / size
    return squares / max(size, 1.0)


def number_of(gamma: Gamma, name: str) -> float:
    """Return a numeric gamma; InvalidProblemError if it still depends on the training rows."""
    if not isinstance(gamma, float):
        raise InvalidProblemError(
            f"gamma of the kernel {name} still waits for data; call resolved(X) with the training rows first"
        )
    return gamma


#: Largest error of an exponent computed from products in float64 and in float32, and rounding errors of a
#: squared distance in units of |x|^2 + |y|^2.
_FINE, _COARSE, _ROUNDINGS = 1e-9, 1e-5, 8.0
#: exp of minus more than this is negligible beside a diagonal of 1.
_VANISHES = 50.0
#: Numbers in a batch of differences.
_AT_ONCE = 1 << 22


def squared_distances(X: Any, Y: Any, gamma: float) -> FloatArray:
    """Return |x - y|^2 of the rows of X and Y, dense or CSR, in their precision.

    Products would leave exp(-gamma |x - y|^2) without nine digits for close rows; differences are used there,
    so that equal rows have distance 0 whatever their tile and gamma.  If float32 products leave fewer than
    five digits, float64 is used.
    """
    given, same = (X, Y), X is Y
    if not is_sparse(X) and not is_sparse(Y):
        # Distances do not depend on the origin; centring reduces rounding.
        centre = Y.mean(axis=0) if len(Y) else 0.0
        X = X - centre
        Y = X if same else Y - centre
    left = squared_norms(X)
    right = left if same else squared_norms(Y)
    # A bound on the error that products leave in the largest exponents.
    unit = _ROUNDINGS * float(np.finfo(X.dtype).eps)
    off = gamma * (unit * float(left.max(initial=0.0) + right.max(initial=0.0)))
    single = X.dtype == np.float32
    if single and off > _COARSE:
        wide = _float64(given[0])
        return squared_distances(wide, wide if same else _float64(given[1]), gamma)
    squares = _products(X, Y)
    squares *= -2.0
    squares += left[:, None].astype(squares.dtype)
    squares += right.astype(squares.dtype)
    np.maximum(squares, 0.0, out=squares)
    if same:
        np.fill_diagonal(squares, 0.0)
    if off > _FINE and not single:
        _by_differences(X, Y, gamma, left, right, squares)
    return squares


def _by_differences(
    X: Any, Y: Any, gamma: float, left: Float64Array, right: Float64Array, squares: FloatArray
) -> None:
    """Recompute, from differences, the squared distances that matter and have too large an error."""
    unit = _ROUNDINGS * float(np.finfo(squares.dtype).eps)
    step = max(1, _AT_ONCE // max(1, int(X.shape[1])))
    for i in range(squares.shape[0]):
        rounding = unit * (left[i] + right)
        close = gamma * (squares[i] - rounding) < _VANISHES
        places = np.flatnonzero(close & (gamma * rounding > _FINE))
        for start in range(0, len(places), step):
            chosen = places[start : start + step]
            one = X[np.full(len(chosen), i)] if is_sparse(X) else X[i]
            squares[i, chosen] = squared_norms(Y[chosen] - one)


@runtime_checkable
class Kernel(Protocol):
    """A kernel as a value: frozen, comparable, and serialised by `to_dict`.

    Examples
    --------
    >>> from topline import Kernel, RBFKernel
    >>> isinstance(RBFKernel(0.5), Kernel)
    True
    """

    @property
    def name(self) -> str:
        """Name in configurations and model records."""
        ...

    def resolved(self, X: Any) -> Kernel:
        """Return the kernel with every parameter a number, resolved on training rows X (n, d)."""
        ...

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) for all rows x of X and y of Y, dense or CSR: (rows of X, rows of Y) float64."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain values from which `kernel_from_dict` rebuilds the kernel."""
        ...


@dataclass(frozen=True)
class NamedKernel:
    """Base of kernels whose parameters are plain values."""

    name: ClassVar[str]

    def resolved(self, X: Any) -> Self:  # noqa: ARG002 - nothing waits for the data
        """Return the kernel itself."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, **asdict(self)}


class _TiledKernel(NamedKernel):
    """Base of kernels with tiles in the precision of their rows."""

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return k(x, y) in float64, whatever the precision of the rows."""
        wide = _float64(X)
        return np.asarray(self.tile(wide, wide if Y is X else _float64(Y)), dtype=np.float64)

    def tile(self, X: Any, Y: Any) -> FloatArray:
        """Return k(x, y) in the precision of the rows, or in float64 if that is too coarse."""
        raise NotImplementedError


@dataclass(frozen=True)
class _KernelOfDistances(NamedKernel):
    """Base of kernels of distances sum_j |x_j - y_j|^power, with a gamma that may depend on the data."""

    gamma: Gamma = None
    power: ClassVar[int] = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checked_gamma(self.gamma, self.name))

    def resolved(self, X: Any) -> Self:
        """Resolve gamma on the training rows."""
        return replace(self, gamma=gamma_of(self.gamma, X, power=self.power))


@dataclass(frozen=True)
class LinearKernel(_TiledKernel):
    """k(x, y) = <x, y>.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import LinearKernel
    >>> LinearKernel().matrix(np.eye(2), np.array([[3.0, 4.0]]))
    array([[3.],
           [4.]])
    """

    name: ClassVar[str] = "linear"

    def tile(self, X: Any, Y: Any) -> FloatArray:
        """Return the inner products."""
        return _products(X, Y)


@dataclass(frozen=True)
class RBFKernel(_KernelOfDistances, _TiledKernel):
    """k(x, y) = exp(-gamma |x - y|^2).

    `gamma` is a positive number, "scale" = 1 / (d var X) (also None), "auto" = 1 / d or "median" = 1 over the
    median of |x - y|^2; otherwise InvalidProblemError.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import RBFKernel
    >>> RBFKernel(0.5).matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    name: ClassVar[str] = "rbf"

    def tile(self, X: Any, Y: Any) -> FloatArray:
        """Return exp(-gamma |x - y|^2); in float64 equal rows give exactly 1."""
        gamma = number_of(self.gamma, self.name)
        values = squared_distances(X, Y, gamma)
        values *= values.dtype.type(-gamma)
        return np.asarray(np.exp(values, out=values))


@dataclass(frozen=True)
class PolynomialKernel(_TiledKernel):
    """k(x, y) = (gamma <x, y> + coef0)^degree.

    Raises InvalidProblemError unless degree >= 1, coef0 >= 0 (required for an inner product), and gamma is a
    positive number, "scale" or "auto".

    Examples
    --------
    >>> import numpy as np
    >>> from topline import PolynomialKernel
    >>> PolynomialKernel(degree=2, gamma=1.0, coef0=1.0).matrix(np.eye(2), np.eye(2))
    array([[4., 1.],
           [1., 4.]])
    """

    degree: int = 3
    gamma: Gamma = None
    coef0: float = 0.0
    name: ClassVar[str] = "polynomial"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", checked_gamma(self.gamma, self.name))
        degree = positive_integer("degree of the kernel polynomial", self.degree)
        coef0 = positive_number("coef0 of the kernel polynomial", self.coef0, or_zero=True)
        object.__setattr__(self, "degree", degree)
        object.__setattr__(self, "coef0", coef0)

    def resolved(self, X: Any) -> Self:
        """Resolve gamma on the training rows."""
        return replace(self, gamma=gamma_of(self.gamma, X))

    def tile(self, X: Any, Y: Any) -> FloatArray:
        """Return (gamma <x, y> + coef0)^degree."""
        values = _products(X, Y)
        values *= values.dtype.type(number_of(self.gamma, self.name))
        values += values.dtype.type(self.coef0)
        np.power(values, self.degree, out=values)
        return values


@dataclass(frozen=True)
class ChiSquaredKernel(NamedKernel):
    """k(x, y) = exp(-gamma sum_j (x_j - y_j)^2 / (x_j + y_j)) of features >= 0, with 0/0 = 0.

    Raises InvalidProblemError for negative features and unless gamma is a positive number.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import ChiSquaredKernel
    >>> ChiSquaredKernel(1.0).matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.1353],
           [0.1353, 1.    ]])
    """

    gamma: float | None = None
    name: ClassVar[str] = "chi2"

    def __post_init__(self) -> None:
        if isinstance(self.gamma, str):
            raise InvalidProblemError(
                f"gamma of the kernel chi2 is {self.gamma!r}; give a positive number (1 is usual)"
            )
        gamma = checked_gamma(self.gamma, self.name)
        object.__setattr__(self, "gamma", 1.0 if gamma is None else gamma)

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return exp(-gamma chi2(x, y)); refuse negative or sparse features."""
        # scikit-learn returns -chi2.
        values = _pairwise("additive_chi2_kernel", X, Y, self.name, positive=True)
        values *= number_of(self.gamma, self.name)
        return np.asarray(np.exp(values, out=values))


@dataclass(frozen=True)
class PrecomputedKernel(NamedKernel):
    """A precomputed kernel: X is K(train, train) in training and K(new, train) afterwards.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> y = np.arange(3).repeat(4)
    >>> K = np.equal.outer(y, y) + 0.0
    >>> solve(K, y, MaxHinge(), lam=0.1, kernel="precomputed").status
    <Status.SOLVED: 'solved'>
    """

    name: ClassVar[str] = "precomputed"

    def matrix(self, X: Any, Y: Any) -> Float64Array:  # noqa: ARG002 - X has the values
        """Return X itself in float64."""
        return np.ascontiguousarray(X.toarray() if is_sparse(X) else X, dtype=np.float64)


def _float64(X: Any) -> Any:
    return X.tocsr().astype(np.float64, copy=False) if is_sparse(X) else np.asarray(X, dtype=np.float64)


def _products(X: Any, Y: Any) -> FloatArray:
    """Return <x, y> of all rows, dense, in their precision."""
    values: Any = X @ Y.T
    return np.ascontiguousarray(values.toarray() if is_sparse(values) else values)


@dataclass(frozen=True)
class LaplacianKernel(_KernelOfDistances):
    """k(x, y) = exp(-gamma sum_j |x_j - y_j|); `gamma` as for RBFKernel.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import LaplacianKernel
    >>> LaplacianKernel(0.5).matrix(np.eye(2), np.eye(2)).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """

    name: ClassVar[str] = "laplacian"
    power: ClassVar[int] = 1

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return exp(-gamma |x - y|_1)."""
        values = _pairwise("manhattan_distances", X, Y, self.name)
        values *= -number_of(self.gamma, self.name)
        return np.asarray(np.exp(values, out=values))


@dataclass(frozen=True)
class IntersectionKernel(NamedKernel):
    """k(x, y) = sum_j min(x_j, y_j) of features >= 0.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import IntersectionKernel
    >>> IntersectionKernel().matrix(np.array([[3.0, 1.0]]), np.array([[2.0, 2.0], [0.0, 5.0]]))
    array([[3., 1.]])
    """

    name: ClassVar[str] = "intersection"

    def matrix(self, X: Any, Y: Any) -> Float64Array:
        """Return (|x|_1 + |y|_1 - |x - y|_1) / 2; refuse negative or sparse features."""
        values = _pairwise("manhattan_distances", X, Y, self.name, positive=True)
        totals = [np.asarray(rows, dtype=np.float64).sum(axis=1) for rows in (X, Y)]
        return np.asarray(0.5 * (totals[0][:, None] + totals[1] - values))


def _pairwise(sums: str, X: Any, Y: Any, name: str, *, positive: bool = False) -> Float64Array:
    """Return scikit-learn's sums over the features of dense rows, in float64."""
    # Importing this would double our import time.
    from sklearn.metrics import pairwise

    if is_sparse(X) or is_sparse(Y):
        raise UnsupportedCombinationError(
            f"the kernel {name} takes no sparse features; give X.toarray() or use another kernel"
        )
    least = min(float(np.min(rows, initial=0.0)) for rows in (X, Y))
    if positive and least < 0.0:
        raise InvalidProblemError(
            f"Negative values in data, such as {least:g}, are not for the kernel {name};"
            " leave out what centres the features, or use another kernel"
        )
    if min(X.shape[0], Y.shape[0]) == 0:
        return np.zeros((X.shape[0], Y.shape[0]))
    X, Y = (np.require(_float64(rows), requirements="W") for rows in (X, Y))
    return np.asarray(getattr(pairwise, sums)(X, Y), dtype=np.float64)


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
        positive_number("the weight of a group of features", self.weight)
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
        place = {"start": self.start, "stop": self.stop, "weight": self.weight}
        return {**place, "kernel": self.kernel.to_dict()}


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
_KINDS: tuple[Any, ...] = (
    LinearKernel, RBFKernel, PolynomialKernel, ChiSquaredKernel, LaplacianKernel, IntersectionKernel,
    PrecomputedKernel,
)  # fmt: skip
KERNELS: Mapping[str, type[Any]] = MappingProxyType({kind.name: kind for kind in _KINDS})


#: Kernels made of others.
_COMBINED: dict[Any, Any] = {kind.name: kind for kind in (SumKernel, ProductKernel)}


def make_kernel(
    name: str, gamma: Gamma = None, degree: int | None = None, coef0: float | None = None
) -> Kernel:
    """Make a kernel from the options of a command line or configuration.

    Raises InvalidProblemError for an unknown name and for a parameter that the kernel does not take.
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
    if name in _COMBINED and set(parameters) == {"groups"}:
        groups = ({**group, "kernel": kernel_from_dict(group["kernel"])} for group in parameters["groups"])
        combined: Kernel = _COMBINED[name](tuple(FeatureGroup(**group) for group in groups))
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
        raise InvalidProblemError(not_known("kernel", name, KERNELS))
    return KERNELS[name]
