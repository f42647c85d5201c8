"""The smooth losses: softmax and its top-k relatives."""

from __future__ import annotations

from typing import ClassVar

from topline.solvers.losses.base import Family, LossForm, LossOfK, LossWithoutParameters, rank_form
from topline.solvers.losses.rank_weights import flat


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
        return rank_form(m, Family.ENTROPY, flat(1), self.name)


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
        return rank_form(m, Family.ENTROPY, flat(self.k), self.name, of_others=True)


class TruncatedTopKEntropy(LossOfK):
    """log(1 + sum of exp(s_j - s_y) over the m - k lowest of the others) (Lapin's thesis, section 6.2.3).

    The k - 1 highest others cost nothing, however high they are, so the loss is not convex: there is no dual
    problem and no certificate.  With k = 1 it is the softmax loss, which has both; k < m.

    Examples
    --------
    >>> from topline import TruncatedTopKEntropy
    >>> TruncatedTopKEntropy(k=2).form(m=4).convex
    False
    """

    name: ClassVar[str] = "truncated_topk_entropy"

    def form(self, m: int) -> LossForm:
        """Return the loss for m > k classes."""
        family = Family.TRUNCATED_ENTROPY if self.k > 1 else Family.ENTROPY
        return rank_form(m, family, flat(self.k), self.name, of_others=True)
