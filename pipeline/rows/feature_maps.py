"""Transforms of rows that are not fitted: norms, a constant, and maps of single features.

Under the maps a linear classifier is one with another kernel.  Zero stays zero, so sparse rows stay sparse.
Features below zero keep their signs: the kernels are those of the absolute values, times 1 or -1, as is
usual for Fisher vectors.
Source: A. Vedaldi, A. Zisserman, "Efficient additive kernels via explicit feature maps", 2012; thesis,
sections 4.4.1 and 4.4.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.errors import ConfigError
from topline.solvers.jit_cache import jit

Float32Array = NDArray[np.float32]
Map = Callable[[Float32Array], Float32Array]

# Spacing of the samples of the spectrum for so many of them (figure 2c of Vedaldi and Zisserman).
_SPACING = {1: 0.8, 2: 0.5, 3: 0.4}


class Parameterless:
    """A transform without argument or fitted arrays."""

    name: ClassVar[str]

    @classmethod
    def fit(cls, tiles: Callable[[], Iterable[Any]], argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
        """Return the transform; `ConfigError` for an argument."""
        refuse_argument(cls.name, argument)
        return cls()


@dataclass(frozen=True, eq=False)
class L2Normalize(Parameterless):
    """Each row divided by its Euclidean norm; a row of zeros stays."""

    name: ClassVar[str] = "l2"
    keeps_sparse: ClassVar[bool] = True

    def apply(self, X: Any) -> Any:
        """Return rows of norm 1."""
        if sparse.issparse(X):
            rows: Any = X
            norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1), dtype=np.float64)).ravel()
            scale = np.repeat(inverse(norms), np.diff(rows.indptr)).astype(np.float32)
            return sparse.csr_matrix((rows.data * scale, rows.indices, rows.indptr), shape=rows.shape)
        norms = np.sqrt(squared_norms(X))
        return (X * inverse(norms)[:, None].astype(np.float32)).astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Bias(Parameterless):
    """A constant feature 1 at the end, so that the classifier need not pass through the origin."""

    name: ClassVar[str] = "bias"
    keeps_sparse: ClassVar[bool] = True

    def apply(self, X: Any) -> Any:
        """Return rows with one more column."""
        ones = np.ones((X.shape[0], 1), dtype=np.float32)
        if sparse.issparse(X):
            parts: Any = [X, sparse.csr_matrix(ones)]
            return sparse.csr_matrix(sparse.hstack(parts, format="csr"))
        return np.hstack([X, ones])


@dataclass(frozen=True, eq=False)
class Power:
    """sign(x) |x|^p, written power:p with 0 < p <= 1; plain power is p = 1/2, signed square rooting."""

    exponent: Float32Array
    name: ClassVar[str] = "power"
    keeps_sparse: ClassVar[bool] = True

    @classmethod
    def fit(cls, tiles: Callable[[], Iterable[Any]], argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
        """Return the transform of this exponent."""
        try:
            exponent = float(argument or "0.5")
        except ValueError:
            exponent = math.nan
        if not 0.0 < exponent <= 1.0:
            raise ConfigError(
                f"power needs an exponent above 0 and at most 1, as in power:0.5, not {argument!r}"
            )
        return cls(np.array([exponent], dtype=np.float32))

    def apply(self, X: Any) -> Any:
        """Return rows (r, d) of the same width."""
        return _mapped(X, [lambda values: np.sign(values) * np.abs(values) ** self.exponent[0]])


@dataclass(frozen=True, eq=False)
class Hellinger(Parameterless):
    """sign(x) sqrt(|x| / sum of |x| over the row): rows of length 1; a row of zeros stays.

    Inner products of rows that are not negative are the Hellinger kernel sum_j sqrt(x_j y_j) of the
    distributions that they are proportional to.
    """

    name: ClassVar[str] = "hellinger"
    keeps_sparse: ClassVar[bool] = True

    def apply(self, X: Any) -> Any:
        """Return rows (r, d) of the same width."""
        sums = np.asarray(abs(X).sum(axis=1, dtype=np.float64)).ravel()
        scale = inverse(sums).astype(np.float32)
        if sparse.issparse(X):
            rows: Any = X
            each = np.repeat(scale, np.diff(rows.indptr))
            scaled: Any = sparse.csr_matrix((rows.data * each, rows.indices, rows.indptr), shape=rows.shape)
        else:
            scaled = X * scale[:, None]
        return _mapped(scaled, [lambda values: np.sign(values) * np.sqrt(np.abs(values))])


@dataclass(frozen=True, eq=False)
class ChiSquared:
    """2 s - 1 features for each: inner products come near the additive chi2 kernel sum_j 2 x y / (x + y).

    Written chi2:s with s = 1, 2 or 3 samples of the kernel's spectrum; plain chi2 is s = 2.  For |x| > 0 they
    are sqrt(|x| L) and, for j = 1, ..., s - 1, cosine and sine of j L log |x| times
    sqrt(2 |x| L / cosh(pi j L)), all times the sign of x.
    """

    samples: NDArray[np.int64]
    name: ClassVar[str] = "chi2"
    keeps_sparse: ClassVar[bool] = True

    @classmethod
    def fit(cls, tiles: Callable[[], Iterable[Any]], argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
        """Return the transform with this number of samples."""
        samples = argument or "2"
        if samples not in {str(known) for known in _SPACING}:
            raise ConfigError(f"chi2 takes 1, 2 or 3 samples, as in chi2:2, not {argument!r}")
        return cls(np.array([int(samples)], dtype=np.int64))

    @property
    def copies(self) -> int:
        """Number of features made of one."""
        return 2 * int(self.samples[0]) - 1

    @property
    def factors(self) -> list[tuple[float, float, bool]]:
        """Return for each copy what stands before sqrt |x|, before log |x|, and whether the sine is taken."""
        spacing = _SPACING[int(self.samples[0])]
        found = [(math.sqrt(spacing), 0.0, False)]
        for j in range(1, int(self.samples[0])):
            size = math.sqrt(2.0 * spacing / math.cosh(math.pi * j * spacing))
            found += [(size, j * spacing, False), (size, j * spacing, True)]
        return found

    def apply(self, X: Any) -> Any:
        """Return rows (r, (2 s - 1) d): all of the first kind, all cosines of the second, and so on."""
        return _mapped(X, [_wave(*factor) for factor in self.factors])


def _wave(size: float, frequency: float, sine: bool) -> Map:
    def wave(values: Float32Array) -> Float32Array:
        lengths = np.abs(values).astype(np.float64)
        # The root of 0 takes care of 0, so long as its logarithm is a number.
        phases = frequency * np.log(np.maximum(lengths, np.finfo(np.float32).tiny))
        turned = np.sin(phases) if sine else np.cos(phases)
        return np.asarray(np.sign(values) * (size * np.sqrt(lengths) * turned), dtype=np.float32)

    return wave


def _mapped(X: Any, maps: list[Map]) -> Any:
    """Return the results of all maps side by side, in the layout of X."""
    if not sparse.issparse(X):
        return np.hstack([apply(X) for apply in maps])
    rows: Any = X
    parts: Any = [
        sparse.csr_matrix((apply(rows.data), rows.indices, rows.indptr), shape=rows.shape) for apply in maps
    ]
    return sparse.csr_matrix(sparse.hstack(parts, format="csr"))


def inverse(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / values, and 0 where a value is 0."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)


def refuse_argument(name: str, argument: str | None) -> None:
    """Raise `ConfigError` for an argument of a transform that takes none."""
    if argument is not None:
        raise ConfigError(
            f"the transform {name} takes no argument, so write {name} instead of {name}:{argument}"
        )


@jit(fastmath={"reassoc"})
def squared_norms(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sums of squares of the rows of X (r, d) in float64; each depends on its row alone."""
    sums = np.zeros(len(X))
    for i in range(X.shape[0]):
        total = 0.0
        for j in range(X.shape[1]):
            value = np.float64(X[i, j])
            total += value * value
        sums[i] = total
    return sums
