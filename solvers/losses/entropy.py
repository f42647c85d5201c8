"""The softmax loss and its top-k relative, which are smooth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.jit_cache import jit
from topline.solvers.losses.base import LossOfK, LossWithoutParameters, rank_form
from topline.solvers.losses.batches import nearest_by_column
from topline.solvers.losses.form import Curvature, Family, LossForm
from topline.solvers.losses.functions import column_function, conjugate_function
from topline.solvers.losses.rank_weights import flat
from topline.solvers.losses.softmax_rows import softmax_rows
from topline.solvers.losses.topk_others import OTHERS_SUM_THEN_HINGE
from topline.solvers.projections.entropic import entropic_column
from topline.solvers.typing import Float64Array, FloatArray, IntArray

#: A class whose share is below the cap by less than this share of it is at the cap.
_AT_CAP = 1e-4


@column_function
def _column(
    q: Any, y: Any, c: Any, _c: Any, rho: Any, _m: Any, out: Any, work: Any, _i: Any, single: Any
) -> Any:
    entropic_column(q, y, c, len(rho), out, work, single)
    return 0.0, q.shape[0] - 1, False


@conjugate_function
def _conjugate(alpha: Any, y: Any, _: Any) -> Any:
    """Return -sum x log x - p log p with p = 1 - sum x (Lapin's thesis, prop. 6.3)."""
    value = total = 0.0
    for j in range(len(alpha)):
        x = -alpha[j]
        if j != y and x > 0.0:
            value -= x * math.log(x)
            total += x
    # Where p is nearly 1 the digits of its logarithm are those of what is missing.
    return value - (1.0 - total) * math.log1p(-total) if total < 1.0 else value


@jit(fastmath={"reassoc", "contract"})
def _curvature_times(
    U: FloatArray, y: IntArray, weights: Float64Array, T: FloatArray, product: FloatArray
) -> None:
    """Write w_i J_i t_i to `product` (r, m), J = diag(p) - p p^T with p = e_y - u."""
    for i in range(T.shape[0]):
        own, weight = y[i], product.dtype.type(weights[i])
        mean = np.float64(T[i, own])
        for j in range(T.shape[1]):
            mean -= U[i, j] * T[i, j]
        for j in range(T.shape[1]):
            product[i, j] = -weight * U[i, j] * (T[i, j] - mean)
        product[i, own] = weight * (product.dtype.type(1.0) - U[i, own]) * (T[i, own] - mean)


@jit
def _curvature_pairs(U: FloatArray, y: IntArray, weights: Float64Array, entries: FloatArray) -> None:
    """Write w_i J_i,jk for k <= j to `entries` (r, m (m + 1) / 2)."""
    m = U.shape[1]
    p = np.empty(m)
    for i in range(U.shape[0]):
        for j in range(m):
            p[j] = -U[i, j]
        p[y[i]] += 1.0
        at = 0
        for j in range(m):
            weighted = weights[i] * p[j]
            for k in range(j):
                entries[i, at + k] = -weighted * p[k]
            entries[i, at + j] = weighted * (1.0 - p[j])
            at += j + 1


def _nearest(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return the nearest points of the domain, which is that of the top-k hinge over the others."""
    return nearest_by_column(replace(form, family=OTHERS_SUM_THEN_HINGE), A, y)


def _open_sizes(form: LossForm, U: FloatArray) -> FloatArray:
    """Return the diagonal of J of the top-k entropy for the rows of U (b, m).

    With s = u_y the mass s moves by s (1 - s), of which class j has the share |u_j| / s.  Classes at the cap
    s / k move by that alone; the others, f together, besides among themselves as |u_j| - u_j^2 / f.
    """
    sizes = np.abs(U)
    mass = np.maximum(U.max(axis=1, keepdims=True), np.finfo(U.dtype).tiny)
    free = sizes < (1.0 - _AT_CAP) / len(form.rho) * mass
    left = np.where(free, sizes, 0.0)
    together = np.maximum(left.sum(axis=1, keepdims=True), np.finfo(U.dtype).tiny)
    with_mass = sizes * (sizes / mass) * (1.0 - mass)
    return np.asarray(np.maximum(with_mass + left * (1.0 - left / together), 0.0), dtype=U.dtype)


SOFTMAX = Family(
    "softmax", _column, _conjugate, smooth=True, gradient_rows=softmax_rows,
    curvature=Curvature(_curvature_times, _curvature_pairs), nearest=_nearest,
)  # fmt: skip
_TOPK_ENTROPY = Family(
    "topk_entropy", _column, _conjugate, smooth=True, open_sizes=_open_sizes, nearest=_nearest,
    of_one_rank=SOFTMAX,
)  # fmt: skip


class Softmax(LossWithoutParameters):
    """The cross entropy log(1 + sum_{j != y} exp(s_j - s_y)) of multinomial logistic regression.

    Examples
    --------
    >>> from topline import Softmax
    >>> Softmax().form(m=3).smooth
    True
    """

    name: ClassVar[str] = "softmax"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes."""
        return rank_form(m, SOFTMAX, flat(1), self.name)


class TopKEntropy(LossOfK):
    """The softmax loss whose dual lives in the top-k simplex of the others (Lapin's thesis, prop. 6.4).

    With k = 1 it is the softmax loss; k < m.

    Examples
    --------
    >>> from topline import TopKEntropy
    >>> TopKEntropy(k=2).form(m=4).smooth
    True
    """

    name: ClassVar[str] = "topk_entropy"

    def form(self, m: int) -> LossForm:
        """Return the loss for m > k classes."""
        return rank_form(m, _TOPK_ENTROPY, flat(self.k), self.name, of_others=True)
