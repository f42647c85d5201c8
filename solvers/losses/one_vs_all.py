"""One-vs-all losses: one binary problem per class.

Logistic gradients are computed for many rows at once in the precision of the scores, and summed in float64.
With t = -z s, z = 1 for an own class and -1 elsewhere, a class adds log(1 + exp(t)) = max(t, 0) + log(1 + e)
to the loss and z a to u, with e = exp(-|t|) and a = 1 / (1 + e) where t > 0, else e / (1 + e).  The entropy
of a is log(1 + e) + |t| e / (1 + e).

With a_j = z_j alpha_j in [0, 1] the dual in one coordinate is

    hinge      a (1 - z q) - (c/2) a^2              logistic   H(a) - a z q - (c/2) a^2

with H(a) = -a log a - (1 - a) log(1 - a), and q the score without the coordinate's own contribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.losses.base import Family, Labels, LossForm, rank_form
from topline.solvers.losses.rows import LossRows, add_to_sums, conjugate_function, is_finite, rows_between
from topline.solvers.projections.columns import ColumnProblem, column_function, minus_others, own_shares
from topline.solvers.projections.exponentials import exp_of_row, log_of_one_and
from topline.solvers.typing import Float64Array, FloatArray, IntArray

_EPS = float(np.finfo(np.float64).eps)
_MAX_STEPS = 100


@column_function
def binary_hinge_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problems of the hinge."""
    problem = borrowed(problem)
    q, out, own = problem.q, problem.out, problem.work[0][: len(problem.q)]
    own_shares(problem.margins, problem.y, own)
    # All as others first, so that the loop vectorises.
    for j in range(len(q)):
        out[j] = -_hinge_weight(1.0 + q[j], problem.c)
    support, inside = 0, 0
    for j in range(len(q)):
        if own[j] > 0.0:
            out[j] = _hinge_weight(1.0 - q[j], problem.c_own)
        support += out[j] < 0.0
        inside += 0.0 < abs(out[j]) < 1.0
    return -1.0, support, inside == 0


@jit
def _hinge_weight(slack: float, c: float) -> float:
    """Return the a in [0, 1] that maximises a slack - (c/2) a^2, 0 for no slack or NaN."""
    if not slack > 0.0:
        return 0.0
    return 1.0 if slack >= c else slack / c


@column_function
def binary_logistic_column(problem: ColumnProblem) -> tuple[float, int, bool]:
    """Solve the problems of the logistic loss."""
    problem = borrowed(problem)
    q, out, own = problem.q, problem.out, problem.work[0][: len(problem.q)]
    own_shares(problem.margins, problem.y, own)
    for j in range(len(q)):
        if own[j] > 0.0:
            out[j] = logistic_weight(-q[j], problem.c_own)
        else:
            out[j] = -logistic_weight(q[j], problem.c)
    return -1.0, len(q) - 1, False


@jit
def logistic_weight(u: float, c: float) -> float:
    """Solve log(a / (1 - a)) + c a = u for a in (0, 1), by Newton's method on v = log(a / (1 - a)).

    v + c a(v) rises and its slope 1 + c a (1 - a) is at least 1; u - c <= v <= u brackets the root.
    """
    low, high = u - c, u
    v = high if u < 0.0 else 0.5 * (low + high)
    last = math.inf
    for _ in range(_MAX_STEPS):
        a = _sigmoid(v)
        residual = v + c * a - u
        slope = 1.0 + c * a * (1.0 - a)
        if abs(residual) <= 4.0 * _EPS * (slope * abs(v) + c * a + abs(u)):
            break
        if residual > 0.0:
            high = v
        else:
            low = v
        newton = v - residual / slope
        # Where the sigmoid bends, Newton's steps can oscillate forever within the bracket.
        if not low < newton < high or abs(residual) > 0.5 * last:
            newton = 0.5 * (low + high)
            if not low < newton < high:
                break
        last = abs(residual)
        v = newton
    return _sigmoid(v)


@jit
def binary_entropy(a: float) -> float:
    """Return H(a), 0 outside (0, 1)."""
    if not 0.0 < a < 1.0:
        return 0.0
    return -a * math.log(a) - (1.0 - a) * math.log1p(-a)


@jit
def _sigmoid(v: float) -> float:
    if v >= 0.0:
        return 1.0 / (1.0 + math.exp(-v))
    e = math.exp(v)
    return e / (1.0 + e)


#: Numbers per exponential call: as many rows as fit.
_AT_ONCE = 512
_ZERO = np.float64(0.0)


@conjugate_function
def _hinge_conjugate(alpha: Any, y: Any, sets: Any) -> Any:
    """Return sum_j z_j alpha_j."""
    return minus_others(alpha, sets, y, 1.0)


@conjugate_function
def _logistic_conjugate(alpha: Any, _y: Any, _: Any) -> Any:
    """Return the sum of the binary entropies."""
    value = 0.0
    for j in range(len(alpha)):
        value += binary_entropy(abs(alpha[j]))
    return value


