"""Any loss by its definition, and P and D evaluated from W and A with nothing of the solver."""

from __future__ import annotations

import numpy as np

from tests.reference.hinges import (
    brute_loss,
    hinge_infeasibility,
    hinge_value,
    hinges_first,
    margins_of,
    rank_weights,
    smoothed_vertex,
    vertex,
    vertices,
)
from tests.reference.polyhedral import (
    polyhedral_conjugate,
    polyhedral_infeasibility,
    polyhedral_value,
    polyhedral_vertex,
)
from tests.reference.smooth import (
    is_smooth,
    smooth_conjugate,
    smooth_gradient,
    smooth_infeasibility,
    smooth_value,
)
from topline.solvers.losses import PolyhedralTopK

__all__ = [
    "brute_loss",
    "dual",
    "envelope",
    "gradient",
    "hinges_first",
    "infeasibility",
    "margins_of",
    "minus_conjugate",
    "primal",
    "rank_weights",
    "sorted_loss",
    "squares",
    "vertex",
    "vertices",
    "weights_of",
]


def sorted_loss(loss, s, y):
    """Give Phi(s; y) by its printed definition."""
    if isinstance(loss, PolyhedralTopK):
        return polyhedral_value(loss, s, y)
    return smooth_value(loss, s, y) if is_smooth(loss) else hinge_value(loss, s, y)


def minus_conjugate(loss, alpha, y):
    """Give -Phi*(-alpha) of a dual row inside the domain."""
    if is_smooth(loss):
        return smooth_conjugate(loss, alpha, y)
    if isinstance(loss, PolyhedralTopK):
        return polyhedral_conjugate(loss, alpha, y)
    return float(-margins_of(loss, y, len(alpha)) @ alpha)


def infeasibility(loss, alpha, y):
    """Give by how much a dual row leaves the domain of the conjugate, at most 0 inside."""
    if isinstance(loss, PolyhedralTopK):
        return polyhedral_infeasibility(loss, alpha, y)
    return (smooth_infeasibility if is_smooth(loss) else hinge_infeasibility)(loss, alpha, y)


def gradient(loss, s, y, gamma=0.0, kind="moreau"):
    """Give u = -grad Phi_gamma(s), or minus a subgradient."""
    if is_smooth(loss):
        return smooth_gradient(loss, s, y)
    if isinstance(loss, PolyhedralTopK):
        return polyhedral_vertex(loss, s, y, gamma)
    return smoothed_vertex(loss, s, y, gamma, kind) if gamma > 0 else vertex(loss, s, y)


def squares(alpha, y, kind="moreau"):
    """Give |alpha|^2, or that of the others alone."""
    return float(alpha @ alpha - (0.0 if kind == "moreau" else alpha[y] ** 2))


def envelope(loss, s, y, gamma, kind="moreau"):
    """Give the envelope of Phi over all m scores, or over those of the others."""
    u = gradient(loss, s, y, gamma, kind)
    return float(minus_conjugate(loss, u, y) - u @ s - 0.5 * gamma * squares(u, y, kind))


def primal(X, y, loss, lam, smoothing, W, kind="moreau", weights=None):
    """Give P(W)."""
    S = np.asarray(X, dtype=np.float64) @ W
    if smoothing > 0:
        values = [envelope(loss, s, label, smoothing, kind) for s, label in zip(S, y, strict=True)]
    else:
        values = [sorted_loss(loss, s, label) for s, label in zip(S, y, strict=True)]
    weights = np.ones(len(y)) if weights is None else weights
    return 0.5 * lam * np.sum(W**2) + np.mean(weights * values)


def weights_of(X, lam, A):
    """Give W(A)."""
    return np.asarray(X, dtype=np.float64).T @ np.asarray(A, dtype=np.float64) / (lam * len(A))


def dual(X, y, loss, lam, smoothing, A, kind="moreau", weights=None):
    """Give D(A); A is taken to be feasible, each row w_i times a point of the domain."""
    A = np.asarray(A, dtype=np.float64)
    weights = np.ones(len(y)) if weights is None else weights
    total = 0.0
    for weight, row, label in zip(weights, A, y, strict=True):
        if weight > 0:
            beta = row / weight
            value = minus_conjugate(loss, beta, label) - 0.5 * smoothing * squares(beta, label, kind)
            total += weight * value
    return total / len(A) - 0.5 * lam * np.sum(weights_of(X, lam, A) ** 2)
