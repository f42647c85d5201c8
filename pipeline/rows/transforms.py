"""Transforms of features: fitted on the training rows alone, stored with the model, repeated in prediction.

A transform is a frozen class with a `name`, a `fit` over tiles of rows, an `apply` from rows (r, d) to rows
(r, d'), float32 in and out, and its fitted arrays by name; one with `keeps_sparse` takes CSR matrices as
well.  A new one is written here, or where its mathematics is, and entered in `TRANSFORMS`.

Under maps of single features a linear classifier is one with another kernel.  Zero stays zero, so sparse
rows stay sparse.  Features below zero keep their signs: the kernels are those of the absolute values, times 1
or -1, as is usual for Fisher vectors.  Source: A. Vedaldi, A. Zisserman, "Efficient additive kernels via
explicit feature maps", 2012; thesis, sections 4.4.1 and 4.4.2.

Nystroem's and Fourier features stand for k(x, y) = exp(-gamma |x - y|^2), for data too large for the kernel
itself.  They are written NAME:SIZE or NAME:SIZE:GAMMA; the gamma that is not given is 1 / (d var X) of the
training rows, as in scikit-learn's SVC.  What is random follows from the seed of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.errors import ConfigError
from topline.solvers.jit_cache import jit
from topline.solvers.kernels import RBFKernel

Float32Array = NDArray[np.float32]
#: Returns the training rows, tile by tile, each time it is called.
Tiles = Callable[[], Iterable[Any]]


class Parameterless:
    """A transform without argument or fitted arrays."""

    name: ClassVar[str]

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
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
        else:
            norms = np.sqrt(squared_norms(X))
        return _scaled(X, inverse(norms).astype(np.float32)).astype(np.float32, copy=False)


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
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
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
        return _powered(X, self.exponent[0])


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
        return _powered(_scaled(X, inverse(sums).astype(np.float32)), np.float32(0.5))


@dataclass(frozen=True, eq=False)
class ChiSquared:
    """2 s - 1 features for each: inner products come near the additive chi2 kernel sum_j 2 x y / (x + y).

    Written chi2:s with s = 1, 2 or 3 samples of the kernel's spectrum, L = 0.8, 0.5 or 0.4 apart; plain chi2
    is s = 2.  For |x| > 0 they are sqrt(|x| L) and, for j = 1, ..., s - 1, cosine and sine of j L log |x|
    times sqrt(2 |x| L / cosh(pi j L)), all times the sign of x; by scikit-learn.
    """

    samples: NDArray[np.int64]
    name: ClassVar[str] = "chi2"
    keeps_sparse: ClassVar[bool] = True

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003
        """Return the transform with this number of samples."""
        samples = argument or "2"
        if samples not in ("1", "2", "3"):
            raise ConfigError(f"chi2 takes 1, 2 or 3 samples, as in chi2:2, not {argument!r}")
        return cls(np.array([int(samples)], dtype=np.int64))

    @property
    def copies(self) -> int:
        """Number of features made of one."""
        return 2 * int(self.samples[0]) - 1

    @property
    def factors(self) -> list[tuple[float, float, bool]]:
        """Return for each copy what stands before sqrt |x|, before log |x|, and whether the sine is taken."""
        L = {1: 0.8, 2: 0.5, 3: 0.4}[int(self.samples[0])]
        sizes = [(math.sqrt(2.0 * L / math.cosh(math.pi * j * L)), j * L) for j in range(1, self.samples[0])]
        waves = [(size, frequency, sine) for size, frequency in sizes for sine in (False, True)]
        return [(math.sqrt(L), 0.0, False), *waves]

    def apply(self, X: Any) -> Any:
        """Return rows (r, (2 s - 1) d): all of the first kind, all cosines of the second, and so on."""
        from sklearn.kernel_approximation import AdditiveChi2Sampler

        lengths: Any = abs(X).astype(np.float64)
        if sparse.issparse(X):
            lengths.eliminate_zeros()
        maps = AdditiveChi2Sampler(sample_steps=int(self.samples[0])).fit_transform(lengths)
        if sparse.issparse(X):
            rows: Any = X
            signs: Any = sparse.hstack([rows.sign()] * self.copies, format="csr")
            return sparse.csr_matrix(maps.multiply(signs)).astype(np.float32)
        return (maps * np.hstack([np.sign(X)] * self.copies)).astype(np.float32)


def _scaled(X: Any, scale: Float32Array) -> Any:
    """Return rows X (r, d), each times its entry of `scale` (r,)."""
    if sparse.issparse(X):
        rows: Any = X
        each = np.repeat(scale, np.diff(rows.indptr))
        return sparse.csr_matrix((rows.data * each, rows.indices, rows.indptr), shape=rows.shape)
    return X * scale[:, None]


def _powered(X: Any, exponent: Any) -> Any:
    """Return sign(x) |x|^p of all entries; zeros that a sparse matrix does not hold stay."""
    if sparse.issparse(X):
        rows: Any = X
        return sparse.csr_matrix((_powered(rows.data, exponent), rows.indices, rows.indptr), shape=rows.shape)
    return np.sign(X) * np.abs(X) ** exponent


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


@dataclass(frozen=True, eq=False)
class Nystroem:
    """Kernel values at landmarks, made white there: z(x) = K_LL^(-1/2) k_L(x).

    Inner products are exact between landmarks, so that taking every training row as one gives K itself.
    Landmarks are drawn from the training rows.  Source: C. Williams, M. Seeger, "Using the Nystroem method to
    speed up kernel machines", 2001, in the symmetric form of sklearn.kernel_approximation.Nystroem.
    """

    landmarks: Float32Array
    whitening: NDArray[np.float64]
    gamma: NDArray[np.float64]
    name: ClassVar[str] = "nystroem"
    keeps_sparse: ClassVar[bool] = False

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:
        """Return the transform; landmarks are drawn in a second pass, after one that counts the rows."""
        size, gamma = _size_and_gamma(cls.name, argument)
        rows, _, scale = _measured(tiles)
        if size > rows:
            raise ConfigError(
                f"nystroem:{size} asks for more landmarks than the {rows} training rows: use at most {rows}"
            )
        chosen = np.sort(np.random.default_rng(seed).choice(rows, size, replace=False))
        landmarks = _picked(tiles, chosen)
        kernel = RBFKernel(scale if gamma is None else gamma)
        values, vectors = np.linalg.eigh(kernel.matrix(landmarks, landmarks))
        # What landmarks that repeat each other add to nothing must not be blown up.
        kept = values > size * np.finfo(np.float64).eps * values.max()
        whitening = (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T
        return cls(landmarks, np.ascontiguousarray(whitening), np.array([kernel.gamma], dtype=np.float64))

    @property
    def input_width(self) -> int:
        """Features that it takes."""
        return int(self.landmarks.shape[1])

    def apply(self, X: Any) -> Any:
        """Return z of each row, one feature a landmark."""
        values = RBFKernel(float(self.gamma[0])).matrix(X, self.landmarks)
        return (values @ self.whitening).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Fourier:
    """Random cosines: z(x) = sqrt(2/D) cos(x^T directions + offsets), whose inner products are k on average.

    Source: A. Rahimi, B. Recht, "Random features for large-scale kernel machines", 2007; drawn by
    sklearn.kernel_approximation.RBFSampler.
    """

    directions: Float32Array
    offsets: Float32Array
    name: ClassVar[str] = "fourier"
    keeps_sparse: ClassVar[bool] = False

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:
        """Return directions drawn from the kernel's spectrum; of the rows only width and variance count."""
        from sklearn.kernel_approximation import RBFSampler

        size, gamma = _size_and_gamma(cls.name, argument)
        _, d, scale = _measured(tiles)
        sampler = RBFSampler(gamma=scale if gamma is None else gamma, n_components=size, random_state=seed)
        sampler.fit(np.zeros((1, d)))
        return cls(
            np.ascontiguousarray(sampler.random_weights_, dtype=np.float32),
            np.ascontiguousarray(sampler.random_offset_, dtype=np.float32),
        )

    @property
    def input_width(self) -> int:
        """Features that it takes."""
        return int(self.directions.shape[0])

    def apply(self, X: Any) -> Any:
        """Return D cosines of each row."""
        phases = X @ self.directions
        phases += self.offsets
        np.cos(phases, out=phases)
        phases *= np.float32(math.sqrt(2.0 / len(self.offsets)))
        return phases


