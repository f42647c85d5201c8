"""The softmax loss and its top-k relative, which are smooth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from topline.solvers.losses.base import LossOfK, LossWithoutParameters, rank_form
from topline.solvers.losses.batches import nearest_by_column
from topline.solvers.losses.form import Family, LossForm
from topline.solvers.losses.functions import column_function, conjugate_function, gradient_function
from topline.solvers.losses.rank_weights import flat
from topline.solvers.losses.topk_others import OTHERS_SUM_THEN_HINGE
from topline.solvers.projections.entropic import entropic_column
from topline.solvers.projections.exponentials import exp_of_negatives
from topline.solvers.typing import Float64Array, IntArray


@column_function
def _column(
    q: Any, y: Any, c: Any, _c: Any, rho: Any, _m: Any, out: Any, work: Any, _i: Any, guess: Any
) -> Any:
    b = work[5][: q.shape[0]]
    for j in range(q.shape[0]):
        b[j] = q[j] - q[y]
    t, _ = entropic_column(b, y, c, len(rho), out, work, np.nan if guess == -1.0 else guess)
    return t, q.shape[0] - 1, False


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


@gradient_function
def _gradient(s: Any, own: Any, _rho: Any, _margins: Any, u: Any, work: Any) -> Any:
    """Write u = -grad Phi of the softmax loss, and give Phi and -Phi*(-u) = Phi + <u, s>."""
    m = len(s)
    x, powers = work[0][:m], work[1][:m]
    highest = s[0]
    for j in range(m):
        highest = max(highest, s[j])
    for j in range(m):
        x[j] = s[j] - highest
    exp_of_negatives(x, u, powers)
    total = 0.0
    for j in range(m):
        total += u[j]
    share = -1.0 / total
    for j in range(m):
        u[j] *= share
    u[own] = 0.0
    mass = entropy = 0.0
    for j in range(m):
        mass -= u[j]
        if u[j] < 0.0:
            entropy += u[j] * math.log(-u[j])
    u[own] = mass
    # Where the own class has nearly all, the digits of the loss are those of what it lacks.
    loss = -math.log1p(-mass) if mass < 0.5 else math.log(total) - x[own]
    return loss, entropy + math.exp(-loss) * loss


def _nearest(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Return the nearest points of the domain, which is that of the top-k hinge over the others."""
    return nearest_by_column(replace(form, family=OTHERS_SUM_THEN_HINGE), A, y)


SOFTMAX = Family("softmax", _column, _conjugate, smooth=True, gradient=_gradient, nearest=_nearest)
_TOPK_ENTROPY = Family(
    "topk_entropy", _column, _conjugate, smooth=True, nearest=_nearest, of_one_rank=SOFTMAX
)


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
