"""The exact column update of any hinge of the family, for one row inside a loop and for many rows at once.

With the other columns fixed, q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma, the
dual in alpha_i is <b, x> - (c/2)(|x|^2 + S^2) with b_j = delta_j + q_j - q_y, x = -alpha without the own
class and S = sum x = alpha_y (mathematics, part 1, section 3).  The Moreau envelope Phi_gamma(s) (Tajima et
al., eq. 2.21; Hirohashi and Kato, eq. 31) is the value of the same problem at q = s, c = gamma.
"""

from __future__ import annotations

import math

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.jit_cache import jit
from topline.solvers.losses import Family, LossForm
from topline.solvers.projections.binary import binary_entropy, binary_hinge_column, binary_logistic_column
from topline.solvers.projections.entropic import entropic_column
from topline.solvers.projections.kinds import (
    BINARY_HINGE_KIND,
    BINARY_LOGISTIC_KIND,
    ENTROPY_KIND,
    HINGE_KIND,
    MAX_KIND,
    MULTILABEL_ENTROPY_KIND,
    MULTILABEL_HINGE_KIND,
    OTHERS_KIND,
    SUM_KIND,
    TRUNCATED_KIND,
    margin_at,
    own_class_of,
)
from topline.solvers.projections.multilabel import (
    multilabel_entropy,
    multilabel_entropy_column,
    multilabel_hinge_column,
)
from topline.solvers.projections.scaled_permutahedron import wtopk_others_column
from topline.solvers.projections.simplex import simplex_column
from topline.solvers.projections.weighted_topk import wtopk_column
from topline.solvers.projections.weighted_topk_two_curvatures import wtopk_two_curvatures_column
from topline.solvers.projections.weighted_usunier import wusunier_column
from topline.solvers.typing import Float64Array, FloatArray, Int64Array

_KINDS = {
    Family.ENTROPY: ENTROPY_KIND,
    Family.TRUNCATED_ENTROPY: TRUNCATED_KIND,
    Family.ONE_VS_ALL_HINGE: BINARY_HINGE_KIND,
    Family.ONE_VS_ALL_LOGISTIC: BINARY_LOGISTIC_KIND,
    Family.MULTILABEL_HINGE: MULTILABEL_HINGE_KIND,
    Family.MULTILABEL_ENTROPY: MULTILABEL_ENTROPY_KIND,
}
_RANKED_KINDS = {
    Family.SUM_THEN_HINGE: SUM_KIND,
    Family.HINGE_THEN_SUM: HINGE_KIND,
    Family.OTHERS_SUM_THEN_HINGE: OTHERS_KIND,
}


def _fixed(array: Float64Array) -> Float64Array:
    """Return a read-only view, so that functions are compiled once for margins from anywhere."""
    view = np.ascontiguousarray(array, dtype=np.float64).view()
    view.setflags(write=False)
    return view


#: Stands for single labels with the margins 1 - e_y.
NO_MARGINS = _fixed(np.empty((0, 0)))


def column_kind(form: LossForm) -> int:
    """Return the integer that stands for the loss; the truncated entropy has no column update.

    The top-k hinge over the others alone has the top-k simplex alpha for its domain (erratum e); with one
    rank it is the max hinge.
    """
    if form.family in _KINDS:
        return _KINDS[form.family]
    if len(form.rho) == 1:
        return MAX_KIND
    return _RANKED_KINDS[form.family]


def margins_or_empty(form: LossForm) -> Float64Array:
    """Return the margins of each y, or the table of label sets, as C-ordered, read-only float64.

    A (0, 0) array stands for single labels with the margins 1 - e_y.
    """
    if form.label_sets is not None:
        return _fixed(form.label_sets.table)
    if form.needs_label_sets:
        raise InvalidProblemError(
            f"the loss {form.family.value} works on label sets, which are not given; give them"
        )
    return NO_MARGINS if form.margins is None else _fixed(form.margins)


@jit
def violations(q: FloatArray, y: int, margins: Float64Array, out: Float64Array) -> None:
    """Write b_j = delta_j + q_j - q_y to out (m,); `margins` is (m, m), or empty for 1 - e_y."""
    own = q[y]
    if margins.shape[0] == 0:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + 1.0
    else:
        for j in range(q.shape[0]):
            out[j] = (q[j] - own) + margins[y, j]
    out[y] = 0.0


