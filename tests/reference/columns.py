"""Slow twins of the column kernels, and the certificate by which any column update can be checked.

The twins use another method than the kernels: full sorts, isotonic regression by its min-max formula,
bisection.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from topline.solvers.losses.base import Ranks
from topline.solvers.projections import ColumnProblem, column_workspace


def isotonic(z):
    """Non-increasing regression by v_i = min over r <= i of max over s >= i of mean(z_r..z_s)."""
    n = len(z)
    sums = np.concatenate([[0.0], np.cumsum(z)])
    first, last = np.arange(n)[:, None], np.arange(n)[None, :]
    means = np.where(
        last >= first, (sums[1:][None, :] - sums[:-1][:, None]) / np.maximum(last - first + 1, 1), -np.inf
    )
    return np.array([min(means[r, i:].max() for r in range(i + 1)) for i in range(n)])


def padded(rho, m):
    """Give rho with zeros up to length m."""
    return np.concatenate([rho, np.zeros(m - len(rho))])


def bisect(f, low, high):
    """Give the root of a non-increasing f on [low, high], or the end that is nearest to one."""
    if f(low) <= 0:
        return low
    if f(high) >= 0:
        return high
    return brentq(f, low, high, xtol=1e-300, rtol=1e-15, maxiter=1000)


def wtopk_twin(b, y, c, rho):
    """Projection on conv({0} u P(rho)) with the own class in the sort (mathematics 3a), c > 0."""
    m = len(b)
    weights = padded(rho, m)

    def fit(t):
        p = b / c
        p[y] = t * weights.sum()
        order = np.argsort(-p, kind="stable")
        v = np.empty(m)
        v[order] = isotonic(p[order] - t * weights)
        return p - v, np.sort(v)[::-1] @ weights - weights.sum() * v[y]

    t = 0.0
    if fit(0.0)[1] > 0:
        t = 1.0 if fit(1.0)[1] >= 0 else bisect(lambda s: fit(s)[1], 0.0, 1.0)
    return alpha_row(fit(t)[0], y)


def wusunier_twin(b, y, c, c_own, rho):
    """Projection on the weakly submajorised set (mathematics 3b), c > 0."""
    m = len(b)
    p = np.delete(b, y) / c
    order = np.argsort(-p, kind="stable")
    bound = np.empty(m - 1)
    bound[order] = p[order] - isotonic(p[order] - padded(rho, m)[: m - 1])
    top = max(0.0, p.max())

    def x(tau):
        return np.minimum(np.maximum(p - tau, 0.0), bound)

    tau = bisect(lambda s: c_own / c * x(s).sum() - s, 0.0, top)
    return alpha_row(np.insert(x(tau), y, 0.0), y)


def alpha_row(beta, y):
    """Give alpha from beta: alpha_j = -beta_j, alpha_y = sum of the others."""
    alpha = -beta
    alpha[y] = 0.0
    alpha[y] = -alpha.sum()
    return alpha


def twin(form, b, y, c):
    """Give the twin of `column_update` for violations b and c > 0."""
    if form.ranks == Ranks():
        return wtopk_twin(b.copy(), y, c, form.rho)
    return wusunier_twin(b, y, c, c, form.rho)


def others_twin(b, y, c, c_own, rho):
    """Projection on conv({0} u P(rho)) of the other classes only (mathematics 3a, end), c > 0."""
    p = np.delete(b, y) / c
    order = np.argsort(-p, kind="stable")
    weights = padded(rho, len(p))

    def fit(t):
        return isotonic(p[order] - t * weights)

    def slope(t):
        return weights @ fit(t) - c_own / c * weights.sum() ** 2 * t

    t = 0.0
    if slope(0.0) > 0:
        t = 1.0 if slope(1.0) >= 0 else bisect(slope, 0.0, 1.0)
    x = np.empty(len(p))
    x[order] = p[order] - fit(t)
    return alpha_row(np.insert(x, y, 0.0), y)


def two_curvatures_twin(b, y, c, c_own, rho):
    """Weighted top-k with curvature c_own of S^2 (mathematics 3a, "for c_y != c"), c > 0."""
    p = np.delete(b, y) / c
    order = np.argsort(-p, kind="stable")
    weights = padded(rho, len(p) + 1)

    def fit(t):
        above = isotonic(p[order] - t * weights[:-1])
        below = isotonic(p[order] - t * weights[1:])

        def values(s):
            return np.maximum(above, np.minimum(c_own / c * s, below))

        s = bisect(lambda s: (p[order] - values(s)).sum() - s, 0.0, weights.sum())
        v = values(s)
        own = c_own / c * s
        return v, np.sort(np.append(v, own))[::-1] @ weights - weights.sum() * own

    t = 0.0
    if fit(0.0)[1] > 0:
        t = 1.0 if fit(1.0)[1] >= 0 else bisect(lambda s: fit(s)[1], 0.0, 1.0)
    x = np.empty(len(p))
    x[order] = p[order] - fit(t)[0]
    return alpha_row(np.insert(x, y, 0.0), y)


def support_value(form, a, y, own_in_sort=True):
    """Give the loss of violations a (a_y = 0): the support function of the domain."""
    if not own_in_sort:
        a = np.delete(a, y)
    top = np.sort(a)[::-1][: len(form.rho)]
    if form.ranks == Ranks():
        return max(0.0, float(form.rho @ top))
    return float(form.rho @ np.maximum(top, 0.0))


def infeasibility(form, alpha, y, own_in_sort=True):
    """Give by how much alpha leaves the domain of the conjugate (errata f6), at most 0 inside."""
    x = np.sort(-np.delete(alpha, y))[::-1]
    rho = padded(form.rho, form.m)
    sums = np.cumsum(x)
    caps = np.cumsum(rho)[:-1]
    worst = max(-x.min(), abs(alpha.sum()))
    if form.ranks.hinge_first or len(form.rho) == 1:
        return max(worst, (sums - caps).max())
    if not own_in_sort:
        t = sums[-1] / caps[-1]
        return max(worst, t - 1.0, (sums - t * caps).max())
    t = max(0.0, (sums / caps).max())
    smallest = np.cumsum(x[::-1])
    return max(worst, t - 1.0, (t * np.cumsum(rho[::-1])[:-1] - smallest).max())


def optimality_gap(form, b, alpha, y, c, c_own=None, own_in_sort=True):
    """Give max over the domain of <gradient, u - x>, an upper bound of what the update falls short."""
    x = -alpha
    x[y] = 0.0
    gradient = b - c * x - (c if c_own is None else c_own) * x.sum()
    gradient[y] = 0.0
    return support_value(form, gradient, y, own_in_sort) - gradient @ x


def problem_of(form, q, y, c, c_own=None, *, single=False):
    """Return one column problem with room of its own; c_own is c where it is not given."""
    return ColumnProblem(
        np.ascontiguousarray(q, dtype=np.float64), int(y), float(c), float(c if c_own is None else c_own),
        form.rho, form.table, np.empty(form.m), *column_workspace(form.m), single,
    )  # fmt: skip


def solved_column(form, q, y, c, c_own=None, *, column=None, single=False):
    """Return the row that a column update finds, by default that of the form, and what it says of it."""
    problem = problem_of(form, q, y, c, c_own, single=single)
    told = (column or form.column)(problem)
    return problem.out, told
