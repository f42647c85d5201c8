"""Gradients, losses and conjugates of any loss, row by row, compiled.

u = -grad Phi_gamma(s) is the column problem's solution at q = s, c = gamma
(`topline.solvers.projections.columns`), and Fenchel and Young's equality gives the loss: Phi_gamma(s) = -<u,
s> - Phi*(-u) - (gamma/2) |u|^2.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.losses.ranking import ACTIVE, B_U, LOSS, U_SQ
from topline.solvers.projections.columns import column_update, minus_conjugate
from topline.solvers.projections.exponentials import exp_of_negatives
from topline.solvers.projections.kinds import (
    ENTROPY_KIND,
    MULTILABEL_ENTROPY_KIND,
    MULTILABEL_HINGE_KIND,
    TRUNCATED_KIND,
)
from topline.solvers.projections.multilabel import multilabel_softmax_row
from topline.solvers.projections.ordering import column_workspace, largest_values
from topline.solvers.typing import Float64Array, FloatArray, Int64Array, IntArray


@jit
def gradient_rows(
    kind: int,
    scores: FloatArray,
    y: IntArray,
    weights: Float64Array,
    gamma: float,
    gamma_own: float,
    rho: Float64Array,
    margins: Float64Array,
    U: FloatArray,
    sums: Float64Array,
) -> None:
    """Write u_i = -grad Phi_gamma(s_i) to U (b, m), which may be `scores`, and add what the rows sum to.

    Adds w_i times: the loss, -Phi*(-u_i) - (gamma/2) |u_i|^2, |u_i|^2; and the number of rows with u_i != 0.
    With gamma = 0 u_i is minus a subgradient.  gamma_own is gamma, or 0 where only the others are smoothed.
    """
    m = scores.shape[1]
    work, index_work = column_workspace(m)
    row, u = np.empty(m), np.empty(m)
    for i in range(scores.shape[0]):
        own = y[i]
        total = 0.0
        for j in range(m):
            row[j] = scores[i, j]
            total += row[j]
        if not math.isfinite(total):
            sums[LOSS] = np.nan
            U[i, :] = 0.0
            continue
        loss, conjugate = gradient_row(kind, row, own, gamma, gamma_own, rho, margins, u, work, index_work)
        square = 0.0
        for j in range(m):
            U[i, j] = u[j]
            square += u[j] * u[j]
        sums[LOSS] += weights[i] * loss
        sums[B_U] += weights[i] * conjugate
        sums[U_SQ] += weights[i] * square
        sums[ACTIVE] += square > 0.0


@jit
def gradient_row(
    kind: int,
    s: Float64Array,
    own: int,
    gamma: float,
    gamma_own: float,
    rho: Float64Array,
    margins: Float64Array,
    u: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
) -> tuple[float, float]:
    """Write u, and return the loss and -Phi*(-u) - (gamma/2) |u|^2, NaN where there is no conjugate."""
    if kind == TRUNCATED_KIND:
        return _truncated_row(s, own, len(rho), u, work), np.nan
    if kind == ENTROPY_KIND and len(rho) == 1 and gamma == 0.0:
        return _softmax_row(s, own, u, work)
    if kind == MULTILABEL_ENTROPY_KIND and gamma == 0.0:
        return multilabel_softmax_row(s, own, margins, u, work)
    column_update(kind, s, own, gamma, gamma_own, rho, margins, u, work, index_work, -1.0)
    conjugate = minus_conjugate(kind, u, own, margins)
    if kind > ENTROPY_KIND:
        return _loss_of_sets(kind, s, gamma, u, conjugate)
    conjugate -= 0.5 * gamma_own * u[own] * u[own]
    linear = 0.0
    for j in range(len(s)):
        if j != own:
            conjugate -= 0.5 * gamma * u[j] * u[j]
            linear -= u[j] * (s[j] - s[own])
    return conjugate + linear, conjugate


@jit
def _loss_of_sets(
    kind: int, s: Float64Array, gamma: float, u: Float64Array, conjugate: float
) -> tuple[float, float]:
    """Return the loss and -Phi*(-u) - (gamma/2) |u|^2 from u and -Phi*(-u), whatever the own classes are."""
    # A row of a multilabel loss sums to zero: what all scores have in common is left out.
    common = s[0] if kind >= MULTILABEL_HINGE_KIND else 0.0
    linear = 0.0
    for j in range(len(s)):
        conjugate -= 0.5 * gamma * u[j] * u[j]
        linear -= u[j] * (s[j] - common)
    return conjugate + linear, conjugate


@jit
def _softmax_row(s: Float64Array, own: int, u: Float64Array, work: Float64Array) -> tuple[float, float]:
    """Write u = -grad Phi of the softmax loss, and give Phi and -Phi*(-u) = Phi + <u, s>."""
    m = len(s)
    x, powers = work[0][:m], work[1][:m]
    highest = s[0]
    for j in range(m):
        highest = max(highest, s[j])
    for j in range(m):
        x[j] = s[j] - highest
    exp_of_negatives(x, u, powers)
    total = 0.0
    for j in range(m):
        total += u[j]
    share = -1.0 / total
    for j in range(m):
        u[j] *= share
    u[own] = 0.0
    mass = product = 0.0
    for j in range(m):
        mass -= u[j]
        product += u[j] * (x[j] - x[own])
    u[own] = mass
    loss = math.log(total) - x[own]
    return loss, loss + product


@jit
def _truncated_row(s: Float64Array, own: int, k: int, u: Float64Array, work: Float64Array) -> float:
    """Write minus the gradient of log(1 + sum exp(s_j - s_y)), and return that loss.

    The k - 1 largest others are left out of the sum, of equals at the edge the lower classes.
    """
    m = len(s)
    cut, ties = np.inf, 0
    if k > 1:
        top = work[1]
        largest_values(s, m, k, own, top)
        cut = top[k - 2]
        for i in range(k - 1):
            ties += top[i] == cut
    highest = s[own]
    left_out = ties
    for j in range(m):
        if j != own and s[j] <= cut:
            if s[j] == cut and left_out > 0:
                left_out -= 1
            else:
                highest = max(highest, s[j])
    total = math.exp(s[own] - highest)
    for j in range(m):
        u[j] = 0.0
        if j == own or s[j] > cut:
            continue
        if s[j] == cut and ties > 0:
            ties -= 1
            continue
        u[j] = math.exp(s[j] - highest)
        total += u[j]
    mass = 0.0
    for j in range(m):
        if j != own:
            u[j] = -u[j] / total
            mass -= u[j]
    u[own] = mass
    return float(math.log(total) + (highest - s[own]))


@jit
def conjugate_sum(
    kind: int, A: FloatArray, y: IntArray, weights: Float64Array, margins: Float64Array
) -> float:
    """Return sum_i w_i (-Phi*(-alpha_i)) of the rows A (b, m), which lie in their domains."""
    row = np.empty(A.shape[1])
    total = 0.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            row[j] = A[i, j]
        total += weights[i] * minus_conjugate(kind, row, y[i], margins)
    return total
