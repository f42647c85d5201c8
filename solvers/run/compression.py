"""A kernel model on fewer rows: the fewest found whose objective stays within a share of the model's.

Rows are picked greedily, each time the row that most reduces the residual of W.  With f the scores of W
minus its projection on the rows so far, and k the kernel of the residual features, row j lowers the squared
distance by |f(x_j)|^2 / k(x_j, x_j).  The problem is then solved again on the span of the first r rows,
which gives the least P of any coefficients on these rows, and bisection finds the smallest r.
Source: Y. C. Pati, R. Rezaiifar, P. S. Krishnaprasad, "Orthogonal matching pursuit", 1993, in the space of
the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import is_sparse
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels import KernelExpansion
from topline.solvers.kernels.problem import MEMORY_BYTES
from topline.solvers.run.api import solve
from topline.solvers.typing import Float64Array, IntArray

#: Growth factor between two checks of the projection.
_GROWS = 1.25
#: Gap tolerance on a span as a share of the allowed loss, and the share within which two sizes are equal.
_TOL_SHARE, _CLOSE = 0.2, 0.03
#: A row is not picked if its residual features are at most this share of the whole.
_DEPENDENT = 1e-10
#: Maximal passes for training on a span.
_PASSES = 300


@dataclass(frozen=True, eq=False)
class CompressedKernel:
    """A classifier on few rows.

    Attributes
    ----------
    expansion : rows and coefficients, which score new rows.
    primal : its P over all training rows, in float64.
    of_model : P of the original model.
    """

    expansion: KernelExpansion
    primal: float
    of_model: float

    @property
    def loss(self) -> float:
        """Relative increase of P over the original model's; negative for a decrease."""
        return (self.primal - self.of_model) / abs(self.of_model)


def compress(
    expansion: KernelExpansion, X: Any, y: IntArray, problem: Problem, most_loss: float, weights: Any = None
) -> CompressedKernel:
    """Return a model on few of the expansion's rows whose P is at most (1 + most_loss) times as large.

    Parameters
    ----------
    expansion : of the trained model, such as `KernelResult.expansion`; not of a precomputed kernel.
    X, y : (n, d) all training rows and (n,) their labels; `weights` (n,) say how often each counts.
    problem : the solved problem; `KernelResult.problem` where blocks computed the kernel.
    most_loss : share of P, above 0.

    Raises InvalidProblemError for a share outside (0, 1), rows of another shape, or a loss so small that the
    rows need more than 4 GiB of memory, and UnsupportedCombinationError for a precomputed kernel or a risk
    other than the mean.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, RBFKernel, solve
    >>> from topline.solvers.run import compress
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = solve(X, y, MaxHinge(), lam=0.1, kernel=RBFKernel(0.5))
    >>> few = compress(result.expansion, X, y, result.problem, 0.01)
    >>> len(few.expansion.support), few.loss <= 0.01
    (3, True)
    """
    _refuse(expansion, X, problem, most_loss)
    rows = _Span(expansion)
    counted = np.ones(problem.n) if weights is None else np.asarray(weights, dtype=np.float64)
    scores = expansion.scores(X)
    square = float(np.vdot(expansion.coefficients, expansion.scores(expansion.rows)))
    of_model = _primal(problem, scores, square, y, counted)
    goal = (1.0 + most_loss) * of_model if of_model > 0.0 else of_model
    found, size = None, 1
    while found is None:
        size = max(size + 1, int(_GROWS * size))
        if (needed := 2 * 8 * size * (problem.n + len(expansion.support))) > MEMORY_BYTES:
            raise InvalidProblemError(
                f"a loss of {most_loss:g} takes more than {int(size / _GROWS):,} rows, and {size:,} of them"
                f" {needed / 2**30:.1f} GiB of memory where {MEMORY_BYTES / 2**30:.1f} are"
                " allowed: allow a larger loss"
            )
        size = rows.grow(size)
        whole = rows.exhausted
        projected = rows.expansion(size, rows.components[:size])
        primal = _primal(
            problem, projected.scores(X), float(np.square(rows.components[:size]).sum()), y, counted
        )
        if primal <= goal or whole:
            found = CompressedKernel(projected, primal, of_model)
    features, low = rows.features(X, size), 0
    high = size
    while high - low > max(1, _CLOSE * high):
        middle = (low + high) // 2
        W = solve(
            features[:, :middle], y, problem.loss, problem.lam, problem.smoothing, sample_weight=weights,
            smoothing_kind=problem.smoothing_kind, tol=_TOL_SHARE * most_loss, max_passes=_PASSES,
            m=problem.m, label_sets=problem.label_sets,
        ).W  # fmt: skip
        primal = _primal(problem, features[:, :middle] @ W, float(np.square(W).sum()), y, counted)
        if primal <= goal:
            high, found = middle, CompressedKernel(rows.expansion(middle, W), primal, of_model)
        else:
            low = middle
    return found


