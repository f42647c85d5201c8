"""Losses of examples with a set Y of labels each, and their exact column updates.

Every label in Y should score above every label outside it.  Where Y is empty or holds all labels there is no
such pair, and the hinge is 0.  The cross entropy spreads one unit of probability evenly over Y; it is defined
for the full set, where it equalises the scores, and not for an empty one.

With q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma, the dual in alpha_i is

    hinge     sum_Y' z - <q, alpha> - (c/2) |alpha|^2,      x = alpha_Y >= 0, z = -alpha_Y' >= 0,
              sum x = sum z <= 1                            (Lapin's thesis, prop. 6.5, 6.6 and 6.18)
    softmax   -<p, log p> - <q, alpha> - (c/2) |alpha|^2,   p = 1_Y / |Y| - alpha >= 0,
              sum p = 1                                     (prop. 6.7 and 6.20)

The first is the projection of (1/2 - q_Y) / c and (1/2 + q_Y') / c on the bipartite simplex; in the second
c p + log p = q + c 1_Y / |Y| - t, with the t for which p sums to 1.  Where Y is empty or, for the hinge,
whole, alpha = 0 is the only point of the domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.losses.base import Family, Labels, LossForm, LossWithoutParameters
from topline.solvers.losses.rows import conjugate_function, gradient_function
from topline.solvers.projections.columns import ColumnProblem, column_function, minus_others, own_shares
from topline.solvers.projections.entropic import entropic_level
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.projections.simplex import above, project_on_simplex
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: Replaces 0, so that the largest values, which are 0, exceed it.
_BELOW_0 = -1e-300


@column_function
def multilabel_hinge_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the hinge; returns sum x first."""
    problem = borrowed(problem)
    q, y, c, sets, out = problem.q, problem.y, problem.c, problem.margins, problem.out
    own = problem.work[6][: len(q)]
    own_shares(sets, y, own)
    low, high, next_low, next_high, worst, best = _extremes(q, own)
    out[:] = 0.0
    top = (high - low) + 1.0
    if not 0.0 < top < np.inf:
        return 0.0, 0, True
    # One class on either side, as in most columns: the others stay at zero.
    mass = 1.0 if top >= 2.0 * c else top / (2.0 * c)
    if low - next_low <= -c * mass and next_high - high <= -c * mass:
        out[worst], out[best] = mass, -mass
        return mass, 1, mass == 1.0
    # No x and no z exceeds the common sum, which is at most 1 and at most top / c.
    reach = min(c, top)
    b, d, x, z = problem.work[0], problem.work[1], problem.work[2], problem.work[3]
    owners, others = problem.index_work[2], problem.index_work[3]
    n_x = n_z = 0
    for j in range(q.shape[0]):
        if own[j] > 0.0:
            if low - q[j] > -reach:
                b[n_x], owners[n_x] = (low - q[j]) / c, j
                n_x += 1
        elif q[j] - high > -reach:
            d[n_z], others[n_z] = (q[j] - high) / c, j
            n_z += 1
    bipartite_simplex(b[:n_x], d[:n_z], top / c, 1.0, x[:n_x], z[:n_z])
    mass = 0.0
    for i in range(n_x):
        out[owners[i]] = x[i]
        mass += x[i]
    support = 0
    for i in range(n_z):
        out[others[i]] = -z[i]
        support += z[i] > 0.0
    return mass, support, False


@jit
def _extremes(q: FloatArray, own: Float64Array) -> tuple[float, float, float, float, int, int]:
    """Return the lowest own score, the highest other one, the runner-up of each, and both classes.

    Ties go to the lower class; if there is no such class the score is inf, or -inf.
    """
    low = next_low = np.inf
    high = next_high = -np.inf
    worst = best = 0
    for j in range(q.shape[0]):
        value = np.float64(q[j])
        if own[j] > 0.0:
            if value < low:
                next_low, low, worst = low, value, j
            elif value < next_low:
                next_low = value
        elif value > high:
            next_high, high, best = high, value, j
        elif value > next_high:
            next_high = value
    return low, high, next_low, next_high, worst, best


