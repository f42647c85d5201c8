"""Losses of examples that have a set Y of labels each.

The score of every label in Y should exceed that of every label outside it.  Where Y is empty or holds all
labels there is no such pair, and the hinge is 0.  The cross entropy shares one unit of probability among the
labels of Y: it exists for all labels, where it makes scores equal, and not for an empty set.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import LossWithoutParameters, rank_form
from topline.solvers.losses.form import Family, Labels, LossForm
from topline.solvers.losses.functions import column_function, conjugate_function, gradient_function
from topline.solvers.projections.multilabel import (
    multilabel_entropy,
    multilabel_entropy_column,
    multilabel_hinge_column,
    multilabel_softmax_row,
)
from topline.solvers.projections.own_classes import minus_others
from topline.solvers.typing import Float64Array, IntArray


@column_function
def _hinge_column(
    q: Any, y: Any, c: Any, _c: Any, _r: Any, sets: Any, out: Any, work: Any, index_work: Any, _: Any
) -> Any:
    return multilabel_hinge_column(q, y, c, sets, out, work, index_work)


@conjugate_function
def _hinge_conjugate(alpha: Any, y: Any, sets: Any) -> Any:
    """Return minus the sum over the labels outside Y."""
    return minus_others(alpha, sets, y, 0.0)


@column_function
def _softmax_column(
    q: Any, y: Any, c: Any, _c: Any, _r: Any, sets: Any, out: Any, work: Any, _i: Any, _g: Any
) -> Any:
    return multilabel_entropy_column(q, y, c, sets, out, work)


@conjugate_function
def _softmax_conjugate(alpha: Any, y: Any, sets: Any) -> Any:
    return multilabel_entropy(alpha, y, sets)


@gradient_function
def _softmax_gradient(s: Any, y: Any, _: Any, sets: Any, u: Any, work: Any) -> Any:
    return multilabel_softmax_row(s, y, sets, u, work)


def _probabilities(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Put p = 1_Y / |Y| - alpha back where it is not negative and sums to 1.

    Nearest in the divergence of the entropy, which scales what is positive: small p keep their digits.  Rows
    without labels, and those of which nothing is positive, become 0.
    """
    own = form.own_rows(y)
    shares = own / np.maximum(own.sum(axis=1, keepdims=True), 1)
    p = np.maximum(shares - A, 0.0)
    total = p.sum(axis=1, keepdims=True)
    there = (total > 0.0) & own.any(axis=1, keepdims=True)
    return np.where(there, shares - p / np.where(there, total, 1.0), 0.0)


_HINGE = Family("multilabel_hinge", _hinge_column, _hinge_conjugate, linear=True, labels=Labels.SETS)
_SOFTMAX = Family(
    "multilabel_softmax", _softmax_column, _softmax_conjugate, smooth=True, gradient=_softmax_gradient,
    labels=Labels.SETS, empty_sets=False, nearest=_probabilities,
)  # fmt: skip


class MultilabelHinge(LossWithoutParameters):
    """max(0, 1 + max_{j not in Y} s_j - min_{y in Y} s_y) (Crammer and Singer; Lapin's thesis, prop. 6.5).

    With smoothing > 0 it is the smooth multilabel SVM (prop. 6.6), which smooths in all m scores: with single
    labels it is the Moreau envelope of the max hinge, and not the thesis's own smooth multiclass SVM, which
    leaves the own class out (erratum h1).

    Examples
    --------
    >>> from topline import MultilabelHinge
    >>> MultilabelHinge().form(m=4).needs_label_sets
    True
    """

    name: ClassVar[str] = "multilabel_hinge"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes; it works on label sets only."""
        return rank_form(m, _HINGE, np.ones(1), self.name)


class MultilabelSoftmax(LossWithoutParameters):
    """The cross entropy (1/|Y|) sum_{y in Y} log sum_j exp(s_j - s_y) (Lapin's thesis, prop. 6.7).

    With single labels it is the softmax loss.

    Examples
    --------
    >>> from topline import MultilabelSoftmax
    >>> MultilabelSoftmax().form(m=4).smooth
    True
    """

    name: ClassVar[str] = "multilabel_softmax"

    def form(self, m: int) -> LossForm:
        """Return the loss for m classes; it works on label sets only, none of them empty."""
        return rank_form(m, _SOFTMAX, np.ones(1), self.name)
