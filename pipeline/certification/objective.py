"""P of a model with weights, recomputed in float64 from what is stored."""

from __future__ import annotations

import numpy as np

from topline.pipeline.certification.dense import certified_loss
from topline.pipeline.certification.sums import CertificateSums
from topline.pipeline.rows import StoredModel

#: Rows that are scored at once.
_TILE_ROWS = 4096


def sums_of(stored: StoredModel, shape: tuple[int, ...] | None) -> CertificateSums:
    """Return the sums over no rows; with the `shape` of W they are to find a dual point as well."""
    record, sets = stored.model.record, stored.dataset().label_sets()
    loss = certified_loss(record.loss, record.m, sets)
    gamma_own = 0.0 if record.smoothing_kind == "others" else record.smoothing
    weights = np.ones(record.m if sets is None else len(sets))
    if record.class_weights is not None:
        weights = np.asarray(record.class_weights)
    product = None if shape is None else np.zeros(shape)
    return CertificateSums(loss, record.smoothing, gamma_own, weights, product=product)


def objective(stored: StoredModel) -> float:
    """Return P of the mean risk at the W of a model, over its training rows as its transforms leave them."""
    sums, rows = sums_of(stored, None), stored.rows("train")
    labels = rows.labels()
    for first, last, unit in rows.tiles():
        for start in range(first, last, _TILE_ROWS):
            stop = min(last, start + _TILE_ROWS)
            sums.add(
                unit[start - first : stop - first].astype(np.float64), labels[start:stop], None, stored.W
            )
    return 0.5 * stored.model.record.lam * float(np.vdot(stored.W, stored.W)) + sums.loss_sum / sums.rows
