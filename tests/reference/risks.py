"""The average top-k risk by its definition, and its optimum from a general convex solver."""

from __future__ import annotations

import clarabel
import numpy as np
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.qp import minimise_on_cones, minimise_qp
from tests.reference.training_qp import _one_vs_all, _polyhedral, _ranked
from topline.solvers.losses import OneVsAll, PolyhedralTopK


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
    build = {OneVsAll: _one_vs_all, PolyhedralTopK: _polyhedral}.get(type(loss), _ranked)
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


def top_entropy_optimum(X, y, loss, lam, k, m):
    """Give max D of a loss of entropies (softmax, ldr_kl, top-k, one-vs-all logistic) by exponential cones.

    D = -lam/2 |W|^2 + sum_i p_i H(x_i / p_i) over 0 <= p_i <= 1/k, sum p <= 1 and W = X^T A / lam, where H is
    -sum x log x - (1 - S) log(1 - S) on x_j <= S / k' of the other classes, or the sum of binary entropies.
    """
    X = np.asarray(X, dtype=np.float64)
    n, d = X.shape
    binary = isinstance(loss, OneVsAll)
    capped = 1 if binary else loss.to_dict().get("k", 1)
    terms = 2 * m if binary else m  # shares of p_i: each label's and what is left of it, or the row itself
    first_share, first_u = d * m + n, d * m + n + n * terms
    size = first_u + n * terms
    eye = sparse.eye(size, format="csr")
    W, p, x, u = eye[: d * m], eye[d * m : first_share], eye[first_share:first_u], eye[first_u:]
    if binary:
        groups = sparse.kron(sparse.eye(n * m), np.ones((1, 2)))  # a_ij and p_i - a_ij
        balance = groups @ x - sparse.kron(sparse.eye(n), np.ones((m, 1))) @ p
        signs = np.where(np.asarray(y)[:, None] == np.arange(m), 1.0, -1.0).ravel()
        A = sparse.diags(signs) @ x[0::2]
        caps = -x
    else:
        balance = sparse.kron(sparse.eye(n), np.ones((1, m))) @ x - p
        own = np.arange(n) * m + np.asarray(y)  # the own place holds p_i - S_i
        others = np.setdiff1d(np.arange(n * m), own)
        totals = p - x[own]
        A = sparse.lil_matrix((n * m, size))
        A[others], A[own] = -x[others], totals
        A = A.tocsr()
        caps = sparse.vstack([-x, x[others] - totals[others // m] / capped])
    equal = sparse.vstack([balance, sparse.kron(X.T, sparse.eye(m)) @ A - lam * W])
    upper = sparse.vstack([caps, p, sparse.csr_matrix(np.ones((1, n))) @ p])
    right = np.concatenate([np.zeros(caps.shape[0]), np.full(n, 1.0 / k), [1.0]])
    shares = sparse.kron(sparse.eye(n), np.ones((terms, 1))) @ p
    order = np.arange(3 * n * terms).reshape(3, -1).T.ravel()  # (-u, x, p) of one share after the other
    cones = sparse.vstack([u, -x, -shares]).tocsr()[order]
    fields = loss.to_dict()
    q = np.concatenate([np.zeros(first_u), np.full(n * terms, fields.get("temperature", 1.0))])
    if "temperature" in fields:  # with a margin of 1
        q[first_share + others] = -1.0
    found = minimise_on_cones(
        lam * W.T @ W, q, [equal, upper, cones], [np.zeros(equal.shape[0]), right, np.zeros(3 * n * terms)],
        [
            clarabel.ZeroConeT(equal.shape[0]), clarabel.NonnegativeConeT(len(right)),
            *[clarabel.ExponentialConeT()] * (n * terms),
        ],
        tol=1e-9,
    )  # fmt: skip
    return -found.obj_val
