"""The losses of label sets straight from their definitions; `labels` is an array of the own classes."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import entr, logsumexp, softmax


def own_classes(labels, m):
    """Give the own classes as a mask (m,)."""
    own = np.zeros(m, dtype=bool)
    own[labels] = True
    return own


def pairs(labels, m):
    """Give every (y, j) with y in the set and j outside."""
    own = own_classes(labels, m)
    return [(y, j) for y in np.flatnonzero(own) for j in np.flatnonzero(~own)]


def hinge(s, labels):
    """Give max(0, 1 + s_j - s_y) over all pairs (thesis, SVM^ML as it is first written)."""
    return float(max([0.0] + [1.0 + s[j] - s[y] for y, j in pairs(labels, len(s))]))


def hinge_vertices(labels, m):
    """Give every u = -dPhi that the hinge can have: e_y - e_j of a pair, and 0."""
    corners = [np.zeros(m)]
    for y, j in pairs(labels, m):
        corners.append(np.zeros(m))
        corners[-1][y], corners[-1][j] = 1.0, -1.0
    return np.array(corners)


def hinge_vertex(s, labels):
    """Give the vertex that is best at s, of equals the one of the lowest classes."""
    corners = hinge_vertices(labels, len(s))
    delta = 1.0 - own_classes(labels, len(s))
    return corners[np.argmax(-corners @ (delta + s))]


def simplex_projection(v):
    """Project on {x >= 0, sum x = 1}, by sorting."""
    ranked = np.sort(v)[::-1]
    levels = (np.cumsum(ranked) - 1.0) / np.arange(1, len(v) + 1)
    return np.maximum(v - levels[np.flatnonzero(ranked > levels)[-1]], 0.0)


def smoothed_hinge_vertex(s, labels, gamma):
    """Give u = -grad of the envelope: the projection of prop. 6.6 by bisection for the common sum."""
    own = own_classes(labels, len(s))
    u = np.zeros(len(s))
    if own.all() or not own.any():
        return u
    # What the sides have in common may be shared in any way.
    middle = 0.5 * (s[own].min() + s[~own].max())
    b, d = (0.5 - (s[own] - middle)) / gamma, (0.5 + (s[~own] - middle)) / gamma
    if b.max() + d.max() <= 0.0:
        return u

    def surplus(t):
        return np.maximum(b - t, 0.0).sum() - np.maximum(d + t, 0.0).sum()

    low, high = -d.max(), b.max()
    t = brentq(surplus, low, high, xtol=1e-300, rtol=1e-15) if surplus(low) > 0.0 > surplus(high) else high
    x, z = np.maximum(b - t, 0.0), np.maximum(d + t, 0.0)
    if x.sum() > 1.0:
        x, z = simplex_projection(b), simplex_projection(d)
    u[own], u[~own] = x, -z
    return u


def hinge_infeasibility(alpha, labels):
    """Give by how much a row leaves {alpha_Y >= 0, alpha_Y' <= 0, sum alpha_Y = -sum alpha_Y' <= 1}."""
    own = own_classes(labels, len(alpha))
    signs = np.where(own, alpha, -alpha).min(initial=0.0)
    return max(-signs, alpha[own].sum() - 1.0, abs(alpha.sum()))


def entropy_value(s, labels):
    """Give the mean of log sum_j exp(s_j - s_y) over the labels."""
    return float(np.mean([logsumexp(s - s[y]) for y in labels]))


def entropy_gradient(s, labels):
    """Give u = -grad Phi(s)."""
    return own_classes(labels, len(s)) / len(labels) - softmax(s)


def entropy_conjugate(alpha, labels):
    """Give -Phi*(-alpha) (prop. 6.7)."""
    p = own_classes(labels, len(alpha)) / len(labels) - alpha
    return float(entr(np.maximum(p, 0.0)).sum())


def entropy_infeasibility(alpha, labels):
    """Give by how much a row leaves the conjugate's domain."""
    p = own_classes(labels, len(alpha)) / len(labels) - alpha
    return max(-p.min(), abs(p.sum() - 1.0))
