"""The softmax loss, its top-k entropies, and its form with temperature and margin; the sum of exponentials.

Softmax gradients are computed row by row in the precision of the scores, and summed in float64.  Several rows
share the call that computes their exponentials.  With a temperature T and a margin of 1 the loss is

    T log sum_j exp(a_j / T) = max of sum x_j a_j + T H(x, 1 - sum x) over x >= 0, sum x <= 1,

so its dual row is that of the softmax at a / T and curvatures c / T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import borrowed, jit
from topline.solvers.losses.base import Curvature, Family, LossForm, LossOfK, LossWithoutParameters
from topline.solvers.losses.hinges import OTHERS_SUM_THEN_HINGE
from topline.solvers.losses.rows import (
    LossRows,
    add_to_sums,
    conjugate_function,
    gradient_function,
    is_finite,
    nearest_by_column,
    nearest_in_simplex,
    rows_between,
)
from topline.solvers.projections.columns import largest_values
from topline.solvers.projections.entropic import entropic_column, exponential_column, temperature
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: A class counts as capped if its share is within this relative distance of the cap.
_AT_CAP = 1e-4
#: Numbers per exponential call: as many rows as fit.
_AT_ONCE = 512
#: Unit roundoffs of the scores whose exact gradients, up to a factor, `softmax_rows` writes in float32: p off
#: by a factor 1 + e belongs to a score off by T e, and exponentials of x, which is cut at -87, are off by at
#: most 3 |x| + 10 roundoffs.
_ROUNDINGS = 280.0
#: Below this total of the others, the loss is computed from that total, which keeps more digits.
_NEARLY_ALL = 0.5
_ZERO = np.float64(0.0)


@conjugate_function
def _conjugate(alpha: Any, y: Any, table: Any) -> Any:
    """Return -T (sum x log x + p log p) + margin sum x, p = 1 - sum x (Lapin's thesis, prop. 6.3)."""
    value = total = 0.0
    for j in range(len(alpha)):
        x = -alpha[j]
        if j != y and x > 0.0:
            value -= x * math.log(x)
            total += x
    # Where p is nearly 1, log1p of what is missing keeps its digits.
    value = value - (1.0 - total) * math.log1p(-total) if total < 1.0 else value
    T, margin = temperature(table)
    return T * value + margin * total


@conjugate_function
def _exponential_conjugate(alpha: Any, y: Any, _: Any) -> Any:
    """Return sum x - x log x."""
    value = 0.0
    for j in range(len(alpha)):
        x = -alpha[j]
        if j != y and x > 0.0:
            value += x - x * math.log(x)
    return value


@jit(fastmath={"reassoc", "contract"})
def _curvature_times(
    U: FloatArray, y: IntArray, weights: Float64Array, table: Float64Array, T: FloatArray, product: FloatArray
) -> None:
    """Write w_i J_i t_i to `product` (r, m), J = (diag(p) - p p^T) / temperature with p = e_y - u."""
    sharp = 1.0 / temperature(table)[0]
    for i in range(T.shape[0]):
        own, weight = y[i], product.dtype.type(weights[i] * sharp)
        mean = np.float64(T[i, own])
        for j in range(T.shape[1]):
            mean -= U[i, j] * T[i, j]
        for j in range(T.shape[1]):
            product[i, j] = -weight * U[i, j] * (T[i, j] - mean)
        product[i, own] = weight * (product.dtype.type(1.0) - U[i, own]) * (T[i, own] - mean)


@jit
def _curvature_pairs(
    U: FloatArray, y: IntArray, weights: Float64Array, table: Float64Array, entries: FloatArray
) -> None:
    """Write w_i J_i,jk for k <= j to `entries` (r, m (m + 1) / 2)."""
    m, sharp = U.shape[1], 1.0 / temperature(table)[0]
    p = np.empty(m)
    for i in range(U.shape[0]):
        for j in range(m):
            p[j] = -U[i, j]
        p[y[i]] += 1.0
        at = 0
        for j in range(m):
            weighted = weights[i] * sharp * p[j]
            for k in range(j):
                entries[i, at + k] = -weighted * p[k]
            entries[i, at + j] = weighted * (1.0 - p[j])
            at += j + 1


def _nearest(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return the nearest points of the top-k simplex of the other classes."""
    return nearest_by_column(replace(form, family=OTHERS_SUM_THEN_HINGE), A, y)


def _open_sizes_at(form: LossForm, U: FloatArray) -> FloatArray:
    """Return the diagonal of J at the temperature of a form, for the sum of exponentials |u|."""
    sizes = np.abs(U)
    if not form.family.bounded:
        return sizes
    return np.asarray(np.maximum(sizes - sizes * sizes, 0.0) / form.constants[0], dtype=U.dtype)


def _open_sizes(form: LossForm, U: FloatArray) -> FloatArray:
    """Return the diagonal of J of the top-k entropy for the rows of U (b, m).

    With s = u_y the total mass moves by s (1 - s), class j taking the share |u_j| / s.  Classes at the cap s
    / k move by that alone; the others, of total mass f, also move among themselves by |u_j| - u_j^2 / f.
    """
    sizes = np.abs(U)
    mass = np.maximum(U.max(axis=1, keepdims=True), np.finfo(U.dtype).tiny)
    free = sizes < (1.0 - _AT_CAP) / len(form.rho) * mass
    left = np.where(free, sizes, 0.0)
    together = np.maximum(left.sum(axis=1, keepdims=True), np.finfo(U.dtype).tiny)
    with_mass = sizes * (sizes / mass) * (1.0 - mass)
    return np.asarray(np.maximum(with_mass + left * (1.0 - left / together), 0.0), dtype=U.dtype)


@jit
def softmax_rows(rows: LossRows) -> None:
    """Write u, Phi and -Phi*(-u) = Phi + <u, s> of the softmax loss."""
    rows = borrowed(rows)
    n, m = rows.scores.shape
    together = max(1, _AT_ONCE // m)
    shape, dtype = (together, m), rows.U.dtype
    x, e = np.empty(shape, dtype), np.empty(shape, dtype)
    for start in range(0, n, together):
        part = rows_between(rows, start, min(start + together, n))
        size = part.scores.shape[0] * m
        _below_highest(part, x)
        exp_of_row(x.ravel()[:size], e.ravel()[:size])
        _shares(x, e, part)


@jit
def _below_highest(rows: LossRows, x: FloatArray) -> None:
    """Write the scores over the temperature, that of the own class less the margin, minus their maximum."""
    scores, y, number = rows.scores, rows.y, x.dtype.type
    T, margin = temperature(rows.margins)
    sharp, lead = number(1.0 / T), number(margin)
    for i in range(scores.shape[0]):
        own = y[i]
        of_own = scores[i, own] - lead
        highest = of_own
        for j in range(own):
            highest = max(highest, scores[i, j])
        for j in range(own + 1, scores.shape[1]):
            highest = max(highest, scores[i, j])
        for j in range(scores.shape[1]):
            x[i, j] = (scores[i, j] - highest) * sharp
        x[i, own] = (of_own - highest) * sharp


@jit(fastmath={"reassoc", "contract", "nsz"})
def _shares(x: FloatArray, e: FloatArray, rows: LossRows) -> None:
    """Write u from x (scores minus their maximum) and e = exp(x), overwriting e; add to the sums."""
    y, U = rows.y, rows.U
    m, zero = x.shape[1], x.dtype.type(0.0)
    T, margin = temperature(rows.margins)
    for i in range(U.shape[0]):
        total = zero
        numbers = zero
        for j in range(m):
            total += e[i, j]
            numbers += x[i, j]
        own, exact_log = y[i], math.log(np.float64(total))
        share, log_total = x.dtype.type(1.0) / total, x.dtype.type(exact_log)
        p_own = np.float64(e[i, own]) * np.float64(share)
        e[i, own] = zero
        mass = zero
        entropy = zero
        square = zero
        for j in range(m):
            p = e[i, j] * share
            mass += p
            # log p; calling the logarithm takes as long as everything else.
            entropy -= p * (x[i, j] - log_total)
            square += p * p
            U[i, j] = -p
        U[i, own] = mass
        others = np.float64(mass)
        # Where p_y is nearly 1 the loss keeps its digits if computed from 1 - p_y.
        loss = np.float64(-math.log1p(-others)) if others < _NEARLY_ALL else exact_log - np.float64(x[i, own])
        conjugate, squares = np.float64(entropy) + p_own * loss, np.float64(square) + others * others
        loss, conjugate = T * loss, T * conjugate + margin * others
        if not is_finite(np.float64(numbers)):
            U[i, :] = zero
            loss, conjugate, squares = np.float64(np.nan), _ZERO, _ZERO
        add_to_sums(rows, i, loss, conjugate, squares)


@gradient_function
def _gradient(s: Any, own: Any, rho: Any, _: Any, u: Any, work: Any) -> Any:
    """Write minus the gradient of log(1 + sum exp(s_j - s_y)) without the k - 1 largest; return that loss."""
    m, k, x, top = len(s), len(rho), work[0], work[1]
    cut, ties = np.inf, 0
    if k > 1:
        largest_values(s, m, k, own, top)
        cut = top[k - 2]
        for i in range(k - 1):
            ties += top[i] == cut
    highest = s[own]
    for j in range(m):
        at_cut = j != own and s[j] == cut and ties > 0
        ties -= at_cut
        x[j] = -np.inf if at_cut or (j != own and s[j] > cut) else s[j]
        highest = max(highest, x[j])
    total = mass = 0.0
    for j in range(m):
        u[j] = math.exp(x[j] - highest)
        total += u[j]
    for j in range(m):
        u[j] = -u[j] / total if j != own else 0.0
        mass -= u[j]
    u[own] = mass
    return math.log(total) + (highest - s[own]), np.nan


SOFTMAX = Family(
    "softmax", entropic_column, _conjugate, smooth=True, gradient_rows=softmax_rows,
    curvature=Curvature(_curvature_times, _curvature_pairs), nearest=nearest_in_simplex,
    row_roundings=_ROUNDINGS,
)  # fmt: skip
_LDR_KL = replace(SOFTMAX, name="ldr_kl", open_sizes=_open_sizes_at)
_SUM_EXPONENTIAL = Family(
    "sum_exponential", exponential_column, _exponential_conjugate, smooth=True, open_sizes=_open_sizes_at,
    bounded=False, nearest=nearest_in_simplex,
)  # fmt: skip
_TOPK_ENTROPY = Family(
    "topk_entropy", entropic_column, _conjugate, smooth=True, open_sizes=_open_sizes, nearest=_nearest,
    of_one_rank=SOFTMAX,
)  # fmt: skip
_TRUNCATED = Family(
    "truncated_topk_entropy", None, None, smooth=True, gradient=_gradient, of_one_rank=SOFTMAX
)


@dataclass(frozen=True)
class Softmax(LossWithoutParameters):
    """The cross entropy log(1 + sum_{j != y} exp(s_j - s_y)) of multinomial logistic regression.

    Examples
    --------
    >>> from topline import Softmax
    >>> Softmax().form(m=3).smooth
    True
    """

    name: ClassVar[str] = "softmax"
    family: ClassVar[Family] = SOFTMAX


@dataclass(frozen=True)
class TopKEntropy(LossOfK):
    """The softmax loss with its dual on the top-k simplex of the other classes (Lapin's thesis, prop. 6.4).

    k < m; k = 1 gives the softmax loss.

    Examples
    --------
    >>> from topline import TopKEntropy
    >>> TopKEntropy(k=2).form(m=4).smooth
    True
    """

    name: ClassVar[str] = "topk_entropy"
    family: ClassVar[Family] = _TOPK_ENTROPY
    of_others: ClassVar[bool] = True


@dataclass(frozen=True)
class TruncatedTopKEntropy(LossOfK):
    """log(1 + sum of exp(s_j - s_y) over the m - k lowest of the others) (Lapin's thesis, section 6.2.3).

    The k - 1 highest others cost nothing, so for k > 1 the loss is not convex and has no dual problem and no
    certificate. k < m; k = 1 gives the softmax loss.

    Examples
    --------
    >>> from topline import TruncatedTopKEntropy
    >>> TruncatedTopKEntropy(k=2).form(m=4).convex
    False
    """

    name: ClassVar[str] = "truncated_topk_entropy"
    family: ClassVar[Family] = _TRUNCATED
    of_others: ClassVar[bool] = True


@dataclass(frozen=True)
class LDRKL(LossWithoutParameters):
    """T log sum_j exp(([j != y] + s_j - s_y) / T), the softmax with a margin at the temperature T > 0.

    Zhu, Ying and Yang, "Label distributionally robust losses for multi-class classification", ICML 2023, with
    a fixed temperature; T near 0 gives the max hinge.

    Examples
    --------
    >>> from topline import LDRKL
    >>> LDRKL(temperature=0.1).form(m=3).smooth
    True
    """

    temperature: float = 0.3
    name: ClassVar[str] = "ldr_kl"
    family: ClassVar[Family] = _LDR_KL

    def __post_init__(self) -> None:
        given: Any = self.temperature
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0.0 < given < math.inf:
            raise InvalidProblemError(f"temperature of {self.name} is {given!r}; give a number above 0")
        object.__setattr__(self, "temperature", float(given))

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return replace(super().form(m), constants=(self.temperature,))


@dataclass(frozen=True)
class SumExponential(LossWithoutParameters):
    """sum_{j != y} exp(s_j - s_y), a comp-sum loss.

    Mao, Mohri and Zhong, "Top-k classification and cardinality-aware prediction", arXiv:2403.19625, 2024.

    Examples
    --------
    >>> from topline import SumExponential
    >>> SumExponential().form(m=3).curved is None
    True
    """

    name: ClassVar[str] = "sum_exponential"
    family: ClassVar[Family] = _SUM_EXPONENTIAL