@jit
def column_update(
    kind: int,
    q: FloatArray,
    y: int,
    c: float,
    c_own: float,
    rho: Float64Array,
    margins: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
    guess: float,
) -> tuple[float, int, bool]:
    """Write the optimal dual row of one example to `out`; made for the inner loop of other functions.

    Parameters
    ----------
    kind : from `column_kind`.
    q : (m,) scores of the example without its own contribution.
    y : own class, or the number of a label set.
    c : curvature K_ii / (lambda n) + gamma >= 0 of |x|^2; 0 gives a maximising vertex.
    c_own : curvature of S^2, c or, with a smoothing of the other classes only (Lapin's thesis, prop. 6.2),
        K_ii / (lambda n).
    rho : (L,) positive, non-increasing.
    margins : from `margins_or_empty`.
    out : (m,) receives alpha; it may not be part of the buffers.
    work, index_work : from `column_workspace(m)`.
    guess : first value that an earlier call for this example returned, or -1.

    Returns
    -------
    (value to pass as `guess` next time, number of classes other than y with mass, whether alpha is a vertex
    of the domain).  A column that stays at one vertex is a candidate for shrinking.
    """
    if kind == BINARY_HINGE_KIND:
        return binary_hinge_column(q, y, c, c_own, margins, out)
    if kind == BINARY_LOGISTIC_KIND:
        return binary_logistic_column(q, y, c, c_own, margins, out)
    if kind == MULTILABEL_HINGE_KIND:
        return multilabel_hinge_column(q, y, c, margins, out, work, index_work)
    if kind == MULTILABEL_ENTROPY_KIND:
        return multilabel_entropy_column(q, y, c, margins, out, work)
    b = work[5][: q.shape[0]]
    if kind == ENTROPY_KIND:
        for j in range(q.shape[0]):
            b[j] = q[j] - q[y]
        t, _ = entropic_column(b, y, c, len(rho), out, work, np.nan if guess == -1.0 else guess)
        return t, q.shape[0] - 1, False
    violations(q, y, margins, b)
    if kind == MAX_KIND:
        return simplex_column(b, y, c, c_own, rho[0], out, work, index_work)
    if kind == HINGE_KIND:
        return wusunier_column(b, y, c, c_own, rho, out, work, index_work)
    if kind == OTHERS_KIND:
        return wtopk_others_column(b, y, c, c_own, rho, out, work, index_work, guess)
    if c_own == c:
        return wtopk_column(b, y, c, rho, out, work, index_work, guess)
    return wtopk_two_curvatures_column(b, y, c, c_own, rho, out, work, index_work, guess)


@jit
def minus_conjugate(kind: int, alpha: Float64Array, y: int, margins: Float64Array) -> float:
    """Return -Phi*(-alpha) of a dual row (m,) inside its domain.

    -<delta, alpha> for the hinges; -sum x log x - p log p with p = 1 - sum x for the entropies (Lapin's
    thesis, prop. 6.3); the sum of the binary entropies for the one-vs-all logistic loss.
    """
    if kind == MULTILABEL_ENTROPY_KIND:
        return multilabel_entropy(alpha, y, margins)
    value = 0.0
    if kind == ENTROPY_KIND:
        p = 1.0
        for j in range(len(alpha)):
            x = -alpha[j]
            if j != y and x > 0.0:
                value -= x * math.log(x)
                p -= x
        return value - p * math.log(p) if p > 0.0 else value
    if kind == BINARY_LOGISTIC_KIND:
        for j in range(len(alpha)):
            value += binary_entropy(abs(alpha[j]))
        return value
    if kind == BINARY_HINGE_KIND:
        for j in range(len(alpha)):
            value += abs(alpha[j])
        return value
    place, own = 1, own_class_of(kind, margins, y, 1)
    for j in range(len(alpha)):
        value -= margin_at(kind, margins, y, j, j == own) * alpha[j]
        if j == own:
            place += 1
            own = own_class_of(kind, margins, y, place)
    return value