@column_function
def multilabel_entropy_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problem of the softmax."""
    problem = borrowed(problem)
    q, c, out, m = problem.q, problem.c, problem.out, len(problem.q)
    b, weights, shares = problem.work[5][:m], problem.work[0][:m], problem.work[6][:m]
    size = own_shares(problem.margins, problem.y, shares)
    if size == 0:
        out[:] = 0.0
        return 0.0, 0, True
    # Differences of scores keep their digits for scores of 1e9.
    start = q[0]
    for j in range(m):
        start = max(start, q[j])
    highest = -np.inf
    for j in range(m):
        b[j] = (q[j] - start) + c * shares[j]
        highest = max(highest, b[j])
    for j in range(m):
        b[j] -= highest
    entropic_level(b, 0, c, 1, problem.work)
    total = weights.sum()
    for j in range(m):
        out[j] = shares[j] - weights[j] / total
    return 0.0, m - size, False


@jit
def bipartite_simplex(
    b: Float64Array, d: Float64Array, top: float, radius: float, x: Float64Array, z: Float64Array
) -> bool:
    """Project on {x, z >= 0, sum x = sum z <= r}; return whether the cap r on the sum is active.

    min (1/2)|x - b|^2 + (1/2)|z - d|^2 (Lapin's thesis, eq. 6.24, prop. 6.19), written to x (like b) and z
    (like d).  Without the cap x = max(0, b - t), z = max(0, d + t), and t equalises the sums.  If the common
    sum exceeds r, x and z are two separate projections on {sum = r}.

    b and d are relative to their largest entries, whose sum is `top`, so that 1e9 costs no digits.
    """
    if top <= 0.0:
        x[:] = 0.0
        z[:] = 0.0
        return False
    shift_x, shift_z = _common_sum(b, d, top)
    for j in range(b.shape[0]):
        x[j] = max(0.0, b[j] + shift_x)
    for j in range(d.shape[0]):
        z[j] = max(0.0, d[j] + shift_z)
    if x.sum() <= radius and z.sum() <= radius:
        return False
    project_on_simplex(b, radius, x)
    project_on_simplex(d, radius, z)
    return True


@jit
def _common_sum(b: Float64Array, d: Float64Array, top: float) -> tuple[float, float]:
    """Return x and z of the largest values, at the t that equalises the sums.

    Over the variables not fixed at zero, t = (sum b - sum d) / (number of both).  If the x below zero lack
    less than the z below zero, the root lies to the left, so those z are fixed at zero; otherwise those x
    (erratum h9).
    """
    low_x = low_z = -np.inf
    shift_x = shift_z = 0.0
    before = 0
    while True:
        sum_x, n_x = above(b, low_x)
        sum_z, n_z = above(d, low_z)
        if n_x + n_z == before:
            return shift_x, shift_z
        before = n_x + n_z
        shift_x = (n_z * top - (sum_x - sum_z)) / before
        shift_z = (n_x * top + (sum_x - sum_z)) / before
        lack_x, lack_z = _lack(b, low_x, shift_x), _lack(d, low_z, shift_z)
        if lack_x < lack_z:
            low_z = min(-shift_z, _BELOW_0)
        elif lack_x > lack_z:
            low_x = min(-shift_x, _BELOW_0)


@jit
def _lack(values: Float64Array, low: float, shift: float) -> float:
    """Return the total amount by which shifted values above `low` lie below zero."""
    lack = 0.0
    for j in range(len(values)):
        if values[j] > low:
            lack += max(0.0, -values[j] - shift)
    return lack


@conjugate_function
def _hinge_conjugate(alpha: Float64Array, y: int, sets: Float64Array) -> float:
    """Return minus the sum over the labels outside Y."""
    return minus_others(alpha, sets, y, 0.0)


@conjugate_function
def _softmax_conjugate(alpha: Float64Array, y: int, sets: Float64Array) -> float:
    """Return -<p, log p> of p = 1_Y / |Y| - alpha."""
    shares, value = np.empty(len(alpha)), 0.0
    size = own_shares(sets, y, shares)
    for j in range(len(alpha) if size > 0 else 0):
        p = shares[j] - alpha[j]
        if p > 0.0:
            value -= p * math.log(p)
    return value


@gradient_function
def _softmax_gradient(
    s: Float64Array, y: int, _rho: Float64Array, sets: Float64Array, u: Float64Array, work: Float64Array
) -> tuple[float, float]:
    m = s.shape[0]
    x, shares = work[0][:m], work[1][:m]
    size = own_shares(sets, y, shares)
    if size == 0:
        u[:] = 0.0
        return 0.0, 0.0
    highest = s[0]
    for j in range(m):
        highest = max(highest, s[j])
    for j in range(m):
        x[j] = s[j] - highest
    exp_of_row(x, u)
    total = u.sum()
    level = math.log(total)
    mean = entropy = 0.0
    for j in range(m):
        p = u[j] / total
        entropy += p * (level - x[j])
        u[j] = shares[j] - p
        mean += x[j] * shares[j]
    return level - mean, entropy


def _probabilities(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return alpha (b, m) with p = 1_Y / |Y| - alpha put back on the simplex.

    Scaling positive parts (the nearest point in the entropy's divergence) keeps the digits of small p.  Rows
    without labels or without a positive part become 0.
    """
    own = form.own_rows(y)
    shares = own / np.maximum(own.sum(axis=1, keepdims=True), 1)
    p = np.maximum(shares - A, 0.0)
    total = p.sum(axis=1, keepdims=True)
    there = (total > 0.0) & own.any(axis=1, keepdims=True)
    return np.where(there, shares - p / np.where(there, total, 1.0), 0.0)


_HINGE = Family(
    "multilabel_hinge", multilabel_hinge_column, _hinge_conjugate, linear=True, labels=Labels.SETS
)
_SOFTMAX = Family(
    "multilabel_softmax", multilabel_entropy_column, _softmax_conjugate, smooth=True,
    gradient=_softmax_gradient, labels=Labels.SETS, empty_sets=False, nearest=_probabilities,
)  # fmt: skip


@dataclass(frozen=True)
class MultilabelHinge(LossWithoutParameters):
    """max(0, 1 + max_{j not in Y} s_j - min_{y in Y} s_y) (Crammer and Singer; Lapin's thesis, prop. 6.5).

    With smoothing > 0 it is the smooth multilabel SVM (prop. 6.6), which smooths in all m scores: for single
    labels this is the Moreau envelope of the max hinge, not the thesis's smooth multiclass SVM, which leaves
    the own class out (erratum h1).

    Examples
    --------
    >>> from topline import MultilabelHinge
    >>> MultilabelHinge().form(m=4).needs_label_sets
    True
    """

    name: ClassVar[str] = "multilabel_hinge"
    family: ClassVar[Family] = _HINGE


@dataclass(frozen=True)
class MultilabelSoftmax(LossWithoutParameters):
    """The cross entropy (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y) (Lapin's thesis, prop. 6.7).

    Examples
    --------
    >>> from topline import MultilabelSoftmax
    >>> MultilabelSoftmax().form(m=4).smooth
    True
    """

    name: ClassVar[str] = "multilabel_softmax"
    family: ClassVar[Family] = _SOFTMAX
