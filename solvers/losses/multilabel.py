"""Losses of examples that have a set Y of labels each.

The score of every label in Y should exceed that of every label outside it.  Where Y is empty or holds all
labels there is no such pair, and the hinge is 0.  The cross entropy shares one unit of probability among the
labels of Y: it exists for all labels, where it makes scores equal, and not for an empty set.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from topline.solvers.losses.base import Family, LossForm, LossWithoutParameters, rank_form


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
        return rank_form(m, Family.MULTILABEL_HINGE, np.ones(1), self.name)


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
        return rank_form(m, Family.MULTILABEL_ENTROPY, np.ones(1), self.name)
