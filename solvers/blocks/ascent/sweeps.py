"""One sweep of exact column updates: each row at the weights that the row before it left.

Row by row and not tile by tile: while W lies in a core's caches the scores of one row, m inner products of
length d, take about as long in a loop as their share of a BLAS product does, the change is carried into W
along the few classes that change, and neither Gram matrices nor stale scores are needed.
"""

from __future__ import annotations

import numpy as np

from topline.solvers.blocks.ascent.dual_changes import carry_csr, carry_dense
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction, borrowed, keep
from topline.solvers.jit_prefetch import fetch
from topline.solvers.projections.ordering import column_workspace, room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows between one that is visited and the one that is fetched.
AHEAD = 3


@jit(fastmath={"reassoc", "contract"})
def dense_scores(W: FloatArray, X: FloatArray, place: int, scores: FloatArray) -> None:
    """Write W x to `scores` (m,) for one row of X, in the precision of W.

    Four classes at a time share the loads of x.  Arrays are indexed by row and column throughout: a row taken
    out as an array of its own is counted as a reference, which takes as long as the scores of a short one.
    """
    m, d = W.shape
    zero = W.dtype.type(0.0)
    whole = m - m % 4
    for j in range(0, whole, 4):
        s0 = zero
        s1 = zero
        s2 = zero
        s3 = zero
        for f in range(d):
            v = X[place, f]
            s0 += W[j, f] * v
            s1 += W[j + 1, f] * v
            s2 += W[j + 2, f] * v
            s3 += W[j + 3, f] * v
        scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = s0, s1, s2, s3
    for j in range(whole, m):
        s0 = zero
        for f in range(d):
            s0 += W[j, f] * X[place, f]
        scores[j] = s0


@jit(fastmath={"contract"})
def sparse_scores(
    W: FloatArray, data: FloatArray, indices: IntArray, low: int, high: int, scores: FloatArray
) -> None:
    """Write the scores of a sparse row, at low..high-1 of the CSR arrays; W (d, m)."""
    scores[:] = 0.0
    for p in range(low, high):
        f = indices[p]
        v = data[p]
        for j in range(len(scores)):
            scores[j] += v * W[f, j]


@jit
def fetch_dense(X: FloatArray, place: int, A: FloatArray, delta: FloatArray, i: int) -> None:
    """Begin to fetch a row of X, and row i of A and delta."""
    fetch(X, place, X.shape[1] * X.itemsize)
    fetch(A, i, A.shape[1] * A.itemsize)
    fetch(delta, i, A.shape[1] * delta.itemsize)


@jit
def update_row(
    i: int,
    label: int,
    weighted: float,
    norm: float,
    gamma: float,
    gamma_own: float,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    A: FloatArray,
    delta: FloatArray,
    q: Float64Array,
    alpha: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
    changed: Int64Array,
    steps: Float64Array,
) -> tuple[int, float]:
    """Replace dual row i, whose scores are in q, by the maximiser of the dual in it.

    Writes the classes that change, and what their weights change by along x_i, to `changed` and `steps`;
    gives their number and what `sweep_dense` writes to `rises`.
    """
    m = len(q)
    own = weighted * norm
    for j in range(m):
        # The row's own part is taken out of its scores.
        q[j] -= own * (np.float64(A[i, j]) + np.float64(delta[i, j]))
    single = A.itemsize == 4
    _, _, vertex = column(
        q, label, own + gamma, own + gamma_own, rho, margins, alpha, work, index_work, single
    )
    square = 0.0
    n_changed = 0
    for j in range(m):
        before = delta[i, j]
        if alpha[j] == np.float64(A[i, j]) + np.float64(before):
            continue
        # What is stored is what counts: the change is taken after rounding to A's precision.
        delta[i, j] = alpha[j] - A[i, j]
        change = np.float64(delta[i, j]) - np.float64(before)
        if change != 0.0:
            square += change * change
            changed[n_changed] = j
            steps[n_changed] = weighted * change
            n_changed += 1
    if n_changed == 0 and vertex:
        return 0, -1.0
    return n_changed, 0.5 * (own + gamma_own) * square


