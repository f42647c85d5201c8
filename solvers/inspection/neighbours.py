"""Nearest neighbours of a few rows by angle, and all pairs of almost parallel rows, by scikit-learn's search.

It compares every two rows, a few of them at a time, and never holds an n x n array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, Int64Array

#: Error bound of float32 products of unit rows.
_ROUNDING = 2e-6


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows first < second (p,) with their cosines, the closest first."""

    first: Int64Array
    second: Int64Array
    cosines: Float64Array


def unit_rows(X: Any) -> Any:
    """Return rows scaled to unit norm in float32, dense or CSR; zero rows stay zero."""
    if is_sparse(X):
        norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64)).ravel()
        return (sparse.diags(1.0 / np.where(norms > 0.0, norms, 1.0)) @ X).tocsr().astype(np.float32)
    rows = np.asarray(X, dtype=np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    return rows / np.where(norms > 0.0, norms, 1.0).astype(np.float32)[:, None]


def nearest_neighbours(units: Any, rows: Int64Array, count: int) -> tuple[Int64Array, Float64Array]:
    """Return the `count` nearest other rows of each of `rows` (b,), and their cosines, (b, count) each.

    `units` come from `unit_rows`; fewer columns if there are fewer other rows.
    """
    count = min(count, int(units.shape[0]) - 1)
    distances, found = _search(units).kneighbors(units[rows], count + 1)
    others = found != rows[:, None]
    # Among enough equals a row itself may be missing.
    others[others.all(axis=1), -1] = False
    shape = len(rows), count
    return found[others].reshape(shape), 1.0 - distances[others].reshape(shape).astype(np.float64)


def near_duplicates(units: Any, cosine: float, most: int = 100_000) -> Pairs:
    """Return the pairs of rows whose cosine is at least `cosine`, the `most` closest of them.

    Zero rows have no angle and are in no pair.
    """
    if not 0.0 < cosine <= 1.0:
        raise InvalidProblemError(f"the cosine of near duplicates is {cosine}; give a number in (0, 1]")
    filled = np.flatnonzero(np.diff(units.indptr) > 0 if is_sparse(units) else units.any(axis=1))
    if not len(filled):
        return Pairs(filled, filled, np.empty(0))
    radius = 1.0 - cosine + _ROUNDING
    graph = _search(units[filled]).radius_neighbors_graph(radius=radius, mode="distance")
    pairs: Any = sparse.triu(graph, 1, format="coo")
    first, second, cosines = filled[pairs.row], filled[pairs.col], 1.0 - pairs.data.astype(np.float64)
    closest = np.lexsort((second, first, -cosines))[:most]
    return Pairs(first[closest], second[closest], cosines[closest])


def _search(units: Any) -> Any:
    """Return a search among rows by cosine distances, 1 - cosine."""
    # Importing this would double our import time.
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(metric="cosine", algorithm="brute").fit(units)
