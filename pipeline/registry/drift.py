"""How far data has moved: the distribution of each feature, and the balance of the classes.

A feature is summed up by its mean and variance, streamed over the rows, and its shift is the population
stability index of two normal distributions with these, which is their symmetrised Kullback-Leibler divergence

    PSI = (v1/v2 + v2/v1) / 2 - 1 + (mean1 - mean2)^2 (1/v1 + 1/v2) / 2

Read as usual: below 0.1 nothing happened, above 0.25 the feature is another one.  Class balance moves by the
total variation distance: the share of rows that would have to change class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topline.pipeline.errors import InputError
from topline.pipeline.rows.partition import TrainingRows

# A feature counts so much at most: one that was constant and now is not would drown all others.
PSI_AT_MOST = 2.5
SHIFTED = 0.25
WORST_SHOWN = 5


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Number of rows, and mean and variance (of the population) of each feature, shapes (d,)."""

    rows: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]

    def merged(self, other: FeatureMoments) -> FeatureMoments:
        """Moments of both sets of rows together."""
        rows = self.rows + other.rows
        share, shift = other.rows / rows, other.mean - self.mean
        within = (1 - share) * self.variance + share * other.variance
        return FeatureMoments(rows, self.mean + share * shift, within + share * (1 - share) * shift**2)


@dataclass(frozen=True)
class Drift:
    """What changed between the rows that two models were trained on, or any two sets of rows.

    `features` is the mean PSI, `shifted` the share of features above 0.25 and `worst` the places of the
    largest, the largest first; all None where the features cannot be compared.  `classes` is the total
    variation distance of the class shares.
    """

    classes: float
    features: float | None
    shifted: float | None
    worst: tuple[int, ...] | None
    rows_before: int
    rows_now: int

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


def feature_moments(tiles: Iterable[Any]) -> FeatureMoments:
    """Stream the moments over tiles of rows (r, d), dense or CSR; at least one row must come."""
    total: FeatureMoments | None = None
    for X in tiles:
        if X.shape[0]:
            part = _moments_of(X)
            total = part if total is None else total.merged(part)
    if total is None:
        raise InputError("there are no rows whose drift could be measured")
    return total


def stability_index(before: FeatureMoments, now: FeatureMoments) -> NDArray[np.float64]:
    """PSI of each feature, shape (d,), at most `PSI_AT_MOST`."""
    # Below this a variance is rounding, as of a feature that is constant.
    size = np.maximum(np.abs(before.mean), np.abs(now.mean))
    floor = 1e-9 * (before.variance + now.variance) + (1e-6 * size) ** 2 + np.finfo(np.float64).tiny
    v1, v2 = before.variance + floor, now.variance + floor
    with np.errstate(over="ignore"):
        moved = (before.mean - now.mean) ** 2 * (1 / v1 + 1 / v2)
        found = 0.5 * (v1 / v2 + v2 / v1) - 1 + 0.5 * np.nan_to_num(moved, nan=0.0)
    return np.asarray(np.clip(found, 0.0, PSI_AT_MOST))


def class_shares(labels: NDArray[Any], class_names: Sequence[str]) -> dict[str, float]:
    """Share of the rows in each class, by name."""
    counts = np.bincount(labels, minlength=len(class_names)) / max(1, len(labels))
    return dict(zip(class_names, counts.tolist(), strict=True))


def balance_change(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Total variation distance of class shares; a class that only one side has is 0 on the other."""
    names = before.keys() | now.keys()
    return 0.5 * sum(abs(before.get(name, 0.0) - now.get(name, 0.0)) for name in names)


def drift_between(before: TrainingRows, now: TrainingRows) -> Drift:
    """Drift of the stored features and of the classes from some rows to others; one pass over each.

    The features are compared where there are as many on both sides.
    """
    names = (before.dataset.class_names, now.dataset.class_names)
    shares = [class_shares(rows.labels(), own) for rows, own in zip((before, now), names, strict=True)]
    features, shifted, worst = None, None, None
    if before.dataset.info.d == now.dataset.info.d:
        psi = stability_index(*(feature_moments(_raw_tiles(rows)) for rows in (before, now)))
        features, shifted = float(psi.mean()), float(np.mean(psi > SHIFTED))
        worst = tuple(np.argsort(-psi, kind="stable")[:WORST_SHOWN].tolist())
    return Drift(balance_change(*shares), features, shifted, worst, len(before), len(now))


def _raw_tiles(rows: TrainingRows) -> Iterable[Any]:
    return (rows.raw_batch(batch) for batch in range(rows.batches))


def _moments_of(X: Any) -> FeatureMoments:
    n = int(X.shape[0])
    if sparse.issparse(X):
        stored: Any = X
        rows = stored.astype(np.float64)
        mean = np.asarray(rows.mean(axis=0), dtype=np.float64).ravel()
        squares = np.asarray(rows.multiply(rows).mean(axis=0), dtype=np.float64).ravel()
        return FeatureMoments(n, mean, np.maximum(squares - mean**2, 0.0))
    mean = X.mean(axis=0, dtype=np.float64)
    return FeatureMoments(n, mean, ((X - mean) ** 2).mean(axis=0))
