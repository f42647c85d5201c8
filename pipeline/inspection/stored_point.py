"""The dual point of a stored model: its problem, rows and dual variables as after training."""

from __future__ import annotations

import numpy as np

from topline.pipeline.errors import InputError
from topline.pipeline.rows import CachedRows, StoredModel, TrainingRows
from topline.pipeline.training import spec_of_model
from topline.solvers.inspection import DualPoint, trained_point
from topline.solvers.losses import loss_from_dict

#: Bytes of rows kept in memory; each pass reads the rest again.
KEPT_BYTES = 2 << 30


def stored_point(stored: StoredModel) -> DualPoint:
    """Return the dual point of a model on its training rows.

    Raises `InputError` for a model whose rows cannot be left out, with the reason and a remedy.
    """
    record = stored.model.record
    _refuse(stored)
    rows = CachedRows(TrainingRows(stored.dataset(), "train", stored.transforms), KEPT_BYTES)
    problem = spec_of_model(record).problem(record.n, rows.shape[1], record.m)
    labels = rows.labels().astype(np.int32)
    weights = rows.weights(record.class_weights)
    A = np.asarray(stored.model.duals(0, record.n)) if stored.model.has_duals else None
    return trained_point(problem, rows, labels, stored.W, A, weights)


def _refuse(stored: StoredModel) -> None:
    record = stored.model.record
    if record.multilabel:
        raise InputError(
            f"{record.id} predicts several labels per row, and inspect judges one label each: train on single"
            " labels"
        )
    if record.kernel is not None:
        raise InputError(
            f"{record.id} has the kernel {record.kernel.get('name')}, and inspect works on weights: train"
            " with the transform nystroem or fourier in its place"
        )
    if record.config.get("average_top") is not None:
        raise InputError(
            f"{record.id} minimises its largest losses, and inspect bounds what a row does to the mean of"
            " all: train without --average-top"
        )
    if not stored.W.any():
        raise InputError(
            f"W of {record.id} is 0, so it prefers no class for any row: use a larger --C, or features that"
            " tell the classes apart"
        )
    form = loss_from_dict(record.loss).form(record.m)
    if not form.convex:
        raise InputError(
            f"the loss {record.loss.get('name')} of {record.id} is not convex, so nothing bounds what a row"
            " does: train with another"
        )
    if not form.smooth and not stored.model.has_duals:
        raise InputError(
            f"the dual variables of {record.id} were not stored: train it with --keep-duals and a method that"
            " has them, such as dual_ascent"
        )
