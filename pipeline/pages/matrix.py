"""A confusion matrix as pages show it: counts, how strongly each cell is coloured, and orders to sort by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from topline.pipeline.pages.spreadsheet import csv_url

# Shades of a cell; the templates' style sheet has as many.
SHADES = 6


@dataclass(frozen=True)
class MatrixCell:
    """A cell: rows of `true` that were given `predicted`, the style of its shade, and all in words."""

    count: int
    style: str
    title: str


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """Rows of each class (a row each) by the class that they were given, (m, m), with the names (m,)."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]

    @cached_property
    def rows(self) -> list[tuple[str, list[MatrixCell]]]:
        """The rows by class; a cell's shade is its share of the class's rows."""
        totals = np.maximum(self.counts.sum(axis=1), 1)
        return [
            (name, [self._cell(i, j, float(self.counts[i, j] / totals[i])) for j in range(len(self.names))])
            for i, name in enumerate(self.names)
        ]

    def _cell(self, i: int, j: int, share: float) -> MatrixCell:
        count = int(self.counts[i, j])
        # Mistakes are few, so that their shades grow as the root of their share.
        shade = min(SHADES, int(np.ceil(SHADES * (share if i == j else np.sqrt(share))))) if count else 0
        title = f"{count:,} of {self.names[i]} given {self.names[j]} ({share:.1%})"
        return MatrixCell(count, f"{'hit' if i == j else 'miss'} l{shade}", title)

    @cached_property
    def orders(self) -> str:
        """The orders that the page offers, as JSON of (name, classes in order) pairs."""
        return json.dumps([["as listed", list(range(len(self.names)))], *self._sorted()])

    def _sorted(self) -> list[list[object]]:
        totals = self.counts.sum(axis=1)
        right = np.diag(self.counts) / np.maximum(totals, 1)
        worst = np.argsort(right, kind="stable")
        by_name = sorted(range(len(self.names)), key=lambda i: self.names[i].casefold())
        return [
            ["by name", by_name],
            ["worst first", worst.tolist()],
            ["largest first", np.argsort(-totals, kind="stable").tolist()],
            ["alike together", self._alike()],
        ]

    def _alike(self) -> list[int]:
        """Return an order in which classes that are often taken for each other stand side by side."""
        if len(self.names) < 3:
            return list(range(len(self.names)))
        shares = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        mixed = (shares + shares.T) / 2.0
        np.fill_diagonal(mixed, 1.0)
        distances = squareform(1.0 - mixed, checks=False)
        leaves = leaves_list(linkage(distances, "average", optimal_ordering=True))
        return [int(leaf) for leaf in leaves]

    @cached_property
    def csv(self) -> str:
        """The matrix as CSV in a data URL, a row each true class."""
        rows = ([name, *counts] for name, counts in zip(self.names, self.counts.tolist(), strict=True))
        return csv_url(["true class", *self.names], rows)
