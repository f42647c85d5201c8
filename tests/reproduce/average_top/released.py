"""Stochastic gradients as the released code of the average top-k loss takes them, to see where they end.

They minimise C_3 times eq. 3, so that a step of w is C_3 times longer than eq. 4 has it:

    w <- w - eta_t (w + C_3 l'(z_i) x_i [l_i > t]),    t <- clip(t - eta_t C_3 (k/n - [l_i > t]), 0, l(0)),

with eta_t = step / sqrt(t), the examples in their order, w anywhere in [0, 1]^d and t = l_[k+1] at first; the
mean of all iterates is the answer.  `stochastic` has them as eq. 4 does.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.average_top.problem import AverageTopProblem, C_to_equation_3
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array

#: What the released script sets.
EPOCHS, STEP = 1000, 1e-3
_START = 3


def released_descent(
    X: Float64Array,
    y: Float64Array,
    loss: str,
    k: float,
    C: float,
    epochs: int = EPOCHS,
    step: float = STEP,
    *,
    averaged: bool = True,
) -> Float64Array:
    """Return the mean of the iterates on X (n, d) and signs y (n,), for the hinge or the logistic loss.

    The last iterate comes instead where not `averaged`.
    """
    w = np.random.default_rng(_START).uniform(size=X.shape[1])
    signed = np.ascontiguousarray(y[:, None] * X)
    losses = _losses(signed @ w, logistic=loss == "logistic")
    most = float(np.log(2.0)) if loss == "logistic" else 1.0
    threshold = float(np.sort(losses)[::-1][int(k)]) if k < len(y) else 0.0
    mean = w.copy()
    _descend(
        signed, loss == "logistic", k / len(y), C, epochs, step, min(threshold, most), most, w, mean
    )  # fmt: skip
    return mean if averaged else w


@dataclass(frozen=True)
class Released:
    """Trains as the released code does; `scaled` is its C n/k, without it C is that of eq. 3."""

    epochs: int = EPOCHS
    step: float = STEP
    scaled: bool = True
    averaged: bool = True

    def __call__(self, problem: AverageTopProblem) -> tuple[Float64Array, bool]:
        """Give the mean of the iterates, or the last."""
        C = C_to_equation_3(problem.C, problem.k, problem.n) if self.scaled else problem.C
        X = np.asarray(problem.X)
        w = released_descent(
            X, problem.y, problem.loss.name, problem.k, C, self.epochs, self.step, averaged=self.averaged
        )
        return w, False


def _losses(margins: Float64Array, *, logistic: bool) -> Float64Array:
    return np.logaddexp(0.0, -margins) if logistic else np.maximum(0.0, 1.0 - margins)


@jit
def _descend(
    signed: Float64Array,
    logistic: bool,
    share: float,
    C: float,
    epochs: int,
    step: float,
    threshold: float,
    most: float,
    w: Float64Array,
    mean: Float64Array,
) -> None:
    """Take a step for each example in its order, epoch after epoch; w and the mean change in place."""
    n, d = signed.shape
    taken = 1
    for _ in range(epochs):
        for i in range(n):
            margin = 0.0
            for j in range(d):
                margin += signed[i, j] * w[j]
            slope = 1.0
            if logistic:
                decay = np.exp(min(-margin, 100.0))
                loss, slope = np.log1p(decay), decay / (1.0 + decay)
            else:
                loss = 1.0 - margin
            eta = step / np.sqrt(taken)
            push = C * slope if loss > threshold else 0.0
            for j in range(d):
                w[j] += eta * (push * signed[i, j] - w[j])
                mean[j] += (w[j] - mean[j]) / (taken + 1)
            change = share - 1.0 if loss > threshold else share
            threshold = min(max(threshold - eta * C * change, 0.0), most)
            taken += 1