class _Span:
    """The picked rows and an orthonormal basis of their span in the space of the kernel.

    `components` (r, m) are those of W along the basis; row i of `_factor` (s, r) those of row i's features.
    """

    def __init__(self, expansion: KernelExpansion) -> None:
        rows, kernel = expansion.rows, expansion.kernel
        one_by_one = (rows[place : place + 1] for place in range(rows.shape[0]))
        self._left = np.array([kernel.matrix(row, row)[0, 0] for row in one_by_one])
        self._of, self._scores = expansion, np.array(expansion.scores(rows))
        self._floor = _DEPENDENT * float(self._left.max())
        self._factor = np.empty((len(self._left), 64))
        self.picked: list[int] = []
        self.components = np.empty((0, self._scores.shape[1]))

    @property
    def exhausted(self) -> bool:
        """Whether no remaining row would extend the span."""
        return not bool((self._left > self._floor).any())

    def grow(self, size: int) -> int:
        """Pick rows until there are `size`, or none is left; return how many there are."""
        added = []
        while len(self.picked) < size and not self.exhausted:
            squares = np.square(self._scores).sum(axis=1)
            gains = np.where(self._left > self._floor, squares / np.maximum(self._left, self._floor), -1.0)
            added.append(self._pick(int(gains.argmax())))
        self.components = np.concatenate([self.components, *added]) if added else self.components
        return len(self.picked)

    def _pick(self, row: int) -> Float64Array:
        """Add a row to the span, and return the component of W along the new direction."""
        count, rows = len(self.picked), self._of.rows
        if count == self._factor.shape[1]:
            self._factor = np.concatenate([self._factor, np.empty_like(self._factor)], axis=1)
        root = float(np.sqrt(self._left[row]))
        column = self._of.kernel.matrix(rows, rows[row : row + 1])[:, 0]
        column = (column - self._factor[:, :count] @ self._factor[row, :count]) / root
        self._factor[:, count] = column
        component = self._scores[row] / root
        self._scores -= np.outer(column, component)
        self._left = np.maximum(self._left - np.square(column), 0.0)
        self._left[row] = 0.0
        self.picked.append(row)
        return np.asarray(component[None])

    def expansion(self, size: int, W: Float64Array) -> KernelExpansion:
        """Return the model with components W (size, m) along the basis of the first `size` rows."""
        chosen = np.array(self.picked[:size], dtype=np.intp)
        C = solve_triangular(self._factor[chosen, :size], W, lower=True, trans="T")
        return replace(
            self._of, rows=self._of.rows[chosen], support=self._of.support[chosen], coefficients=np.asarray(C)
        )

    def features(self, X: Any, size: int) -> Float64Array:
        """Return the components (n, size) of rows X along the basis."""
        chosen = np.array(self.picked[:size], dtype=np.intp)
        values = self._of.kernel.matrix(X, self._of.rows[chosen])
        return np.ascontiguousarray(
            solve_triangular(self._factor[chosen, :size], values.T, lower=True, overwrite_b=True).T
        )


def _primal(
    problem: Problem, scores: Float64Array, square: float, y: IntArray, weights: Float64Array
) -> float:
    """Return P of weights with squared norm `square` and these scores (n, m)."""
    losses = problem.losses(scores.copy(), np.asarray(y, np.int32))
    return 0.5 * problem.lam * square + float(weights @ losses) / problem.n


def _refuse(expansion: KernelExpansion, X: Any, problem: Problem, most_loss: float) -> None:
    if not 0.0 < most_loss < 1.0:
        raise InvalidProblemError(f"most_loss is {most_loss!r}; give a share of the objective, such as 0.01")
    if expansion.rows is None:
        raise UnsupportedCombinationError(
            "a precomputed kernel tells no values with single rows; compress a model with another kernel"
        )
    if not problem.mean_risk:
        raise UnsupportedCombinationError(
            f"only models of the mean risk are compressed, not {problem.risk.name}"
        )
    if X.shape != (expansion.n, expansion.rows.shape[1]) or expansion.n != problem.n:
        raise InvalidProblemError(
            f"X has the shape {tuple(X.shape)}; give the {expansion.n} rows that the model was trained on"
        )
    if is_sparse(X) != is_sparse(expansion.rows):
        raise InvalidProblemError("X and the rows of the model are dense and sparse; give the training rows")
