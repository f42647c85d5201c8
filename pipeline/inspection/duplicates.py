"""Comparisons of a dataset's rows: near duplicates, nearest rows, and rows that are like no class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse

from topline.solvers.inspection import Pairs, near_duplicates, nearest_neighbours, unit_rows
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLIT_OF

#: Most bytes of rows that are compared with each other; more would take longer than training.
MOST_BYTES = 1 << 30
MOST_PAIRS = 1000


@dataclass(frozen=True)
class Duplicate:
    """Two rows with different labels or splits, and their cosine."""

    first: str
    first_label: str
    first_split: str
    second: str
    second_label: str
    second_split: str
    cosine: float


@dataclass(frozen=True)
class Neighbour:
    """A row near another one."""

    row: int
    sample_id: str
    label: str
    cosine: float


@dataclass(frozen=True, eq=False)
class CompareRows:
    """Unit-norm rows of a dataset with ids and labels; rejected rows are never returned."""

    dataset: Dataset
    rows: Any
    units: Any
    ids: Sequence[str]

    @classmethod
    def of(cls, dataset: Dataset, ids: Sequence[str]) -> CompareRows | None:
        """Read the labelled rows of a dataset; return None if they are too many to compare."""
        info = dataset.info
        numbers = info.n_rows * info.d if info.nonzeros is None else 2 * info.nonzeros
        if 4 * numbers > MOST_BYTES:
            return None
        rows = np.flatnonzero(dataset.labels() >= 0)
        return cls(dataset, rows, unit_rows(dataset.rows(0, info.n_rows)[rows]), ids)

    def conflicts(self, cosine: float) -> tuple[Duplicate, ...]:
        """Return near duplicates with different labels or splits, the closest first."""
        labels, split = self.dataset.labels(), self.dataset.split()
        names = self.dataset.class_names
        pairs: Pairs = near_duplicates(self.units, cosine)
        first, second = self.rows[pairs.first], self.rows[pairs.second]
        matters = (labels[first] != labels[second]) | (split[first] != split[second])
        found = zip(
            first[matters].tolist(), second[matters].tolist(), pairs.cosines[matters].tolist(), strict=True
        )
        return tuple(
            Duplicate(
                self.ids[i], names[labels[i]], SPLIT_OF[int(split[i])],
                self.ids[j], names[labels[j]], SPLIT_OF[int(split[j])], float(near),
            )
            for i, j, near in list(found)[:MOST_PAIRS]
        )  # fmt: skip

    def likeness(self) -> NDArray[np.float64]:
        """Return the centred cosine of each row with the nearest class mean (n,); NaN for rejected rows."""
        labels, units, m = self.dataset.labels(), self.units, len(self.dataset.class_names)
        own = labels[self.rows]
        counts = np.bincount(own, minlength=m)
        one_hot: Any = csr_matrix((1.0 / counts[own], (own, np.arange(len(own)))), shape=(m, len(own)))
        means = np.asarray((one_hot @ units).toarray() if issparse(units) else one_hot @ units)[counts > 0]
        centre = np.asarray(units.mean(axis=0)).ravel()
        means = (means - centre).T
        sizes = 1.0 - 2.0 * np.asarray(units @ centre).ravel() + centre @ centre
        norms = np.sqrt(np.maximum(np.outer(sizes, (means**2).sum(axis=0)), np.finfo(np.float32).tiny))
        found = np.full(self.dataset.info.n_rows, np.nan)
        found[self.rows] = ((np.asarray(units @ means) - centre @ means) / norms).max(axis=1)
        return found

    def near(self, rows: Sequence[int], count: int) -> list[tuple[Neighbour, ...]]:
        """Return the nearest other rows of each of `rows`."""
        if not len(rows):
            return []
        labels, names = self.dataset.labels(), self.dataset.class_names
        best, cosines = nearest_neighbours(self.units, np.searchsorted(self.rows, np.asarray(rows)), count)
        return [
            tuple(
                Neighbour(int(self.rows[j]), self.ids[self.rows[j]], names[labels[self.rows[j]]], float(near))
                for j, near in zip(mine.tolist(), values.tolist(), strict=True)
            )
            for mine, values in zip(best, cosines, strict=True)
        ]


def off_topic(likeness: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return rows like no class, the least similar first: those below Tukey's outer fence."""
    low, high = np.quantile(likeness, (0.25, 0.75))
    far = np.flatnonzero(likeness < low - 3.0 * (high - low))
    return far[np.argsort(likeness[far], kind="stable")]
