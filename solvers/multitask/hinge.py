"""The smooth hinge of one margin, and what it says of a whole task.

    phi_gamma(z) = max over 0 <= v <= 1 of v (1 - z) - gamma/2 v^2

is 0 for z >= 1, (1 - z)^2 / (2 gamma) for 1 - gamma <= z < 1 and 1 - z - gamma/2 below; gamma = 0 is the
hinge.  Source: thesis, section 4.2.1 (phi_gamma).
"""

from __future__ import annotations

import numpy as np

from topline.solvers.typing import Float64Array


def smooth_hinge(margins: Float64Array, gamma: float) -> Float64Array:
    """Return phi_gamma of each margin z = y s, in the shape of `margins`."""
    slack = np.maximum(1.0 - margins, 0.0)
    if gamma == 0.0:
        return slack
    v = np.minimum(slack / gamma, 1.0)
    return np.asarray(v * (slack - 0.5 * gamma * v))


def task_losses(signs: Float64Array, scores: Float64Array, gamma: float) -> Float64Array:
    """Return the mean loss of each task, (T,); signs and scores are (T, n)."""
    losses: Float64Array = smooth_hinge(signs * scores, gamma).mean(axis=1)
    return losses


def task_conjugates(signs: Float64Array, duals: Float64Array, gamma: float) -> Float64Array:
    """Return the mean of y a - gamma/2 a^2 of each task, (T,): minus the conjugates at its duals a.

    signs and duals are (T, n), with 0 <= y a <= 1.
    """
    values: Float64Array = (signs * duals - 0.5 * gamma * np.square(duals)).mean(axis=1)
    return values
