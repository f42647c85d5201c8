"""Held-out rows that are nearly the same as training rows, as the photographs of a burst are."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from topline.solvers.counts import how_many
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLITS

logger = logging.getLogger(__name__)

#: A squared distance below this share of that between two rows on average is that of near copies.
_NEAR = 0.01
#: Rows of fewer columns are near each other by chance.
_LEAST_COLUMNS = 16
#: Held-out rows and numbers of the dataset that are looked at, and rows that are compared at once.
_LOOKED_AT, _NUMBERS, _AT_ONCE = 500, 1 << 25, 4096
#: So many of those, and so large a share of them, are worth a word.
_LEAST, _SHARE = 3, 0.02


def warn_of_near_copies(dataset: Dataset) -> None:
    """Warn where held-out rows are near copies of training rows, and no groups keep them together."""
    info = dataset.info
    if dataset.facts().groups is not None or info.layout != "dense" or info.d < _LEAST_COLUMNS:
        return
    split = dataset.split()
    held = np.flatnonzero(np.isin(split, [SPLITS[name] for name in ("test", "val", "calibration")]))
    trained = np.flatnonzero(split == SPLITS["train"])
    held = held[:: -(-len(held) // _LOOKED_AT) or 1]
    if not len(held) or len(trained) < 2:
        return
    step = -(-len(trained) * info.d // _NUMBERS)
    X, Y = _rows(dataset, held), _rows(dataset, trained[::step])
    mean, scale = Y.mean(axis=0), Y.std(axis=0)
    scale[scale == 0] = np.inf
    X, Y = (X - mean) / scale, (Y - mean) / scale
    nearest, companion = np.full(len(X), np.inf), np.zeros(len(X), dtype=np.int64)
    for start in range(0, len(Y), _AT_ONCE):
        part = Y[start : start + _AT_ONCE]
        square = (X**2).sum(axis=1)[:, None] + (part**2).sum(axis=1) - 2.0 * (X @ part.T)
        best, closest = square.argmin(axis=1), square.min(axis=1)
        closer = closest < nearest
        nearest[closer], companion[closer] = closest[closer], best[closer] + start
    near = np.flatnonzero(nearest < _NEAR * 2.0 * (Y**2).sum(axis=1).mean())
    if len(near) >= max(_LEAST, _SHARE * len(held)):
        ids, one = dataset.sample_ids(), int(near[np.argmin(nearest[near])])
        logger.warning(
            "%s of %s that were looked at are nearly copies of training rows, such as %s of %s: where they"
            " are of one patient, shop or burst of photographs, accuracies are too high; say with --groups"
            " which belong together",
            f"{len(near):,}",
            how_many(len(held), "held-out rows"),
            ids[int(held[one])],
            ids[int(trained[::step][companion[one]])],
        )


def _rows(dataset: Dataset, wanted: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return some rows by their ascending numbers, read chunk by chunk."""
    size = dataset.plan.chunk_rows
    parts = []
    for chunk in np.unique(wanted // size).tolist():
        start, stop = chunk * size, min((chunk + 1) * size, dataset.info.n_rows)
        parts.append(np.asarray(dataset.rows(start, stop))[wanted[wanted // size == chunk] - start])
    return np.concatenate(parts).astype(np.float32)
