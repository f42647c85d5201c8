"""What the paper proves about k: calibration (theorem 1) and the error of the AT_k-SVM (theorem 2).

A distribution over finitely many x is their masses and eta(x) = Pr(y = 1 | x).
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, section 3.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from topline.solvers.average_top.losses import individual_loss
from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array

#: Scores between which the least risk of a loss is sought.
_RANGE = 60.0


def sufficient_share(eta: Float64Array, mass: Float64Array, loss: Any) -> float:
    """Give E*, the least risk E l(y f(x)) over all f: for k/n above it AT_k is calibrated (part i).

    For the hinge it is twice the error of the Bayes rule.  `loss` is "hinge" or "logistic".
    """
    loss = individual_loss(loss)
    if not loss.binary:
        raise InvalidProblemError(f"the loss {loss.name} is not one of signs; take hinge or logistic")
    signs = np.array([1.0, -1.0])

    def risk(z: float, share: float) -> float:
        both = loss.pieces(np.full(2, z), signs).losses()
        return float(share * both[0] + (1.0 - share) * both[1])

    least = [
        minimize_scalar(risk, bounds=(-_RANGE, _RANGE), args=(share,), options={"xatol": 1e-10}).fun
        for share in np.asarray(eta, dtype=np.float64)
    ]
    return float(np.asarray(mass) @ np.array(least))


def necessary_share(eta: Float64Array, mass: Float64Array) -> float:
    """Give the share k/n below which AT_k cannot be calibrated (part ii).

    It is the mass-weighted min(eta, 1 - eta) where eta is not 1/2: the error of the Bayes rule, if it is
    nowhere undecided.
    """
    eta = np.asarray(eta, dtype=np.float64)
    return float(np.asarray(mass) @ np.where(eta == 0.5, 0.0, np.minimum(eta, 1.0 - eta)))


def error_bound(
    n: int, mu: float, eps: float, C_3: float, kappa: float, norm: float, approximation: float = 0.0
) -> tuple[float, float]:
    """Give (excess, probability) of theorem 2: the error exceeds Bayes' by `excess` with that chance at most.

    For eq. 6 with k = ceil(n (E_h(f_H) + mu)), 0 < mu < 1 - E_h(f_H), and 0 < eps <= 1; `kappa` is the
    largest sqrt(k(x, x)), `norm` that of f_H, the best function of the kernel, and `approximation` what its
    hinge risk has above the least.
    """
    if not (n >= 1 and mu > 0.0 and 0.0 < eps <= 1.0 and C_3 > 0.0):
        raise InvalidProblemError(
            f"n, mu, eps and C are {n}, {mu}, {eps} and {C_3}; give positive numbers, eps at most 1"
        )
    constant = 1.0 + kappa * (2.0 * math.sqrt(2.0 * C_3) + 4.0 * norm)
    excess = mu + approximation + eps + constant / (math.sqrt(n) * mu)
    return excess, min(1.0, 2.0 * math.exp(-n * mu**2 * eps**2 / constant**2))


def k_for_error_bound(n: int, hinge_risk: float, mu: float) -> int:
    """Give the k that theorem 2 takes: ceil(n (E_h(f_H) + mu))."""
    return math.ceil(n * (hinge_risk + mu))