def _nearest(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    signs = np.where(form.own_rows(y), 1.0, -1.0)
    return np.asarray(signs * np.clip(signs * A, 0.0, 1.0))


@jit
def logistic_rows(rows: LossRows) -> None:
    """Write u, Phi and -Phi*(-u) of the one-vs-all logistic loss."""
    rows = borrowed(rows)
    n, m = rows.scores.shape
    shape, dtype = (max(1, _AT_ONCE // m), m), rows.U.dtype
    t, sizes = np.empty(shape, dtype), np.empty(shape, dtype)
    e, powers = np.empty(shape, dtype), np.empty(shape, dtype)
    for start in range(0, n, len(t)):
        some = rows_between(rows, start, min(start + len(t), n))
        size = some.scores.shape[0] * m
        # t = -z s
        t[: len(some.y)] = some.scores
        _turn_own(t, some.y, rows.margins)
        parts = t.ravel()[:size], e.ravel()[:size], sizes.ravel()[:size], powers.ravel()[:size]
        _shares(*parts)
        _write_back(e, sizes, powers, some)


@jit
def _turn_own(rows: FloatArray, y: IntArray, table: Float64Array) -> None:
    """Flip the sign of the own classes of each row."""
    for i in range(len(y)):
        if table.shape[0] == 0:
            rows[i, y[i]] = -rows[i, y[i]]
        else:
            for at in range(int(table[0, y[i]]), int(table[0, y[i] + 1])):
                rows[i, int(table[0, at])] = -rows[i, int(table[0, at])]


@jit
def _shares(t: FloatArray, a: FloatArray, loss: FloatArray, entropy: FloatArray) -> None:
    """Write a, its loss and its entropy (0 where t is not finite)."""
    one, zero = t.dtype.type(1.0), t.dtype.type(0.0)
    for j in range(len(t)):
        loss[j] = -abs(t[j])
    exp_of_row(loss, a)
    log_of_one_and(a, loss)
    for j in range(len(t)):
        share = one / (one + a[j])
        lesser = a[j] * share
        entropy[j] = loss[j] + abs(t[j]) * lesser
        loss[j] += max(t[j], zero)
        a[j] = share if t[j] > zero else lesser


@jit(fastmath={"reassoc", "contract", "nsz"})
def _write_back(a: FloatArray, loss: FloatArray, entropy: FloatArray, rows: LossRows) -> None:
    """Write u = z a, and add to the sums."""
    U = rows.U
    zero = a.dtype.type(0.0)
    for i in range(U.shape[0]):
        all_loss = zero
        all_entropy = zero
        all_square = zero
        for j in range(U.shape[1]):
            all_loss += loss[i, j]
            all_entropy += entropy[i, j]
            all_square += a[i, j] * a[i, j]
            U[i, j] = -a[i, j]
        row_loss, row_entropy, square = np.float64(all_loss), np.float64(all_entropy), np.float64(all_square)
        if not is_finite(row_entropy):
            U[i, :] = zero
            row_loss, row_entropy, square = np.float64(np.nan), _ZERO, _ZERO
        add_to_sums(rows, i, row_loss, row_entropy, square)
    _turn_own(U, rows.y, rows.margins)


_HINGE = Family(
    "one_vs_all_hinge", binary_hinge_column, _hinge_conjugate, linear=True, labels=Labels.ANY,
    balanced=False, own_margin=-1.0, binary_hinges=True, nearest=_nearest,
)  # fmt: skip
_LOGISTIC = Family(
    "one_vs_all_logistic", binary_logistic_column, _logistic_conjugate, smooth=True, labels=Labels.ANY,
    balanced=False, gradient_rows=logistic_rows, by_class=True, nearest=_nearest,
)  # fmt: skip
_FAMILIES = MappingProxyType({"hinge": _HINGE, "logistic": _LOGISTIC})


@dataclass(frozen=True)
class OneVsAll:
    """sum_j phi(z_j s_j) with z_y = 1 and z_j = -1 elsewhere: m independent binary problems.

    `base` is "hinge", phi(z) = max(0, 1 - z), or "logistic", phi(z) = log(1 + exp(-z)).  The hinge with
    smoothing > 0 is the smooth hinge of Lapin's thesis (section 6.2.1).

    Examples
    --------
    >>> from topline import OneVsAll
    >>> OneVsAll("logistic").name
    'one_vs_all_logistic'
    """

    base: str = "hinge"

    def __post_init__(self) -> None:
        if self.base not in _FAMILIES:
            raise InvalidProblemError(f"the base of one-vs-all is {self.base!r}; use hinge or logistic")

    @property
    def name(self) -> str:
        """Name in configurations and model records."""
        return f"one_vs_all_{self.base}"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return rank_form(m, _FAMILIES[self.base], np.ones(1), self.name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name}
