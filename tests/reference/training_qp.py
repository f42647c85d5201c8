"""The optimum of a whole training problem from a general convex solver."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from tests.reference.losses import hinges_first, margins_of, rank_weights
from tests.reference.qp import minimise_qp


def optimum(X, y, loss, lam, smoothing=0.0, m=None):
    """Give min P(W), written with epigraphs.

    sum_j rho_j a_[j] is a sum over the steps of rho of (step) * (sum of the k largest), and the sum of the k
    largest of a is min over t of k t + sum (a - t)_+ (t >= 0 where each a is cut at zero first).  Smoothing
    takes the min over z of Phi(z) + |z - s|^2 / (2 gamma).
    """
    n, d = X.shape
    m = int(y.max()) + 1 if m is None else m
    rho = rank_weights(loss, m)
    steps = rho - np.append(rho[1:], 0.0)
    levels = [(k + 1, steps[k]) for k in np.flatnonzero(steps > 1e-15)]
    weights, scores = d * m, n * m
    per_level = n + n * m
    first_score = weights
    first_level = weights + scores
    first_phi = first_level + len(levels) * per_level
    size = first_phi + n

    identity = sparse.eye(size, format="csr")
    W = identity[:weights]
    Z = identity[first_score : first_score + scores]
    product = sparse.kron(sparse.csr_matrix(X), sparse.eye(m)) @ W  # row i*m + j: <w_j, x_i>
    own = sparse.kron(sparse.eye(n), np.ones((m, 1))) @ Z[np.arange(n) * m + y]
    violations, constant = Z - own, np.concatenate([margins_of(loss, label, m) for label in y])

    G, h = [], []
    total = -identity[first_phi:]
    for place, (k, step) in enumerate(levels):
        start = first_level + place * per_level
        t, u = identity[start : start + n], identity[start + n : start + per_level]
        spread = sparse.kron(sparse.eye(n), np.ones((m, 1)))
        G += [violations - spread @ t - u, -u]
        h += [-constant, np.zeros(n * m)]
        if hinges_first(loss):
            G.append(-t)
            h.append(np.zeros(n))
        total = total + step * (k * t + spread.T @ u)
    G += [total, -identity[first_phi:]]
    h += [np.zeros(n), np.zeros(n)]

    P = lam * W.T @ W
    A, b = (product - Z).toarray(), np.zeros(scores)
    P = P.toarray()
    if smoothing > 0:
        P = P + A.T @ A / (smoothing * n)
        A = b = None
    q = np.zeros(size)
    q[first_phi:] = 1.0 / n
    x = minimise_qp(P, q, sparse.vstack(G).toarray(), np.concatenate(h), A, b)
    return 0.5 * x @ (P @ x) + q @ x
