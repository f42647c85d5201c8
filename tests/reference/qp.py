"""A general QP solver (Clarabel, interior point) as the outside truth for every projection.

Nothing here knows a projection: each set is written down as linear inequalities, the weighted ones in the
extended formulation of Tajima et al. (eq. 2.13 and 2.14), a sum of scaled k-subset polytopes.
"""

from __future__ import annotations

import clarabel
import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from topline.solvers.losses.base import Ranks


def minimise_qp(P, q, G, h, A=None, b=None, entropies=()):
    """Minimise x'Px/2 + q'x + sum of x_j log x_j over j in entropies, subject to Gx <= h and Ax = b; gives x.

    Each entropy is one exponential cone: (-u, x, 1) with x e^(-u / x) <= 1 says u >= x log x.
    """
    n = len(q)
    extra = len(entropies)
    q = np.concatenate([np.asarray(q, dtype=float), np.ones(extra)])
    P = sparse.block_diag([P, sparse.csc_matrix((extra, extra))]) if extra else P
    G = sparse.hstack([G, sparse.csc_matrix((G.shape[0], extra))])
    A = A if A is None else sparse.hstack([A, sparse.csc_matrix((A.shape[0], extra))])
    rows = [] if A is None else [sparse.csc_matrix(A)]
    right = [] if A is None else [np.asarray(b, dtype=float)]
    cones = [] if A is None else [clarabel.ZeroConeT(rows[0].shape[0])]
    rows.append(sparse.csc_matrix(G))
    right.append(np.asarray(h, dtype=float))
    cones.append(clarabel.NonnegativeConeT(rows[-1].shape[0]))
    for place, j in enumerate(entropies):
        cone = np.zeros((3, n + extra))
        cone[0, n + place], cone[1, j] = 1.0, -1.0
        rows.append(sparse.csc_matrix(cone))
        right.append(np.array([0.0, 0.0, 1.0]))
        cones.append(clarabel.ExponentialConeT())
    reduced = dict.fromkeys(("reduced_tol_gap_abs", "reduced_tol_gap_rel", "reduced_tol_feas"), 1e-8)
    return np.array(minimise_on_cones(P, q, rows, right, cones, max_iter=500, **reduced).x)[:n]


def minimise_on_cones(P, q, rows, right, cones, tol=1e-10, **more):
    """Minimise x'Px/2 + q'x over x with right - rows x in the cones; gives Clarabel's solution."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tol
    for name, value in more.items():
        setattr(settings, name, value)
    stacked = sparse.vstack(rows).tocsc(), np.concatenate(right)
    problem = sparse.triu(sparse.csc_matrix(P)).tocsc(), q, *stacked, cones, settings
    solution = clarabel.DefaultSolver(*problem).solve()
    if solution.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        raise ArithmeticError(f"the reference solver ended with {solution.status}")
    return solution


def dual_domain(form, m):
    """Write {beta} as G z <= h, A z = 0 over z = (beta, z_1, .., z_p, t): gives G, h, A, number of variables.

    rho is cut into steps rho'_l = rho_{k_l} - rho_{k_l + 1} > 0; beta = sum_l z_l with 0 <= z_l <= rho'_l t,
    sum z_l = k_l rho'_l t (one t: sum then hinge), or 0 <= z_l <= rho'_l, sum z_l <= k_l rho'_l (hinge then
    sum).
    """
    steps = form.rho - np.append(form.rho[1:], 0.0)
    ranks = np.flatnonzero(steps > 0)
    scaled = form.ranks == Ranks()
    p = len(ranks)
    size = m + p * m + 1
    eye = np.eye(m)
    G, h, A = [], [], [np.hstack([-eye, np.tile(eye, p), np.zeros((m, 1))])]
    for place, k in enumerate(ranks):
        first = m + place * m
        upper = np.zeros((m, size))
        upper[:, first : first + m] = eye
        lower = -upper
        total = np.zeros((1, size))
        total[0, first : first + m] = 1.0
        if scaled:
            upper[:, -1] = -steps[k]
            total[0, -1] = -(k + 1) * steps[k]
            A.append(total)
            G += [upper, lower]
            h += [np.zeros(m), np.zeros(m)]
        else:
            G += [upper, lower, total]
            h += [np.full(m, steps[k]), np.zeros(m), np.array([(k + 1) * steps[k]])]
    bound = np.zeros((2, size))
    bound[0, -1], bound[1, -1] = 1.0, -1.0
    return np.vstack([*G, bound]), np.concatenate([*h, [1.0, 0.0]]), np.vstack(A), size


def column_qp(form, q, y, c, c_own=None, own_in_sort=True):
    """Solve one column problem; gives the row alpha (m,) and the value of the restricted dual."""
    m = len(q)
    c_own = c if c_own is None else c_own
    b = form.margin_rows(np.array([y]))[0] + q - q[y]
    places = np.arange(m) if own_in_sort else np.delete(np.arange(m), y)
    p = len(places)
    G, h, A, size = dual_domain(form, p)
    others = (places != y).astype(float)
    P = np.zeros((size, size))
    P[:p, :p] = c_own * np.outer(others, others) + c * np.diag(others)
    linear = np.zeros(size)
    linear[:p] = -b[places] * others
    z = minimise_qp(P, linear, G, h, A, np.zeros(len(A)))
    alpha = np.zeros(m)
    alpha[places] = -z[:p] * others
    alpha[y] = -alpha.sum()
    return alpha, column_value(b, alpha, y, c, c_own)


def column_value(b, alpha, y, c, c_own=None):
    """Give <b, x> - (c/2)|x|^2 - (c_own/2) S^2 for a dual row."""
    c_own = c if c_own is None else c_own
    x = -np.delete(alpha, y)
    return np.delete(b, y) @ x - 0.5 * c * x @ x - 0.5 * c_own * x.sum() ** 2


def least_on_simplex(objective, n):
    """Return weights of n points and about the least value of a convex objective of such weights, by SLSQP.

    It stops within about 1e-6 of the simplex: the weights returned lie on it, the value is where it stopped.
    """
    best = minimize(
        objective,
        np.full(n, 1.0 / n),
        bounds=[(0.0, 1.0)] * n,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0},
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    weights = np.clip(best.x, 0.0, None)
    return weights / weights.sum(), float(best.fun)
