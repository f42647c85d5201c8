"""Stochastic gradients: the paper's, eq. 4, the baseline that exact methods replace, and the released code's.

A step draws an example and, with eta_t = step / sqrt(t),

    w <- w - eta_t (l'(z_i) x_i [l_i > t] + w / C_3),    t <- [t - eta_t (k/n - [l_i > t])]_+,

on eq. 3, whose C_3 is C n/k here (`aggregates`).  It keeps no dual variables and cannot say how far it got;
`certify` can.  The authors' released code minimises C_3 times eq. 3, so that its steps are C_3 times longer:

    w <- w - eta_t (w + C_3 l'(z_i) x_i [l_i > t]),    t <- clip(t - eta_t C_3 (k/n - [l_i > t]), 0, l(0)),

with the examples in their order, w anywhere in [0, 1]^d and t = l_[k+1] at first, and the logistic loss in
nats.  Its mean of all iterates counts the first w: where it has not converged that decides its end.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tests.reproduce.average_top.certificates import certify
from topline.solvers.average_top.problem import (
    AverageTopProblem,
    C_to_equation_3,
)
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array

#: Losses by number, as the compiled steps know them.
_CODES: Mapping[str, int] = MappingProxyType({"hinge": 0, "logistic": 1, "square": 2, "absolute": 3})
#: The logistic loss without the factor that makes it 1 at a score of 0.
_NATS = 4


@dataclass(frozen=True, eq=False)
class StochasticResult(HasObjective):
    """Where stochastic gradients ended, and what that is worth.

    Attributes
    ----------
    objective : P(w) and a lower bound of its minimum.
    w : (d,) the mean of all iterates, or the last.
    threshold : the last t.
    epochs : passes over the examples.
    """

    objective: Objective
    w: Float64Array = field(repr=False)
    threshold: float
    epochs: int


def stochastic_gradient(
    problem: AverageTopProblem,
    *,
    epochs: int = 100,
    step: float = 0.1,
    seed: int = 0,
    averaged: bool = True,
    dual: float | None = None,
) -> StochasticResult:
    """Run eq. 4 from w = 0 and t = 0 over random orders of the examples, and certify where it ends.

    Parameters
    ----------
    problem : of features in an array (n, d), with one of the four losses of this package.
    epochs : passes over the examples, each in a random order.
    step : of eta_t = step / sqrt(t), which is also kept below C_3: a longer step would turn w around.
    seed : of the orders.
    averaged : give the mean of the iterates, which varies less, rather than the last.
    dual : a lower bound of the optimum for the certificate; None computes one as `certify` does.

    Raises InvalidProblemError for sparse features, other losses and bad parameters, and NonFiniteError where
    the step was too long.
    """
    w, threshold = descend(problem, epochs, step, seed, averaged=averaged)
    certificate = certify(problem, w, dual)
    return StochasticResult(certificate, w, threshold, epochs)


def descend(
    problem: AverageTopProblem, epochs: int, step: float, seed: int, *, averaged: bool = True
) -> tuple[Float64Array, float]:
    """Return the w and t of `stochastic_gradient` without a certificate."""
    if is_sparse(problem.X):
        raise InvalidProblemError("stochastic gradients take features as an array; give X.toarray()")
    if problem.loss.name not in _CODES:
        raise InvalidProblemError(f"there are no stochastic gradients of {problem.loss.name}")
    if epochs < 1 or not 0.0 < step < np.inf:
        raise InvalidProblemError(f"epochs is {epochs} and step {step}; give positive numbers")
    generator = np.random.default_rng(seed)
    code, C = _CODES[problem.loss.name], C_to_equation_3(problem.C, problem.k, problem.n)
    X, y, walk = np.ascontiguousarray(problem.X), problem.y, Walk(code, problem.k / problem.n, C, step, C)
    w, mean, threshold = np.zeros(problem.d), np.zeros(problem.d), 0.0
    for epoch in range(epochs):
        order = generator.permutation(problem.n)
        threshold = _steps(X, y, order, walk, epoch * problem.n, threshold, w, mean)
    return mean if averaged else w, threshold


#: What the released script sets.
EPOCHS, STEP = 1000, 1e-3
_START = 3


def released_descent(
    X: Float64Array, y: Float64Array, loss: str, k: float, C: float, epochs: int = EPOCHS, step: float = STEP,
    *, averaged: bool = True,
) -> Float64Array:  # fmt: skip
    """Return the mean of the released code's iterates, or the last, for X (n, d) and signs y (n,).

    `loss` is hinge or logistic, and `C` that of eq. 3.
    """
    w = np.random.default_rng(_START).uniform(size=X.shape[1])
    n, code = len(y), _NATS if loss == "logistic" else _CODES[loss]
    losses, most = (
        np.array([_loss(code, z, sign)[0] for z, sign in zip(X @ w, y, strict=True)]),
        _loss(code, 0.0, 1.0)[0],
    )
    threshold = min(float(np.sort(losses)[::-1][int(k)]) if k < n else 0.0, most)
    walk, mean = Walk(code, k / n, C, step * C, np.inf, most, 1), w.copy()
    X = np.ascontiguousarray(X)
    for epoch in range(epochs):
        threshold = _steps(X, y, np.arange(n), walk, epoch * n, threshold, w, mean)
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
        return released_descent(
            np.asarray(problem.X), problem.y, problem.loss.name, problem.k, C, self.epochs, self.step,
            averaged=self.averaged,
        ), False  # fmt: skip


class Walk(NamedTuple):
    """How far steps go: of a loss by its code, with k/n, C_3, the first step and the longest.

    `most` bounds t, and `before` counts the iterates in the mean before the first step.
    """

    code: int
    share: float
    C: float
    step: float
    longest: float
    most: float = np.inf
    before: int = 0


@jit
def _steps(
    X: Float64Array, y: Float64Array, order: Int64Array, walk: Walk, taken: int, threshold: float,
    w: Float64Array, mean: Float64Array,
) -> float:  # fmt: skip
    """Take one step for each example in the order; w and the mean of all iterates change in place."""
    for place in range(len(order)):
        i = order[place]
        number = taken + place + 1
        eta = min(walk.step / np.sqrt(number), walk.longest)
        loss, slope = _loss(walk.code, np.dot(X[i], w), y[i])
        counts = loss > threshold
        shrink = 1.0 - eta / walk.C
        change = eta * slope if counts else 0.0
        for j in range(len(w)):
            w[j] = shrink * w[j] - change * X[i, j]
            mean[j] += (w[j] - mean[j]) / (number + walk.before)
        threshold = min(max(threshold - eta * (walk.share - (1.0 if counts else 0.0)), 0.0), walk.most)
    return threshold


@jit
def _loss(code: int, z: float, y: float) -> tuple[float, float]:
    """Return a loss and its derivative at a score."""
    if code == 0:
        loss = max(1.0 - y * z, 0.0)
        return loss, -y if loss > 0.0 else 0.0
    if code == 1 or code == _NATS:
        margin, unit = y * z, np.log(2.0) if code == 1 else 1.0
        decay = np.exp(-abs(margin))
        loss = (np.log1p(decay) + max(-margin, 0.0)) / unit
        wrong = (decay if margin > 0.0 else 1.0) / (1.0 + decay)
        return loss, -y * wrong / unit
    residual = z - y
    if code == 2:
        return residual * residual, 2.0 * residual
    return abs(residual), np.sign(residual)