@jit
def sweep_dense(
    X: FloatArray,
    places: Int64Array,
    rows: Int64Array,
    y: IntArray,
    weights: Float64Array,
    norms: Float64Array,
    along: Float64Array,
    u: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    gamma: float,
    gamma_own: float,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> float:
    """Replace dual rows one by one by the maximisers of the dual in that row; return what it rises by.

    Parameters
    ----------
    X, places : features, and where in X each visited row lies, in the order of the visits.
    rows : their places in the arrays of the block that follow.
    y, weights : labels, and how often a row counts.
    norms, along : |x_i|^2 and <x_i, u>, norms -1 where neither is known yet.
    u, kept_apart : unit vector (d,) along which examples are shrunk by sqrt(1 - kept_apart); 0 for none.
    A, delta : dual rows (of a row that counts once) at the start of the round and their change so far, which
        is updated.
    scale : s, the factor from a change of A to a change of scores; s = 1/(lam n) times the safety of a block
        that moves at the same time as others.
    gamma, gamma_own : smoothing of the other classes and of the own one.
    column, rho, margins : the loss: `column`, `rho` and `table` of its form.
    W, apart : (m, d) weights and, per class, what goes to them along u, kept up to date: a row scores
        W x + apart <x, u>, and W moves as if no row were shrunk.
    rises : written for the visited rows: c/2 |change|^2, which the dual rises by at least, and -1 where the
        row stays at a vertex of its domain.

    Returns
    -------
    The sum of what was written to `rises` and is not -1.
    """
    m = W.shape[0]
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    q, alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    changed, steps = np.empty(m, dtype=np.int64), room(m)
    scores = np.empty(m, dtype=W.dtype)
    total = 0.0
    for t in range(len(rows)):
        i = rows[t]
        if t + AHEAD < len(rows):
            fetch_dense(X, places[t + AHEAD], A, delta, rows[t + AHEAD])
        if weights[i] == 0.0:
            rises[i] = -1.0
            continue
        place = places[t]
        if norms[i] < 0.0:
            square = inner = 0.0
            for f in range(X.shape[1]):
                x = np.float64(X[place, f])
                square += x * x
                inner += x * u[f]
            norms[i], along[i] = square, inner
        dense_scores(W, X, place, scores)
        for j in range(m):
            q[j] = scores[j] + apart[j] * along[i]
        norm = norms[i] - kept_apart * along[i] * along[i]
        n_changed, rise = update_row(
            i, y[i], scale * weights[i], norm, gamma, gamma_own, column, rho, margins, A, delta,
            q, alpha, work, index_work, changed, steps,
        )  # fmt: skip
        rises[i] = rise * weights[i]
        total += max(rises[i], 0.0)
        for k in range(n_changed):
            carry_dense(W, changed[k], X, place, steps[k])
            apart[changed[k]] -= kept_apart * steps[k] * along[i]
    keep(owners)
    return total


@jit
def _fetch_sparse(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    place: int,
    A: FloatArray,
    delta: FloatArray,
    i: int,
) -> None:
    """Begin to fetch a sparse row, and row i of A and delta."""
    low, high = indptr[place], indptr[place + 1]
    if low < high:
        fetch(data, low, (high - low) * data.itemsize)
        fetch(indices, low, (high - low) * indices.itemsize)
    fetch(A, i, A.shape[1] * A.itemsize)
    fetch(delta, i, A.shape[1] * delta.itemsize)


@jit
def _sizes(data: FloatArray, indices: IntArray, low: int, high: int, u: Float64Array) -> tuple[float, float]:
    """Return |x|^2 and <x, u> of a sparse row."""
    square = inner = 0.0
    for p in range(low, high):
        square += np.float64(data[p]) * np.float64(data[p])
        inner += np.float64(data[p]) * u[indices[p]]
    return square, inner


@jit
def sweep_csr(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    places: Int64Array,
    rows: Int64Array,
    y: IntArray,
    weights: Float64Array,
    norms: Float64Array,
    along: Float64Array,
    u: Float64Array,
    kept_apart: float,
    A: FloatArray,
    delta: FloatArray,
    scale: float,
    gamma: float,
    gamma_own: float,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> float:
    """Do the same for sparse rows, with W (d, m): the scores are a sum of rows of W."""
    m = W.shape[1]
    owners = column_workspace(m), room(m), room(m), rho, margins
    work, index_work = borrowed(owners[0][0]), borrowed(owners[0][1])
    q, alpha = borrowed(owners[1]), borrowed(owners[2])
    rho, margins = borrowed(rho), borrowed(margins)
    changed, steps = np.empty(m, dtype=np.int64), room(m)
    scores = np.empty(m, dtype=W.dtype)
    total = 0.0
    for t in range(len(rows)):
        i = rows[t]
        if t + AHEAD < len(rows):
            _fetch_sparse(data, indices, indptr, places[t + AHEAD], A, delta, rows[t + AHEAD])
        if weights[i] == 0.0:
            rises[i] = -1.0
            continue
        low, high = indptr[places[t]], indptr[places[t] + 1]
        if norms[i] < 0.0:
            norms[i], along[i] = _sizes(data, indices, low, high, u)
        sparse_scores(W, data, indices, low, high, scores)
        for j in range(m):
            q[j] = scores[j] + apart[j] * along[i]
        norm = norms[i] - kept_apart * along[i] * along[i]
        n_changed, rise = update_row(
            i, y[i], scale * weights[i], norm, gamma, gamma_own, column, rho, margins, A, delta,
            q, alpha, work, index_work, changed, steps,
        )  # fmt: skip
        rises[i] = rise * weights[i]
        total += max(rises[i], 0.0)
        for k in range(n_changed):
            apart[changed[k]] -= kept_apart * steps[k] * along[i]
        carry_csr(W, data, indices, low, high, changed, steps, n_changed, scores)
    keep(owners)
    return total
