"""The polyhedral top-k loss, which is piecewise linear and whose conjugate is no linear function."""

from __future__ import annotations

from itertools import combinations

import numpy as np


def subsets(m):
    """Give every set of classes but the empty one."""
    return [list(some) for r in range(1, m + 1) for some in combinations(range(m), r)]


def polyhedral_value(loss, s, y):
    """Give Phi(s; y): the best mean of some classes, plus the least top-k error of an even choice of them."""
    return max(s[some].mean() + 1.0 - min(loss.k, len(some)) / len(some) for some in subsets(len(s))) - s[y]


def polyhedral_vertex(loss, s, y, gamma=0.0):
    """Give u = e_y - p of the best p of all that may be the best.

    p maximises <s, p> - (the sum of the k largest p) - gamma / 2 |p - e_y|^2 on the simplex, its classes in
    the order of b = s + gamma e_y: r of them have mass, of which the a highest count wholly to the sum, those
    up to e share what is left of k evenly, and the others do not count.
    """
    m, k, own = len(s), loss.k, np.eye(len(s))[y]
    if gamma == 0.0:
        evens = [np.isin(np.arange(m), some) / len(some) for some in subsets(m)]
        return own - max(evens, key=lambda p: s @ p - np.sort(p)[-k:].sum())
    b = s + gamma * own
    order = np.argsort(-b, kind="stable")
    best, found = -np.inf, own
    for r in range(1, m + 1):
        first = order[:r]
        mu = (b[first].sum() - min(k, r) - gamma) / r
        runs = [(r, r)] if r <= k else [(a, e) for a in range(k + 1) for e in range(k, r + 1)]
        for a, e in runs:
            p = np.zeros(m)
            p[first] = (b[first] - mu - (np.arange(r) < a)) / gamma
            if e > a:
                p[order[a:e]] = (b[order[a:e]].mean() - mu - (k - a) / (e - a)) / gamma
            value = s @ p - np.sort(p)[-k:].sum() - 0.5 * gamma * (p - own) @ (p - own)
            if p.min() >= -1e-14 and value > best:
                best, found = value, p
    return own - found


def polyhedral_conjugate(loss, alpha, y):
    """Give -Phi*(-alpha): the least top-k error at the probabilities e_y - alpha."""
    return 1.0 - float(np.sort(np.eye(len(alpha))[y] - alpha)[-loss.k :].sum())


def polyhedral_infeasibility(_, alpha, y):
    """Give by how much p leaves the simplex."""
    p = np.eye(len(alpha))[y] - alpha
    return max(-p.min(), p[y] - 1.0, abs(p.sum() - 1.0))
