"""The optimum of a whole training problem from a general convex solver."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import minimize

from tests.reference.hinges import hinges_first, margins_of, own_in_sort, rank_weights, signs_of
from tests.reference.losses import gradient, sorted_loss
from tests.reference.multilabel import pairs
from tests.reference.qp import minimise_qp
from tests.reference.smooth import is_smooth
from topline.solvers.losses import MultilabelHinge, OneVsAll, PolyhedralTopK


def optimum(X, y, loss, lam, smoothing=0.0, m=None, kind="moreau", weights=None):
    """Give min P(W): by an interior point method for the hinges, by L-BFGS for the smooth losses."""
    m = int(y.max()) + 1 if m is None else m
    weights = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    X = np.asarray(X, dtype=np.float64)
    if is_smooth(loss):
        best = smooth_minimum(X, y, loss, lam, m, weights)
        # Strong convexity allows no more.
        short = np.sum(best.jac**2) / (2.0 * lam)
        if not short <= 1e-11 * best.fun:
            raise ArithmeticError(f"the reference solver fell short by up to {short:.1e} of {best.fun:.6g}")
        return best.fun
    return hinge_minimum(X, y, loss, lam, smoothing, m, kind, weights)[1]


def good_weights(X, y, loss, lam, smoothing, m, kind, weights):
    """Give W (d, m) near the least P, found by the same solvers for rows of size one, however large they are.

    P there bounds the optimum from above, whatever the solver made of the problem.
    """
    X = np.asarray(X, dtype=np.float64)
    weights = np.ones(len(y)) if weights is None else np.asarray(weights, dtype=np.float64)
    size = np.sqrt(np.mean(np.sum(X**2, axis=1)))
    rows, lam = X / size, lam / size**2
    if is_smooth(loss):
        return smooth_minimum(rows, y, loss, lam, m, weights).x.reshape(X.shape[1], m) / size
    return hinge_minimum(rows, y, loss, lam, smoothing, m, kind, weights)[0] / size


def smooth_minimum(X, y, loss, lam, m, weights):
    """Minimise P(W) of a smooth convex loss; gives what SciPy returns."""
    n, d = X.shape

    def value(flat):
        W = flat.reshape(d, m)
        S = X @ W
        rows = range(n)
        losses = np.array([sorted_loss(loss, S[i], y[i]) for i in rows])
        U = np.array([gradient(loss, S[i], y[i]) for i in rows])
        slope = lam * W - X.T @ (weights[:, None] * U) / n
        return 0.5 * lam * np.sum(W**2) + np.mean(weights * losses), slope.ravel()

    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 0.0, "gtol": 1e-13, "maxcor": 50}
    return minimize(value, np.zeros(d * m), jac=True, method="L-BFGS-B", options=options)


def hinge_minimum(X, y, loss, lam, smoothing, m, kind, weights):
    """Give W and min P(W) of a piecewise linear loss, written with epigraphs.

    Variables are W, the scores Z, what the builder of the loss adds, and phi (n,).  Of the losses of several
    labels y[i] is an array of labels.
    Smoothing takes the min over z of Phi(z) + |z - s|^2 / (2 gamma), with z_y = s_y if only the others are
    smoothed.
    """
    n, d = X.shape
    kinds = {OneVsAll: _one_vs_all, MultilabelHinge: _multilabel, PolyhedralTopK: _polyhedral}
    build = kinds.get(type(loss), _ranked)
    first_score = d * m
    inner, first_phi, size = build(y, loss, m, first_score)
    identity = sparse.eye(size, format="csr")
    W, Z = identity[:first_score], identity[first_score : first_score + n * m]
    product = sparse.kron(sparse.csr_matrix(X), sparse.eye(m)) @ W  # row i*m + j: <w_j, x_i>
    G, h = inner
    A, P = (product - Z).tocsr(), lam * W.T @ W
    if smoothing > 0:
        free = np.ones((n, m), dtype=bool)
        if kind == "others":
            free[np.arange(n), y] = False
        free = free.ravel()
        share = sparse.diags(np.repeat(weights, m)[free] / (smoothing * n))
        P = P + A[free].T @ share @ A[free]
        A = A[~free] if (~free).any() else None
    A, b = (None, None) if A is None else (A.toarray(), np.zeros(A.shape[0]))
    P, q = P.toarray(), np.zeros(size)
    q[first_phi:] = weights / n
    x = minimise_qp(P, q, G, h, A, b)
    return x[: d * m].reshape(d, m), 0.5 * x @ (P @ x) + q @ x


def _one_vs_all(y, loss, m, first_score):
    """phi_i >= sum_j u_ij, u_ij >= 0, u_ij >= 1 - z_j s_j: gives (G, h), the first phi and the size."""
    n = len(y)
    first_u = first_score + n * m
    first_phi = first_u + n * m
    size = first_phi + n
    identity = sparse.eye(size, format="csr")
    Z, U = identity[first_score:first_u], identity[first_u:first_phi]
    z = np.concatenate([signs_of(label, m) for label in y])
    total = sparse.kron(sparse.eye(n), np.ones((1, m))) @ U - identity[first_phi:]
    G = sparse.vstack([-U, -sparse.diags(z) @ Z - U, total])
    return (G.toarray(), np.concatenate([np.zeros(n * m), -np.ones(n * m), np.zeros(n)])), first_phi, size


def _multilabel(y, loss, m, first_score):
    """phi_i >= 0 and phi_i >= 1 + s_j - s_y of every pair: gives (G, h), the first phi and the size."""
    n = len(y)
    first_phi = first_score + n * m
    size = first_phi + n
    G, h = [], []
    for i, labels in enumerate(y):
        for own, other in pairs(labels, m):
            row = np.zeros(size)
            row[first_score + i * m + other], row[first_score + i * m + own] = 1.0, -1.0
            row[first_phi + i] = -1.0
            G.append(row)
            h.append(-1.0)
    identity = np.eye(size)
    return (np.vstack([*G, -identity[first_phi:]]), np.concatenate([h, np.zeros(n)])), first_phi, size


def _polyhedral(y, loss, m, first_score):
    """phi_i >= t + sum_j u_j / r + 1 - min(k, r) / r - s_y, u_j >= 0, u_j >= s_j - t, for every r."""
    n = len(y)
    first_level = first_score + n * m
    first_phi = first_level + m * (n + n * m)
    size = first_phi + n
    identity = sparse.eye(size, format="csr")
    Z = identity[first_score:first_level]
    spread = sparse.kron(sparse.eye(n), np.ones((m, 1))).tocsr()
    G, h = [], []
    for r in range(1, m + 1):
        start = first_level + (r - 1) * (n + n * m)
        t, u = identity[start : start + n], identity[start + n : start + n + n * m]
        G += [Z - spread @ t - u, -u, t + spread.T @ u / r - Z[np.arange(n) * m + y] - identity[first_phi:]]
        h += [np.zeros(2 * n * m), np.full(n, min(loss.k, r) / r - 1.0)]
    return (sparse.vstack(G).toarray(), np.concatenate(h)), first_phi, size


def _ranked(y, loss, m, first_score):
    """phi_i >= sum_j rho_j a_[j] and phi_i >= 0: gives (G, h), the first phi and the size.

    sum_j rho_j a_[j] is a sum over the steps of rho of (step) * (sum of the k largest), and the sum of the k
    largest of a is min over t of k t + sum (a - t)_+ (t >= 0 where each a is cut at zero first).
    """
    n = len(y)
    rho = rank_weights(loss, m)
    steps = rho - np.append(rho[1:], 0.0)
    levels = [(k + 1, steps[k]) for k in np.flatnonzero(steps > 1e-15)]
    first_level = first_score + n * m
    first_phi = first_level + len(levels) * (n + n * m)
    size = first_phi + n
    identity = sparse.eye(size, format="csr")
    Z = identity[first_score:first_level]
    spread = sparse.kron(sparse.eye(n), np.ones((m, 1))).tocsr()
    counted = np.ones(n * m, dtype=bool)
    if not own_in_sort(loss):
        counted[np.arange(n) * m + y] = False
    violations = Z - spread @ Z[np.arange(n) * m + y]
    constant = np.concatenate([margins_of(loss, label, m) for label in y])
    G, h, total = [], [], -identity[first_phi:]
    for place, (k, step) in enumerate(levels):
        start = first_level + place * (n + n * m)
        t, u = identity[start : start + n], identity[start + n : start + n + n * m]
        G += [(violations - spread @ t - u)[counted], -u]
        h += [-constant[counted], np.zeros(n * m)]
        if hinges_first(loss):
            G.append(-t)
            h.append(np.zeros(n))
        total = total + step * (k * t + spread.T @ u)
    G += [total, -identity[first_phi:]]
    h += [np.zeros(n), np.zeros(n)]
    return (sparse.vstack(G).toarray(), np.concatenate(h)), first_phi, size