def _size_and_gamma(name: str, argument: str | None) -> tuple[int, float | None]:
    """Return size and gamma of "300" or "300:0.5"."""
    first, _, second = (argument or "").partition(":")
    try:
        size = int(first)
        gamma = float(second) if second else None
    except ValueError:
        size, gamma = 0, None
    if size < 1 or (gamma is not None and not 0.0 < gamma < math.inf):
        raise ConfigError(
            f"{name} needs a number of features and may have a gamma above 0, as in {name}:300 or"
            f" {name}:300:0.5, not {argument!r}"
        )
    return size, gamma


def _measured(tiles: Tiles) -> tuple[int, int, float]:
    """Return rows, columns, and 1 / (d var X) of all entries, summed tile by tile."""
    rows = d = 0
    mean = squares = 0.0
    for X in tiles():
        values = np.asarray(X, dtype=np.float64)
        if not values.size:
            continue
        # Chan, Golub and LeVeque: the squares about a common mean from those about two.
        before, new = rows * values.shape[1], values.size
        shift = float(values.mean()) - mean
        squares += float(np.square(values - values.mean()).sum()) + shift**2 * before * new / (before + new)
        mean += shift * new / (before + new)
        rows, d = rows + values.shape[0], int(values.shape[1])
    variance = squares / max(rows * d, 1)
    return rows, d, 1.0 / (d * variance) if variance > 0.0 else 1.0


