"""Rows of a dataset that lie almost on each other, and the nearest ones of those in dispute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from topline.solvers.inspection import Pairs, near_duplicates, nearest_neighbours, unit_rows
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLITS

#: Rows of so many bytes are compared with each other; more would take longer than training.
MOST_BYTES = 1 << 30
MOST_PAIRS = 1000


@dataclass(frozen=True)
class Duplicate:
    """Two rows that have two labels or lie in two splits, and the cosine between them."""

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
    """Rows of unit norm of a dataset with their ids and labels; rejected rows are left out of all answers."""

    dataset: Dataset
    rows: Any
    units: Any
    ids: Sequence[str]

    @classmethod
    def of(cls, dataset: Dataset, ids: Sequence[str]) -> CompareRows | None:
        """Read the labelled rows of a dataset; None where they are too many to be compared."""
        info = dataset.info
        numbers = info.n_rows * info.d if info.nonzeros is None else 2 * info.nonzeros
        if 4 * numbers > MOST_BYTES:
            return None
        rows = np.flatnonzero(dataset.labels() >= 0)
        return cls(dataset, rows, unit_rows(dataset.rows(0, info.n_rows)[rows]), ids)

    def conflicts(self, cosine: float) -> tuple[Duplicate, ...]:
        """Return near duplicates with two labels or in two splits, the closest first."""
        labels, split = self.dataset.labels(), self.dataset.split()
        names, words = self.dataset.class_names, {code: word for word, code in SPLITS.items()}
        pairs: Pairs = near_duplicates(self.units, cosine)
        first, second = self.rows[pairs.first], self.rows[pairs.second]
        matters = (labels[first] != labels[second]) | (split[first] != split[second])
        found = zip(
            first[matters].tolist(), second[matters].tolist(), pairs.cosines[matters].tolist(), strict=True
        )
        return tuple(
            Duplicate(
                self.ids[i], names[labels[i]], words[int(split[i])],
                self.ids[j], names[labels[j]], words[int(split[j])], float(near),
            )
            for i, j, near in list(found)[:MOST_PAIRS]
        )  # fmt: skip

    def near(self, rows: Sequence[int], count: int) -> list[tuple[Neighbour, ...]]:
        """Return the nearest other rows of some rows of the dataset."""
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
