"""Small problems that the tests of the average top-k loss share."""

from __future__ import annotations

import numpy as np

BINARY = ["hinge", "logistic"]
NUMERIC = ["square", "absolute"]
EVERY_LOSS = BINARY + NUMERIC


def examples(name, n=40, d=3, seed=0, noise=0.7):
    """Overlapping classes or noisy targets, with a constant feature last."""
    random = np.random.default_rng(seed)
    X = np.column_stack([random.standard_normal((n, d)), np.ones(n)])
    latent = X @ random.standard_normal(d + 1) + noise * random.standard_normal(n)
    return X, np.where(latent > 0.0, 1.0, -1.0) if name in BINARY else latent