def _picked(tiles: Tiles, chosen: NDArray[np.int64]) -> Float32Array:
    """Return the rows of these numbers, which ascend."""
    found, reached = [], 0
    for X in tiles():
        low, high = np.searchsorted(chosen, [reached, reached + X.shape[0]])
        found.append(np.asarray(X[chosen[low:high] - reached], dtype=np.float32))
        reached += X.shape[0]
    return np.ascontiguousarray(np.concatenate(found))


@dataclass(frozen=True, eq=False)
class Standardize:
    """Each feature with mean 0 and standard deviation 1 over the training rows; a constant one becomes 0."""

    mean: Float32Array
    scale: Float32Array
    name: ClassVar[str] = "standardize"
    keeps_sparse: ClassVar[bool] = False

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003 - not random
        """Return the transform with means and variances, summed in two passes in float64."""
        refuse_argument(cls.name, argument)
        mean, rows = _mean(tiles)
        variance = sum(((X.astype(np.float64) - mean) ** 2).sum(axis=0) for X in tiles()) / rows
        deviation = np.sqrt(variance)
        deviation[deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-30)] = 0.0
        return cls(mean.astype(np.float32), inverse(deviation).astype(np.float32))

    def apply(self, X: Any) -> Any:
        """Return (x - mean) / deviation."""
        return (X - self.mean) * self.scale


@dataclass(frozen=True, eq=False)
class PCA:
    """The leading principal components of the training rows; columns of `components` (d, d')."""

    mean: Float32Array
    components: Float32Array
    name: ClassVar[str] = "pca"
    keeps_sparse: ClassVar[bool] = False

    @classmethod
    def fit(cls, tiles: Tiles, argument: str | None, seed: int = 0) -> Self:  # noqa: ARG003 - not random
        """Return the transform by the covariance, summed in float64; largest entries are positive."""
        mean, rows = _mean(tiles)
        dimension = _dimension(argument, len(mean), rows)
        covariance = np.zeros((len(mean), len(mean)))
        for X in tiles():
            centred = X.astype(np.float64) - mean
            covariance += centred.T @ centred
        components = np.linalg.eigh(covariance / rows)[1][:, ::-1][:, :dimension]
        largest = np.abs(components).argmax(axis=0)
        components *= np.sign(components[largest, np.arange(dimension)])
        return cls(mean.astype(np.float32), np.ascontiguousarray(components, dtype=np.float32))

    def apply(self, X: Any) -> Any:
        """Return coordinates along the components, shape (r, d')."""
        return (X - self.mean) @ self.components


