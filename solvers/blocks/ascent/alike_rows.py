"""Groups of rows that look alike and have different labels, and their joint moves.

These are the same example under two labels, or nearly.  Rows are summed into a few sketches of random
features with random signs (M. Charikar et al., "Finding frequent items in data streams", 2002).  The signs of
some sketches, relative to their medians, form a code that rows with a small angle between them share
(M. Charikar, "Similarity estimation techniques from rounding algorithms", 2002).  Neighbours among the rows
of a code, ordered by one more sketch, are compared, for several codes; where two sketches agree the rows
themselves are compared.  This takes about as long as a pass with a few classes.

For rows i and j with x_i near x_j and labels a and b, the change t (e_a - e_b) of alpha_i together with
t (e_b - e_a) of alpha_j leaves W nearly as it is, while D rises with t up to the bounds of their domains.
Visits of one row at a time move it by about 1/|x|^2 each.  Here the dual rows of such a group are moved
together, group by group, using only their scores and their Gram matrix.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.rows import RowFeed
from topline.solvers.blocks.ascent.sweeps import Scratch, SweptPart, carry, scores, scratch_for, store_row
from topline.solvers.core.rows import Rows, is_sparse, stacked
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.projections.columns import ColumnProblem
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
    X = stacked([portion.X[portion.places] for portion in feed.in_order(rows[some])])
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


def _inner(X: Rows, left: Int64Array, right: Int64Array) -> Float64Array:
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
    parts = []
    for low, high in pairwise(starts):
        rows = X[low:high].astype(np.float64)
        gram = rows @ rows.T
        parts.append((gram.toarray() if is_sparse(gram) else gram).ravel())
    return np.concatenate(parts)


#: Penalties of the method of multipliers, in scores per dual variable: both are about 1.
_PENALTIES = (10.0, 100.0)
#: Least penalty as a share of the largest Gram entry: the Gram matrix of equal rows is singular.
_LEAST_PENALTY = 1e-12
#: Least rise of D per squared change of dual variables: where D hardly depends on them they stay, because W
#: and P do depend on them.
_LEAST_RISE = 0.01
#: Iterations and relaxation factor of the method.
_TURNS, _RELAXED = 40, 1.6


class _Group(NamedTuple):
    """Some rows that look alike.

    Attributes
    ----------
    S, alpha : (c, m) their scores and dual rows, kept up to date.
    K : (c, c) their Gram matrix times the factor from a change of A to one of scores.
    y, weights, offsets : (c,) labels, (c,) how often each counts, and (c, m) margins.
    rho, margins : as in `SweptPart`.
    """

    S: Float64Array
    alpha: Float64Array
    K: Float64Array
    y: IntArray
    weights: Float64Array
    offsets: Float64Array
    rho: Float64Array
    margins: Float64Array


@jit
def ascend_groups(
    owned: SweptPart,
    column: JitFunction,
    conjugate: JitFunction,
    starts: Int64Array,
    grams: Float64Array,
    offsets: Float64Array,
) -> float:
    """Move all groups in turn; return the rise of D.

    Parameters
    ----------
    owned : the rows in groups, with all classes; row t lies at place t of its tile.
    column, conjugate : the column update, and -Phi*(-alpha), which is linear.
    starts : where each group begins among the rows, and the end of the last.
    grams : the Gram matrices of the groups, concatenated.
    offsets : (t, m) margins.
    """
    part = borrowed(owned)
    tile, m = part.tile, len(part.apart)
    spare, scratch = np.empty(m, dtype=tile.W.dtype), scratch_for(m)
    total, at = 0.0, 0
    for g in range(len(starts) - 1):
        low, c = starts[g], starts[g + 1] - starts[g]
        rows = part.rows[low : low + c]
        S, alpha = np.empty((c, m)), np.empty((c, m))
        for p in range(c):
            i = rows[p]
            scores(tile, low + p, spare)
            for j in range(m):
                S[p, j] = spare[j] + part.apart[j] * part.along[i]
                alpha[p, j] = np.float64(part.A[i, j]) + np.float64(part.delta[i, j])
        group = _Group(
            S, alpha, _gram(part, rows, grams[at : at + c * c]), part.y[rows], part.weights[rows],
            offsets[low : low + c], part.rho, part.margins,
        )  # fmt: skip
        total += ascend(group, column, conjugate)
        at += c * c
        for p in range(c):
            n_changed, _ = store_row(part, rows[p], 0, alpha[p], scratch)
            carry(tile, low + p, scratch.changed, scratch.steps, n_changed, spare)
    return total


@jit
def _gram(part: SweptPart, rows: Int64Array, products: Float64Array) -> Float64Array:
    """Return the matrix that maps changes of a group's dual rows to changes of their scores."""
    c = len(rows)
    K = np.empty((c, c))
    for p in range(c):
        for k in range(c):
            both = part.along[rows[p]] * part.along[rows[k]]
            K[p, k] = part.scale * (products[p * c + k] - part.kept_apart * both)
    return K


