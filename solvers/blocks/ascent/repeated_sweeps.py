"""Several sweeps over the same rows without a return to the interpreter: all of them, then those that move.

Where rows are few and short a sweep takes less time than the call that asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topline.solvers.blocks.ascent.class_subset import FewClasses, sweep_few
from topline.solvers.blocks.ascent.rows import SweptPart
from topline.solvers.blocks.ascent.sweeps import sweep_csr, sweep_dense
from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


class Swept(NamedTuple):
    """What sweeps came to: what D rose by in all and in the last, and below which rise no row has moved."""

    sweeps: int
    visited: float
    risen: float
    last: float
    still: float


#: A row whose rise is below this share of the mean has not moved.
STILL = 0.01


@jit
def draw_moving(
    rows: Int64Array,
    places: Int64Array,
    rises: Float64Array,
    still: float,
    random: Int64Array,
    drawn: Int64Array,
    drawn_places: Int64Array,
) -> int:
    """Write the rows that rose by more than `still` at their last visit, in random order; count them.

    `random` (1,) is the state of a xorshift generator (G. Marsaglia, J. Stat. Softw. 8, 2003), not 0.
    """
    count = 0
    x = random[0]
    for t in range(len(rows)):
        if not rises[rows[t]] > still:
            continue
        x ^= x << 13
        x ^= (x >> 7) & 0x1FFFFFFFFFFFFFF
        x ^= x << 17
        # Inside-out shuffle: the new row changes places with one of those before it, or with itself.
        k = (((x >> 32) & 0x7FFFFFFF) * (count + 1)) >> 31
        drawn[count], drawn_places[count] = drawn[k], drawn_places[k]
        drawn[k], drawn_places[k] = rows[t], places[t]
        count += 1
    random[0] = x
    return count


def moving(rows: Int64Array, rises: Float64Array, still: float, random: Int64Array) -> Int64Array:
    """Return the rows that `draw_moving` draws."""
    drawn, places = np.empty_like(rows), np.empty_like(rows)
    return drawn[: draw_moving(rows, rows, rises, still, random, drawn, places)]


@jit
def _draw_next(
    part: SweptPart,
    rises: Float64Array,
    still: float,
    left: float,
    random: Int64Array,
    drawn: Int64Array,
    drawn_places: Int64Array,
) -> int:
    """Draw those of all rows that moved, as many as visits are `left`."""
    count = draw_moving(part.rows, part.places, rises, still, random, drawn, drawn_places)
    return min(count, int(min(left, float(count))))


@jit
def sweeps_dense(
    sweeps: int,
    most: float,
    random: Int64Array,
    part: SweptPart,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> tuple[int, float, float, float, float]:
    """Sweep up to so many times, until `most` rows have been visited or none moves.

    Parameters
    ----------
    sweeps, most : sweeps, and visits after which those behind the first end.
    random : as in `draw_moving`.
    part : the rows, which the first sweep visits in their order, and what belongs to them.
    column, rho, margins, W, apart, rises : those of `sweep_dense`.

    Returns
    -------
    What makes a `Swept`.
    """
    places, rows = part.places, part.rows
    drawn, drawn_places = np.empty_like(rows), np.empty_like(places)
    risen = last = visited = still = 0.0
    done = 0
    while done < sweeps:
        if done > 0:
            count = _draw_next(part, rises, still, most - visited, random, drawn, drawn_places)
            if count <= 0:
                break
            rows, places = drawn[:count], drawn_places[:count]
        last = sweep_dense(
            part.X, places, rows, part.y, part.weights, part.norms, part.along, part.u, part.kept_apart,
            part.A, part.delta, part.scale, part.gamma, part.gamma_own, column, rho, margins, W, apart, rises,
        )  # fmt: skip
        done += 1
        risen += last
        visited += len(rows)
        still = STILL * last / max(len(rows), 1)
    return done, visited, risen, last, still


@jit
def sweeps_csr(
    sweeps: int,
    most: float,
    random: Int64Array,
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    part: SweptPart,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> tuple[int, float, float, float, float]:
    """Do the same for sparse rows, which are the CSR arrays and not those of `part`, with W (d, m)."""
    places, rows = part.places, part.rows
    drawn, drawn_places = np.empty_like(rows), np.empty_like(places)
    risen = last = visited = still = 0.0
    done = 0
    while done < sweeps:
        if done > 0:
            count = _draw_next(part, rises, still, most - visited, random, drawn, drawn_places)
            if count <= 0:
                break
            rows, places = drawn[:count], drawn_places[:count]
        last = sweep_csr(
            data, indices, indptr, places, rows, part.y, part.weights, part.norms, part.along, part.u,
            part.kept_apart, part.A, part.delta, part.scale, part.gamma, part.gamma_own, column, rho, margins,
            W, apart, rises,
        )  # fmt: skip
        done += 1
        risen += last
        visited += len(rows)
        still = STILL * last / max(len(rows), 1)
    return done, visited, risen, last, still


@jit
def sweeps_few(
    sweeps: int,
    most: float,
    random: Int64Array,
    few: FewClasses,
    part: SweptPart,
    column: JitFunction,
    rho: Float64Array,
    margins: Float64Array,
    W: FloatArray,
    apart: Float64Array,
    rises: Float64Array,
) -> tuple[int, float, float, float, float]:
    """Do the same in a few classes of each row, which count as their share of a visit."""
    places, rows = part.places, part.rows
    drawn, drawn_places = np.empty_like(rows), np.empty_like(places)
    risen = last = visited = still = 0.0
    done = 0
    while done < sweeps:
        if done > 0:
            count = _draw_next(part, rises, still, most - visited, random, drawn, drawn_places)
            if count <= 0:
                break
            rows, places = drawn[:count], drawn_places[:count]
        last, taken = sweep_few(
            part.X, places, rows, few.place, few.starts, few.classes, part.weights, part.norms, part.along,
            part.kept_apart, part.A, part.delta, part.scale, part.gamma, part.gamma_own, column, rho, margins,
            W, apart, rises,
        )  # fmt: skip
        done += 1
        risen += last
        visited += taken / W.shape[0]
        still = STILL * last / max(len(rows), 1)
    return done, visited, risen, last, still