TRANSFORMS: Mapping[str, type[Any]] = {
    kind.name: kind
    for kind in (L2Normalize, Power, Hellinger, ChiSquared, Standardize, PCA, Nystroem, Fourier, Bias)
}


@dataclass(frozen=True, eq=False)
class Transforms:
    """Fitted transforms, applied one after the other; `names` are as they were asked for."""

    names: tuple[str, ...]
    steps: tuple[Any, ...]

    @classmethod
    def fit(cls, names: Sequence[str], tiles: Tiles, *, is_sparse: bool = False, seed: int = 0) -> Transforms:
        """Return all transforms, each fitted on the training rows as the ones before leave them."""
        kinds = parse_transforms(names, is_sparse=is_sparse)
        steps: list[Any] = []
        for kind, argument in kinds:
            so_far = cls((), tuple(steps))
            steps.append(kind.fit(lambda so_far=so_far: map(so_far.apply, tiles()), argument, seed))
        return cls(tuple(names), tuple(steps))

    def apply(self, X: Any) -> Any:
        """Return rows (r, d), dense or CSR, transformed to float32 rows (r, d')."""
        rows = X.astype(np.float32, copy=False)
        for step in self.steps:
            rows = step.apply(rows)
        return rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays, named transform.<place>.<array>."""
        return {
            f"transform.{place}.{field.name}": getattr(step, field.name)
            for place, step in enumerate(self.steps)
            for field in fields(step)
        }

    def record(self) -> tuple[dict[str, Any], ...]:
        """Return plain values for a model's record, one dictionary a transform."""
        return tuple({"name": name} for name in self.names)

    @classmethod
    def from_arrays(cls, names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> Transforms:
        """Return the transforms of these names and `arrays`, which may hold others too."""
        steps = [
            kind(**{field.name: arrays[f"transform.{place}.{field.name}"] for field in fields(kind)})
            for place, (kind, _) in enumerate(parse_transforms(names))
        ]
        return cls(tuple(names), tuple(steps))

    @classmethod
    def from_record(
        cls, record: Sequence[Mapping[str, Any]], arrays: Mapping[str, NDArray[Any]]
    ) -> Transforms:
        """Return the transforms of a model's record."""
        return cls.from_arrays([str(entry["name"]) for entry in record], arrays)


def parse_transforms(
    names: Sequence[str], *, is_sparse: bool = False
) -> tuple[tuple[type[Any], str | None], ...]:
    """Return classes and arguments of names such as "pca:256"; `ConfigError` for unknown ones."""
    found = []
    for name in names:
        head, _, argument = name.partition(":")
        if head not in TRANSFORMS:
            raise ConfigError(f"there is no transform {name!r}: use some of {', '.join(TRANSFORMS)}")
        if is_sparse and not TRANSFORMS[head].keeps_sparse:
            kept = ", ".join(kind.name for kind in TRANSFORMS.values() if kind.keeps_sparse)
            raise ConfigError(f"the transform {head} would make sparse features dense: use some of {kept}")
        found.append((TRANSFORMS[head], argument or None))
    return tuple(found)


def _mean(tiles: Tiles) -> tuple[NDArray[np.float64], int]:
    total: Any = 0.0
    rows = 0
    for X in tiles():
        total = total + X.sum(axis=0, dtype=np.float64)
        rows += X.shape[0]
    return np.asarray(total / max(rows, 1), dtype=np.float64), rows


def _dimension(argument: str | None, d: int, rows: int) -> int:
    try:
        dimension = int(argument or "")
    except ValueError:
        raise ConfigError(f"pca needs a number of components, as in pca:64, not {argument!r}") from None
    if not 1 <= dimension <= min(d, rows):
        raise ConfigError(
            f"pca:{dimension} is not between 1 and {min(d, rows)}, the features or rows there are"
        )
    return dimension
