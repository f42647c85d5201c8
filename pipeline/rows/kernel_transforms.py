"""Features whose inner products come near a Gaussian kernel: for data too large for the kernel itself.

Both stand for k(x, y) = exp(-gamma |x - y|^2) and are written NAME:SIZE or NAME:SIZE:GAMMA; the gamma that is
not given is 1 / (d var X) of the training rows, as in scikit-learn's SVC.  What is random follows from the
seed of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.solvers.kernels import RBFKernel

Float32Array = NDArray[np.float32]


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
    def fit(cls, tiles: Callable[[], Iterable[Any]], argument: str | None, seed: int = 0) -> Self:
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
    def fit(cls, tiles: Callable[[], Iterable[Any]], argument: str | None, seed: int = 0) -> Self:
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


def _measured(tiles: Callable[[], Iterable[Any]]) -> tuple[int, int, float]:
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


def _picked(tiles: Callable[[], Iterable[Any]], chosen: NDArray[np.int64]) -> Float32Array:
    """Return the rows of these numbers, which ascend."""
    found, reached = [], 0
    for X in tiles():
        low, high = np.searchsorted(chosen, [reached, reached + X.shape[0]])
        found.append(np.asarray(X[chosen[low:high] - reached], dtype=np.float32))
        reached += X.shape[0]
    return np.ascontiguousarray(np.concatenate(found))