@jit
def ascend(group: _Group, column: JitFunction, conjugate: JitFunction) -> float:
    """Move the dual rows of a group towards the maximum of D in them; return the rise of D."""
    S, alpha, K, weights = group.S, group.alpha, group.K, group.weights
    c, m = S.shape
    owned = scratch_for(m)
    scratch = borrowed(owned)
    best = np.empty((c, m))
    total = 0.0
    least = _LEAST_PENALTY * np.max(weights * np.diag(K))
    for wanted in _PENALTIES:
        _alternate(group, max(wanted, least), column, best, scratch)
        square = 0.0
        for p in range(c):
            for j in range(m):
                best[p, j] -= alpha[p, j]
                square += weights[p] * best[p, j] * best[p, j]
        slope, curvature = _parabola(group, best, conjugate)
        step = 0.0
        if slope > 0.0:
            step = min(slope / curvature, 1.0) if curvature > 0.0 else 1.0
        rise = step * (slope - 0.5 * step * curvature)
        if rise > _LEAST_RISE * step * step * square:
            total += rise
            for p in range(c):
                for j in range(m):
                    alpha[p, j] += step * best[p, j]
                    _carry_change(group, p, j, step * best[p, j])
        for p in range(c):
            total += _visit(group, p, column, scratch)
    keep(owned)
    return total


@jit
def _carry_change(group: _Group, p: int, j: int, change: float) -> None:
    """Add the effect of a change of one dual variable of row p to the scores."""
    if change != 0.0:
        for k in range(len(group.weights)):
            group.S[k, j] += group.weights[p] * group.K[k, p] * change


@jit
def _visit(group: _Group, p: int, column: JitFunction, scratch: Scratch) -> float:
    """Replace one dual row of a group by its maximiser; return the rise."""
    q, alpha = scratch.q, scratch.alpha
    own = group.weights[p] * group.K[p, p]
    for j in range(len(q)):
        q[j] = group.S[p, j] - own * group.alpha[p, j]
    column(_problem(group, p, own, q, alpha, scratch))
    square = 0.0
    for j in range(len(q)):
        change = alpha[j] - group.alpha[p, j]
        square += change * change
        group.alpha[p, j] = alpha[j]
        _carry_change(group, p, j, change)
    return float(0.5 * own * group.weights[p] * square)


@jit
def _problem(
    group: _Group, p: int, c: float, q: Float64Array, alpha: Float64Array, scratch: Scratch
) -> ColumnProblem:
    return ColumnProblem(
        q,
        np.int64(group.y[p]),
        c,
        c,
        group.rho,
        group.margins,
        alpha,
        scratch.work,
        scratch.index_work,
        False,
    )


@jit
def _parabola(group: _Group, change: Float64Array, conjugate: JitFunction) -> tuple[float, float]:
    """Return slope and curvature of D along a change of the dual rows of a group."""
    S, K, weights = group.S, group.K, group.weights
    c, m = S.shape
    slope = curvature = 0.0
    for p in range(c):
        scored = 0.0
        for j in range(m):
            scored += S[p, j] * change[p, j]
        slope += weights[p] * (conjugate(change[p], group.y[p], group.margins) - scored)
        for k in range(p + 1):
            product = 0.0
            for j in range(m):
                product += change[p, j] * change[k, j]
            curvature += (1.0 if k == p else 2.0) * weights[p] * weights[k] * K[p, k] * product
    return slope, max(curvature, 0.0)


@jit
def _alternate(
    group: _Group, penalty: float, column: JitFunction, best: Float64Array, scratch: Scratch
) -> None:
    """Write nearly the best dual rows of a group, inside their domains, to `best` (c, m).

    Uses the alternating direction method of multipliers, with one copy of the rows that maximises D without
    bounds and one inside the domains.  In the units w_i |alpha_i|^2 all classes share one system matrix.
    """
    alpha, offsets, q = group.alpha, group.offsets, scratch.q
    c, m = alpha.shape
    root = np.sqrt(group.weights)
    inverse = _inverse(group.K, root, penalty)
    # D at the rows alpha + v is quadratic in v with the gradient -(offsets + S) at 0.
    apart, free = np.empty((c, m)), np.empty((c, m))
    right = np.empty((c, m))
    gradient = -(offsets + group.S)
    apart[:] = gradient / penalty
    best[:] = alpha
    for _ in range(_TURNS):
        for p in range(c):
            for j in range(m):
                moved = best[p, j] - alpha[p, j] - apart[p, j]
                right[p, j] = root[p] * (gradient[p, j] + penalty * moved)
        for p in range(c):
            for j in range(m):
                free[p, j] = 0.0
            for k in range(c):
                factor = inverse[p, k] / root[p]
                for j in range(m):
                    free[p, j] += factor * right[k, j]
            for j in range(m):
                value = alpha[p, j] + _RELAXED * free[p, j] + (1.0 - _RELAXED) * (best[p, j] - alpha[p, j])
                apart[p, j] += value
                q[j] = -apart[p, j] - offsets[p, j]
            column(_problem(group, p, 1.0, q, best[p], scratch))
            for j in range(m):
                apart[p, j] -= best[p, j]


@jit
def _inverse(K: Float64Array, root: Float64Array, penalty: float) -> FloatArray:
    """Return the inverse of K, in the units of `root`, plus the penalty."""
    c = len(root)
    matrix = np.empty((c, c))
    for p in range(c):
        for k in range(c):
            matrix[p, k] = root[p] * K[p, k] * root[k]
        matrix[p, p] += penalty
    return np.linalg.inv(matrix)
