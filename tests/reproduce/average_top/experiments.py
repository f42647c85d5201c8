"""The experiments of the paper's section 4 as pure functions: splits, grids, and what they select.

Examples come as arrays (n, d) without a constant feature; every function standardises the columns by its
training rows, appends the constant, and needs no other preparation.  A seed decides everything.

Differences from the paper.  It trains with stochastic gradients (1000 epochs), this with certified optima, so
that "maximum" is the maximum loss itself and not where an unfinished run stood; `Descent` is the paper's way.
At k below the noise the optimum is w = 0, which says nothing about any example; `Ties` is what that counts.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tests.reproduce.average_top.stochastic import descend
from topline.solvers.average_top.problem import AverageTopProblem, IndividualLoss, LowerBound, individual_loss
from topline.solvers.average_top.solving import solve_problem
from topline.solvers.core.state import Objective
from topline.solvers.typing import Float64Array, Int64Array

#: A score of 0 is an error, as in the paper's 0-1 loss; or it stands for the larger class in training.
Ties: TypeAlias = Literal["error", "majority"]
#: How many decades the grid of C grows where the best C is at its end.
_EXTENSIONS = 3
_TOL = 1e-6
_ROUNDS = 200


#: w = 0 is the optimum where a bound shows it to this share.
_ZERO = 1e-9
#: Makes rows of features, of which the training rows are known.
Scale: TypeAlias = Callable[[Float64Array, Int64Array], Float64Array]
#: Gives w and whether it is 0 for want of an optimum elsewhere.
Trainer: TypeAlias = Callable[[AverageTopProblem], tuple[Float64Array, bool]]


@dataclass
class Optimum:
    """Train to a relative gap of 1e-6, for every k and C of the same examples and loss.

    What showed once that w = 0 is the optimum shows it for each smaller C and k: `known` remembers it.
    """

    known: LowerBound | None = None

    def __call__(self, problem: AverageTopProblem) -> tuple[Float64Array, bool]:
        """Give the optimum."""
        if self.known is not None:
            bound = problem.lower_bound(self.known.u, self.known.b, self.known.p).value
            if Objective(problem.at_zero, bound).relative_gap <= _ZERO:
                return np.zeros(problem.d), True
        result = solve_problem(problem, "auto", _TOL, _ROUNDS)
        if result.collapsed:
            self.known = result.bound
        return result.w, result.collapsed


@dataclass(frozen=True)
class Descent:
    """Train with the stochastic gradients of eq. 4, whose ends are not optima."""

    epochs: int = 200
    step: float = 0.1
    seed: int = 0

    def __call__(self, problem: AverageTopProblem) -> tuple[Float64Array, bool]:
        """Give the mean of the iterates."""
        return descend(problem, self.epochs, self.step, self.seed)[0], False


@dataclass(frozen=True, eq=False)
class Split:
    """Places of the rows of each part."""

    train: Int64Array
    validation: Int64Array
    test: Int64Array

    @classmethod
    def random(cls, n: int, seed: int) -> Split:
        """Give 50 %, 25 % and 25 % of n rows, drawn at random."""
        order = np.random.default_rng(seed).permutation(n)
        first, second = n // 2, n // 2 + n // 4
        return cls(order[:first], order[first:second], order[second:])


@dataclass(frozen=True)
class Choice:
    """What validation selected for one aggregate, and how it does on the test rows.

    `test` and `validation` are shares of misclassified rows, or root mean squared errors; `collapsed` says
    that the weights are zero.
    """

    k: int
    C: float
    validation: float
    test: float
    collapsed: bool


@dataclass(frozen=True)
class Comparison:
    """One split of Table 1 or 2: the maximum (k = 1), the average (k = n) and the best k.

    `average_top` is `average` or `maximum` itself where validation prefers these.
    """

    maximum: Choice
    average: Choice
    average_top: Choice


def grid_of_C() -> tuple[float, ...]:
    """Give 10^-5, 10^-4, ..., 10^5, the paper's grid."""
    return tuple(10.0**power for power in range(-5, 6))


def grid_of_k(n: int, count: int = 10) -> tuple[int, ...]:
    """Give about `count` whole numbers from 1 to n, evenly spaced in their logarithms, both ends included."""
    return tuple(sorted({*np.unique(np.rint(np.geomspace(1, n, count))).astype(int).tolist(), 1, n}))


def to_unit_interval(y: Float64Array) -> Float64Array:
    """Give targets shifted and scaled to [0, 1], as in Table 2; a constant becomes 0."""
    low, width = float(y.min()), float(np.ptp(y))
    return np.asarray((y - low) / (width if width > 0.0 else 1.0))


def compare(
    X: Float64Array,
    y: Float64Array,
    loss: Any,
    seed: int,
    *,
    Cs: Sequence[float] | None = None,
    ks: Sequence[int] | None = None,
    ties: Ties = "majority",
    train: Trainer | None = None,
    scale: Scale | None = None,
    on_test: bool = False,
) -> Comparison:
    """Run one random split of Table 1 ("hinge", "logistic") or Table 2 ("square", "absolute").

    X (n, d) features; y (n,) -1 and 1, or targets in [0, 1].  Every k of the grid is trained at every C on
    half of the rows; a quarter selects, the last quarter judges.  Where the best C of a k is an end of the
    grid the grid goes on, three decades at most.  Equals go to the smaller C and the larger k.  `train` is
    ``Optimum()`` or ``Descent(epochs, step)``; `scale` is `prepared` unless said otherwise; `on_test` lets
    the test rows select, to see what that would do.
    """
    loss = individual_loss(loss)
    split = Split.random(len(y), seed)
    if on_test:
        split = Split(split.train, split.test, split.test)
    table = _Table.of(X, y, loss, split, ties, train or Optimum(), scale or prepared)
    # What collapses at one k does so at all smaller ones, and is known by then.
    falling = sorted(ks or grid_of_k(len(split.train)), reverse=True)
    chosen = {k: table.best_of(k, Cs or grid_of_C()) for k in falling}
    largest, smallest = max(chosen), min(chosen)
    best = min(sorted(chosen, reverse=True), key=lambda k: chosen[k].validation)
    return Comparison(maximum=chosen[smallest], average=chosen[largest], average_top=chosen[best])


