"""Losses straight from their definitions, and P and D evaluated from W and A with nothing of the solver.

Rank weights and margins are read from the loss's own parameters, never from the form that the kernels use.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from solvers.losses import Family, LossForm, StructuredHinge, UsunierHinge, WeightedUsunierHinge
from tests.reference.columns import twin


def rank_weights(loss, m):
    """Give the rank weights of a loss, padded to length m."""
    fields = loss.to_dict()
    rho = fields.get("rho") or ([1.0 / fields["k"]] * fields["k"] if "k" in fields else [1.0])
    return np.concatenate([rho, np.zeros(m - len(rho))])


def margins_of(loss, y, m):
    """Give delta of one example."""
    return np.array(loss.margins[y]) if isinstance(loss, StructuredHinge) else 1.0 - np.eye(m)[y]


def hinges_first(loss):
    """Say whether each violation is cut at zero before the sum."""
    return isinstance(loss, UsunierHinge | WeightedUsunierHinge)


def vertices(loss, y, m):
    """Give every u = -dPhi that the loss can have (m small): beta over all orders, and all cuts or none."""
    rho = rank_weights(loss, m)
    masks = product([0.0, 1.0], repeat=m) if hinges_first(loss) else [np.zeros(m), np.ones(m)]
    betas = {tuple(np.array(order) * mask) for mask in map(np.array, masks) for order in permutations(rho)}
    rows = np.array(sorted(betas))
    rows[:, y] = 0.0
    rows = -rows
    rows[:, y] = -rows.sum(axis=1)
    return rows


def brute_loss(loss, s, y):
    """Give Phi(s; y) as the largest <beta, a> over all beta."""
    m = len(s)
    a = margins_of(loss, y, m) + s - s[y]
    return float(np.max(-vertices(loss, y, m) @ a))


def sorted_loss(loss, s, y):
    """Give Phi(s; y) by its printed definition."""
    m = len(s)
    a = np.sort(margins_of(loss, y, m) + s - s[y])[::-1]
    rho = rank_weights(loss, m)
    return float(rho @ np.maximum(a, 0.0)) if hinges_first(loss) else max(0.0, float(rho @ a))


def vertex(loss, s, y):
    """Give one u = -dPhi(s): the best of the sorted order."""
    m = len(s)
    a = margins_of(loss, y, m) + s - s[y]
    order = np.argsort(-a, kind="stable")
    rho = rank_weights(loss, m)
    beta = np.zeros(m)
    if hinges_first(loss):
        beta[order] = rho * (a[order] > 0)
    elif rho @ a[order] > 0:
        beta[order] = rho
    beta[y] = 0.0
    u = -beta
    u[y] = beta.sum()
    return u


def envelope(loss, s, y, gamma):
    """Give the Moreau envelope of Phi over all m scores, through the twin of the column projection."""
    m = len(s)
    form = LossForm(
        m=m,
        family=Family.HINGE_THEN_SUM if hinges_first(loss) else Family.SUM_THEN_HINGE,
        rho=np.trim_zeros(rank_weights(loss, m), "b"),
    )
    b = margins_of(loss, y, m) + s - s[y]
    alpha = twin(form, b, y, gamma)
    return float(-alpha @ b - 0.5 * gamma * alpha @ alpha)


def primal(X, y, loss, lam, smoothing, W):
    """Give P(W)."""
    S = np.asarray(X, dtype=np.float64) @ W
    if smoothing > 0:
        values = [envelope(loss, s, label, smoothing) for s, label in zip(S, y, strict=True)]
    else:
        values = [sorted_loss(loss, s, label) for s, label in zip(S, y, strict=True)]
    return 0.5 * lam * np.sum(W**2) + np.mean(values)


def weights_of(X, lam, A):
    """Give W(A)."""
    return np.asarray(X, dtype=np.float64).T @ np.asarray(A, dtype=np.float64) / (lam * len(A))


def dual(X, y, loss, lam, smoothing, A):
    """Give D(A); A is taken to be feasible."""
    A = np.asarray(A, dtype=np.float64)
    m = A.shape[1]
    linear = -np.mean([margins_of(loss, label, m) @ row for label, row in zip(y, A, strict=True)])
    W = weights_of(X, lam, A)
    return linear - 0.5 * lam * np.sum(W**2) - 0.5 * smoothing * np.sum(A**2) / len(A)
