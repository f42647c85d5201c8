"""Groups of rows that look alike and have different labels: the same example under two labels, or nearly.

Rows are summed into a few sketches of random features with random signs (M. Charikar et al., "Finding
frequent items in data streams", 2002).  The signs of some sketches, relative to their medians, form a code
that rows with a small angle between them share (M. Charikar, "Similarity estimation techniques from rounding
algorithms", 2002).  Neighbours among the rows of a code, ordered by one more sketch, are compared, for
several codes; where two sketches agree the rows themselves are compared.  This takes about as long as a pass
with a few classes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from topline.solvers.blocks.ascent.row_feed import RowFeed
from topline.solvers.core.rows import Rows, is_sparse
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Least number of features (with fewer, all rows are near each other), and most rows, for a search.
_LEAST_FEATURES, _LOOKED_AT = 64, 1 << 18
#: Sketches of a row, codes, rows that share a code on average, and neighbours compared with each row.
_SKETCHES, _CODES, _SHARING, _NEIGHBOURS = 32, 4, 8, 4
#: Cosine of two rows from which they are alike, and cosine of their sketches from which rows are compared.
_ALIKE, _LIKELY = 0.99, 0.9
#: Least share of rows worth grouping; fewer are left to sweeps.
_LEAST_SHARE = 0.005
#: Most rows in a group.
_MOST_ROWS = 16
#: Most rows that may be alike, as a share of all, and most numbers in them.
_MOST_SHARE, _MOST_NUMBERS = 0.25, 1 << 24
#: Rows sampled for the medians, and sketched at once.
_SAMPLE = 4096
_SEED = 20


class Groups(NamedTuple):
    """Rows in groups: `starts` says where each begins in X and rows; `grams` are concatenated."""

    X: Rows
    rows: Int64Array
    starts: Int64Array
    grams: Float64Array


def find_groups(feed: RowFeed, rows: Int64Array, y: IntArray, d: int) -> Groups | None:
    """Return groups of some non-zero rows of a block with labels y, None if none; a few pairs are missed."""
    if d < _LEAST_FEATURES or not 2 <= len(rows) <= _LOOKED_AT:
        return None
    random = np.random.default_rng(_SEED)
    sketches, numbers = _sketches(feed, rows, d, random)
    pairs = _likely_pairs(sketches, y[rows], random)
    some = np.flatnonzero(np.bincount(pairs.ravel(), minlength=len(rows)))
    # If most rows are like others, likeness does not mean the same example twice.
    if not 0 < len(some) <= min(_MOST_SHARE * len(rows), _MOST_NUMBERS / numbers):
        return None
    X = _gathered(feed, rows[some])
    left, right = np.searchsorted(some, pairs)
    places = np.arange(len(some))
    squares = _inner(X, places, places)
    cosines = _inner(X, left, right) / np.sqrt(squares[left] * squares[right])
    nearest = np.argsort(-cosines, kind="stable")[: np.count_nonzero(cosines > _ALIKE)]
    group = _joined(left[nearest], right[nearest], len(some))
    sizes = np.bincount(group, minlength=len(some))
    joined = np.flatnonzero(sizes[group] > 1)
    if len(joined) < max(_LEAST_SHARE * len(rows), 2):
        return None
    order = joined[np.argsort(group[joined], kind="stable")]
    starts = np.append(0, np.cumsum(sizes[sizes > 1]))
    X = X[order]
    return Groups(X, rows[some[order]], starts, _grams(X, starts))


def _sketches(
    feed: RowFeed, rows: Int64Array, d: int, random: np.random.Generator
) -> tuple[FloatArray, float]:
    """Return the sketches (len(rows), _SKETCHES) of some rows, of length 1, and the numbers of a row."""
    signs = np.zeros((d, _SKETCHES), dtype=np.float32)
    signs[np.arange(d), random.permutation(np.arange(d) % _SKETCHES)] = random.choice([-1.0, 1.0], size=d)
    Z = np.empty((len(rows), _SKETCHES), dtype=np.float32)
    numbers = 1.0
    for X, places, some, _ in feed.in_order(rows):
        numbers = max(numbers, X.nnz / X.shape[0] if is_sparse(X) else d)
        for low in range(0, len(some), _SAMPLE):
            part = slice(low, low + _SAMPLE)
            Z[np.searchsorted(rows, some[part])] = X[places[part]] @ signs
    lengths = np.sqrt(np.einsum("ij,ij->i", Z, Z))
    Z /= np.where(lengths > 0.0, lengths, 1.0)[:, None]
    return Z, numbers


def _likely_pairs(Z: FloatArray, y: IntArray, random: np.random.Generator) -> Int64Array:
    """Return pairs (2, p) of rows with different labels that are likely to be alike."""
    n = len(Z)
    signs = np.median(Z[:: max(n // _SAMPLE, 1)], axis=0) < Z
    bits = int(np.clip(np.log2(n / _SHARING), 1, _SKETCHES))
    found = []
    for _ in range(_CODES):
        chosen = random.permutation(_SKETCHES)[:bits]
        code = np.zeros(n, dtype=np.int64)
        for bit, column in enumerate(chosen):
            code += signs[:, column].astype(np.int64) << bit
        direction = random.normal(size=_SKETCHES)
        # The integer part is the code, and the fraction orders the rows of one code.
        order = np.argsort(code + (0.5 + 0.49 / np.linalg.norm(direction) * (Z @ direction)))
        left, right = _near(Z[order], y[order], code[order], order)
        found.append(left * n + right)
    # Sorting is faster than `np.unique` for so many numbers.
    pairs = np.sort(np.concatenate(found))
    return np.array(np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], n))


@jit(fastmath={"reassoc", "contract"})
def _near(Z: FloatArray, y: IntArray, code: Int64Array, order: Int64Array) -> Int64Array:
    """Return the pairs (2, p) of neighbours with the same code, different labels and similar sketches.

    Z, y and code are in the order of the neighbours, and `order` are their numbers.
    """
    pairs = np.empty((2, _NEIGHBOURS * len(order)), dtype=np.int64)
    count = 0
    for t in range(len(order)):
        for u in range(t + 1, min(t + 1 + _NEIGHBOURS, len(order))):
            if code[u] != code[t]:
                break
            if y[u] == y[t]:
                continue
            product = Z.dtype.type(0.0)
            for s in range(Z.shape[1]):
                product += Z[t, s] * Z[u, s]
            if product > _LIKELY:
                pairs[0, count], pairs[1, count] = min(order[t], order[u]), max(order[t], order[u])
                count += 1
    return pairs[:, :count].copy()


def _gathered(feed: RowFeed, rows: Int64Array) -> Rows:
    """Return some rows as one array or matrix."""
    parts = [portion.X[portion.places] for portion in feed.in_order(rows)]
    return sp.vstack(parts, format="csr") if is_sparse(parts[0]) else np.concatenate(parts)


def _inner(X: Rows, left: Int64Array, right: Int64Array) -> Float64Array:
    """Return the inner products of rows."""
    if is_sparse(X):
        return np.asarray(X[left].astype(np.float64).multiply(X[right]).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", X[left], X[right], dtype=np.float64))


@jit
def _joined(left: Int64Array, right: Int64Array, count: int) -> Int64Array:
    """Return a group number for each of `count` rows; rows joined by pairs share one, earlier pairs first.

    Pairs that would make a group too large are ignored.
    """
    group, sizes = np.arange(count), np.ones(count, dtype=np.int64)
    for p in range(len(left)):
        i, k = left[p], right[p]
        while group[i] != i:
            i = group[i]
        while group[k] != k:
            k = group[k]
        if i != k and sizes[i] + sizes[k] <= _MOST_ROWS:
            group[max(i, k)] = min(i, k)
            sizes[min(i, k)] += sizes[max(i, k)]
    for i in range(count):
        group[i] = group[group[i]]
    return group


def _grams(X: Rows, starts: Int64Array) -> Float64Array:
    """Return the Gram matrices of groups, concatenated."""
    parts = []
    for low, high in pairwise(starts):
        rows = X[low:high].astype(np.float64)
        gram = rows @ rows.T
        parts.append((gram.toarray() if is_sparse(gram) else gram).ravel())
    return np.concatenate(parts)
