"""Dual rows that rounding left a little outside their domain, put back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from solvers.losses import Family, LossForm
from solvers.projections.batches import column_updates
from solvers.typing import Float64Array, IntArray

_FAR = 2.0**40
_TINY = 1e-200


def nearest_rows(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Give points of the domain at, or within rounding of, the rows A (b, m) of float64.

    It is the column problem whose free solution the row is.  An entropy has the domain of the top-k hinge
    over the others.
    """
    own = np.take_along_axis(A, y[:, None].astype(np.int64), axis=1)
    if form.family in {Family.ONE_VS_ALL_HINGE, Family.ONE_VS_ALL_LOGISTIC}:
        signs = -np.ones_like(A)
        np.put_along_axis(signs, y[:, None].astype(np.int64), 1.0, axis=1)
        return np.asarray(signs * np.clip(signs * A, 0.0, 1.0))
    if form.family is Family.ENTROPY:
        form = replace(form, family=Family.OTHERS_SUM_THEN_HINGE)
    # Far above the margins, which the column problem adds again, a small row keeps its digits.
    c = _FAR / np.maximum(own, _TINY)
    return column_updates(form, c * (own - A) - form.margin_rows(y), y, c[:, 0])
