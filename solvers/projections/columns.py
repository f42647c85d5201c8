"""The exact column update of any hinge of the family, for one row inside a kernel and for many rows at once.

With the other columns fixed, q = W^T x_i - (K_ii / (lambda n)) alpha_i and c = K_ii / (lambda n) + gamma, the
dual in alpha_i is <b, x> - (c/2)(|x|^2 + S^2) with b_j = delta_j + q_j - q_y, x = -alpha without the own
class and S = sum x = alpha_y (mathematics, part 1, section 3).  The Moreau envelope Phi_gamma(s) (Tajima et
al., eq. 2.21; Hirohashi and Kato, eq. 31) is the value of the same problem at q = s, c = gamma.
"""

from __future__ import annotations

import numba as nb
import numpy as np

from solvers.errors import InvalidProblemError
from solvers.losses import Aggregate, LossForm
from solvers.projections.scaled_permutahedron import wtopk_others_column
from solvers.projections.simplex import simplex_column
from solvers.projections.weighted_topk import wtopk_column
from solvers.projections.weighted_topk_two_curvatures import wtopk_two_curvatures_column
from solvers.projections.weighted_usunier import wusunier_column
from solvers.typing import Float64Array, FloatArray, Int64Array

# What `column_kind` gives and `column_update` takes: an integer, so that it may cross into a kernel.
MAX_KIND = 0
SUM_KIND = 1
HINGE_KIND = 2
OTHERS_KIND = 3

_NO_MARGINS = np.empty((0, 0))


def column_kind(form: LossForm, *, own_in_sort: bool = True) -> int:
    """Give the integer by which `column_update` knows the loss.

    own_in_sort = False is the top-k hinge of Lapin's thesis, where only the other classes take part in the
    sort; its domain is the top-k simplex alpha (erratum e).  It needs len(rho) < m (InvalidProblemError).
    """
    if not own_in_sort and len(form.rho) > 1 and form.aggregate is Aggregate.SUM_THEN_HINGE:
        if len(form.rho) >= form.m:
            raise InvalidProblemError(
                f"{len(form.rho)} ranks are weighed but each of {form.m} classes has only {form.m - 1} others"
            )
        return OTHERS_KIND
    if len(form.rho) == 1:
        return MAX_KIND
    return SUM_KIND if form.aggregate is Aggregate.SUM_THEN_HINGE else HINGE_KIND


def margins_or_empty(form: LossForm) -> Float64Array:
    """Give the margins as C-ordered float64, or the (0, 0) array that stands for 1 - e_y in kernels."""
    return _NO_MARGINS if form.margins is None else np.ascontiguousarray(form.margins, dtype=np.float64)


@nb.njit(cache=True, nogil=True, error_model="numpy")
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


@nb.njit(cache=True, nogil=True, error_model="numpy")
def column_update(
    kind: int,
    q: FloatArray,
    y: int,
    c: float,
    rho: Float64Array,
    margins: Float64Array,
    out: Float64Array,
    work: Float64Array,
    index_work: Int64Array,
    guess: float,
) -> tuple[float, int, bool]:
    """Write the optimal dual row of one example to `out`; made for the inner loop of other kernels.

    Parameters
    ----------
    kind : from `column_kind`.
    q : (m,) scores of the example without its own contribution.
    y : own class.
    c : curvature K_ii / (lambda n) + gamma >= 0; 0 gives a maximising vertex.
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
    return column_update_two(kind, q, y, c, c, rho, margins, out, work, index_work, guess)


@nb.njit(cache=True, nogil=True, error_model="numpy")
def column_update_two(
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
    """Write the optimal dual row with curvature c of |x|^2 and another, c_own <= c, of S^2.

    This is a smoothing of the other classes only (Lapin's thesis, prop. 6.2): c = K_ii / (lambda n) + gamma,
    c_own = K_ii / (lambda n).  Everything else is as in `column_update`.
    """
    b = work[5][: q.shape[0]]
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
