"""The loss of every row on its own, compiled; kernels that find vertices only sum them."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from topline.solvers.losses.ranking import LOSS, N_SUMS, rank_rows
from topline.solvers.projections.gradients import gradient_rows


@nb.njit(cache=True, nogil=True, error_model="numpy")
def ranked_losses(
    scores: Any, y: Any, rho: Any, hinge_first: bool, own_in_sort: bool, margins: Any, losses: Any
) -> None:
    """Write the loss of each row of scores (b, m) to `losses` (b,); overwrites the scores."""
    once, counts = np.ones(1), np.empty(1, dtype=np.int32)
    ranked = np.empty((1, len(rho)), dtype=np.int32)
    sums = np.zeros(N_SUMS)
    for i in range(scores.shape[0]):
        sums[LOSS] = 0.0
        row, label = scores[i : i + 1], y[i : i + 1]
        rank_rows(row, label, once, rho, hinge_first, own_in_sort, 1.0, margins, ranked, counts, sums)
        losses[i] = sums[LOSS]


@nb.njit(cache=True, nogil=True, error_model="numpy")
def dense_losses(
    kind: int, scores: Any, y: Any, gamma: float, gamma_own: float, rho: Any, margins: Any, losses: Any
) -> None:
    """Write Phi_gamma of each row of scores (b, m) to `losses` (b,); overwrites the scores."""
    once, sums = np.ones(1), np.zeros(N_SUMS)
    for i in range(scores.shape[0]):
        sums[LOSS] = 0.0
        row, label = scores[i : i + 1], y[i : i + 1]
        gradient_rows(kind, row, label, once, gamma, gamma_own, rho, margins, row, sums)
        losses[i] = sums[LOSS]
