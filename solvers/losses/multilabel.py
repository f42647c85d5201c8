"""Losses of examples with a set Y of labels each.

Every label in Y should score above every label outside it.  Where Y is empty or holds all labels there is no
such pair, and the hinge is 0.  The cross entropy spreads one unit of probability evenly over Y; it is defined
for the full set, where it equalises the scores, and not for an empty one.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from topline.solvers.losses.base import Family, Labels, LossForm, LossWithoutParameters
from topline.solvers.losses.functions import conjugate_function, gradient_function
from topline.solvers.projections.columns import minus_others, own_class, own_count
from topline.solvers.projections.exponentials import exp_of_row
from topline.solvers.projections.multilabel import multilabel_entropy_column, multilabel_hinge_column
from topline.solvers.typing import Float64Array, IntArray


@conjugate_function
def _hinge_conjugate(alpha: Float64Array, y: int, sets: Float64Array) -> float:
    """Return minus the sum over the labels outside Y."""
    return minus_others(alpha, sets, y, 0.0)


@conjugate_function
def _softmax_conjugate(alpha: Float64Array, y: int, sets: Float64Array) -> float:
    """Return -<p, log p> of p = 1_Y / |Y| - alpha."""
    size = own_count(sets, y)
    value = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(alpha.shape[0] if size > 0 else 0):
        p = -alpha[j]
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            p += 1.0 / size
        if p > 0.0:
            value -= p * math.log(p)
    return value


@gradient_function
def _softmax_gradient(
    s: Float64Array, y: int, _rho: Float64Array, sets: Float64Array, u: Float64Array, work: Float64Array
) -> tuple[float, float]:
    m = s.shape[0]
    size = own_count(sets, y)
    if size == 0:
        u[:] = 0.0
        return 0.0, 0.0
    x = work[0][:m]
    highest = s[0]
    for j in range(m):
        highest = max(highest, s[j])
    for j in range(m):
        x[j] = s[j] - highest
    exp_of_row(x, u)
    total = u.sum()
    level = math.log(total)
    mean = entropy = 0.0
    place, own = 1, own_class(sets, y, 1)
    for j in range(m):
        p = u[j] / total
        entropy += p * (level - x[j])
        u[j] = -p
        if j == own:
            place += 1
            own = own_class(sets, y, place)
            u[j] += 1.0 / size
            mean += x[j] / size
    return level - mean, entropy


def _probabilities(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return alpha (b, m) with p = 1_Y / |Y| - alpha put back on the simplex.

    Scaling positive parts (the nearest point in the entropy's divergence) keeps the digits of small p.  Rows
    without labels or without a positive part become 0.
    """
    own = form.own_rows(y)
    shares = own / np.maximum(own.sum(axis=1, keepdims=True), 1)
    p = np.maximum(shares - A, 0.0)
    total = p.sum(axis=1, keepdims=True)
    there = (total > 0.0) & own.any(axis=1, keepdims=True)
    return np.where(there, shares - p / np.where(there, total, 1.0), 0.0)


_HINGE = Family(
    "multilabel_hinge", multilabel_hinge_column, _hinge_conjugate, linear=True, labels=Labels.SETS
)
_SOFTMAX = Family(
    "multilabel_softmax", multilabel_entropy_column, _softmax_conjugate, smooth=True,
    gradient=_softmax_gradient, labels=Labels.SETS, empty_sets=False, nearest=_probabilities,
)  # fmt: skip


class MultilabelHinge(LossWithoutParameters):
    """max(0, 1 + max_{j not in Y} s_j - min_{y in Y} s_y) (Crammer and Singer; Lapin's thesis, prop. 6.5).

    With smoothing > 0 it is the smooth multilabel SVM (prop. 6.6), which smooths in all m scores: for single
    labels this is the Moreau envelope of the max hinge, not the thesis's smooth multiclass SVM, which leaves
    the own class out (erratum h1).

    Examples
    --------
    >>> from topline import MultilabelHinge
    >>> MultilabelHinge().form(m=4).needs_label_sets
    True
    """

    name: ClassVar[str] = "multilabel_hinge"
    family: ClassVar[Family] = _HINGE


class MultilabelSoftmax(LossWithoutParameters):
    """The cross entropy (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y) (Lapin's thesis, prop. 6.7).

    Examples
    --------
    >>> from topline import MultilabelSoftmax
    >>> MultilabelSoftmax().form(m=4).smooth
    True
    """

    name: ClassVar[str] = "multilabel_softmax"
    family: ClassVar[Family] = _SOFTMAX
