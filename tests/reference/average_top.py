"""The optimum of an average top-k problem of one score, written as cones for Clarabel."""

from __future__ import annotations

import clarabel
import numpy as np
from scipy import sparse

from tests.reference.qp import minimise_on_cones
from tests.reference.risks import mean_of_largest

LOG2 = np.log(2.0)


def loss_values(name, z, y):
    """Give each loss by its textbook formula."""
    return {
        "hinge": lambda: np.maximum(0.0, 1.0 - y * z),
        "logistic": lambda: np.logaddexp(0.0, -y * z) / LOG2,
        "square": lambda: (z - y) ** 2,
        "absolute": lambda: np.abs(z - y),
    }[name]()


def objective(X, y, name, k, C, w):
    """Give P(w)."""
    return mean_of_largest(loss_values(name, X @ w, y), k) + w @ w / (2.0 * C)


def optimum(X, y, name, k, C, threshold_weight=None, excess_weight=None):
    """Give (minimum, w) of |w|^2 / (2 C) + a t + b sum_i max(l_i - t, 0) over w and t >= 0.

    a = 1 and b = 1/k make it AT_k; a = k/n and b = 1/n make it the paper's eq. 3.
    Variables: w (d), t, the excesses s (n), and the losses e (n).
    """
    n, d = X.shape
    a = 1.0 if threshold_weight is None else threshold_weight
    b = 1.0 / k if excess_weight is None else excess_weight
    extra = 2 * n if name == "logistic" else 0
    size = d + 1 + 2 * n + extra
    identity = sparse.eye(size, format="csr")
    W, t, s, e = identity[:d], identity[d], identity[d + 1 : d + 1 + n], identity[d + 1 + n : d + 1 + 2 * n]
    Z = sparse.csr_matrix(X) @ W
    ones = np.ones((n, 1))
    rows, right, cones = [], [], []

    def nonnegative(matrix, constant):
        """Matrix x + constant >= 0."""
        rows.append(-matrix)
        right.append(constant)
        cones.append(clarabel.NonnegativeConeT(matrix.shape[0]))

    nonnegative(sparse.vstack([s, s + sparse.csr_matrix(ones) @ t - e, t]), np.zeros(2 * n + 1))
    if name == "hinge":
        nonnegative(sparse.vstack([e, e + sparse.diags(y) @ Z]), np.concatenate([np.zeros(n), -np.ones(n)]))
    elif name == "absolute":
        nonnegative(sparse.vstack([e - Z, e + Z]), np.concatenate([y, -y]))
    elif name == "square":
        for i in range(n):  # |(2 r, e - 1)| <= e + 1
            rows.append(-sparse.vstack([e[i], 2.0 * Z[i], e[i]]))
            right.append(np.array([1.0, -2.0 * y[i], -1.0]))
            cones.append(clarabel.SecondOrderConeT(3))
    else:
        _logistic(identity[d + 1 + 2 * n :], Z, e, y, rows, right, cones, nonnegative)
    q = np.zeros(size)
    q[d], q[d + 1 : d + 1 + n] = a, b
    P = sparse.diags(np.concatenate([np.full(d, 1.0 / C), np.zeros(size - d)]), format="csc")
    x = np.asarray(minimise_on_cones(P, q, rows, right, cones).x)
    return 0.5 * x @ (P @ x) + q @ x, x[:d]


def _logistic(u, Z, e, y, rows, right, cones, nonnegative):
    """exp(-y z - e log 2) + exp(-e log 2) <= 1, by two exponential cones an example."""
    n = len(y)
    first, second = u[:n], u[n:]
    nonnegative(-(first + second), np.ones(n))
    none = sparse.csr_matrix((1, u.shape[1]))
    for i in range(n):
        for exponent, bound in ((-y[i] * Z[i] - LOG2 * e[i], first[i]), (-LOG2 * e[i], second[i])):
            rows.append(-sparse.vstack([exponent, none, bound]))
            right.append(np.array([0.0, 1.0, 0.0]))
            cones.append(clarabel.ExponentialConeT())
