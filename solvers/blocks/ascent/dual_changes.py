"""Effects of a change of dual rows on the dual and on W, and projections of dual rows on their domain.

The sum of x_i change_i^T over dense rows is computed class by class on several threads, or as products of
tiles.  Row by row every change would load and store the sums of its class.  Here the changes of some thousand
rows are first sorted by class (`topline.solvers.blocks.vertices.add_by_class`), and threads take different
classes.  The order of additions is fixed, so no number depends on the number of threads.

If many entries change, as all do with entropies, a float32 product of a tile takes a third of that time,
provided that features and changes are float32 themselves; the tiles are added in float64.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from topline.solvers.blocks.ascent.sweeps import FAR_AHEAD, ClassLists, fetch_listed
from topline.solvers.blocks.vertices import add_by_class, group_nonzeros
from topline.solvers.crew import ALONE, Crew
from topline.solvers.jit_cache import JitFunction, borrowed, jit, keep
from topline.solvers.losses import LossForm
from topline.solvers.losses.rows import update_rows
from topline.solvers.projections.columns import room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Rows projected at once.
_PROJECTED_ROWS = 4096
#: Bytes of rows whose changes are sorted together.
_TILE_BYTES = 1 << 23
#: Share of changed entries (one in this many) from which a product is faster than single entries, and the
#: most and least rows of one product, whose sums are rounded to float32.
_DENSE, _DENSE_ROWS, _FEW_ROWS = 4, 512, 64
#: Multiplications of a tile below which one thread finishes before others could help.
_SHARED = 1 << 23


def project_rows(Z: Float64Array, y: IntArray, form: LossForm) -> None:
    """Replace each row of Z (t, m) by the nearest point of the domain of the loss, a hinge.

    Nearest in |alpha|^2: the column problem with c = 1 whose free solution is the row.
    """
    column, ones = form.column_where(alike=True), np.ones(len(Z))
    for low in range(0, len(Z), _PROJECTED_ROWS):
        part = slice(low, low + _PROJECTED_ROWS)
        scores = -Z[part] - form.margin_rows(y[part])
        update_rows(column, scores, y[part], (ones[part], ones[part]), form.rho, form.table, Z[part])


@jit
def change_sums(
    conjugate: JitFunction,
    linear: bool,
    rows: tuple[Int64Array, IntArray, Float64Array],
    lists: ClassLists,
    duals: tuple[FloatArray, FloatArray],
    margins: Float64Array,
    own_share: float,
) -> tuple[float, float, float, int]:
    """Sum the change of b, <alpha_i, delta_i> and |delta_i|^2, and count the changed rows.

    `rows` are their places in A and delta, the `duals`, labels and weights w; outside their `lists` of
    classes there is no change.  Each row counts w_i times, and its own class `own_share` times in smoothed
    terms.  b(alpha) is -Phi*(-alpha), given as `conjugate`, and `linear` says whether it is linear.
    """
    A, delta = duals
    m, few = A.shape[1], len(lists.classes) > 0
    owners = room(m), room(m), margins
    before, after, margins = borrowed(owners[0]), borrowed(owners[1]), borrowed(margins)
    first, last = 0, m
    total = cross = square = 0.0
    places, y, weights = rows
    changed_rows = 0
    for i in range(len(places)):
        place, changed = places[i], False
        row_cross = row_square = 0.0
        if i + FAR_AHEAD < len(places):
            fetch_listed(A, delta, places[i + FAR_AHEAD], lists, i + FAR_AHEAD)
        if few:
            first, last = lists.starts[lists.place[i]], lists.starts[lists.place[i] + 1]
        count = last - first
        for e in range(count):
            j = lists.classes[first + e] if few else e
            change = np.float64(delta[place, j])
            if linear and change == 0.0:
                # Rows of a hinge change in few classes.
                after[e] = 0.0
                continue
            changed |= change != 0.0
            share = own_share if j == y[i] else 1.0
            before[e] = A[place, j]
            after[e] = before[e] + change
            row_cross += share * before[e] * change
            row_square += share * change * change
            if linear:
                # Of the change, without cancellation of two large values.
                after[e] -= before[e]
        if not changed:
            continue
        changed_rows += 1
        cross += weights[i] * row_cross
        square += weights[i] * row_square
        # Margins that are alike, as those of listed classes, do not depend on the others.
        value, label = 0.0, 0 if few else y[i]
        if not linear:
            value -= conjugate(before[:count], label, margins)
        value += conjugate(after[:count], label, margins)
        total += weights[i] * value
    keep(owners)
    return total, cross, square, changed_rows


def add_changes(
    X: FloatArray,
    places: Int64Array,
    changes: FloatArray,
    factors: Float64Array,
    out: Float64Array,
    crew: Crew = ALONE,
) -> None:
    """Add sum_t f_t x_t change_t^T to `out` (m, d); changes (t, m), mostly zero; row t lies at places[t].

    Large sums use all threads of the crew.
    """
    m, d = out.shape
    # Products of few rows, the case for long rows, cost more than their sums.
    together = min(_DENSE_ROWS, _TILE_BYTES // (d * X.itemsize))
    single = X.dtype == changes.dtype == np.float32
    if single and together >= _FEW_ROWS and _DENSE * np.count_nonzero(changes) >= changes.size > 0:
        _add_products(X, places, changes, factors, out, together)
        return
    step = max(_TILE_BYTES // (d * X.itemsize), 1)
    for low in range(0, len(places), step):
        part = slice(low, low + step)
        starts, rows, steps = group_nonzeros(changes[part], factors[part])
        if crew.threads > 1 and len(rows) * d >= _SHARED:
            cuts = np.searchsorted(starts, np.linspace(0, len(rows), 4 * crew.threads + 1))
            cuts[0], cuts[-1] = 0, m
        else:
            cuts = np.array([0, m])
        changed = X, starts, places[part][rows], steps, out
        crew.each(partial(_add_classes, changed), [slice(j, k) for j, k in pairwise(cuts)])


def _add_classes(
    changed: tuple[FloatArray, Int64Array, Int64Array, Float64Array, Float64Array], classes: slice
) -> None:
    """Add the changes of some classes."""
    X, starts, rows, steps, out = changed
    add_by_class(X, starts[classes.start : classes.stop + 1], rows, steps, out[classes])


def _add_products(
    X: FloatArray,
    places: Int64Array,
    changes: FloatArray,
    factors: Float64Array,
    out: Float64Array,
    together: int,
) -> None:
    """Do the work of `add_changes` by float32 products of `together` rows each."""
    for low in range(0, len(places), together):
        part = slice(low, low + together)
        steps = changes[part] * factors[part, None].astype(np.float32)
        at = places[part]
        # Rows gathered for their changes are contiguous.
        in_turn = bool((np.diff(at) == 1).all())
        out += steps.T @ (X[at[0] : at[0] + len(at)] if in_turn else X[at])
