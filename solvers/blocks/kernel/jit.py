"""Compiled work on the rows of the kernelised dual: their shares of the gap, and which are picked."""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.jit_pointers import JitFunction
from topline.solvers.projections.ordering import room
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray

#: Places of the sums over rows.
LOSS, CONJUGATE, CROSS, SQUARE, N_SUMS = 0, 1, 2, 3, 4


@jit
def row_gaps(
    conjugate: JitFunction,
    A: FloatArray,
    scores: FloatArray,
    losses: Float64Array,
    y: IntArray,
    weights: Float64Array,
    gamma: float,
    own_share: float,
    margins: Float64Array,
    gaps: Float64Array,
    sums: Float64Array,
) -> None:
    """Write w_i (Phi(s_i) + Phi*(-alpha_i) + <alpha_i, s_i>) to `gaps`, n times a row's share of P - D.

    Fenchel and Young: none is below 0.  Adds w_i times the losses, -Phi*(-alpha_i), <alpha_i, s_i> and
    |alpha_i|^2 to `sums`, the own class counting `own_share` times in the last.
    """
    m = A.shape[1]
    row = room(m)
    for i in range(A.shape[0]):
        cross = square = 0.0
        for j in range(m):
            row[j] = A[i, j]
            cross += row[j] * np.float64(scores[i, j])
            square += (own_share if j == y[i] else 1.0) * row[j] * row[j]
        value = conjugate(row, y[i], margins)
        sums[LOSS] += weights[i] * losses[i]
        sums[CONJUGATE] += weights[i] * value
        sums[CROSS] += weights[i] * cross
        sums[SQUARE] += weights[i] * square
        gaps[i] = max(weights[i] * (losses[i] - value + 0.5 * gamma * square + cross), 0.0)


@jit
def picked_rows(
    gaps: Float64Array, first: int, rate: float, least: float, seed: int, round_: int, picked: Int64Array
) -> tuple[int, float]:
    """Write the rows that are picked and return how many, and the sum of the roots of all gaps above `least`.

    A row's fate is a hash of seed, round and its number, `first` + its place here.
    """
    n_picked = 0
    roots = 0.0
    for i in range(len(gaps)):
        if gaps[i] <= least:
            continue
        root = math.sqrt(gaps[i])
        roots += root
        if _uniform(first + i, seed, round_) < rate * root:
            picked[n_picked] = i
            n_picked += 1
    return n_picked, roots


@jit
def _uniform(row: int, seed: int, round_: int) -> float:
    """Return a number in [0, 1) that a row has in a round: SplitMix64 of the three."""
    state = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(round_) * np.uint64(0xD1B54A32D192ED03)
    state += np.uint64(seed) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return float(state >> np.uint64(11)) * (1.0 / 9007199254740992.0)
