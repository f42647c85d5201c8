"""The average top-k risk by its definition, and its optimum from a general convex solver."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.qp import minimise_qp
from tests.reference.training_qp import _one_vs_all, _ranked
from topline.solvers.losses import OneVsAll


def mean_of_largest(values, k):
    """Give (1/k) of the sum of the floor(k) largest and of the part of the next that is left of k."""
    ranked = np.sort(values)[::-1]
    whole = int(np.floor(k))
    rest = (k - whole) * ranked[whole] if whole < len(ranked) else 0.0
    return (ranked[:whole].sum() + rest) / k


def losses_at(X, y, loss, smoothing, W):
    """Give Phi_gamma of each example."""
    S = np.asarray(X, dtype=np.float64) @ W
    if smoothing > 0:
        return np.array(
            [reference.envelope(loss, s, label, smoothing) for s, label in zip(S, y, strict=True)]
        )
    return np.array([reference.sorted_loss(loss, s, label) for s, label in zip(S, y, strict=True)])


def top_primal(X, y, loss, lam, smoothing, k, W):
    """Give P(W)."""
    return 0.5 * lam * np.sum(W**2) + mean_of_largest(losses_at(X, y, loss, smoothing, W), k)


def top_weights(values, k):
    """Give p with 0 <= p <= 1/k and sum 1 that attains the maximum, of equal values the first ones."""
    order = np.argsort(-values, kind="stable")
    p = np.zeros(len(values))
    p[order] = np.clip(k - np.arange(len(values)), 0.0, 1.0) / k
    return p


def dual_of_cuts(X, y, loss, lam, smoothing, k, points, shares):
    """Make (p, A) of the points at which a run found its vertices: gives p, A and D(p, A).

    A has one row for each example, alpha_i = sum_t share_t p_ti u_ti, and D is evaluated at it with the
    conjugate of p_i Phi_i, which is p_i Phi_i*(alpha_i / p_i).
    """
    X = np.asarray(X, dtype=np.float64)
    p, A = np.zeros(len(y)), np.zeros((len(y), points.shape[2]))
    for point, share in zip(points, shares, strict=True):
        taken = top_weights(losses_at(X, y, loss, smoothing, point), k)
        S = X @ point
        for i in np.flatnonzero(taken):
            A[i] += share * taken[i] * reference.gradient(loss, S[i], y[i], smoothing)
        p += share * taken
    b = 0.0
    for i in np.flatnonzero(p):
        beta = A[i] / p[i]
        b += p[i] * (reference.minus_conjugate(loss, beta, y[i]) - 0.5 * smoothing * float(beta @ beta))
    return p, A, b - 0.5 / lam * np.sum((X.T @ A) ** 2)


def top_optimum(X, y, loss, lam, k, m):
    """Give min P(W) of a hinge: t + (1/k) sum max(0, phi_i - t) over t >= 0 is the risk at its minimum."""
    X = np.asarray(X, dtype=np.float64)
    n, d = X.shape
    first_score = d * m
    build = _one_vs_all if isinstance(loss, OneVsAll) else _ranked
    (G, h), first_phi, size = build(y, loss, m, first_score)
    # After W, the scores, what the losses need and phi come t and the excesses e_i >= phi_i - t.
    wide = size + 1 + n
    identity = sparse.eye(wide, format="csr")
    phi, t, e = identity[first_phi:size], identity[size], identity[size + 1 :]
    spread = sparse.csr_matrix(np.ones((n, 1))) @ t
    G = sparse.vstack([sparse.hstack([G, sparse.csr_matrix((G.shape[0], 1 + n))]), phi - spread - e, -e, -t])
    h = np.concatenate([h, np.zeros(2 * n + 1)])
    W, Z = identity[:first_score], identity[first_score : first_score + n * m]
    A = (sparse.kron(sparse.csr_matrix(X), sparse.eye(m)) @ W - Z).toarray()
    P, q = (lam * W.T @ W).toarray(), np.zeros(wide)
    q[size], q[size + 1 :] = 1.0, 1.0 / k
    x = minimise_qp(P, q, G.toarray(), h, A, np.zeros(len(A)))
    return 0.5 * x @ (P @ x) + q @ x
