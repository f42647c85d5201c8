"""Dual rows that rounding left a little outside their domain, put back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topline.solvers.losses import Family, LossForm
from topline.solvers.projections.batches import column_updates
from topline.solvers.typing import Float64Array, IntArray

_FAR = 2.0**40
_TINY = 1e-200


def nearest_rows(form: LossForm, A: Float64Array, y: IntArray) -> Float64Array:
    """Give points of the domain at, or within rounding of, the rows A (b, m) of float64.

    It is the column problem whose free solution the row is.  An entropy has the domain of the top-k hinge
    over the others; that of several labels is nearest in its own sense, see `_probabilities`.
    """
    if form.family in {Family.ONE_VS_ALL_HINGE, Family.ONE_VS_ALL_LOGISTIC}:
        signs = np.where(form.own_rows(y), 1.0, -1.0)
        return np.asarray(signs * np.clip(signs * A, 0.0, 1.0))
    if form.family is Family.MULTILABEL_ENTROPY:
        return _probabilities(form, A, y)
    if form.family is Family.ENTROPY:
        form = replace(form, family=Family.OTHERS_SUM_THEN_HINGE)
    # Far above the margins, which the column problem adds again, a small row keeps its digits.
    if form.family is Family.MULTILABEL_HINGE:
        own, size = np.zeros((len(A), 1)), np.abs(A).max(axis=1, keepdims=True, initial=0.0)
    else:
        own = size = np.take_along_axis(A, y[:, None].astype(np.int64), axis=1)
    c = _FAR / np.maximum(size, _TINY)
    return column_updates(form, c * (own - A) - form.margin_rows(y), y, c[:, 0])


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
