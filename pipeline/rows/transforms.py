"""Transforms of features: fitted on the training rows alone, stored with the model, repeated in prediction.

A transform is a frozen class with a `name`, a `fit` over tiles of rows, an `apply` from rows (r, d) to rows
(r, d'), float32 in and out, and its fitted arrays by name; one with `keeps_sparse` takes CSR matrices as
well.  A new one is written here, or where its mathematics is, and entered in `TRANSFORMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.pipeline.rows.feature_maps import (
    Bias,
    ChiSquared,
    Hellinger,
    L2Normalize,
    Power,
    inverse,
    refuse_argument,
)
from topline.pipeline.rows.kernel_transforms import Fourier, Nystroem

Float32Array = NDArray[np.float32]
Tiles = Callable[[], Iterable[Any]]
"""Returns the training rows, tile by tile, each time it is called."""


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
