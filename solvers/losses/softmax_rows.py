"""-grad of the softmax loss, many rows at once, in the precision of the scores; sums over rows in float64.

A row of few classes fills no vector, and its logarithms take as long as the rest.  So narrow rows lie side by
side here, class by class, and every step is a loop over as many rows as a vector holds many times.  Wide
rows, one after the other, share only the call that takes their exponentials.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.losses.row_sums import add_to_sums, is_finite
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.projections.logarithms import log_of_row, minus_log_of_rest
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Classes up to which rows lie side by side, and how many of them.
_NARROW, _TOGETHER = 40, 128
#: Numbers of as many wide rows as have their exponentials taken together.
_AT_ONCE = 512
#: The share that the other classes have at most where the loss is found from what the own one lacks.
_NEARLY_ALL = 0.5
_ZERO = np.float64(0.0)


def softmax_rows(
    scores: FloatArray,
    y: IntArray,
    _table: Float64Array,
    weights: Float64Array,
    U: FloatArray,
    losses: Float64Array,
    sums: Float64Array,
) -> None:
    """Write u = -grad Phi of the softmax loss to U (b, m), which may be `scores`, and add to the sums.

    Phi and -Phi*(-u) = Phi + <u, s> are those of scores that are numbers; of others Phi is NaN and u is 0.
    """
    rows = _narrow_rows if scores.shape[1] <= _NARROW else _wide_rows
    rows(scores, y, weights, U, losses, sums)


@jit
def _narrow_rows(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    U: FloatArray,
    losses: Float64Array,
    sums: Float64Array,
) -> None:
    n, m = scores.shape
    x, e = np.empty((m, _TOGETHER), scores.dtype), np.empty((m, _TOGETHER), scores.dtype)
    work, own = np.empty((4, _TOGETHER), scores.dtype), np.empty((4, _TOGETHER))
    for start in range(0, n, _TOGETHER):
        rows = slice(start, min(start + _TOGETHER, n))
        _lay_side_by_side(scores[rows], x)
        _exponentials(x, e, work)
        _narrow_shares(x, e, y[rows], work, own)
        _write_back(x, e, y[rows], weights[rows], work, own, U[rows], losses[rows], sums)


@jit
def _lay_side_by_side(scores: FloatArray, x: FloatArray) -> None:
    """Write scores (r, m) to the first r columns of x, and 0 to the others."""
    for i in range(scores.shape[0]):
        for j in range(x.shape[0]):
            x[j, i] = scores[i, j]
    x[:, scores.shape[0] :] = 0.0


@jit
def _exponentials(x: FloatArray, e: FloatArray, work: FloatArray) -> None:
    """Take the highest from x, and write exp(x) to e and its sum over the classes to work[0]."""
    total, highest, powers = work[0], work[1], work[2]
    highest[:] = x[0]
    total[:] = 0.0
    for j in range(1, x.shape[0]):
        for i in range(x.shape[1]):
            highest[i] = max(highest[i], x[j, i])
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[j, i] -= highest[i]
        exp_of_row(x[j], e[j], powers)
        for i in range(x.shape[1]):
            total[i] += e[j, i]


@jit
def _narrow_shares(x: FloatArray, e: FloatArray, y: IntArray, work: FloatArray, own: Float64Array) -> None:
    """Write -p to e, and 0 for the own class, whose p goes to own[0].

    own[1] is the logarithm of the total, own[2] the loss from what the own class lacks.  work[1], work[2] and
    work[3] are what the other classes have together: of p, -p log p and p^2.
    """
    share, mass, entropy, square = work[0], work[1], work[2], work[3]
    p_own, log_total, loss, total = own[0], own[1], own[2], own[3]
    for i in range(len(share)):
        total[i] = share[i]
        share[i] = share.dtype.type(1.0) / share[i]
    log_of_row(total, log_total)
    mass[:] = 0.0
    entropy[:] = 0.0
    square[:] = 0.0
    for i in range(len(y)):
        p_own[i] = np.float64(e[y[i], i]) * np.float64(share[i])
        e[y[i], i] = 0.0
    for j in range(x.shape[0]):
        for i in range(x.shape[1]):
            p = e[j, i] * share[i]
            mass[i] += p
            entropy[i] -= p * (x[j, i] - share.dtype.type(log_total[i]))
            square[i] += p * p
            e[j, i] = -p
    for i in range(len(mass)):
        total[i] = min(np.float64(mass[i]), _NEARLY_ALL)
    minus_log_of_rest(total, loss)


@jit
def _write_back(
    x: FloatArray,
    e: FloatArray,
    y: IntArray,
    weights: Float64Array,
    work: FloatArray,
    own: Float64Array,
    U: FloatArray,
    losses: Float64Array,
    sums: Float64Array,
) -> None:
    """Write u and the losses, and add to the sums."""
    mass, entropy, square = work[1], work[2], work[3]
    for i in range(len(y)):
        loss = np.float64(own[2, i] if mass[i] < _NEARLY_ALL else own[1, i] - x[y[i], i])
        conjugate = np.float64(entropy[i] + own[0, i] * loss)
        total = np.float64(square[i]) + np.float64(mass[i]) ** 2
        for j in range(e.shape[0]):
            U[i, j] = e[j, i]
        U[i, y[i]] = mass[i]
        if not is_finite(conjugate):
            U[i, :] = 0.0
            loss, conjugate, total = np.float64(np.nan), _ZERO, _ZERO
        if len(losses):
            losses[i] = loss
        add_to_sums(weights[i], loss, conjugate, total, sums)


@jit
def _wide_rows(
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    U: FloatArray,
    losses: Float64Array,
    sums: Float64Array,
) -> None:
    n, m = scores.shape
    together = max(1, _AT_ONCE // m)
    shape = together, m
    x, powers, e = np.empty(shape, U.dtype), np.empty(shape, U.dtype), np.empty(shape, U.dtype)
    for start in range(0, n, together):
        rows = slice(start, min(start + together, n))
        size = (rows.stop - rows.start) * m
        _below_highest(scores[rows], x)
        exp_of_row(x.ravel()[:size], e.ravel()[:size], powers.ravel()[:size])
        _wide_shares(x, e, y[rows], weights[rows], U[rows], losses[rows], sums)


@jit
def _below_highest(scores: FloatArray, x: FloatArray) -> None:
    for i in range(scores.shape[0]):
        highest = scores[i, 0]
        for j in range(scores.shape[1]):
            highest = max(highest, scores[i, j])
        for j in range(scores.shape[1]):
            x[i, j] = scores[i, j] - highest


@jit(fastmath={"reassoc", "contract", "nsz"})
def _wide_shares(
    x: FloatArray,
    e: FloatArray,
    y: IntArray,
    weights: Float64Array,
    U: FloatArray,
    losses: Float64Array,
    sums: Float64Array,
) -> None:
    """Write u from x, the scores less the highest, and e = exp(x), which is overwritten; add to the sums."""
    m, zero = x.shape[1], x.dtype.type(0.0)
    for i in range(U.shape[0]):
        total = zero
        numbers = zero
        for j in range(m):
            total += e[i, j]
            numbers += x[i, j]
        own, exact_log = y[i], math.log(np.float64(total))
        share, log_total = x.dtype.type(1.0) / total, x.dtype.type(exact_log)
        p_own = np.float64(e[i, own]) * np.float64(share)
        e[i, own] = zero
        mass = zero
        entropy = zero
        square = zero
        for j in range(m):
            p = e[i, j] * share
            mass += p
            # log p, which takes as long as all the rest.
            entropy -= p * (x[i, j] - log_total)
            square += p * p
            U[i, j] = -p
        U[i, own] = mass
        others = np.float64(mass)
        # Where the own class has nearly all, the digits of the loss are those of what it lacks.
        loss = np.float64(-math.log1p(-others)) if others < _NEARLY_ALL else exact_log - np.float64(x[i, own])
        conjugate, squares = np.float64(entropy) + p_own * loss, np.float64(square) + others * others
        if not is_finite(np.float64(numbers)):
            U[i, :] = zero
            loss, conjugate, squares = np.float64(np.nan), _ZERO, _ZERO
        if len(losses):
            losses[i] = loss
        add_to_sums(weights[i], loss, conjugate, squares, sums)
