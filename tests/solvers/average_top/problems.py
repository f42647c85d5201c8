"""Problems of one score, and the equations of the paper about its kernel machine."""

from __future__ import annotations

import numpy as np

from topline.solvers.average_top import kth_largest
from topline.solvers.typing import Float64Array

BINARY = ["hinge", "logistic"]
NUMERIC = ["square", "absolute"]
EVERY_LOSS = BINARY + NUMERIC


def examples(name, n=40, d=3, seed=0, noise=0.7):
    """Overlapping classes or noisy targets, with a constant feature last."""
    random = np.random.default_rng(seed)
    X = np.column_stack([random.standard_normal((n, d)), np.ones(n)])
    latent = X @ random.standard_normal(d + 1) + noise * random.standard_normal(n)
    return X, np.where(latent > 0.0, 1.0, -1.0) if name in BINARY else latent


def equation_5(scores: Float64Array, y: Float64Array, t: float, k: float, C_3: float, norm: float) -> float:
    """Return the objective of eq. 5 at the scores f(x_i) (n,), t >= 0 and norm = |f|^2."""
    outer = np.maximum(np.maximum(1.0 - y * scores, 0.0) - t, 0.0)
    return float(outer.mean()) + k / len(y) * t + norm / (2.0 * C_3)


def equation_6(scores: Float64Array, y: Float64Array, rho: float, k: float, C_3: float, norm: float) -> float:
    """Return the objective of eq. 6 at the scores f(x_i) (n,), rho in [0, 1] and norm = |f|^2."""
    return float(np.maximum(rho - y * scores, 0.0).mean()) - k / len(y) * rho + norm / (2.0 * C_3)


def dual_of_equation_6(K: Float64Array, y: Float64Array, alpha: Float64Array, k: float, C_3: float) -> float:
    """Return the dual of eq. 6 at alpha (n,), 0 <= alpha_i <= 1/n with sum at most k/n."""
    signed = alpha * y
    return float(alpha.sum()) - k / len(y) - 0.5 * C_3 * float(signed @ (K @ signed))


def rho_of(scores: Float64Array, y: Float64Array, k: float) -> float:
    """Return the rho that minimises eq. 6 at these scores: 1 less the smallest hinge loss that counts.

    For k = n every rho from 0 to 1 less the smallest loss does.
    """
    return 1.0 - kth_largest(np.maximum(1.0 - y * scores, 0.0), k)


def is_nu_svm(K: Float64Array, k: float, C_3: float) -> bool:
    """Return whether rho <= 1 surely does not bind in eq. 6, so that it is the nu-SVM for nu = k/n."""
    return C_3 * k / len(K) * float(np.diag(K).max()) <= 1.0
