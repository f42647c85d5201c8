"""The paper's stochastic gradient descent, eq. 4: the baseline that the exact methods replace.

A step draws an example and, with eta_t = step / sqrt(t),

    w <- w - eta_t (l'(z_i) x_i [l_i > t] + w / C_3),    t <- [t - eta_t (k/n - [l_i > t])]_+,

on eq. 3, whose C_3 is C n/k here (`aggregates`).  It keeps no dual variables and cannot say how far it got;
`certify` can.  The authors' released code differs in this: w starts anywhere in [0, 1]^d and t at l_[k+1],
steps are C_3 times longer, and with the hinge t <= 1: where it has not converged that decides its end.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, eq. 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from tests.reproduce.average_top.certificates import certify
from topline.solvers.average_top.problem import (
    Absolute,
    AverageTopProblem,
    C_to_equation_3,
    Hinge,
    Logistic,
    Square,
)
from topline.solvers.core.rows import is_sparse
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import jit
from topline.solvers.typing import Float64Array, Int64Array

#: Losses by number, as the compiled steps know them.
_CODES: Mapping[str, int] = MappingProxyType(
    {Hinge.name: 0, Logistic.name: 1, Square.name: 2, Absolute.name: 3}
)


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
    X, code = np.ascontiguousarray(problem.X), _CODES[problem.loss.name]
    share, C = problem.k / problem.n, C_to_equation_3(problem.C, problem.k, problem.n)
    w, mean, threshold = np.zeros(problem.d), np.zeros(problem.d), 0.0
    for epoch in range(epochs):
        order = generator.permutation(problem.n)
        threshold = _steps(X, problem.y, order, code, share, C, step, epoch * problem.n, threshold, w, mean)
    return mean if averaged else w, threshold


@jit
def _steps(
    X: Float64Array,
    y: Float64Array,
    order: Int64Array,
    code: int,
    share: float,
    C: float,
    step: float,
    taken: int,
    threshold: float,
    w: Float64Array,
    mean: Float64Array,
) -> float:
    """Take one step for each example in the order; w and the mean of all iterates change in place."""
    for place in range(len(order)):
        i = order[place]
        number = taken + place + 1
        eta = min(step / np.sqrt(number), C)
        loss, slope = _loss(code, np.dot(X[i], w), y[i])
        counts = loss > threshold
        shrink = 1.0 - eta / C
        change = eta * slope if counts else 0.0
        for j in range(len(w)):
            w[j] = shrink * w[j] - change * X[i, j]
            mean[j] += (w[j] - mean[j]) / number
        threshold = max(threshold - eta * (share - (1.0 if counts else 0.0)), 0.0)
    return threshold


@jit
def _loss(code: int, z: float, y: float) -> tuple[float, float]:
    """Return a loss and its derivative at a score."""
    if code == 0:
        loss = max(1.0 - y * z, 0.0)
        return loss, -y if loss > 0.0 else 0.0
    if code == 1:
        margin = y * z
        decay = np.exp(-abs(margin))
        loss = (np.log1p(decay) + max(-margin, 0.0)) / np.log(2.0)
        wrong = (decay if margin > 0.0 else 1.0) / (1.0 + decay)
        return loss, -y * wrong / np.log(2.0)
    residual = z - y
    if code == 2:
        return residual * residual, 2.0 * residual
    return abs(residual), np.sign(residual)
