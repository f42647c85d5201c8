"""Examples that several tests of limited data share."""

from __future__ import annotations

import numpy as np


def noisy_examples(seed: int, n: int = 60, d: int = 4):
    """Give X (n, d), y (n,) of -1 and +1 that X explains in part, and privileged features (n, 3)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = np.where(X[:, 0] + 0.7 * rng.normal(size=n) > 0, 1.0, -1.0)
    return X, y, rng.normal(size=(n, 3))


def linear(X):
    return X @ X.T


def rbf(X, Y=None):
    Y = X if Y is None else Y
    return np.exp(-0.3 * ((X[:, None] - Y[None]) ** 2).sum(axis=2))


def told_of_slack(seed: int, n: int):
    """Give X (n, 10), labels of which a fifth are wrong, the slacks of the true classifier, the right labels.

    The slacks (n, 1) carry noise; they are large where a label is wrong, so they tell which to distrust.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    truth = 2.0 * X[:, 0]
    y = np.where(rng.random(n) < 0.2, -np.sign(truth), np.sign(truth))
    slack = np.maximum(0.0, 1.0 - y * truth)[:, None] + 0.1 * rng.normal(size=(n, 1))
    return X, y, slack, np.sign(truth)