def error_by_k(
    X: Float64Array,
    y: Float64Array,
    loss: Any,
    seed: int,
    *,
    C: float = 100.0,
    ks: Sequence[int] | None = None,
    ties: Ties = "majority",
    train: Trainer | None = None,
) -> tuple[tuple[int, float], ...]:
    """Give (k, error on the test rows) at a fixed C for one split: a line of figure 3."""
    split = Split.random(len(y), seed)
    table = _Table.of(X, y, individual_loss(loss), split, ties, train or Optimum(), prepared)
    falling = sorted(ks or grid_of_k(len(split.train), 20), reverse=True)
    return tuple(sorted((k, table.trained(k, C).test) for k in falling))


@dataclass(frozen=True, eq=False)
class _Table:
    """One split, ready for training."""

    problem: AverageTopProblem
    measure: Callable[[Float64Array], tuple[float, float]]
    train: Trainer

    @classmethod
    def of(
        cls, X: Any, y: Any, loss: IndividualLoss, split: Split, ties: Ties, train: Trainer, scale: Scale
    ) -> _Table:
        rows = scale(np.asarray(X, dtype=np.float64), split.train)
        y = np.asarray(y, dtype=np.float64)
        majority = 1.0 if y[split.train].sum() >= 0.0 else -1.0
        tie = majority if ties == "majority" else 0.0

        def measure(w: Float64Array) -> tuple[float, float]:
            parts = (split.validation, split.test)
            if loss.binary:
                first, second = (misclassification(rows[part] @ w, y[part], tie) for part in parts)
            else:
                first, second = (root_mean_square(rows[part] @ w - y[part]) for part in parts)
            return first, second

        # k and C come later; every pair is checked when the problem is made.
        return cls(AverageTopProblem.of(rows[split.train], y[split.train], loss, 1, 1.0), measure, train)

    def trained(self, k: float, C: float) -> Choice:
        """Train with one k and C, and measure."""
        problem = AverageTopProblem.of(self.problem.X, self.problem.y, self.problem.loss, k, C)
        w, collapsed = self.train(problem)
        validation, test = self.measure(w)
        return Choice(int(k), C, validation, test, collapsed)

    def best_of(self, k: int, Cs: Sequence[float]) -> Choice:
        """Give the choice of C for one k."""
        tried = [self.trained(k, C) for C in sorted(Cs, reverse=True)][::-1]
        for _ in range(_EXTENSIONS):
            best = min(tried, key=lambda choice: choice.validation)
            if len(tried) == 1:
                break
            if best is tried[0] and best.validation < tried[1].validation:
                tried.insert(0, self.trained(k, best.C / 10.0))
            elif best is tried[-1]:
                tried.append(self.trained(k, best.C * 10.0))
            else:
                break
        return min(tried, key=lambda choice: choice.validation)


def prepared(X: Float64Array, train: Int64Array) -> Float64Array:
    """Give the columns of X (n, d) standardised by the training rows, and a last one of ones."""
    spread = X[train].std(axis=0)
    scaled = (X - X[train].mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    return np.column_stack([scaled, np.ones(len(X))])


def as_they_are(X: Float64Array, _train: Int64Array) -> Float64Array:
    """Give X (n, d) with a last column of ones."""
    return np.column_stack([X, np.ones(len(X))])


def in_unit_box(X: Float64Array, train: Int64Array) -> Float64Array:
    """Give the columns of X (n, d) in [-1, 1] on the training rows, and a last one of ones."""
    low, high = X[train].min(axis=0), X[train].max(axis=0)
    return as_they_are(2.0 * (X - low) / np.where(high > low, high - low, 1.0) - 1.0, train)


def misclassification(scores: Float64Array, y: Float64Array, tie: float = 0.0) -> float:
    """Give the share of scores (n,) on the wrong side of 0.

    A score of exactly 0 counts as the class `tie`, -1 or 1; for 0 as neither, so that it is an error, as in
    the paper's 0-1 loss [y f <= 0]; its released code takes 0 for the class 1.  Only a collapsed solution has
    many of them, and there this decides all.
    """
    return float(np.mean(np.where(scores == 0.0, tie, np.sign(scores)) != y))


def root_mean_square(residuals: Float64Array) -> float:
    """Give the root of the mean square of the residuals (n,)."""
    return float(np.sqrt(np.mean(residuals**2)))


def sinc(
    generator: np.random.Generator, n: int = 1000, noise: float = 0.1, centres: int = 10
) -> tuple[Float64Array, Float64Array]:
    """Give X (n, centres) and y (n,): sin(x)/x on [-10, 10] with normal noise, seen by radial functions.

    A linear function of x alone explains none of it, so that x is seen through exp(-(x - c)^2 / 8) at evenly
    spaced centres c.
    """
    x = generator.uniform(-10.0, 10.0, n)
    y = np.sinc(x / np.pi) + noise * generator.standard_normal(n)
    places = np.linspace(-10.0, 10.0, centres)
    return np.exp(-((x[:, None] - places) ** 2) / 8.0), y
