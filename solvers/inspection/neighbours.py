"""Nearest neighbours of a few rows by angle, and all pairs of almost parallel rows.

Products are computed block by block, never as an n x n array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import LinearKernel
from topline.solvers.typing import Float64Array, FloatArray, Int64Array

#: Rows of a block: its products with another take 4 MB in float32.
_BLOCK = 1024
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
    n = int(units.shape[0])
    count = min(count, n - 1)
    queries = units[rows]
    best = np.full((len(rows), count), -1, dtype=np.int64)
    cosines = np.full((len(rows), count), -np.inf)
    for low in range(0, n, _BLOCK):
        high = min(low + _BLOCK, n)
        found = LinearKernel().tile(queries, units[low:high]).astype(np.float64)
        here = np.flatnonzero((low <= rows) & (rows < high))
        found[here, rows[here] - low] = -np.inf
        values = np.hstack([cosines, found])
        names = np.hstack([best, np.broadcast_to(np.arange(low, high), found.shape)])
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        best, cosines = np.take_along_axis(names, order, 1), np.take_along_axis(values, order, 1)
    return best, cosines


def near_duplicates(units: Any, cosine: float, most: int = 100_000) -> Pairs:
    """Return the pairs of rows whose cosine is at least `cosine`, the `most` closest of them.

    Rows are sorted along their direction of largest variance.  Rows within sqrt(2 - 2 cosine) of each other
    are that close along any direction, so only blocks that close are multiplied.  Zero rows have no angle and
    are in no pair.
    """
    if not 0.0 < cosine <= 1.0:
        raise InvalidProblemError(f"the cosine of near duplicates is {cosine}; give a number in (0, 1]")
    along = _projections(units)
    order = np.argsort(along, kind="stable")
    filled = np.diff(units.indptr) > 0 if is_sparse(units) else units.any(axis=1)
    order = order[filled[order]]
    reach = float(np.sqrt(max(2.0 - 2.0 * cosine, 0.0))) + 1e-3
    parts: list[tuple[Int64Array, Int64Array, Float64Array]] = []
    for low in range(0, len(order), _BLOCK):
        mine = order[low : low + _BLOCK]
        end = int(np.searchsorted(along[order], along[mine[-1]] + reach, side="right"))
        for start in range(low, max(end, low + 1), _BLOCK):
            others = order[start : start + _BLOCK]
            found = LinearKernel().tile(units[mine], units[others])
            left, right = np.nonzero(found >= cosine - _ROUNDING)
            ahead = low + left < start + right
            left, right = left[ahead], right[ahead]
            parts.append((mine[left], others[right], found[left, right].astype(np.float64)))
    parts.append((np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)))
    first, second, cosines = (np.concatenate(part) for part in zip(*parts, strict=True))
    lower, upper = np.minimum(first, second), np.maximum(first, second)
    closest = np.lexsort((upper, lower, -cosines))[:most]
    return Pairs(lower[closest], upper[closest], np.minimum(cosines[closest], 1.0))


def _projections(units: Any) -> FloatArray:
    """Return the rows projected on the direction found by a few power iterations (n,)."""
    n, d = units.shape
    mean = np.asarray(units.mean(axis=0), dtype=np.float64).ravel()
    direction = np.random.default_rng(0).standard_normal(d)
    for _ in range(8):
        direction = np.asarray(units.T @ (units @ direction)).ravel() - n * mean * (mean @ direction)
        size = float(np.linalg.norm(direction))
        if size == 0.0:
            direction[0] = size = 1.0
        direction /= size
    return np.asarray(units @ direction).ravel()
